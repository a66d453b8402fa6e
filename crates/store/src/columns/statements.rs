//! Statements: the SQL of each kind of row, written once from its declaration.
//!
//! The `UPDATE`s here are the only statements that change a status. Each changes the status only if it still equals
//! the one that was read.

use super::{Column, Declared, Section, Type};

/// The statements of one kind of row.
pub struct Statements {
    /// The columns, in the order of all statements.
    pub columns: Vec<Column>,
    /// The number of the key's columns, which come first.
    pub keys: usize,
    /// The names of all columns, separated by commas.
    pub names: String,
    /// The statement that selects all columns, without a condition.
    pub select: String,
    /// The statements of SQLite.
    pub sqlite: OneRow,
    /// SQLite's compare-and-set: it changes the row only if status and version are unchanged. Its parameters are the
    /// changing columns, the key, the status and the version. Only rows with a status use it.
    pub sqlite_update: String,
    /// The statements of PostgreSQL about one row.
    pub postgres: OneRow,
    /// PostgreSQL's `INSERT` of any number of rows: one array for each column.
    pub postgres_insert: String,
    /// PostgreSQL's `INSERT` of any number of rows that get their keys from the database.
    pub postgres_add: String,
    /// PostgreSQL's compare-and-set over any number of rows. It fails if it finds fewer than its last parameter says.
    /// Its arrays are the key, the changing columns, the status, the version and, if rows tell it, the actor.
    pub postgres_update: String,
}

/// The statements about one row.
pub struct OneRow {
    /// The statement that finds a row by its key.
    pub load: String,
    /// The statement that adds a row.
    pub insert: String,
    /// The statement that adds a row which gets its key from the database.
    pub add: String,
    /// The statement that replaces the changing columns. Its parameters are the changing columns and the key.
    pub change: String,
}

/// Joins what a function returns for each column and its number, from `first` on.
fn join(
    columns: &[Column],
    first: usize,
    separator: &str,
    of: impl Fn(&'static str, usize) -> String,
) -> String {
    let all: Vec<String> = columns.iter().zip(first..).map(|(column, no)| of(column.name, no)).collect();
    all.join(separator)
}

fn names(columns: &[Column]) -> String {
    join(columns, 1, ", ", |name, _| name.to_owned())
}

/// Returns the arrays of some columns as PostgreSQL's parameters.
fn arrays(types: impl Iterator<Item = Type>) -> String {
    let of = |(at, of): (usize, Type)| {
        let name = match of {
            Type::Int => "bigint",
            Type::Text => "text",
            Type::Bool => "boolean",
            Type::Bytes => "bytea",
        };
        format!("${}::{name}[]", at + 1)
    };
    types.enumerate().map(of).collect::<Vec<_>>().join(", ")
}

/// Returns the statements about one row, with parameters that begin with `mark`.
fn one_row(table: &str, select: &str, columns: &[Column], keys: usize, mark: char) -> OneRow {
    let (key, rest) = columns.split_at(keys);
    let changes = changing(columns);
    let equals = |name: &str, no: usize| format!("{name} = {mark}{no}");
    let insert = |columns: &[Column]| {
        let values = join(columns, 1, ", ", |_, no| format!("{mark}{no}"));
        format!("INSERT INTO {table} ({}) VALUES ({values})", names(columns))
    };
    OneRow {
        load: format!("{select} WHERE {}", join(key, 1, " AND ", equals)),
        insert: insert(columns),
        add: insert(rest),
        change: format!(
            "UPDATE {table} SET {} WHERE {}",
            join(changes, 1, ", ", equals),
            join(key, changes.len() + 1, " AND ", equals)
        ),
    }
}

/// Returns the columns that an `UPDATE` may change.
fn changing(columns: &[Column]) -> &[Column] {
    let is = |column: &Column| column.section == Section::Changes;
    let first = columns.iter().position(is).unwrap_or(columns.len());
    let count = columns[first..].iter().take_while(|column| is(column)).count();
    &columns[first..first + count]
}

/// Returns an `INSERT` of any number of rows.
fn insert_rows(table: &str, columns: &[Column], actor: Option<&str>) -> String {
    let types = columns.iter().map(|column| column.kind.of).chain(actor.map(|_| Type::Text));
    let actor = actor.map_or(String::new(), |actor| format!(", {actor}"));
    format!("INSERT INTO {table} ({}{actor}) SELECT * FROM unnest({})", names(columns), arrays(types))
}

/// Returns the compare-and-set over any number of rows.
fn update_rows(table: &str, columns: &[Column], keys: usize, actor: Option<&str>) -> String {
    let changes = changing(columns);
    let known = &columns[..keys + changes.len()];
    let sets = join(changes, 1, ", ", |name, _| format!("{name} = n.{name}"));
    let sets_actor = actor.map_or(String::new(), |name| format!(", {name} = coalesce(n.{name}, t.{name})"));
    let types = known.iter().map(|column| column.kind.of).chain([Type::Text, Type::Int]);
    let types: Vec<Type> = types.chain(actor.map(|_| Type::Text)).collect();
    let actor = actor.map_or(String::new(), |actor| format!(", {actor}"));
    let found = join(&columns[..keys], 1, " AND ", |name, _| format!("t.{name} = n.{name}"));
    let (last, arrays) = (types.len() + 1, arrays(types.into_iter()));
    format!(
        "WITH done AS (UPDATE {table} AS t SET {sets}{sets_actor} FROM unnest({arrays}) \
         AS n ({}, was, was_version{actor}) \
         WHERE {found} AND t.status = n.was AND t.version = n.was_version RETURNING 1) \
         SELECT sprag_expect(count(*), ${last}::bigint, '{table}') FROM done",
        names(known)
    )
}

impl Statements {
    /// Writes the statements of a kind of row.
    pub(crate) fn of<R: Declared>() -> Statements {
        let (table, columns) = (R::TABLE, R::columns());
        let keys = columns.iter().take_while(|column| column.section == Section::Key).count();
        let names = names(&columns);
        let select = format!("SELECT {names} FROM {table}");
        let sqlite = one_row(table, &select, &columns, keys, '?');
        let next = changing(&columns).len() + keys + 1;
        let sqlite_update = format!("{} AND status = ?{next} AND version = ?{}", sqlite.change, next + 1);
        let postgres = one_row(table, &select, &columns, keys, '$');
        Statements {
            postgres_insert: insert_rows(table, &columns, R::ACTOR),
            postgres_add: insert_rows(table, &columns[keys..], R::ACTOR),
            postgres_update: update_rows(table, &columns, keys, R::ACTOR),
            columns,
            keys,
            names,
            select,
            sqlite,
            sqlite_update,
            postgres,
        }
    }
}
