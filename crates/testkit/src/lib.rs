//! For tests and benchmarks alone: servers of others, started on private ports with temporary data.

mod postgres;

pub use postgres::{Database, Postgres};
