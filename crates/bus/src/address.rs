//! Where the broker is, and under which first word everything is published there.

use std::fmt;
use std::str::FromStr;

use async_nats::{ConnectOptions, ServerAddr};

/// What everything is published under, unless the address says otherwise.
const DEFAULT_PREFIX: &str = "sprag";
/// It is part of every subject and of the streams' names.
const LONGEST_PREFIX: usize = 32;

/// A broker's address: `nats://[USER:PASSWORD@]HOST[:PORT][,HOST…][/PREFIX]`, or `TOKEN@` instead of user and password.
/// Two stores on one broker need a prefix each.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    servers: Vec<ServerAddr>,
    login: Option<Login>,
    prefix: String,
    shown: String,
}

/// Who we are to the broker.
#[derive(Clone, PartialEq, Eq)]
enum Login {
    User(String, String),
    Token(String),
}

/// Why a text is no broker's address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAnAddress(String);

impl Address {
    /// The servers of the broker: one, or several of a cluster.
    pub(crate) fn servers(&self) -> Vec<ServerAddr> {
        self.servers.clone()
    }

    /// Options of a connection, with what the broker wants to be shown. The client would not take that from an address.
    pub(crate) fn options(&self) -> ConnectOptions {
        match self.login.clone() {
            None => ConnectOptions::new(),
            Some(Login::User(user, password)) => ConnectOptions::with_user_and_password(user, password),
            Some(Login::Token(token)) => ConnectOptions::with_token(token),
        }
    }

    /// The first word of every subject.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let wrong = |why: String| NotAnAddress(format!("{why}: write it like nats://HOST:4222"));
        // The text may hold a password: it is not repeated.
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it has no scheme".into()))?;
        if !matches!(scheme, "nats" | "tls") {
            return Err(wrong(format!("{scheme:?} is neither nats nor tls")));
        }
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = if prefix.is_empty() { DEFAULT_PREFIX } else { prefix };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if prefix.len() > LONGEST_PREFIX || !prefix.bytes().all(plain) {
            return Err(wrong(format!("its prefix must be 1 to {LONGEST_PREFIX} letters, digits, - or _")));
        }
        let (login, hosts) = match hosts.rsplit_once('@') {
            Some((login, hosts)) => {
                let unclear = || wrong("its user or password has a % that begins no byte".into());
                (Some(read_login(login).ok_or_else(unclear)?), hosts)
            }
            None => (None, hosts),
        };
        let mut servers = Vec::new();
        for host in hosts.split(',') {
            let server = format!("{scheme}://{host}").parse::<ServerAddr>();
            match server {
                Ok(server) if !server.host().is_empty() => servers.push(server),
                Ok(_) => return Err(wrong("it names no host".into())),
                Err(error) => return Err(wrong(error.to_string())),
            }
        }
        let shown = match prefix == DEFAULT_PREFIX {
            true => format!("{scheme}://{hosts}"),
            false => format!("{scheme}://{hosts}/{prefix}"),
        };
        Ok(Address { servers, login, prefix: prefix.to_owned(), shown })
    }
}

fn read_login(text: &str) -> Option<Login> {
    Some(match text.split_once(':') {
        Some((user, password)) => Login::User(decoded(user)?, decoded(password)?),
        None => Login::Token(decoded(text)?),
    })
}

/// A part of an address in which `%` and two digits stand for a byte.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.bytes());
    }
    String::from_utf8(bytes).ok()
}

/// Without user and password.
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
    fn what_is_shown_to_the_broker_stands_before_the_hosts() {
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
    fn what_is_no_address_is_refused_without_its_password() {
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
