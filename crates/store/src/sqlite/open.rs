//! Opening a file: checks that it is Sprag's, that it is safe here, and that its schema is known.

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use sprag_lifecycle::mutant;

use super::{FILE_NAME, SCHEMA_VERSION, SqliteClock, SqliteOptions, journal, repack, translate};
use crate::clock::{Clock, System};
use crate::error::{Error, Result};

/// The migrations. Each takes the schema one version further, in one transaction.
pub(super) const MIGRATIONS: &[&str] = &[
    include_str!("schema.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
    include_str!("schema_5.sql"),
    include_str!("schema_6.sql"),
    include_str!("schema_7.sql"),
    include_str!("schema_8.sql"),
    include_str!("schema_9.sql"),
    include_str!("schema_10.sql"),
    include_str!("schema_11.sql"),
    include_str!("schema_12.sql"),
    include_str!("schema_13.sql"),
    include_str!("schema_14.sql"),
    include_str!("schema_15.sql"),
    include_str!("schema_16.sql"),
    include_str!("schema_17.sql"),
];

/// "SPRG": the application id that distinguishes Sprag's files from other programs' files.
const APPLICATION_ID: i64 = 0x5350_5247;

/// Creates and checks the folder. Returns the path of the file in it.
pub(super) fn prepare_folder(folder: &Path) -> Result<PathBuf> {
    let fail = |error: std::io::Error| cannot_make(folder, &error);
    make_private_folder(folder).map_err(fail)?;
    let stat = rustix::fs::statfs(folder).map_err(|error| fail(error.into()))?;
    if let Some(kind) = network_file_system(stat.f_type as i64) {
        return Err(Error::NetworkFileSystem { path: folder.to_owned(), kind });
    }
    let path = folder.join(FILE_NAME);
    // SQLite creates the files beside it with the mode of this one.
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    match made {
        Ok(_) => Ok(path),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(path),
        Err(error) => Err(cannot_make(&path, &error)),
    }
}

/// Creates a folder, and the missing folders above it, for this user alone.
pub(crate) fn make_private_folder(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Returns the error for a file or a folder that could not be created.
pub(super) fn cannot_make(path: &Path, error: &std::io::Error) -> Error {
    let path = path.to_owned();
    match error.kind() {
        std::io::ErrorKind::StorageFull => Error::Full { path },
        _ => Error::Open { path, reason: error.to_string() },
    }
}

/// Returns the name of a file system that is shared with other machines, by the kernel's number for it.
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

/// Opens a connection with the settings that all operations rely on.
pub(super) fn connect(path: &Path, options: SqliteOptions) -> Result<Connection> {
    let fail = |error: rusqlite::Error| translate(path, "opening", &error);
    let mut conn = Connection::open(path).map_err(fail)?;
    let limit_ms = i64::try_from(options.busy_timeout.as_millis()).unwrap_or(i64::MAX);
    let since_ms = AtomicI64::new(0);
    // SQLite's own waits grow to 100 ms. These waits stay short, because many processes share one file.
    let wait = move |tries: i32| {
        if tries == 0 {
            since_ms.store(System.boot_ms(), Ordering::Relaxed);
        }
        wait_for_lock(tries, since_ms.load(Ordering::Relaxed), limit_ms)
    };
    conn.busy_handler(Some(wait)).map_err(fail)?;
    // Checked first, so that another program's file stays unchanged byte for byte.
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
    // Without this setting SQLite compares the values that are bound to `status = ?` with the conditions of the
    // indexes, and prepares the statement again for every execution.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(fail)?;
    conn.set_prepared_statement_cache_capacity(128);
    Ok(conn)
}

/// Switches a file to WAL, and retries: of several processes that switch a new file at once, SQLite lets all but one
/// fail without waiting.
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

/// Waits a little for another process's transaction; returns whether to try again.
fn wait_for_lock(tries: i32, since_ms: i64, limit_ms: i64) -> bool {
    const LONGEST_US: u64 = 2_000;
    if System.boot_ms() - since_ms >= limit_ms {
        return false;
    }
    // The wait depends on the process id, so that waiting processes do not all retry at once.
    let spread = u64::from(std::process::id() % 7) * 20;
    let wait_us = (100u64 << tries.clamp(0, 5)).min(LONGEST_US) + spread;
    std::thread::park_timeout(Duration::from_micros(wait_us));
    true
}

/// Migrates the schema to the newest version, or returns an error with the reason. A crash in between leaves the old
/// version.
pub(super) fn migrate(conn: &Connection, path: &Path) -> Result<()> {
    let fail = |error: rusqlite::Error| translate(path, "opening", &error);
    loop {
        let found = in_one_look(conn, path)?;
        if found >= repack::PACKED {
            repack::pack_old_journal(conn, path)?;
        }
        if found == SCHEMA_VERSION {
            return Ok(());
        }
        conn.execute_batch("BEGIN IMMEDIATE").map_err(fail)?;
        let step = (|| {
            // Another process may have migrated it first.
            if schema_version(conn, path)? != found {
                return Ok(());
            }
            conn.execute_batch(MIGRATIONS[found as usize]).map_err(fail)?;
            if found + 1 == repack::PACKED {
                repack::move_some(conn, path)?;
            }
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

/// Returns the file's schema version, read in a transaction of its own.
fn in_one_look(conn: &Connection, path: &Path) -> Result<i64> {
    let fail = |error: rusqlite::Error| translate(path, "opening", &error);
    conn.execute_batch("BEGIN").map_err(fail)?;
    let version = schema_version(conn, path);
    // Nothing was written. A failed read may have ended the transaction already, and its error is the one to return.
    let end = conn.execute_batch("COMMIT").map_err(fail);
    version.and_then(|version| end.map(|()| version))
}

/// Returns an error if a newer program has changed the schema since the file was opened. Callers ask inside a
/// transaction, because a migrating process holds the same lock as a writer.
pub(super) fn refuse_newer(conn: &Connection, path: &Path) -> Result<()> {
    let version = conn
        .prepare_cached("PRAGMA user_version")
        .and_then(|mut statement| statement.query_row([], |columns| columns.get(0)));
    match version.map_err(|error| translate(path, "reading", &error))? {
        newer if newer > SCHEMA_VERSION && !mutant!(SchemaNotLookedAt) => {
            Err(Error::Newer { path: path.to_owned(), found: newer, known: SCHEMA_VERSION })
        }
        _ => Ok(()),
    }
}

/// Returns the file's schema version, between 0 (empty) and the newest; an error if the file is not Sprag's.
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

/// Agrees on the steady time with all processes of this machine.
pub(super) fn anchor_clock(
    conn: &Connection,
    path: &Path,
    clock: Arc<dyn Clock>,
    options: SqliteOptions,
) -> Result<SqliteClock> {
    let fail = |error: rusqlite::Error| translate(path, "opening", &error);
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = boot.trim();
    // A container may see another time since the start than the machine does.
    let shift_ms = boot_shift_ms();
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
            // This is the first process since the machine started. Of two such processes, the first to write decides.
            conn.execute_batch("BEGIN IMMEDIATE").map_err(fail)?;
            let offset = match anchored() {
                Ok(Some(offset)) => Ok(offset),
                Ok(None) => begin_of_boot(conn, path, &*clock).and_then(|steady_ms| {
                    let offset = steady_ms - (clock.boot_ms() - shift_ms);
                    conn.execute(
                        "INSERT INTO meta (name, value) VALUES ('clock', ?1) \
                         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                        [format!("{offset} {boot}")],
                    )
                    .map_err(fail)
                    .map(|_| offset)
                }),
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
    Ok(SqliteClock {
        clock,
        offset_ms: offset_ms - shift_ms,
        shift_ms,
        prolong_leases: options.prolong_leases,
    })
}

/// Returns the steady time at the start of the machine: the last one, plus the time that has passed by the wall clock.
/// It never goes back, however the wall clock was set meanwhile.
fn begin_of_boot(conn: &Connection, path: &Path, clock: &dyn Clock) -> Result<i64> {
    let fail = |error: rusqlite::Error| translate(path, "opening", &error);
    let moment = |columns: &rusqlite::Row<'_>| Ok((columns.get(0)?, columns.get(1)?));
    let (steady_ms, wall_ms): (i64, i64) =
        conn.query_row("SELECT steady_ms, wall_ms FROM store_state", [], moment).map_err(fail)?;
    if steady_ms > 0 && !mutant!(WallClockAnchors) {
        return Ok(steady_ms + (clock.wall_ms() - wall_ms).max(0));
    }
    let last_ms = journal::last_entry_ms(conn).map_err(fail)?.transpose()?;
    Ok(clock.wall_ms().max(last_ms.unwrap_or(0)))
}

/// Returns the shift of the time since the machine's start in this process's time namespace.
fn boot_shift_ms() -> i64 {
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    shift_in(&offsets).unwrap_or(0)
}

/// Returns the shift of `boottime` from the kernel's text, which has a name, seconds and nanoseconds on each line.
fn shift_in(offsets: &str) -> Option<i64> {
    let line = offsets.lines().find_map(|line| line.trim().strip_prefix("boottime"))?;
    let mut words = line.split_whitespace().map(|word| word.parse::<i64>());
    let (seconds, nanos) = (words.next()?.ok()?, words.next()?.ok()?);
    Some(seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shift_of_a_time_namespace_is_read() {
        assert_eq!(shift_in("monotonic           0         0\nboottime            0         0\n"), Some(0));
        assert_eq!(shift_in("monotonic  5 0\nboottime   86400 500000000\n"), Some(86_400_500));
        assert_eq!(shift_in("boottime -10 0"), Some(-10_000));
        assert_eq!(shift_in(""), None);
    }

    #[test]
    fn network_file_systems_are_known_by_their_number() {
        assert_eq!(network_file_system(0x6969), Some("NFS"));
        assert_eq!(network_file_system(0xff53_4d42_u32 as i32 as i64), Some("CIFS"));
        for local in [0xef53, 0x0102_1994, 0x9123_683e, 0x5846_5342, 0x794c_7630] {
            assert_eq!(network_file_system(local), None, "{local:#x}");
        }
    }
}
