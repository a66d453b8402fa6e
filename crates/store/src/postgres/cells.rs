//! Columns between Rust and PostgreSQL: one value as a parameter, many values of a column as one, and an answer's row.

use std::borrow::Cow;
use std::error::Error as StdError;

use bytes::BytesMut;
use tokio_postgres::Row as Columns;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type as SqlType};

use crate::columns::{Column as Declaration, Declared, Section, Source, Type, Value};

/// One parameter.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell<'a> {
    One(Value<'a>),
    /// For conditions over several keys.
    Ints(Vec<i64>),
}

impl<'a, T: Into<Value<'a>>> From<T> for Cell<'a> {
    fn from(value: T) -> Self {
        Cell::One(value.into())
    }
}

impl From<Vec<i64>> for Cell<'_> {
    fn from(values: Vec<i64>) -> Self {
        Cell::Ints(values)
    }
}

impl Cell<'_> {
    /// Returns the same cell with owned data, to keep it until it is sent.
    pub(super) fn into_owned(self) -> Cell<'static> {
        match self {
            Cell::One(value) => Cell::One(owned(value)),
            Cell::Ints(values) => Cell::Ints(values),
        }
    }
}

/// Returns the same value with owned data.
pub(super) fn owned(value: Value<'_>) -> Value<'static> {
    match value {
        Value::Int(value) => Value::Int(value),
        Value::Text(text) => Value::Text(text.map(|text| Cow::Owned(text.into_owned()))),
        Value::Bool(value) => Value::Bool(value),
        Value::Bytes(bytes) => Value::Bytes(Cow::Owned(bytes.into_owned())),
    }
}

type Converted = std::result::Result<IsNull, Box<dyn StdError + Sync + Send>>;

macro_rules! to_sql {
    ($of:ident, $($kind:ident),+) => {
        impl ToSql for $of<'_> {
            fn to_sql(&self, ty: &SqlType, out: &mut BytesMut) -> Converted {
                match self {
                    $($of::$kind(value) => value.to_sql(ty, out)),+
                }
            }

            // PostgreSQL refuses a value that does not fit its column.
            fn accepts(_: &SqlType) -> bool {
                true
            }

            tokio_postgres::types::to_sql_checked!();
        }
    };
}
to_sql!(Value, Int, Text, Bool, Bytes);
to_sql!(Cell, One, Ints);

/// The cells of one column over many rows: one parameter of a statement over `unnest`.
#[derive(Debug)]
pub(super) enum Column<'a> {
    Int(Vec<Option<i64>>),
    Text(Vec<Option<Cow<'a, str>>>),
    Bool(Vec<bool>),
    Bytes(Vec<Cow<'a, [u8]>>),
}
to_sql!(Column, Int, Text, Bool, Bytes);

impl<'a> Column<'a> {
    pub(super) fn new(of: Type) -> Self {
        match of {
            Type::Int => Column::Int(Vec::new()),
            Type::Text => Column::Text(Vec::new()),
            Type::Bool => Column::Bool(Vec::new()),
            Type::Bytes => Column::Bytes(Vec::new()),
        }
    }

    pub(super) fn push(&mut self, value: Value<'a>) {
        match (self, value) {
            (Column::Int(column), Value::Int(value)) => column.push(value),
            (Column::Text(column), Value::Text(value)) => column.push(value),
            (Column::Bool(column), Value::Bool(value)) => column.push(value),
            (Column::Bytes(column), Value::Bytes(value)) => column.push(value),
            (column, value) => unreachable!("a column has one type: {column:?}, {value:?}"),
        }
    }
}

/// The columns of many rows, which are filled row by row.
pub(super) struct Table<'a> {
    columns: Vec<Column<'a>>,
    next: usize,
}

impl<'a> Table<'a> {
    /// Creates the columns of some declared ones, and further ones behind them.
    pub(super) fn new(declared: &[Declaration], further: &[Type]) -> Self {
        let types = declared.iter().map(|column| column.kind.of).chain(further.iter().copied());
        Table { columns: types.map(Column::new).collect(), next: 0 }
    }

    /// Adds the next value of the present row.
    pub(super) fn push(&mut self, value: Value<'a>) {
        self.columns[self.next].push(value);
        self.next = (self.next + 1) % self.columns.len();
    }

    /// Adds some sections of a row.
    pub(super) fn sections<R: Declared>(&mut self, row: &'a R, sections: &[Section]) {
        for section in sections {
            row.write(*section, &mut |value| self.push(value));
        }
    }

    pub(super) fn into_columns(self) -> Vec<Column<'a>> {
        self.columns
    }
}

/// Returns the cells of some sections of a row, to keep them until they are sent.
pub(super) fn cells_of<R: Declared>(row: &R, sections: &[Section]) -> Vec<Value<'static>> {
    let mut cells = Vec::new();
    for section in sections {
        row.write(*section, &mut |value| cells.push(owned(value)));
    }
    cells
}

fn get<'r, T: FromSql<'r>>(columns: &'r Columns, at: usize) -> Result<Option<T>, String> {
    columns.try_get(at).map_err(|error| match error.source() {
        Some(source) => source.to_string(),
        None => error.to_string(),
    })
}

impl Source for Columns {
    fn int(&self, at: usize) -> Result<Option<i64>, String> {
        get(self, at)
    }

    fn text(&self, at: usize) -> Result<Option<&str>, String> {
        get(self, at)
    }

    fn bool(&self, at: usize) -> Result<Option<bool>, String> {
        get(self, at)
    }

    fn bytes(&self, at: usize) -> Result<Option<&[u8]>, String> {
        get(self, at)
    }

    fn name(&self, at: usize) -> Option<&str> {
        self.columns().get(at).map(tokio_postgres::Column::name)
    }
}
