//! Rows as they are declared: the schema has their columns, what is written is read again, and a damaged value is told
//! with its row and its column. On SQLite and on PostgreSQL.

mod kinds;
pub mod places;

use kinds::{Kind, each_kind};
use places::{Place, each_place};
use sprag_store::testing::{Column, Section, Type, tables};

/// The columns that the database fills in and that no row has.
const OF_THE_DATABASE: [(&str, &str); 1] = [("refusals", "id")];

/// The columns that a reader's statement compares: a row with a damaged value there is not found.
const COMPARED: [(&str, &str); 2] = [("outbox", "not_before_ms"), ("notes", "run")];

#[test]
fn l21_the_declared_columns_are_those_of_the_schema() {
    each_place(|place| {
        for table in tables() {
            let mut expected: Vec<String> = table.statements.columns.iter().map(|c| place.shape(c)).collect();
            expected.extend(table.actor.filter(|_| place.tells_actor()).map(|name| format!("{name} text")));
            let ours = |column: &String| {
                !OF_THE_DATABASE.iter().any(|(of, name)| *of == table.name && column.starts_with(name))
            };
            let mut found: Vec<String> = place.shapes(table.name).into_iter().filter(ours).collect();
            expected.sort();
            found.sort();
            assert_eq!(found, expected, "{} on {}", table.name, place.name);
        }
    });
}

#[test]
fn l21_every_declared_row_is_read_as_it_was_written() {
    each_place(|place| {
        let mut checked = Vec::new();
        each_kind(|kind| {
            for sample in [kind.sample(1), kind.empty_sample()] {
                place.insert(kind, &sample);
                let before = place.raw(kind);
                let row = kind.read(&place.store).unwrap_or_else(|| panic!("{}: a row", kind.table));
                place.clear(kind);
                kind.write(&place.store, row.clone());
                let again = kind.read(&place.store).unwrap_or_else(|| panic!("{}: a row again", kind.table));
                assert_eq!(again, row, "{} on {}", kind.table, place.name);
                assert_eq!(place.raw(kind), before, "{} on {}", kind.table, place.name);
                place.clear(kind);
            }
            checked.push(kind.table);
        });
        let declared: Vec<&str> = tables().iter().map(|table| table.name).collect();
        // The journal has tests of its own (`packs.rs`).
        checked.extend(["sentences", "journal_packs"]);
        let missing: Vec<_> = declared.iter().filter(|name| !checked.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?} have a test");
    });
}

#[test]
fn l21_an_update_changes_the_declared_columns_and_only_while_status_and_version_are_the_same() {
    each_place(|place| {
        each_kind(|kind| {
            let Some(update) = kind.update else { return };
            let (old, new) = (kind.sample(1), kind.sample(2));
            place.insert(kind, &new);
            let (wanted, target) = (place.raw(kind), kind.read(&place.store).unwrap());
            place.clear(kind);
            place.insert(kind, &old);
            let (before, was) = (place.raw(kind), kind.read(&place.store).unwrap());
            assert!(!update(&place.store, target.clone(), target.clone()), "{}: another version", kind.table);
            assert_eq!(place.raw(kind), before, "{} on {}", kind.table, place.name);
            assert!(update(&place.store, target.clone(), was.clone()), "{}", kind.table);
            let after = place.raw(kind);
            for (at, column) in kind.columns().iter().enumerate() {
                let expected = if column.section == Section::Fixed { &before[at] } else { &wanted[at] };
                assert_eq!(&after[at], expected, "{}.{} on {}", kind.table, column.name, place.name);
            }
            assert!(!update(&place.store, target, was), "{}: it is not the same any more", kind.table);
            place.clear(kind);
        });
    });
}

/// The damage that a database lets happen to a column, as SQL.
fn damages(place: &Place, kind: &Kind, column: &Column) -> Vec<&'static str> {
    let mut all = match (place.is_sqlite(), column.kind.of) {
        (true, Type::Int) => vec!["'x'", "1.5"],
        (true, Type::Bool) => vec!["7", "'x'"],
        (true, Type::Text) => vec!["x'00ff'", "7"],
        (true, Type::Bytes) => vec!["'x'", "7"],
        (false, _) if column.kind.optional => vec![],
        (false, _) => vec!["NULL"],
    };
    // An integer becomes a text in a column for texts.
    all.retain(|damage| column.kind.of != Type::Text || *damage != "7");
    if kind.word(column.name, 1).is_some() {
        all.push("'nonsense'");
    }
    if column.name == "items" {
        all.extend(["'1 2 3'", "'1 2 3 4 5 6 7 8 2 10'", "'1 2 3 4 5 6 7 8 1 -10'"]);
    }
    if ["epoch", "round", "fence", "failures", "turn", "slots", "provision_attempt"].contains(&column.name) {
        all.extend(["-1", "4294967296"]);
    }
    if column.name.starts_with("parent_") {
        all.push("NULL");
    }
    if kinds::JSON.contains(&column.name) {
        all.extend(["''", "'{\"remote\": '"]);
    }
    // The name of a signal is any text; a question is an object.
    if column.name == "question" {
        all.push("'{\"ask\": '");
    }
    all
}

#[test]
fn p07_a_damaged_value_is_told_with_its_row_and_its_column() {
    each_place(|place| {
        each_kind(|kind| {
            let columns = kind.columns();
            let damaged = columns.iter().filter(|column| column.section != Section::Key);
            for column in damaged {
                if COMPARED.contains(&(kind.table, column.name)) {
                    continue;
                }
                for damage in damages(place, kind, column) {
                    let sample = kind.sample(1);
                    place.insert(kind, &sample);
                    place.damage(kind, column.name, damage);
                    let told = match kind.try_read(&place.store) {
                        Ok(row) => panic!("{}.{} = {damage}: {row:?}", kind.table, column.name),
                        Err(error) => error.to_string(),
                    };
                    let named = if column.name.starts_with("parent_") { "parent_" } else { column.name };
                    let id = kind.id(&sample);
                    for expected in [kind.entity, id.as_str(), named] {
                        assert!(
                            told.contains(expected),
                            "{}.{} = {damage} on {}: {told}",
                            kind.table,
                            column.name,
                            place.name
                        );
                    }
                    place.clear(kind);
                }
            }
        });
    });
}
