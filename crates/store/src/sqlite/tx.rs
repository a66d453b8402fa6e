//! SQLite inside a transaction: the rows, by compare-and-set.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use rusqlite::{Connection, Row as Columns, ToSql};
use sprag_lifecycle::Word;

use super::memo::Memo;
use super::rows::Binder;
use super::{SqliteClock, translate};
use crate::backend::Table;
use crate::clock::Entropy;
use crate::columns::{Declared, Field, Reader, Section};
use crate::error::Result;
use crate::evaluator::SpecEvaluator;
use crate::rows::{Row, Status};

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

    /// Runs a query and reads each of its rows.
    fn each<T>(
        &self,
        sql: &str,
        bind: impl FnOnce(&mut Binder<'_, '_>),
        read: impl Fn(&Columns<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut statement = self.sql("reading", self.conn.prepare_cached(sql))?;
        let mut binder = Binder::new(&mut statement);
        bind(&mut binder);
        let mut rows = self.sql("reading", binder.query())?;
        let mut found = Vec::new();
        while let Some(columns) = self.sql("reading", rows.next())? {
            found.push(read(columns)?);
        }
        Ok(found)
    }

    /// Runs a query for whole rows: `condition` follows the statement that selects them.
    pub(super) fn rows<R: Declared>(&self, condition: &str, params: &[&dyn ToSql]) -> Result<Vec<R>> {
        let sql = format!("{} {condition}", R::statements().select);
        self.each(&sql, |binder| params.iter().for_each(|param| binder.bind(param)), |row| R::read(row))
    }

    /// Runs a query for a few columns.
    pub(super) fn list<T: Field>(&self, sql: &str, params: &[&dyn ToSql]) -> Result<Vec<T>> {
        let bind = |binder: &mut Binder<'_, '_>| params.iter().for_each(|param| binder.bind(param));
        self.each(sql, bind, |row| T::read(&mut Reader::few(sql, row)))
    }

    /// Runs a query for a few columns of at most one row.
    pub(super) fn one<T: Field>(&self, sql: &str, params: &[&dyn ToSql]) -> Result<Option<T>> {
        Ok(self.list(sql, params)?.pop())
    }

    pub(super) fn run(&self, sql: &str, params: &[&dyn ToSql]) -> Result<usize> {
        self.sql("writing", self.conn.prepare_cached(sql).and_then(|mut statement| statement.execute(params)))
    }

    /// Runs a statement whose parameters are these sections of a row. Returns the number of rows that it changed.
    pub(super) fn write<R: Declared>(&self, sql: &str, row: &R, sections: &[Section]) -> Result<usize> {
        let done = self.conn.prepare_cached(sql).and_then(|mut statement| {
            let mut binder = Binder::new(&mut statement);
            binder.sections(row, sections);
            binder.execute()
        });
        self.sql("writing", done)
    }

    /// Adds a row.
    pub(super) fn put<R: Declared>(&self, row: &R) -> Result<()> {
        self.write(&R::statements().sqlite.insert, row, &Section::ALL).map(drop)
    }

    /// Adds a row that gets its key from the database.
    pub(super) fn add<R: Declared>(&self, row: &R) -> Result<()> {
        self.write(&R::statements().sqlite.add, row, &[Section::Changes, Section::Fixed]).map(drop)
    }
}

impl<R> Table<R> for SqliteTx<'_>
where
    R: Row<Key: Field> + Declared,
{
    fn load(&mut self, key: R::Key) -> Result<Option<R>> {
        let bind = |binder: &mut Binder<'_, '_>| key.write(&mut |value| binder.bind(&value));
        Ok(self.each(&R::statements().sqlite.load, bind, |row| R::read(row))?.pop())
    }

    fn insert(&mut self, row: &R) -> Result<()> {
        self.put(row)
    }

    fn update(&mut self, row: &R, was: (Status<R>, u32)) -> Result<bool> {
        let done = self.conn.prepare_cached(&R::statements().sqlite_update).and_then(|mut statement| {
            let mut binder = Binder::new(&mut statement);
            binder.sections(row, &[Section::Changes, Section::Key]);
            binder.bind(&was.0.as_str());
            binder.bind(&was.1);
            binder.execute()
        });
        Ok(self.sql("writing", done)? == 1)
    }
}
