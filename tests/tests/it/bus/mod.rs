//! Hand-off through a real broker: what is told, what becomes of it under faults, and how long it takes.

mod broker;
mod cluster;
mod cut_off;
mod doctor;
mod faults;
mod handoff;
mod latency;
