//! Columns between Rust and PostgreSQL: a row writes its cells in one order, and reads them back in the same order.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::sync::Arc;

use bytes::BytesMut;
use tokio_postgres::Row as Columns;
use tokio_postgres::types::{IsNull, ToSql, Type};

use crate::error::{Error, Result};

/// One value. All whole numbers are BIGINT, so that there are only three kinds.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell<'a> {
    Int(Option<i64>),
    Text(Option<Cow<'a, str>>),
    Bool(bool),
    /// For conditions over several keys.
    Ints(Vec<i64>),
}

macro_rules! cell_from {
    ($($from:ty),+) => {$(
        impl From<$from> for Cell<'_> {
            fn from(value: $from) -> Self {
                Cell::Int(Some(i64::from(value)))
            }
        }
        impl From<Option<$from>> for Cell<'_> {
            fn from(value: Option<$from>) -> Self {
                Cell::Int(value.map(i64::from))
            }
        }
    )+};
}
cell_from!(i64, i32, u32);

impl From<usize> for Cell<'_> {
    fn from(value: usize) -> Self {
        Cell::Int(Some(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

/// A journal number.
impl From<u64> for Cell<'_> {
    fn from(value: u64) -> Self {
        Cell::Int(Some(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

impl From<bool> for Cell<'_> {
    fn from(value: bool) -> Self {
        Cell::Bool(value)
    }
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(value: &'a str) -> Self {
        Cell::Text(Some(Cow::Borrowed(value)))
    }
}

impl<'a> From<Option<&'a str>> for Cell<'a> {
    fn from(value: Option<&'a str>) -> Self {
        Cell::Text(value.map(Cow::Borrowed))
    }
}

impl From<Option<String>> for Cell<'_> {
    fn from(value: Option<String>) -> Self {
        Cell::Text(value.map(Cow::Owned))
    }
}

impl From<String> for Cell<'_> {
    fn from(value: String) -> Self {
        Cell::Text(Some(Cow::Owned(value)))
    }
}

impl From<Vec<i64>> for Cell<'_> {
    fn from(value: Vec<i64>) -> Self {
        Cell::Ints(value)
    }
}

impl Cell<'_> {
    /// Returns the same cell with owned data, to keep it until it is sent.
    pub(super) fn into_owned(self) -> Cell<'static> {
        match self {
            Cell::Int(value) => Cell::Int(value),
            Cell::Text(text) => Cell::Text(text.map(|text| Cow::Owned(text.into_owned()))),
            Cell::Bool(value) => Cell::Bool(value),
            Cell::Ints(values) => Cell::Ints(values),
        }
    }
}

type Converted = std::result::Result<IsNull, Box<dyn StdError + Sync + Send>>;

macro_rules! to_sql {
    ($of:ident, $($kind:ident),+) => {
        impl ToSql for $of<'_> {
            fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Converted {
                match self {
                    $($of::$kind(value) => value.to_sql(ty, out)),+
                }
            }

            // PostgreSQL refuses a value that does not fit its column.
            fn accepts(_: &Type) -> bool {
                true
            }

            tokio_postgres::types::to_sql_checked!();
        }
    };
}
to_sql!(Cell, Int, Text, Bool, Ints);

/// The cells of one column over many rows: one parameter of a statement over `unnest`.
#[derive(Debug)]
pub(super) enum Column<'a> {
    Int(Vec<Option<i64>>),
    Text(Vec<Option<Cow<'a, str>>>),
    Bool(Vec<bool>),
}
to_sql!(Column, Int, Text, Bool);

/// Converts rows of cells into columns.
pub(super) fn columns<'a>(rows: impl IntoIterator<Item = Vec<Cell<'a>>>) -> Vec<Column<'a>> {
    let mut columns: Vec<Column<'a>> = Vec::new();
    for row in rows {
        if columns.is_empty() {
            columns.extend(row.iter().map(|cell| match cell {
                Cell::Int(_) | Cell::Ints(_) => Column::Int(Vec::new()),
                Cell::Text(_) => Column::Text(Vec::new()),
                Cell::Bool(_) => Column::Bool(Vec::new()),
            }));
        }
        for (column, cell) in columns.iter_mut().zip(row) {
            match (column, cell) {
                (Column::Int(column), Cell::Int(value)) => column.push(value),
                (Column::Text(column), Cell::Text(value)) => column.push(value),
                (Column::Bool(column), Cell::Bool(value)) => column.push(value),
                (column, cell) => unreachable!("a column has one type: {column:?}, {cell:?}"),
            }
        }
    }
    columns
}

/// Reads a row's columns one after the other.
pub(super) struct Reader<'r> {
    columns: &'r Columns,
    at: usize,
}

impl<'r> Reader<'r> {
    pub(super) fn new(columns: &'r Columns) -> Self {
        Reader { columns, at: 0 }
    }

    fn next<T: tokio_postgres::types::FromSql<'r>>(&mut self) -> Result<T> {
        self.at += 1;
        self.columns.try_get(self.at - 1).map_err(|error| Error::Corrupt {
            path: "the PostgreSQL database".into(),
            reason: format!("column {:?}: {error}", self.columns.columns().get(self.at - 1)),
        })
    }

    /// Returns a number that fits the type of its field. A number that does not fit was written by another program.
    pub(super) fn int<T: TryFrom<i64>>(&mut self) -> Result<T> {
        let value: i64 = self.next()?;
        T::try_from(value).map_err(|_| self.misfit(value))
    }

    pub(super) fn opt_int<T: TryFrom<i64>>(&mut self) -> Result<Option<T>> {
        let value: Option<i64> = self.next()?;
        value.map(|value| T::try_from(value).map_err(|_| self.misfit(value))).transpose()
    }

    pub(super) fn bool(&mut self) -> Result<bool> {
        self.next()
    }

    pub(super) fn str(&mut self) -> Result<&'r str> {
        self.next()
    }

    pub(super) fn text(&mut self) -> Result<Arc<str>> {
        Ok(self.next::<&str>()?.into())
    }

    pub(super) fn opt_text(&mut self) -> Result<Option<Arc<str>>> {
        Ok(self.next::<Option<&str>>()?.map(Into::into))
    }

    fn misfit(&self, value: i64) -> Error {
        Error::Corrupt {
            path: "the PostgreSQL database".into(),
            reason: format!("{value} is no {:?}", self.columns.columns().get(self.at - 1)),
        }
    }
}
