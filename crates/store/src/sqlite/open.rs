//! Opening a file: is it ours, is it safe here, is its schema one that we know.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use sprag_lifecycle::mutant;

use super::{FILE_NAME, SCHEMA_VERSION, SqliteClock, SqliteOptions, translate};
use crate::error::{Error, Result};
use crate::seams::{Clock, System};

/// Each takes the schema one version further, in one transaction.
pub(super) const MIGRATIONS: &[&str] = &[
    include_str!("schema.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
    include_str!("schema_5.sql"),
    include_str!("schema_6.sql"),
    include_str!("schema_7.sql"),
];

/// "SPRG": tells our files from other programs'.
const APPLICATION_ID: i64 = 0x5350_5247;

/// The folder, made and looked at; the file's path in it.
pub(super) fn prepare_folder(folder: &Path) -> Result<PathBuf> {
    let fail = |error: std::io::Error| cannot_make(folder, &error);
    std::fs::create_dir_all(folder).map_err(fail)?;
    let stat = rustix::fs::statfs(folder).map_err(|error| fail(error.into()))?;
    if let Some(kind) = network_file_system(stat.f_type as i64) {
        return Err(Error::NetworkFileSystem { path: folder.to_owned(), kind });
    }
    Ok(folder.join(FILE_NAME))
}

/// Why a file or a folder could not be made.
pub(super) fn cannot_make(path: &Path, error: &std::io::Error) -> Error {
    let path = path.to_owned();
    match error.kind() {
        std::io::ErrorKind::StorageFull => Error::Full { path },
        _ => Error::Open { path, reason: error.to_string() },
    }
}

/// File systems that are shared with other machines, by the number that the kernel gives them.
fn network_file_system(magic: i64) -> Option<&'static str> {
    Some(match magic & 0xffff_ffff {
        0x6969 => "NFS",
        0x517b => "SMB",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB2",
        0x5346_414f => "AFS",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x0102_1997 => "9P",
        0x7461_636f => "OCFS2",
        0x0116_1970 => "GFS2",
        _ => return None,
    })
}

/// A connection with the settings that everything relies on.
pub(super) fn connect(path: &Path, options: SqliteOptions) -> Result<Connection> {
    let fail = |error: rusqlite::Error| translate(path, "opening", &error);
    let mut conn = Connection::open(path).map_err(fail)?;
    let limit_ms = i64::try_from(options.busy_timeout.as_millis()).unwrap_or(i64::MAX);
    let since_ms = AtomicI64::new(0);
    // SQLite's own waits grow to 100 ms; ours stay short, for many processes share one file.
    let wait = move |tries: i32| {
        if tries == 0 {
            since_ms.store(System.boot_ms(), Ordering::Relaxed);
        }
        wait_for_lock(tries, since_ms.load(Ordering::Relaxed), limit_ms)
    };
    conn.busy_handler(Some(wait)).map_err(fail)?;
    // Looked at first: another program's file is left byte for byte as it is.
    in_one_look(&conn, path)?;
    let mode = switch_to_wal(&conn, limit_ms).map_err(fail)?;
    if !mode.eq_ignore_ascii_case("wal") {
        let reason = format!("write-ahead logging is not possible here (journal mode {mode})");
        return Err(Error::Open { path: path.to_owned(), reason });
    }
    conn.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -16000; \
         PRAGMA wal_autocheckpoint = 4000; PRAGMA journal_size_limit = 67108864;",
    )
    .map_err(fail)?;
    if mutant!(NotSynced) {
        conn.execute_batch("PRAGMA synchronous = NORMAL").map_err(fail)?;
    }
    // Without this promise SQLite compares what is bound to `status = ?` with the conditions of the indexes,
    // and prepares the statement again for every execution.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(fail)?;
    conn.set_prepared_statement_cache_capacity(128);
    Ok(conn)
}

/// Of several who switch a new file at once, SQLite lets all but one fail without waiting.
fn switch_to_wal(conn: &Connection, limit_ms: i64) -> rusqlite::Result<String> {
    let since_ms = System.boot_ms();
    let mut tries = 0;
    loop {
        let mode = conn.query_row("PRAGMA journal_mode = WAL", [], |columns| columns.get(0));
        match mode {
            Err(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
                    && wait_for_lock(tries, since_ms, limit_ms) =>
            {
                tries += 1;
            }
            mode => return mode,
        }
    }
}

/// Waits a little for another process's transaction; says whether to try again.
fn wait_for_lock(tries: i32, since_ms: i64, limit_ms: i64) -> bool {
    const LONGEST_US: u64 = 2_000;
    if System.boot_ms() - since_ms >= limit_ms {
        return false;
    }
    // Told apart by process, so that those who wait do not all come back at once.
    let spread = u64::from(std::process::id() % 7) * 20;
    let wait_us = (100u64 << tries.clamp(0, 5)).min(LONGEST_US) + spread;
    std::thread::park_timeout(Duration::from_micros(wait_us));
    true
}

/// Brings the schema to the newest version, or says why not. A crash in between leaves the old one.
pub(super) fn migrate(conn: &Connection, path: &Path) -> Result<()> {
    let fail = |error: rusqlite::Error| translate(path, "opening", &error);
    loop {
        let found = in_one_look(conn, path)?;
        if found == SCHEMA_VERSION {
            return Ok(());
        }
        conn.execute_batch("BEGIN IMMEDIATE").map_err(fail)?;
        let step = (|| {
            // Another process may have been faster.
            if schema_version(conn, path)? != found {
                return Ok(());
            }
            conn.execute_batch(MIGRATIONS[found as usize]).map_err(fail)?;
            conn.execute_batch(&format!(
                "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {};",
                found + 1
            ))
            .map_err(fail)
        })();
        let end = step.and_then(|()| conn.execute_batch("COMMIT").map_err(fail));
        if end.is_err() {
            let _ = conn.execute_batch("ROLLBACK");
            return end;
        }
    }
}

/// The file's schema version, looked at in a transaction of its own.
fn in_one_look(conn: &Connection, path: &Path) -> Result<i64> {
    let fail = |error: rusqlite::Error| translate(path, "opening", &error);
    conn.execute_batch("BEGIN").map_err(fail)?;
    let version = schema_version(conn, path);
    // Nothing was written. A failure may have ended the transaction already, and is what is to be told.
    let end = conn.execute_batch("COMMIT").map_err(fail);
    version.and_then(|version| end.map(|()| version))
}

/// The file's schema version, between 0 (nothing is in it) and the newest; an error if it is not ours.
fn schema_version(conn: &Connection, path: &Path) -> Result<i64> {
    let number = |query: &str| -> Result<i64> {
        conn.query_row(query, [], |columns| columns.get(0))
            .map_err(|error| translate(path, "opening", &error))
    };
    let found = number("PRAGMA user_version")?;
    let application = number("PRAGMA application_id")?;
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    match (application, found) {
        (APPLICATION_ID, 1..=SCHEMA_VERSION) => Ok(found),
        (APPLICATION_ID, newer) if newer > SCHEMA_VERSION => {
            Err(Error::Newer { path: path.to_owned(), found: newer, known: SCHEMA_VERSION })
        }
        (0, 0) if tables == 0 => Ok(0),
        _ => {
            let reason = "another program's tables are in it".into();
            Err(Error::Corrupt { path: path.to_owned(), reason })
        }
    }
}

/// Agrees with all processes of this machine on what time it is.
pub(super) fn anchor_clock(conn: &Connection, path: &Path, clock: Arc<dyn Clock>) -> Result<SqliteClock> {
    let fail = |error: rusqlite::Error| translate(path, "opening", &error);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = boot.trim();
    let anchored = || -> Result<Option<i64>> {
        use rusqlite::OptionalExtension;
        let value: Option<String> = conn
            .query_row("SELECT value FROM meta WHERE name = 'clock'", [], |columns| columns.get(0))
            .optional()
            .map_err(fail)?;
        Ok(value.and_then(|value| {
            let (offset, of_boot) = value.split_once(' ')?;
            (of_boot == boot).then(|| offset.parse().ok()).flatten()
        }))
    };
    let offset_ms = match anchored()? {
        Some(offset) => offset,
        None => {
            // The first process since the machine started; of two, the first to write decides.
            conn.execute_batch("BEGIN IMMEDIATE").map_err(fail)?;
            let offset = match anchored() {
                Ok(Some(offset)) => Ok(offset),
                Ok(None) => {
                    // A clock that was set back while the machine was off: time still does not go back here.
                    let last: i64 = conn
                        .query_row("SELECT coalesce(max(at_ms), 0) FROM (SELECT at_ms FROM journal ORDER BY seq DESC LIMIT 1)", [], |columns| columns.get(0))
                        .map_err(fail)?;
                    let offset = clock.wall_ms().max(last) - clock.boot_ms();
                    conn.execute(
                        "INSERT INTO meta (name, value) VALUES ('clock', ?1) \
                         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                        [format!("{offset} {boot}")],
                    )
                    .map_err(fail)
                    .map(|_| offset)
                }
                Err(error) => Err(error),
            };
            let written = offset.and_then(|offset| {
                conn.execute_batch("COMMIT").map_err(fail)?;
                Ok(offset)
            });
            if written.is_err() {
                let _ = conn.execute_batch("ROLLBACK");
            }
            written?
        }
    };
    Ok(SqliteClock { clock, offset_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_number() {
        assert_eq!(network_file_system(0x6969), Some("NFS"));
        assert_eq!(network_file_system(0xff53_4d42_u32 as i32 as i64), Some("CIFS"));
        for local in [0xef53, 0x0102_1994, 0x9123_683e, 0x5846_5342, 0x794c_7630] {
            assert_eq!(network_file_system(local), None, "{local:#x}");
        }
    }
}
