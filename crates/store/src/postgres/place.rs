//! Where a database is: its URL, and what may be shown of it.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use crate::error::{Error, Result};

/// How long a connection may take to be made.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A peer that does not answer for so long is gone.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);

/// A database, as its URL says.
#[derive(Clone)]
pub(super) struct Place {
    config: Config,
    shown: String,
}

impl Place {
    /// Reads a URL (`postgres://user:password@host:port/database?sslmode=…`).
    pub(super) fn parse(url: &str) -> Result<Place> {
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let why =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            // The URL may hold a password: it is not repeated.
            Error::Open { path: "the PostgreSQL URL".into(), reason: why }
        })?;
        if config.get_application_name().is_none() {
            config.application_name("sprag");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.tcp_user_timeout(PEER_TIMEOUT);
        config.keepalives_idle(PEER_TIMEOUT / 2);
        config.keepalives_interval(PEER_TIMEOUT / 4);
        config.keepalives_retries(2);
        let hosts: Vec<String> = config
            .get_hosts()
            .iter()
            .enumerate()
            .map(|(at, host)| {
                let port = config.get_ports().get(at).or(config.get_ports().first()).copied().unwrap_or(5432);
                match host {
                    Host::Tcp(name) => format!("{name}:{port}"),
                    Host::Unix(path) => format!("{}:{port}", path.display()),
                }
            })
            .collect();
        if hosts.is_empty() && config.get_hostaddrs().is_empty() {
            let reason = "it names no host, e.g. postgres://user@host/database".into();
            return Err(Error::Open { path: "the PostgreSQL URL".into(), reason });
        }
        let user = config.get_user().unwrap_or("?").to_owned();
        let database = config.get_dbname().unwrap_or(&user).to_owned();
        let shown = format!("postgres://{user}@{}/{database}", hosts.join(","));
        Ok(Place { config, shown })
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Whether the URL asks for an encrypted connection.
    pub(super) fn wants_tls(&self) -> bool {
        matches!(self.config.get_ssl_mode(), SslMode::Require)
    }

    /// Its URL without the password.
    pub(super) fn path(&self) -> PathBuf {
        self.shown.clone().into()
    }

    pub(super) fn user(&self) -> &str {
        self.config.get_user().unwrap_or("the user")
    }

    pub(super) fn database(&self) -> &str {
        self.config.get_dbname().unwrap_or(self.user())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let place = Place::parse("postgres://ann:hush@db.example:6000/work?sslmode=require").unwrap();
        assert_eq!(place.path().to_str(), Some("postgres://ann@db.example:6000/work"));
        assert!(place.wants_tls());
        for bad in ["postgres://ann:hush@host:port/work", "postgres://ann:hush@host/work?colour=hush"] {
            let Err(error) = Place::parse(bad) else { panic!("{bad} is no URL") };
            assert!(!error.to_string().contains("hush@"), "{error}");
        }
        assert!(Place::parse("postgres:///work").is_err(), "no host");
    }
}
