//! l08: a status is written by the statements of the rows' declarations, and by nothing else.

use std::path::{Path, PathBuf};

use sprag_store::testing::tables;

/// Returns every source file of every crate.
fn sources() -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path().join("src")).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.extension().and_then(|name| name.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some("rs" | "sql") => files.push(path),
                _ => {}
            }
        }
    }
    files
}

/// Returns the words of a source file; continued lines of a string literal are joined.
fn words(source: &str) -> Vec<String> {
    let text = source.to_lowercase().replace("\\\n", " ");
    let spaced: String = text
        .chars()
        .flat_map(|c| if c.is_alphanumeric() || c == '_' { [' ', c] } else { ['\n', c] })
        .collect();
    // A letter keeps to the letter before it; everything else stands alone.
    let mut words = Vec::new();
    let mut word = String::new();
    for pair in spaced.chars().collect::<Vec<_>>().chunks(2) {
        if pair[0] == ' ' {
            word.push(pair[1]);
            continue;
        }
        if !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if !pair[1].is_whitespace() {
            words.push(pair[1].to_string());
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Returns how many statements of a source file set a status, and how many insert one.
fn status_writes(source: &str) -> (usize, usize) {
    let words = words(source);
    let until = |from: usize, ends: &[&str]| {
        let rest = &words[from..];
        let end = rest.iter().position(|word| ends.contains(&word.as_str())).unwrap_or(rest.len());
        &rest[..end]
    };
    // Rust has a `set` and an `into` of its own: only those of a statement count.
    let after = |at: usize, verbs: &[&str]| {
        words[at.saturating_sub(4)..at].iter().any(|word| verbs.contains(&word.as_str()))
    };
    let (mut updates, mut inserts) = (0, 0);
    for (at, word) in words.iter().enumerate() {
        match word.as_str() {
            "set" if after(at, &["update"]) => {
                let sets = until(at, &["where", "\"", ";"]);
                let assigned = |pair: &[String]| pair[0] == "status" && pair[1] == "=";
                updates += usize::from(sets.windows(2).any(assigned));
            }
            "into" if after(at, &["insert", "replace"]) => {
                let columns = until(at, &["values", "select", "\"", ";"]);
                inserts += usize::from(columns.iter().any(|column| column == "status"));
            }
            _ => {}
        }
    }
    (updates, inserts)
}

#[test]
fn l08_statuses_are_written_by_the_rows_statements_alone() {
    let files = sources();
    assert!(files.len() > 20, "the sources are found");
    for file in files {
        let found = status_writes(&std::fs::read_to_string(&file).unwrap());
        assert_eq!(found, (0, 0), "{}: updates and inserts of a status", file.display());
    }
}

#[test]
fn l08_a_status_is_only_set_where_status_and_version_are_those_that_were_read() {
    let mut kinds = Vec::new();
    for table in tables() {
        let statements = table.statements;
        if !statements.columns.iter().any(|column| column.name == "status") {
            continue;
        }
        kinds.push(table.entity);
        for insert in [&statements.sqlite.insert, &statements.postgres_insert] {
            assert_eq!(status_writes(&format!("{insert:?}")), (0, 1), "{insert}");
        }
        for update in [&statements.sqlite_update, &statements.postgres_update] {
            assert_eq!(status_writes(&format!("{update:?}")), (1, 0), "{update}");
        }
        let sqlite = &statements.sqlite_update;
        let condition = sqlite.split_once(" WHERE ").unwrap().1;
        assert!(condition.contains(" AND status = ?") && condition.contains(" AND version = ?"), "{sqlite}");
        let postgres = &statements.postgres_update;
        let condition = postgres.split_once(" WHERE ").unwrap().1;
        assert!(condition.contains(" AND t.status = n.was AND t.version = n.was_version"), "{postgres}");
        let expected = format!("'{}') FROM done", table.name);
        assert!(
            condition.contains("sprag_expect(count(*), $") && condition.ends_with(&expected),
            "{postgres}"
        );
    }
    let expected = [
        "run",
        "step",
        "execution",
        "environment",
        "thread",
        "gate",
        "worker",
        "account",
        "rule",
        "enforcement",
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn l08_the_search_finds_what_it_looks_for() {
    let cases = [
        (r#""UPDATE runs SET version = 1, status = ?2 WHERE id = ?1""#, (1, 0)),
        ("\"update runs\\\n set\\\n status=?2 where id = ?1\"", (1, 0)),
        (r#""UPDATE runs SET version = ?2 WHERE status = ?1""#, (0, 0)),
        (r#""UPDATE runs SET exit_status = ?2 WHERE id = ?1""#, (0, 0)),
        (r#""INSERT INTO runs (id, status) VALUES (?1, ?2)""#, (0, 1)),
        (r#""INSERT OR REPLACE INTO runs (id, status) SELECT 1, 'done'""#, (0, 1)),
        (r#""INSERT INTO runs (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET status = 'done'""#, (1, 0)),
        (r#""SELECT id FROM runs WHERE status = 'done'""#, (0, 0)),
        (
            r#""WITH done AS (UPDATE runs AS t SET status = n.status FROM unnest($1::text[]) AS n (status))""#,
            (1, 0),
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(status_writes(source), expected, "{source}");
    }
}
