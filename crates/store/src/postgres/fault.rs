//! What goes wrong with PostgreSQL: what it means to the writer, and to a person.

use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;

use super::place::Place;
use crate::error::Error;

/// What went wrong on a connection.
#[derive(Debug)]
pub(super) enum Fault {
    /// PostgreSQL or the connection to it says so.
    Sql(tokio_postgres::Error),
    /// Nothing was heard for longer than any statement may take.
    Silent,
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
            Fault::Sql(error) => match error.as_db_error() {
                Some(told) => {
                    f.write_str(told.message())?;
                    told.detail().map_or(Ok(()), |detail| write!(f, " ({detail})"))
                }
                None => {
                    // The library's own words end where the reason begins.
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
            Fault::Silent => None,
        }
    }

    /// The connection is gone, or going: the same again on another one may work.
    pub(super) fn is_lost(&self) -> bool {
        match self.code() {
            None => true,
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

    /// Somebody else was at the same rows: the same again may work.
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

    /// A plan that was known to be kept was forgotten.
    pub(super) fn is_about_a_plan(&self) -> bool {
        self.code() == Some(&SqlState::FOREIGN_KEY_VIOLATION)
    }

    /// What it means to a person.
    pub(super) fn told(&self, place: &Place, action: &'static str) -> Error {
        let path = place.path();
        let Some(code) = self.code() else {
            let reason = match action {
                "opening" if place.config().get_ssl_mode() == SslMode::Require => format!(
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
        let open = |hint: String| Error::Open { path: place.path(), reason: format!("{self}: {hint}") };
        match code {
            code if *code == SqlState::INVALID_PASSWORD
                || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
            {
                open("see the user and the password in the URL, and pg_hba.conf on the server".into())
            }
            code if *code == SqlState::INVALID_CATALOG_NAME => {
                open(format!("make it with `createdb {}`, or name another in the URL", place.database()))
            }
            code if *code == SqlState::INSUFFICIENT_PRIVILEGE => open(format!(
                "its user needs a schema to make tables in, e.g. GRANT CREATE, USAGE ON SCHEMA public TO {}",
                place.user()
            )),
            code if *code == SqlState::INVALID_SCHEMA_NAME => open(
                "none of the schemas in its search_path exists: make one, e.g. CREATE SCHEMA sprag".into(),
            ),
            code if *code == SqlState::TOO_MANY_CONNECTIONS => {
                open("raise max_connections on the server, or put a pooler in front of it".into())
            }
            code if *code == SqlState::DISK_FULL => Error::Full { path },
            code if *code == SqlState::LOCK_NOT_AVAILABLE || *code == SqlState::QUERY_CANCELED => {
                Error::Locked { path, waited_ms: super::LOCK_TIMEOUT.as_millis() as u64 }
            }
            code if *code == SqlState::CHARACTER_NOT_IN_REPERTOIRE => Error::Refused(format!(
                "PostgreSQL cannot keep this text: {self}; leave the character with the number zero out of it"
            )),
            _ if self.is_contention() => Error::Conflict { entity: "row", id: self.to_string() },
            code => Error::Io { action, path, reason: format!("{self} ({})", code.code()) },
        }
    }
}
