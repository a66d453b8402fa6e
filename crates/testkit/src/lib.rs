//! Servers of other projects for tests and benchmarks, started on private ports with temporary data.

pub mod models;
mod postgres;

pub use postgres::{Database, Postgres};
