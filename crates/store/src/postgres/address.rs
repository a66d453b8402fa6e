//! The location of a database: its URL, and the parts of it that may be shown.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::tls::Tls;
use crate::error::{Error, Result};

/// The longest time that connecting may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time without an answer after which a peer counts as gone.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);

/// A database, described by its URL.
#[derive(Clone)]
pub(super) struct DatabaseAddress {
    config: Config,
    tls: Tls,
    shown: String,
}

impl DatabaseAddress {
    /// Parses a URL (`postgres://user:password@host:port/database?sslmode=require&sslrootcert=…`).
    pub(super) fn parse(url: &str) -> Result<DatabaseAddress> {
        let (url, encryption) = Encryption::asked_for(url);
        let tls =
            encryption.tls().map_err(|reason| Error::Open { path: "the PostgreSQL URL".into(), reason })?;
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let why =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            // The URL may contain a password, so the error does not repeat it.
            Error::Open { path: "the PostgreSQL URL".into(), reason: why }
        })?;
        // Encryption is not tried unless the URL asks for it, because servers often offer it with an unknown
        // certificate.
        config.ssl_mode(if encryption.wanted { SslMode::Require } else { SslMode::Disable });
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
        Ok(DatabaseAddress { config, tls, shown })
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the encryption of its connections.
    pub(super) fn tls(&self) -> Tls {
        self.tls.clone()
    }

    /// Returns the database's URL without the password.
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

/// The encryption settings of a URL.
#[derive(Debug, PartialEq, Eq)]
struct Encryption {
    wanted: bool,
    /// A file with the authorities to trust.
    authorities: Option<PathBuf>,
}

impl Encryption {
    /// Removes the encryption settings from the URL, because the library that parses the rest does not know all of
    /// them.
    fn asked_for(url: &str) -> (String, Encryption) {
        let mut found = Encryption { wanted: false, authorities: None };
        let Some((before, options)) = url.split_once('?') else { return (url.to_owned(), found) };
        let mut rest = Vec::new();
        for option in options.split('&') {
            match option.split_once('=') {
                // All of these mean the strictest mode here.
                Some(("sslmode", "require" | "verify-ca" | "verify-full")) => found.wanted = true,
                Some(("sslrootcert", file)) => {
                    let decoded = percent_encoding::percent_decode_str(file).decode_utf8_lossy();
                    found.authorities = Some(PathBuf::from(&*decoded));
                }
                _ => rest.push(option),
            }
        }
        (format!("{before}?{}", rest.join("&")), found)
    }

    fn tls(&self) -> std::result::Result<Tls, String> {
        if self.wanted { Tls::trusting(self.authorities.as_deref()) } else { Ok(Tls::off()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let address =
            DatabaseAddress::parse("postgres://ann:hush@db.example:6000/work?connect_timeout=3").unwrap();
        assert_eq!(address.path().to_str(), Some("postgres://ann@db.example:6000/work"));
        for bad in ["postgres://ann:hush@host:port/work", "postgres://ann:hush@host/work?colour=hush"] {
            let Err(error) = DatabaseAddress::parse(bad) else { panic!("{bad} is no URL") };
            assert!(!error.to_string().contains("hush@"), "{error}");
        }
        assert!(DatabaseAddress::parse("postgres:///work").is_err(), "no host");
    }

    #[test]
    fn encryption_is_asked_for_in_the_url() {
        let (rest, asked) =
            Encryption::asked_for("postgres://h/d?a=b&sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem");
        assert_eq!(rest, "postgres://h/d?a=b");
        assert_eq!(asked, Encryption { wanted: true, authorities: Some("/etc/ca.pem".into()) });
        for plain in ["postgres://h/d", "postgres://h/d?sslmode=disable", "postgres://h/d?sslmode=prefer"] {
            let (rest, asked) = Encryption::asked_for(plain);
            assert!(rest == plain && !asked.wanted, "{plain}");
        }
        let missing =
            DatabaseAddress::parse("postgres://ann@h/d?sslmode=require&sslrootcert=/nowhere/ca.pem");
        let Err(error) = missing else { panic!("there is no such file") };
        assert!(error.to_string().contains("sslrootcert: cannot read /nowhere/ca.pem"), "{error}");
    }
}
