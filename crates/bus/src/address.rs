//! The broker's address and the prefix of all subjects.

use std::fmt;
use std::str::FromStr;

use async_nats::{ConnectOptions, ServerAddr};

/// The prefix if the address has none.
const DEFAULT_PREFIX: &str = "sprag";
/// The most characters of a prefix. The prefix is part of every subject and of the streams' names.
const MAX_PREFIX_LEN: usize = 32;

/// A broker's address: `nats://[USER:PASSWORD@]HOST[:PORT][,HOST…][/PREFIX]`, or `TOKEN@` instead of user and password.
/// Two stores on one broker need a prefix each.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    servers: Vec<ServerAddr>,
    login: Option<Login>,
    prefix: String,
    shown: String,
}

/// The credentials in the address.
#[derive(Clone, PartialEq, Eq)]
enum Login {
    User(String, String),
    Token(String),
}

/// An invalid broker address. The message never repeats the address, which may contain a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(String);

impl Address {
    /// Returns the broker's servers: one, or several of a cluster.
    pub(crate) fn servers(&self) -> Vec<ServerAddr> {
        self.servers.clone()
    }

    /// Returns connection options with the credentials. The client does not read them from an address.
    pub(crate) fn options(&self) -> ConnectOptions {
        match self.login.clone() {
            None => ConnectOptions::new(),
            Some(Login::User(user, password)) => ConnectOptions::with_user_and_password(user, password),
            Some(Login::Token(token)) => ConnectOptions::with_token(token),
        }
    }

    /// Returns the first word of every subject.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = |why: String| AddressError(format!("{why}: expected nats://HOST:4222"));
        // The text may contain a password, so no message repeats it.
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| error("the address has no scheme".into()))?;
        if !matches!(scheme, "nats" | "tls") {
            return Err(error(format!("{scheme:?}  is not a scheme: nats or tls")));
        }
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = if prefix.is_empty() { DEFAULT_PREFIX } else { prefix };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if prefix.len() > MAX_PREFIX_LEN || !prefix.bytes().all(plain) {
            return Err(error(format!("the prefix must be 1 to {MAX_PREFIX_LEN} letters, digits, - or _")));
        }
        let (login, hosts) = match hosts.rsplit_once('@') {
            Some((login, hosts)) => {
                let invalid = || error("the user or password has a % that starts no %XX escape".into());
                (Some(parse_login(login).ok_or_else(invalid)?), hosts)
            }
            None => (None, hosts),
        };
        let mut servers = Vec::new();
        for host in hosts.split(',') {
            let server = format!("{scheme}://{host}").parse::<ServerAddr>();
            match server {
                Ok(server) if !server.host().is_empty() => servers.push(server),
                Ok(_) => return Err(error("a host is empty".into())),
                Err(failure) => return Err(error(failure.to_string())),
            }
        }
        let shown = if prefix == DEFAULT_PREFIX {
            format!("{scheme}://{hosts}")
        } else {
            format!("{scheme}://{hosts}/{prefix}")
        };
        Ok(Address { servers, login, prefix: prefix.to_owned(), shown })
    }
}

fn parse_login(text: &str) -> Option<Login> {
    Some(match text.split_once(':') {
        Some((user, password)) => Login::User(percent_decode(user)?, percent_decode(password)?),
        None => Login::Token(percent_decode(text)?),
    })
}

/// Decodes `%` followed by two hexadecimal digits. Returns `None` for an incomplete escape or invalid UTF-8.
fn percent_decode(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.bytes());
    }
    String::from_utf8(bytes).ok()
}

/// Shows the address without its credentials.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_servers_and_a_prefix() {
        for (text, servers, prefix, shown) in [
            ("nats://127.0.0.1", 1, "sprag", "nats://127.0.0.1"),
            ("nats://a:4222,b:4223/build", 2, "build", "nats://a:4222,b:4223/build"),
            ("tls://me:secret@a:1/", 1, "sprag", "tls://a:1"),
            ("nats://me:s3@a,b", 2, "sprag", "nats://a,b"),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!((address.servers.len(), address.prefix()), (servers, prefix), "{text}");
            assert_eq!(address.to_string(), shown, "{text}");
            assert_eq!(format!("{address:?}"), format!("Address({shown})"));
        }
    }

    #[test]
    fn an_address_contains_credentials() {
        let login = |text: &str| text.parse::<Address>().expect(text).login;
        let user = |user: &str, password: &str| Some(Login::User(user.into(), password.into()));
        assert!(login("nats://a,b").is_none());
        assert!(login("nats://me:s3@a,b") == user("me", "s3"));
        assert!(login("nats://m%40e:s%3a%2F%25@a") == user("m@e", "s:/%"));
        assert!(login("nats://t0ken@a") == Some(Login::Token("t0ken".into())));
        for text in ["nats://me:%@a", "nats://me:%zz@a", "nats://m%f@a", "nats://%ff@a"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_invalid_address_is_refused_without_its_password() {
        for text in [
            "",
            "a:4222",
            "http://a",
            "nats://",
            "nats://a,,b",
            "nats://a/x.y",
            "nats://me:secret@/x y",
            "nats://me:x/secret@a",
        ] {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
