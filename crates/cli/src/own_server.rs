//! Detection of this user's own server on this machine. Its token is in the data directory, and the client shows it to
//! the server.
//!
//! The token is an administrator's. Any user of the machine can listen on a port that this user's server has left. So
//! the client asks the kernel whose program listens there before it sends the token.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use sprag_server::read_local_token;

use crate::exit::Failure;

/// The owner of the program that listens at an address of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listener {
    /// This user's.
    Own,
    /// Another user's.
    Foreign {
        /// The id of the user.
        uid: u32,
    },
    /// No program listens there, as far as this process can see.
    Nobody,
}

/// Returns the token of the data directory, if the server is this user's own. Returns `Own::Elsewhere` if there is no
/// token to show: the server is elsewhere, or has no such token.
pub(crate) fn local_token(data: &Path, server: &str) -> Result<Own, Failure> {
    let Some(port) = loopback_port(server) else { return Ok(Own::Elsewhere) };
    let found = read_local_token(data).map_err(|error| Failure::error(error.to_string()))?;
    match (listener(port), found) {
        (Listener::Own, Some(token)) => Ok(Own::Token(token)),
        (Listener::Own, None) => Ok(Own::Elsewhere),
        (Listener::Nobody, _) => Ok(Own::NotThere),
        (Listener::Foreign { uid }, _) => Err(Failure::error(format!(
            "a program of another user (uid {uid}) listens at {server}: the token of {} is not shown to it",
            data.display()
        ))
        .next("if it is the server you mean, show a token that it knows: --token TOKEN or SPRAG_TOKEN")),
    }
}

/// The token to show to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Own {
    /// The token of the data directory.
    Token(String),
    /// Nothing: it is not this user's server, or has no such token.
    Elsewhere,
    /// Not known yet: no program listens there.
    NotThere,
}

/// Returns the port of a server that is named by a loopback address.
fn loopback_port(server: &str) -> Option<u16> {
    let server = server.trim();
    let (rest, default) = match server.strip_prefix("http://") {
        Some(rest) => (rest, 80),
        None => (server.strip_prefix("https://")?, 443),
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    if let Ok(addr) = authority.parse::<SocketAddr>() {
        return addr.ip().is_loopback().then_some(addr.port());
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(_) => (authority, default),
        None => match authority.split_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (authority, default),
        },
    };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let local = host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|ip| ip.is_loopback());
    local.then_some(port)
}

/// Asks the kernel which user listens on a port of this machine's loopback addresses.
fn listener(port: u16) -> Listener {
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    judge(tables.iter().flat_map(|table| table.lines()), port, rustix::process::geteuid().as_raw())
}

/// Decides whose the port is. It is this user's only if all its listeners are.
fn judge<'t>(lines: impl Iterator<Item = &'t str>, port: u16, own: u32) -> Listener {
    let mut seen = Listener::Nobody;
    for (ip, at, uid) in lines.filter_map(parse_listening) {
        let reaches = ip.is_loopback() || ip.is_unspecified();
        if at != port || !reaches {
            continue;
        }
        if uid != own {
            return Listener::Foreign { uid };
        }
        seen = Listener::Own;
    }
    seen
}

/// Parses a line of the kernel's table about a listening socket: its address, its port, its user.
fn parse_listening(line: &str) -> Option<(IpAddr, u16, u32)> {
    const LISTEN: &str = "0A";
    let words: Vec<&str> = line.split_whitespace().collect();
    let (local, state, uid) = (words.get(1)?, words.get(3)?, words.get(7)?);
    if *state != LISTEN {
        return None;
    }
    let (ip, port) = local.split_once(':')?;
    // The address consists of groups of 32 bits, each in the machine's byte order.
    let groups = (0..ip.len() / 8).map(|at| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok());
    let bytes: Vec<u8> =
        groups.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(four) => IpAddr::V4(Ipv4Addr::from(four)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?)).to_canonical(),
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?, uid.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_this_machines() {
        for (server, port) in [
            ("http://127.0.0.1:7717", Some(7717)),
            ("http://127.0.0.9:1/", Some(1)),
            ("http://localhost:7717/sprag", Some(7717)),
            ("http://LOCALHOST", Some(80)),
            ("http://[::1]:7717", Some(7717)),
            ("http://[::1]", Some(80)),
            ("http://10.0.0.5:7717", None),
            ("http://127.0.0.1.evil.example:7717", None),
            ("http://localhost.evil.example:7717", None),
            ("http://evil.example:7717#127.0.0.1:7717", None),
            ("https://127.0.0.1:7717", Some(7717)),
            ("http://127.0.0.1@evil.example:7717", None),
            ("", None),
        ] {
            assert_eq!(loopback_port(server), port, "{server}");
        }
    }

    #[test]
    fn e05_a_listener_of_another_user_is_told_from_ones_own() {
        let own =
            "   0: 0100007F:1E25 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1";
        let foreign = own.replace(" 1000 ", "  666 ");
        let anywhere = foreign.replace("0100007F", "00000000");
        let connected = foreign.replace(" 0A ", " 01 ");
        let six = "0: 00000000000000000000000001000000:1E25 00000000000000000000000000000000:0000 0A 0:0 00:0 0 666 0 1 1";
        let told = |lines: &[&str]| judge(lines.iter().copied(), 0x1e25, 1000);
        assert_eq!(told(&[]), Listener::Nobody);
        assert_eq!(told(&["  sl  local_address rem_address   st", own]), Listener::Own);
        assert_eq!(told(&[own, &connected]), Listener::Own);
        for other in [&foreign, &anywhere, &six.to_owned()] {
            assert_eq!(told(&[own, other]), Listener::Foreign { uid: 666 }, "{other}");
        }
        assert_eq!(judge([own].into_iter(), 1, 1000), Listener::Nobody);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        assert_eq!(listener(socket.local_addr().expect("an address").port()), Listener::Own);
    }
}
