//! The store from outside. All tests are one program, so it is built and linked once.

mod answers;
mod bad_input;
mod boards;
mod claims;
mod common;
mod conformance;
mod contracts;
mod declared;
mod environments;
mod equality;
mod fan_out;
mod found;
mod group_commit;
mod kills;
mod labels;
mod outside;
mod postgres;
mod postgres_faults;
mod power_loss;
mod processes;
mod reservations;
mod retention;
mod service;
mod stalls;
mod tidy;
mod told;
