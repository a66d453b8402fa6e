//! The door for tests, simulations and benchmarks: raw access to a store, around its roles. `cargo xtask tidy` checks that
//! no crate of the program uses it.

use sprag_lifecycle::RunId;

pub use crate::backend::{Backend, Candidate, Table};
pub use crate::boards::Boards;
pub use crate::columns::{Column, Kind, OneRow, Section, Statements, Type, tables};
use crate::error::Result;
use crate::handle::Store;
pub use crate::memory::{REFUSALS_KEPT, Tables};
pub use crate::retention::{Part, Retention};
pub use crate::service::ServiceTables;
pub use crate::session::{Flushed, Session};
pub use crate::triggers::Triggers;

/// The operations, as plain functions over a [`Session`].
pub mod ops {
    pub use crate::ops::*;
}

/// Returns the token that allows changing a row, for tests that simulate another process's write during a session.
pub fn writer_token() -> crate::rows::WriterOnly {
    crate::rows::WriterOnly(())
}

/// Raw access to a store.
pub trait RawStore {
    /// Reads one consistent state. It blocks for as long as the disk needs.
    fn read<T>(&self, look: impl FnOnce(&mut dyn Backend) -> Result<T>) -> Result<T>;

    /// Runs one operation in a transaction. The operation may run more than once; only the last run counts.
    fn write<T, F>(&self, operation: F) -> impl Future<Output = Result<T>> + Send
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static;

    /// Runs an operation that decides about these runs.
    fn write_on<T, F>(&self, runs: Vec<RunId>, operation: F) -> impl Future<Output = Result<T>> + Send
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static;

    /// Passes the tables of a store in memory to `look`, for checkers; `None` for other stores.
    fn with_tables<T>(&self, look: impl FnOnce(&Tables) -> T) -> Option<T>;
}

impl RawStore for Store {
    fn read<T>(&self, look: impl FnOnce(&mut dyn Backend) -> Result<T>) -> Result<T> {
        Store::read(self, look)
    }

    async fn write<T, F>(&self, operation: F) -> Result<T>
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        Store::write(self, operation).await
    }

    async fn write_on<T, F>(&self, runs: Vec<RunId>, operation: F) -> Result<T>
    where
        F: FnMut(&mut Session<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        Store::write_on(self, runs, operation).await
    }

    fn with_tables<T>(&self, look: impl FnOnce(&Tables) -> T) -> Option<T> {
        Store::with_tables(self, look)
    }
}
