//! Columns between Rust and SQLite: values are bound in a statement's order, and read where they were selected.

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Row as Columns, Statement, ToSql};

use crate::columns::{Declared, Section, Source, Value};

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Int(Some(number)) => ValueRef::Integer(*number),
            Value::Text(Some(text)) => ValueRef::Text(text.as_bytes()),
            Value::Bool(value) => ValueRef::Integer(i64::from(*value)),
            Value::Bytes(bytes) => ValueRef::Blob(bytes),
            Value::Int(None) | Value::Text(None) => ValueRef::Null,
        }))
    }
}

/// Returns the value of a column that this version selects in every statement.
fn value<'r>(columns: &'r Columns<'_>, at: usize) -> Result<ValueRef<'r>, String> {
    columns.get_ref(at).map_err(|error| error.to_string())
}

fn wrong(value: ValueRef<'_>, wanted: &str) -> String {
    match value {
        ValueRef::Integer(number) => format!("the number {number} is not {wanted}"),
        other => format!("a value of type {} is not {wanted}", other.data_type()),
    }
}

impl Source for Columns<'_> {
    fn int(&self, at: usize) -> Result<Option<i64>, String> {
        match value(self, at)? {
            ValueRef::Integer(number) => Ok(Some(number)),
            ValueRef::Null => Ok(None),
            other => Err(wrong(other, "a whole number")),
        }
    }

    fn text(&self, at: usize) -> Result<Option<&str>, String> {
        match value(self, at)? {
            ValueRef::Text(text) => std::str::from_utf8(text).map(Some).map_err(|error| error.to_string()),
            ValueRef::Null => Ok(None),
            other => Err(wrong(other, "a text")),
        }
    }

    fn bool(&self, at: usize) -> Result<Option<bool>, String> {
        match value(self, at)? {
            ValueRef::Integer(0) => Ok(Some(false)),
            ValueRef::Integer(1) => Ok(Some(true)),
            ValueRef::Null => Ok(None),
            other => Err(wrong(other, "0 or 1")),
        }
    }

    fn bytes(&self, at: usize) -> Result<Option<&[u8]>, String> {
        match value(self, at)? {
            ValueRef::Blob(bytes) => Ok(Some(bytes)),
            ValueRef::Null => Ok(None),
            other => Err(wrong(other, "bytes")),
        }
    }

    fn name(&self, at: usize) -> Option<&str> {
        self.as_ref().column_name(at).ok()
    }
}

/// Binds a statement's parameters in order.
pub(super) struct Binder<'s, 'c> {
    statement: &'s mut Statement<'c>,
    bound: usize,
    done: rusqlite::Result<()>,
}

impl<'s, 'c> Binder<'s, 'c> {
    pub(super) fn new(statement: &'s mut Statement<'c>) -> Self {
        Binder { statement, bound: 0, done: Ok(()) }
    }

    pub(super) fn bind(&mut self, value: &dyn ToSql) {
        self.bound += 1;
        if self.done.is_ok() {
            self.done = self.statement.raw_bind_parameter(self.bound, value);
        }
    }

    /// Binds the values of some sections of a row.
    pub(super) fn sections<R: Declared>(&mut self, row: &R, sections: &[Section]) {
        for section in sections {
            row.write(*section, &mut |value| self.bind(&value));
        }
    }

    /// Runs the statement. Returns the number of rows that it changed.
    pub(super) fn execute(self) -> rusqlite::Result<usize> {
        self.bound()?.raw_execute()
    }

    /// Runs a query.
    pub(super) fn query(self) -> rusqlite::Result<rusqlite::Rows<'s>> {
        self.bound().map(Statement::raw_query)
    }

    /// Returns the statement with all its parameters. SQLite takes a parameter that was forgotten for NULL.
    fn bound(self) -> rusqlite::Result<&'s mut Statement<'c>> {
        self.done?;
        match self.statement.parameter_count() {
            count if count == self.bound => Ok(self.statement),
            count => Err(rusqlite::Error::InvalidParameterCount(self.bound, count)),
        }
    }
}
