//! Columns: the values between a row and a database, and the errors of a value that its column cannot have.
//!
//! ```text
//!   rows! { RunRow … }                  one declaration per row                         declared.rs
//!        │ sections, names, kinds
//!        ├──▶ Statements                SELECT, INSERT, UPDATE, written once per kind   statements.rs
//!        ├──▶ write: row ──▶ Value      bound by SQLite, or gathered in PostgreSQL's arrays
//!        └──▶ read: Source ──▶ row      each field reads its own columns                fields.rs
//! ```

mod declared;
mod fields;
mod statements;

use std::borrow::Cow;

pub(crate) use declared::SentenceRow;
pub(crate) use fields::Field;
pub use statements::{OneRow, Statements};

use crate::error::{Error, Result};
use crate::words::intern;

/// One value of a column. All whole numbers are 64 bits wide, so that there are only four types.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value<'a> {
    /// A whole number.
    Int(Option<i64>),
    /// A text.
    Text(Option<Cow<'a, str>>),
    /// Yes or no. SQLite stores it as 1 or 0.
    Bool(bool),
    /// Bytes.
    Bytes(Cow<'a, [u8]>),
}

impl Value<'_> {
    /// Returns its type.
    pub(crate) fn of(&self) -> Type {
        match self {
            Value::Int(_) => Type::Int,
            Value::Text(_) => Type::Text,
            Value::Bool(_) => Type::Bool,
            Value::Bytes(_) => Type::Bytes,
        }
    }
}

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A whole number.
    Int,
    /// A text.
    Text,
    /// Yes or no.
    Bool,
    /// Bytes.
    Bytes,
}

/// The kind of a column: its type, and whether it can be empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The type of its values.
    pub of: Type,
    /// Whether it can be NULL.
    pub optional: bool,
}

impl Kind {
    pub(crate) const INT: Kind = Kind { of: Type::Int, optional: false };
    pub(crate) const TEXT: Kind = Kind { of: Type::Text, optional: false };
    pub(crate) const BOOL: Kind = Kind { of: Type::Bool, optional: false };
    pub(crate) const BYTES: Kind = Kind { of: Type::Bytes, optional: false };

    pub(crate) const fn or_null(self) -> Kind {
        Kind { of: self.of, optional: true }
    }
}

/// The part of a row to which a column belongs. The statements list the columns in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// The columns that find the row.
    Key,
    /// The columns that an `UPDATE` may change.
    Changes,
    /// The columns that stay as they were inserted.
    Fixed,
}

impl Section {
    /// The sections of a whole row, in order.
    pub(crate) const ALL: [Section; 3] = [Section::Key, Section::Changes, Section::Fixed];
}

/// A declared column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// The name in the database.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: Kind,
    /// The part of the row to which it belongs.
    pub section: Section,
}

/// A declared table.
pub struct Table {
    /// The kind of row, as errors name it.
    pub entity: &'static str,
    /// The name in the database.
    pub name: &'static str,
    /// The column of PostgreSQL alone that names the actor of the row's last transition.
    pub actor: Option<&'static str>,
    /// The statements.
    pub statements: &'static Statements,
}

/// Returns each declared table.
pub fn tables() -> Vec<Table> {
    declared::tables()
}

/// A row with a declaration.
pub(crate) trait Declared: Sized + 'static {
    /// The kind of row, as errors name it.
    const ENTITY: &'static str;
    /// The table.
    const TABLE: &'static str;
    /// The column of PostgreSQL alone that names the actor of the row's last transition.
    const ACTOR: Option<&'static str> = None;

    /// Returns its columns, in the order of the statements. They are gathered once.
    fn columns() -> Vec<Column>;
    /// Returns its statements.
    fn statements() -> &'static Statements;
    /// Gives the values of one section to `out`, in order.
    fn write<'r>(&'r self, section: Section, out: &mut dyn FnMut(Value<'r>));
    /// Reads the fields from all columns, in order.
    fn read_fields(from: &mut Reader<'_>) -> Result<Self>;

    /// Gives the values of all columns to `out`, in order.
    fn write_all<'r>(&'r self, out: &mut dyn FnMut(Value<'r>)) {
        for section in Section::ALL {
            self.write(section, out);
        }
    }

    /// Reads a row of a statement that selects all declared columns first.
    fn read(from: &dyn Source) -> Result<Self> {
        Self::read_fields(&mut Reader::of::<Self>(from))
    }
}

/// A row of a database's answer.
pub(crate) trait Source {
    /// Returns a whole number, or the reason why the column has none.
    fn int(&self, at: usize) -> Result<Option<i64>, String>;
    /// Returns a text, or the reason why the column has none.
    fn text(&self, at: usize) -> Result<Option<&str>, String>;
    /// Returns yes or no, or the reason why the column has neither.
    fn bool(&self, at: usize) -> Result<Option<bool>, String>;
    /// Returns bytes, or the reason why the column has none.
    fn bytes(&self, at: usize) -> Result<Option<&[u8]>, String>;
    /// Returns the name of a column.
    fn name(&self, at: usize) -> Option<&str>;
}

/// The rows that a statement returns, for errors.
#[derive(Clone, Copy)]
enum Asked<'r> {
    /// Rows with a declaration, and the number of their key's columns.
    Rows { entity: &'static str, keys: usize },
    /// A few columns of this statement.
    Few(&'r str),
}

/// Reads the columns of one row, one after the other.
pub(crate) struct Reader<'r> {
    from: &'r dyn Source,
    at: usize,
    asked: Asked<'r>,
}

impl<'r> Reader<'r> {
    /// Begins a row of a statement that selects all declared columns first.
    pub(crate) fn of<R: Declared>(from: &'r dyn Source) -> Self {
        Reader { from, at: 0, asked: Asked::Rows { entity: R::ENTITY, keys: R::statements().keys } }
    }

    /// Begins a row of a statement that selects a few columns.
    pub(crate) fn few(sql: &'r str, from: &'r dyn Source) -> Self {
        Reader { from, at: 0, asked: Asked::Few(sql) }
    }

    fn next<T>(&mut self, read: impl FnOnce(&'r dyn Source, usize) -> Result<T, String>) -> Result<T> {
        let value = read(self.from, self.at).map_err(|reason| self.bad(reason))?;
        self.at += 1;
        Ok(value)
    }

    pub(crate) fn opt_int(&mut self) -> Result<Option<i64>> {
        self.next(|from, at| from.int(at))
    }

    pub(crate) fn int(&mut self) -> Result<i64> {
        self.next(|from, at| from.int(at)?.ok_or_else(empty))
    }

    pub(crate) fn bool(&mut self) -> Result<bool> {
        self.next(|from, at| from.bool(at)?.ok_or_else(empty))
    }

    pub(crate) fn opt_text(&mut self) -> Result<Option<&'r str>> {
        self.next(|from, at| from.text(at))
    }

    pub(crate) fn text(&mut self) -> Result<&'r str> {
        self.next(|from, at| from.text(at)?.ok_or_else(empty))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'r [u8]> {
        self.next(|from, at| from.bytes(at)?.ok_or_else(empty))
    }

    /// Returns an error about the column that was just read.
    pub(crate) fn bad_last(&mut self, reason: String) -> Error {
        self.at -= 1;
        self.bad(reason)
    }

    /// Returns an error about an unknown word in the column that was just read.
    pub(crate) fn unknown_last(&mut self, text: &str) -> Error {
        self.at -= 1;
        let (entity, id) = self.row();
        Error::UnknownWord { entity, id, field: self.column(), text: text.to_owned() }
    }

    fn bad(&self, reason: String) -> Error {
        let (entity, id) = self.row();
        Error::BadValue { entity, id, field: self.column(), reason }
    }

    fn column(&self) -> &'static str {
        intern(self.from.name(self.at).unwrap_or("?").to_owned())
    }

    /// Returns the kind of row and its key, as far as the key can be read.
    fn row(&self) -> (&'static str, String) {
        match self.asked {
            Asked::Rows { entity, keys } => {
                let key = |at| match (self.from.int(at), self.from.text(at)) {
                    (Ok(Some(number)), _) => number.to_string(),
                    (_, Ok(Some(text))) => text.to_owned(),
                    _ => "?".to_owned(),
                };
                (entity, (0..keys).map(key).collect::<Vec<_>>().join("/"))
            }
            Asked::Few(sql) => ("a row that was asked for by", sql.to_owned()),
        }
    }
}

fn empty() -> String {
    "it is empty".into()
}
