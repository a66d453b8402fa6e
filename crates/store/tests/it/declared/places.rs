//! Databases that a test changes behind their store's back.

use std::path::PathBuf;

use rusqlite::Connection;
use sprag_store::testing::{Column, Type};
use sprag_store::{FILE_NAME, Store};
use sprag_testkit::{Database, Postgres};

use super::kinds::{Kind, Literal, Sample};

/// A database with its store.
pub struct Place {
    pub name: &'static str,
    pub store: Store,
    raw: Raw,
}

/// The way around the store.
enum Raw {
    Sqlite(PathBuf),
    Postgres(Database),
}

/// Runs a test on SQLite and on PostgreSQL.
pub fn each_place(test: impl Fn(&Place)) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    test(&Place { name: "sqlite", store, raw: Raw::Sqlite(folder.path().join(FILE_NAME)) });
    let database = Postgres::shared().database();
    let store = Store::open_postgres(&database.url).unwrap();
    test(&Place { name: "postgres", store, raw: Raw::Postgres(database) });
}

impl Place {
    pub fn is_sqlite(&self) -> bool {
        matches!(self.raw, Raw::Sqlite(_))
    }

    /// Returns the folder or the address with which a store is opened.
    pub fn at(&self) -> PathBuf {
        match &self.raw {
            Raw::Sqlite(file) => file.parent().expect("a folder").to_owned(),
            Raw::Postgres(database) => database.url.as_str().into(),
        }
    }

    /// Whether its executions have a column for the actor that moved them last.
    pub fn tells_actor(&self) -> bool {
        !self.is_sqlite()
    }

    /// Runs a script behind the store's back.
    pub fn run(&self, script: &str) {
        match &self.raw {
            Raw::Sqlite(file) => {
                let connection = Connection::open(file).unwrap();
                connection.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
                connection.execute_batch(script).unwrap_or_else(|e| panic!("{script}: {e}"));
            }
            Raw::Postgres(database) => {
                let script =
                    format!("SET search_path TO {}; SET sprag.actor TO 'worker'; {script}", database.schema);
                Postgres::shared().sql(&script);
            }
        }
    }

    /// Returns the lines of a query for one column of texts.
    pub fn lines(&self, sql: &str) -> Vec<String> {
        match &self.raw {
            Raw::Sqlite(file) => {
                let connection = Connection::open(file).unwrap();
                let mut statement = connection.prepare(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
                let found = statement.query_map([], |row| row.get(0)).unwrap();
                found.collect::<Result<_, _>>().unwrap()
            }
            Raw::Postgres(database) => {
                let script = format!("SET search_path TO {}; {sql}", database.schema);
                Postgres::shared().sql(&script).lines().map(str::to_owned).collect()
            }
        }
    }

    /// Returns the name, the type and the optionality that a declared column must have here.
    pub fn shape(&self, column: &Column) -> String {
        let of = match (self.is_sqlite(), column.kind.of) {
            (true, Type::Int | Type::Bool) => "integer",
            (false, Type::Int) => "bigint",
            (false, Type::Bool) => "boolean",
            (_, Type::Text) => "text",
            (true, Type::Bytes) => "blob",
            (false, Type::Bytes) => "bytea",
        };
        format!("{} {of}{}", column.name, if column.kind.optional { " or null" } else { "" })
    }

    /// Returns the name, the type and the optionality of a table's columns.
    pub fn shapes(&self, table: &str) -> Vec<String> {
        self.lines(&if self.is_sqlite() {
            format!(
                "SELECT name || ' ' || lower(type) || CASE WHEN \"notnull\" OR pk > 0 THEN '' ELSE ' or null' END \
                 FROM pragma_table_info('{table}')"
            )
        } else {
            format!(
                "SELECT column_name || ' ' || data_type || CASE WHEN is_nullable = 'NO' THEN '' ELSE ' or null' END \
                 FROM information_schema.columns \
                 WHERE table_schema = current_schema() AND table_name = '{table}'"
            )
        })
    }

    fn literal(&self, value: &Literal) -> String {
        match value {
            Literal::Null => "NULL".into(),
            Literal::Int(number) => number.to_string(),
            Literal::Bool(value) if self.is_sqlite() => i64::from(*value).to_string(),
            Literal::Bool(value) => value.to_string(),
            Literal::Text(text) => format!("'{text}'"),
        }
    }

    /// Adds a row by SQL of the test's own.
    pub fn insert(&self, kind: &Kind, sample: &Sample) {
        let mut sample = sample.clone();
        let before = kind.before(&sample);
        if kind.table == "executions" && self.tells_actor() {
            sample.push(("actor", Literal::Text("worker".into())));
        }
        let names: Vec<&str> = sample.iter().map(|(name, _)| *name).collect();
        let values: Vec<String> = sample.iter().map(|(_, value)| self.literal(value)).collect();
        let (names, values) = (names.join(", "), values.join(", "));
        self.run(&format!("{before} INSERT INTO {} ({names}) VALUES ({values})", kind.table));
    }

    /// Returns the table's row as its database writes its values, without columns that no row has.
    pub fn raw(&self, kind: &Kind) -> Vec<String> {
        let quote = |column: &Column| {
            if self.is_sqlite() {
                format!("quote({})", column.name)
            } else {
                format!("quote_nullable({}::text)", column.name)
            }
        };
        let columns: Vec<Column> = kind.columns();
        let compared = columns.iter().filter(|column| !kind.is_numbered_by_the_database(column.name));
        let all: Vec<String> = compared.map(quote).collect();
        let found = self.lines(&format!("SELECT {} FROM {}", all.join(" || '~' || "), kind.table));
        assert_eq!(found.len(), 1, "{}: one row", kind.table);
        found[0].split('~').map(str::to_owned).collect()
    }

    /// Puts another value into a column.
    pub fn damage(&self, kind: &Kind, column: &str, damage: &str) {
        let allow = match (self.is_sqlite(), damage) {
            (false, "NULL") => {
                format!("ALTER TABLE {} ALTER COLUMN {column} DROP NOT NULL;", kind.table)
            }
            _ => String::new(),
        };
        self.run(&format!("{allow} UPDATE {} SET {column} = {damage}", kind.table));
    }

    /// Removes the table's rows.
    pub fn clear(&self, kind: &Kind) {
        self.run(&format!("DELETE FROM {}", kind.table));
    }
}
