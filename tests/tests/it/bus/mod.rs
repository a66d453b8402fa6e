//! Hand-off through a real broker: messages, faults, and latency.

mod broker;
mod cluster;
mod cut_off;
mod doctor;
mod faults;
mod handoff;
mod latency;
