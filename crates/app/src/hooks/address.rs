//! The addresses that hooks may be sent to. A name is resolved once, and the connection goes to the address that was
//! checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::error::Error;

/// The extent to which hooks may be sent to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Hooks may always be sent there: a public address, or this machine, where a proxy may listen.
    Open,
    /// A private network: only if the server was started with `--allow-private-hooks`.
    Private,
    /// Never: link-local addresses (where clouds serve their machines' credentials), groups, and no address at all.
    Never(&'static str),
}

/// Refuses an address that hooks must not be sent to, and says what to do.
pub fn check_hook_address(ip: IpAddr, allow_private: bool) -> Result<(), Error> {
    match reach(ip) {
        Reach::Open => Ok(()),
        Reach::Private if allow_private => Ok(()),
        Reach::Private => Err(Error::invalid(format!(
            "{ip} is an address of a private network: start the server with --allow-private-hooks to send there"
        ))),
        Reach::Never(what) => Err(Error::invalid(format!("{ip} is {what}: hooks are not sent there"))),
    }
}

/// Returns the addresses of a host that hooks may be sent to; an error with the reason if there is none.
pub async fn resolve_hook_host(host: &str, port: u16, allow_private: bool) -> Result<Vec<SocketAddr>, Error> {
    let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port))
        .await
        .map_err(|error| Error::failed(format!("cannot resolve {host}: {error}")))?
        .collect();
    let mut refused = None;
    let allowed: Vec<SocketAddr> = found
        .into_iter()
        .filter(|address| {
            check_hook_address(address.ip(), allow_private).map_err(|why| refused = Some(why)).is_ok()
        })
        .collect();
    if allowed.is_empty() {
        Err(refused.unwrap_or_else(|| Error::failed(format!("{host} has no address"))))
    } else {
        Ok(allowed)
    }
}

fn reach(ip: IpAddr) -> Reach {
    match ip.to_canonical() {
        IpAddr::V4(ip) => reach_v4(ip),
        IpAddr::V6(ip) => reach_v6(ip),
    }
}

fn reach_v4(ip: Ipv4Addr) -> Reach {
    let [first, second, third, _] = ip.octets();
    let is_carrier_grade = first == 100 && (64..128).contains(&second);
    // Networks for protocols and for measurements, which have no owner on the internet; clouds run services there.
    let is_special = [first, second, third] == [192, 0, 0] || first == 198 && (18..20).contains(&second);
    match ip {
        _ if ip.is_link_local() => Reach::Never("a link-local address"),
        _ if first == 0 => Reach::Never("no address of a host"),
        _ if ip.is_multicast() || first >= 240 => Reach::Never("an address of many hosts"),
        _ if ip.is_private() || is_carrier_grade || is_special => Reach::Private,
        _ => Reach::Open,
    }
}

fn reach_v6(ip: Ipv6Addr) -> Reach {
    let parts = ip.segments();
    let embedded = |high: u16, low: u16| reach_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)));
    let is_site_local = parts[0] & 0xffc0 == 0xfec0;
    let is_translated = matches!(parts, [0x64, 0xff9b, 0 | 1, ..]);
    match ip {
        _ if ip.is_loopback() => Reach::Open,
        _ if ip.is_unspecified() => Reach::Never("no address of a host"),
        _ if ip.is_unicast_link_local() => Reach::Never("a link-local address"),
        _ if ip.is_multicast() => Reach::Never("an address of many hosts"),
        _ if ip.is_unique_local() || is_site_local => Reach::Private,
        // An IPv4 address behind a translator or a tunnel, or written in the form from before mapped addresses.
        _ if is_translated || parts[..6] == [0; 6] => embedded(parts[6], parts[7]),
        _ if parts[0] == 0x2002 => embedded(parts[1], parts[2]),
        _ => Reach::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e04_hooks_reach_no_link_local_address_and_private_ones_only_with_the_flag() {
        let allowed =
            |ip: &str, private| check_hook_address(ip.parse().expect("an address"), private).is_ok();
        for open in ["127.0.0.1", "127.8.9.10", "::1", "93.184.215.14", "2606:2800:21f::1", "172.32.0.1"] {
            assert!(allowed(open, false), "{open}");
        }
        for private in [
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "fd00:ec2::254",
            "fec0::1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "::10.0.0.1",
            "2002:a00:1::1",
            "64:ff9b:1::10.0.0.1",
            "192.0.0.192",
            "198.18.0.1",
        ] {
            assert!(!allowed(private, false) && allowed(private, true), "{private}");
        }
        for never in [
            "169.254.169.254",
            "fe80::1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "64:ff9b:1::a9fe:a9fe",
            "240.0.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
        ] {
            assert!(!allowed(never, false) && !allowed(never, true), "{never}");
        }
    }

    #[tokio::test]
    async fn e04_a_webhook_connects_to_the_address_that_was_checked() {
        assert!(resolve_hook_host("127.0.0.1", 80, false).await.is_ok());
        let refused = resolve_hook_host("169.254.169.254", 80, true).await.expect_err("refused");
        assert!(refused.message.contains("link-local"), "{refused}");
        let refused = resolve_hook_host("10.1.2.3", 80, false).await.expect_err("refused");
        assert!(refused.message.contains("--allow-private-hooks"), "{refused}");
        // The resolver decides what oddly spelled numbers mean.
        assert!(resolve_hook_host("2852039166", 80, true).await.is_err());
    }
}
