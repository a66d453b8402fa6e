//! Servers of other projects for tests and benchmarks, started on private ports with temporary data.

mod certificates;
pub mod models;
mod postgres;

pub use certificates::Certificates;
pub use postgres::{Database, Postgres};
