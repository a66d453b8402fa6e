//! Opening a database: a connection with the settings that all operations rely on, and a schema of a known version.

use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio_postgres::{Client, Connection, Socket};

use super::address::DatabaseAddress;
use super::cells::Cell;
use super::fault::Fault;
use super::repack;
use super::tls::Encrypted;
use super::wire::{Ask, Driver, Wire};
use super::{IDLE_TIMEOUT, LOCK_TIMEOUT, STATEMENT_TIMEOUT};
use crate::error::{Error, Result};

/// The migrations. Each takes the schema one version further, in one transaction.
const MIGRATIONS: &[&str] = &[
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
];
/// The newest schema that this program knows.
pub(super) const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// "SPRG": the advisory lock that a process holds while it migrates a schema. Of two servers that start at once, one
/// waits.
pub(super) const MIGRATING: i64 = 0x5350_5247;

/// The oldest PostgreSQL version that has all features that Sprag uses.
const OLDEST: i64 = 130_000;

type Connected = (Client, Connection<Socket, Encrypted>);

/// Connects. The caller must drive the returned connection.
pub(super) async fn connect(address: &DatabaseAddress) -> std::result::Result<Connected, Fault> {
    let (client, connection) = address.config().connect(address.tls()).await?;
    Ok((client, connection))
}

/// Opens a connection that is driven by the thread that uses it.
pub(super) fn connect_here(
    address: &DatabaseAddress,
    runtime: &Arc<Runtime>,
) -> std::result::Result<Wire, Fault> {
    let driver = Driver::Here(Arc::clone(runtime));
    let (client, connection) = driver.wait(connect(address))??;
    runtime.spawn(drive(connection));
    let wire = Wire::new(client, driver);
    wire.script(&settings())?;
    Ok(wire)
}

/// Opens a connection that is driven by another runtime's threads.
pub(super) fn connect_elsewhere(
    address: &DatabaseAddress,
    runtime: &Runtime,
) -> std::result::Result<Wire, Fault> {
    let (send, receive) = std::sync::mpsc::channel();
    let to = address.clone();
    runtime.spawn(async move {
        match connect(&to).await {
            Ok((client, connection)) => {
                let _ = send.send(Ok(client));
                drive(connection).await;
            }
            Err(fault) => drop(send.send(Err(fault))),
        }
    });
    let client = receive.recv_timeout(super::address::CONNECT_TIMEOUT * 2).map_err(|_| Fault::Silent)??;
    let wire = Wire::new(client, Driver::Elsewhere);
    wire.script(&settings())?;
    Ok(wire)
}

/// Drives a connection until it ends, and reports the reason to its users.
pub(super) async fn drive<T>(connection: Connection<Socket, T>)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    if let Err(error) = connection.await {
        tracing::debug!(error = %Fault::from(error), "a connection to PostgreSQL has ended");
    }
}

/// Returns the settings of a session. Plans are kept whatever the tables' statistics say: every statement finds its
/// rows through an index, also before the tables were first analyzed.
pub(super) fn settings() -> String {
    format!(
        "SET statement_timeout = {}; SET lock_timeout = {}; SET idle_in_transaction_session_timeout = {}; \
         SET default_transaction_isolation = 'read committed'; SET plan_cache_mode = force_generic_plan; \
         SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; \
         SET client_min_messages = warning",
        STATEMENT_TIMEOUT.as_millis(),
        LOCK_TIMEOUT.as_millis(),
        IDLE_TIMEOUT.as_millis(),
    )
}

/// Migrates the schema to the newest version, or returns an error with the reason.
pub(super) fn migrate(wire: &Wire, address: &DatabaseAddress) -> Result<()> {
    let told = |fault: Fault| fault.told(address, "opening");
    let version = number(wire, "SELECT current_setting('server_version_num')::bigint").map_err(told)?;
    if version < OLDEST {
        let reason = format!("it is PostgreSQL {}: Sprag needs 13 or newer", version / 10_000);
        return Err(Error::Open { path: address.path(), reason });
    }
    // Reads the version first: most processes find the newest schema, and may not be allowed to change it.
    if found(wire, address)? < SCHEMA_VERSION {
        raise(wire, address)?;
    }
    repack::pack_old_journal(wire, address)
}

/// Runs the migrations that are missing, in one transaction.
fn raise(wire: &Wire, address: &DatabaseAddress) -> Result<()> {
    let told = |fault: Fault| fault.told(address, "opening");
    wire.script("BEGIN").map_err(told)?;
    let done = (|| {
        wire.ask(&[Ask::new("SELECT pg_advisory_xact_lock($1)", [Cell::from(MIGRATING)])]).map_err(told)?;
        // Another server may have migrated it first.
        let from = found(wire, address)?;
        if from > 0 {
            // No transaction is writing now, and the next writer sees the new version.
            wire.script("SELECT seq FROM journal_head FOR UPDATE").map_err(told)?;
        }
        for version in from..SCHEMA_VERSION {
            wire.script(MIGRATIONS[version as usize]).map_err(told)?;
            wire.script(&format!(
                "INSERT INTO meta (name, value) VALUES ('schema', '{0}') \
                 ON CONFLICT (name) DO UPDATE SET value = '{0}'; \
                 INSERT INTO meta (name, value) \
                 VALUES ('token_key', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '')) \
                 ON CONFLICT (name) DO NOTHING",
                version + 1
            ))
            .map_err(told)?;
        }
        wire.script(&format!("UPDATE journal_head SET schema = {SCHEMA_VERSION}")).map_err(told)?;
        wire.script("COMMIT").map_err(told)
    })();
    if done.is_err() {
        let _ = wire.script("ROLLBACK");
    }
    done
}

/// Returns the schema's version, between 0 (empty) and the newest; an error if the schema is not Sprag's.
fn found(wire: &Wire, address: &DatabaseAddress) -> Result<i64> {
    let told = |fault: Fault| fault.told(address, "opening");
    let ours = "SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace \
                AND relkind = 'r' AND relname = 'journal_head'";
    if number(wire, ours).map_err(told)? == 0 {
        let others = "SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace \
                      AND relkind = 'r' AND relname IN ('runs', 'steps', 'executions', 'journal', 'meta')";
        return match number(wire, others).map_err(told)? {
            0 => Ok(0),
            _ => Err(Error::Corrupt {
                path: address.path(),
                reason: "another program's tables are in it".into(),
            }),
        };
    }
    let version = number(wire, "SELECT value::bigint FROM meta WHERE name = 'schema'").map_err(told)?;
    match version {
        1..=SCHEMA_VERSION => Ok(version),
        newer => Err(Error::Newer { path: address.path(), found: newer, known: SCHEMA_VERSION }),
    }
}

/// Runs a query that returns one number; 0 if it returns no row.
pub(super) fn number(wire: &Wire, sql: &str) -> std::result::Result<i64, Fault> {
    let answers = wire.ask(&[Ask::plain(sql)])?;
    Ok(answers[0].first().and_then(|row| row.get::<_, Option<i64>>(0)).unwrap_or(0))
}
