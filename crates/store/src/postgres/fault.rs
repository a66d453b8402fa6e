//! Faults of PostgreSQL: their meaning for the writer, and for a person.

use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;

use super::address::DatabaseAddress;
use crate::error::Error;

/// A fault of a connection.
#[derive(Debug)]
pub(super) enum Fault {
    /// PostgreSQL or the connection to it reported an error.
    Sql(tokio_postgres::Error),
    /// No answer arrived for longer than any statement may take.
    Silent,
    /// A newer program has changed the schema to this version.
    Newer(i64),
    /// A row that every database of Sprag has is missing.
    Incomplete,
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        Fault::Sql(error)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Silent => f.write_str("the server does not answer"),
            Fault::Newer(found) => write!(f, "the database has schema version {found}"),
            Fault::Incomplete => f.write_str("the row of the store's state is missing"),
            Fault::Sql(error) => match error.as_db_error() {
                Some(told) => {
                    f.write_str(told.message())?;
                    told.detail().map_or(Ok(()), |detail| write!(f, " ({detail})"))
                }
                None => {
                    // The library's own message does not include its source, which has the reason.
                    let mut source = std::error::Error::source(error);
                    match source {
                        None => write!(f, "{error}"),
                        Some(_) => {
                            let mut last = String::new();
                            while let Some(error) = source {
                                last = error.to_string();
                                source = error.source();
                            }
                            f.write_str(&last)
                        }
                    }
                }
            },
        }
    }
}

impl Fault {
    fn code(&self) -> Option<&SqlState> {
        match self {
            Fault::Sql(error) => error.code(),
            Fault::Silent | Fault::Newer(_) | Fault::Incomplete => None,
        }
    }

    /// Returns whether the connection is lost or closing. The same operation may succeed on another connection.
    pub(super) fn is_lost(&self) -> bool {
        match self.code() {
            None => !matches!(self, Fault::Newer(_) | Fault::Incomplete),
            Some(code) => {
                [
                    SqlState::ADMIN_SHUTDOWN,
                    SqlState::CRASH_SHUTDOWN,
                    SqlState::CANNOT_CONNECT_NOW,
                    SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
                    SqlState::READ_ONLY_SQL_TRANSACTION,
                ]
                .contains(code)
                    || code.code().starts_with("08")
            }
        }
    }

    /// Returns whether another transaction used the same rows. The same operation may then succeed when it is retried.
    pub(super) fn is_contention(&self) -> bool {
        self.code().is_some_and(|code| {
            [
                SqlState::T_R_SERIALIZATION_FAILURE,
                SqlState::T_R_DEADLOCK_DETECTED,
                SqlState::LOCK_NOT_AVAILABLE,
                SqlState::UNIQUE_VIOLATION,
                SqlState::FOREIGN_KEY_VIOLATION,
            ]
            .contains(code)
        })
    }

    /// Returns whether a plan that the process had cached was forgotten meanwhile.
    pub(super) fn is_about_a_plan(&self) -> bool {
        self.code() == Some(&SqlState::FOREIGN_KEY_VIOLATION)
    }

    /// Returns the error that a person reads.
    pub(super) fn told(&self, address: &DatabaseAddress, action: &'static str) -> Error {
        let path = address.path();
        match self {
            Fault::Newer(found) => {
                return Error::Newer { path, found: *found, known: super::open::SCHEMA_VERSION };
            }
            Fault::Incomplete => return Error::Corrupt { path, reason: self.to_string() },
            Fault::Sql(_) | Fault::Silent => {}
        }
        let Some(code) = self.code() else {
            let reason = match action {
                "opening" if address.config().get_ssl_mode() == SslMode::Require => format!(
                    "{self}: is a PostgreSQL server with ssl = on running there, whose certificate names this host \
                     and is signed by an authority that is trusted (sslrootcert=FILE in the URL)?"
                ),
                "opening" => {
                    format!("{self}: is a PostgreSQL server running there, and does it take connections?")
                }
                _ => self.to_string(),
            };
            return match action {
                "opening" => Error::Open { path, reason },
                _ => Error::Io { action, path, reason },
            };
        };
        let open = |hint: String| Error::Open { path: address.path(), reason: format!("{self}: {hint}") };
        match code {
            code if *code == SqlState::INVALID_PASSWORD
                || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
            {
                open("see the user and the password in the URL, and pg_hba.conf on the server".into())
            }
            code if *code == SqlState::INVALID_CATALOG_NAME => {
                open(format!("make it with `createdb {}`, or name another in the URL", address.database()))
            }
            code if *code == SqlState::INSUFFICIENT_PRIVILEGE => open(format!(
                "its user needs a schema to make tables in, e.g. GRANT CREATE, USAGE ON SCHEMA public TO {}",
                address.user()
            )),
            code if *code == SqlState::INVALID_SCHEMA_NAME => open(
                "none of the schemas in its search_path exists: make one, e.g. CREATE SCHEMA sprag".into(),
            ),
            code if *code == SqlState::TOO_MANY_CONNECTIONS => {
                open("raise max_connections on the server, or put a pooler in front of it".into())
            }
            code if *code == SqlState::DISK_FULL => Error::Full { path },
            code if *code == SqlState::LOCK_NOT_AVAILABLE || *code == SqlState::QUERY_CANCELED => {
                Error::Locked { path, waited_ms: super::LOCK_TIMEOUT.as_millis() as u64, holder: None }
            }
            code if *code == SqlState::CHARACTER_NOT_IN_REPERTOIRE => Error::invalid(
                "text",
                format!(
                    "PostgreSQL cannot keep this text: {self}; leave the character with the number zero out of it"
                ),
            ),
            _ if self.is_contention() => Error::Conflict { entity: "row", id: self.to_string() },
            code => Error::Io { action, path, reason: format!("{self} ({})", code.code()) },
        }
    }
}
