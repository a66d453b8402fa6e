//! SQLite inside a transaction: the rows, by compare-and-set.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use rusqlite::{Connection, Row as Columns};

use super::memo::Memo;
use super::rows::{ReadError, Stored};
use super::{SqliteClock, translate};
use crate::backend::Table;
use crate::clock::Entropy;
use crate::error::Result;
use crate::evaluator::SpecEvaluator;
use crate::rows::Status;

/// A connection and its cache, inside a transaction.
pub(super) struct SqliteTx<'c> {
    pub(super) conn: &'c Connection,
    pub(super) memo: Rc<RefCell<Memo>>,
    pub(super) clock: &'c SqliteClock,
    pub(super) entropy: &'c dyn Entropy,
    pub(super) path: &'c Path,
    pub(super) evaluator: &'c OnceLock<Arc<dyn SpecEvaluator>>,
}

impl SqliteTx<'_> {
    pub(super) fn sql<T>(&self, action: &'static str, done: rusqlite::Result<T>) -> Result<T> {
        done.map_err(|error| translate(self.path, action, &error))
    }

    fn read<T>(&self, done: std::result::Result<T, ReadError>) -> Result<T> {
        done.map_err(|error| match error {
            ReadError::Sql(error) => translate(self.path, "reading", &error),
            ReadError::Row(error) => error,
        })
    }

    /// Runs a query for whole rows.
    pub(super) fn rows<R: Stored>(&self, sql: &str, params: &[&dyn rusqlite::ToSql]) -> Result<Vec<R>> {
        let found = (|| {
            let mut statement = self.conn.prepare_cached(sql)?;
            let mut rows = statement.query(params)?;
            let mut found = Vec::new();
            while let Some(columns) = rows.next()? {
                found.push(R::read(columns)?);
            }
            Ok(found)
        })();
        self.read(found)
    }

    /// Runs a query for a few columns.
    pub(super) fn list<T>(
        &self,
        sql: &str,
        params: &[&dyn rusqlite::ToSql],
        read: impl Fn(&Columns<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let found = (|| {
            let mut statement = self.conn.prepare_cached(sql)?;
            statement.query_map(params, |columns| read(columns))?.collect()
        })();
        self.sql("reading", found)
    }

    pub(super) fn run(&self, sql: &str, params: &[&dyn rusqlite::ToSql]) -> Result<usize> {
        self.sql("writing", self.conn.prepare_cached(sql).and_then(|mut statement| statement.execute(params)))
    }

    /// Returns the statement that selects a table's rows under a condition.
    pub(super) fn select<R: Stored>(condition: &str) -> String {
        let columns = R::LOAD.split_once(" WHERE ").map_or(R::LOAD, |(columns, _)| columns);
        format!("{columns} {condition}")
    }
}

impl<R: Stored> Table<R> for SqliteTx<'_> {
    fn load(&mut self, key: R::Key) -> Result<Option<R>> {
        let found =
            self.conn.prepare_cached(R::LOAD).map_err(ReadError::Sql).and_then(|mut s| R::load(&mut s, key));
        self.read(found)
    }

    fn insert(&mut self, row: &R) -> Result<()> {
        let done = self.conn.prepare_cached(R::INSERT).and_then(|mut s| R::insert(&mut s, row));
        self.sql("writing", done).map(drop)
    }

    fn update(&mut self, row: &R, was: (Status<R>, u32)) -> Result<bool> {
        let done = self.conn.prepare_cached(R::UPDATE).and_then(|mut s| R::update(&mut s, row, was));
        Ok(self.sql("writing", done)? == 1)
    }
}
