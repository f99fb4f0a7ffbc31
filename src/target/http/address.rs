//! Public addresses: the test that keeps jobs and redirects away from this machine, its network and
//! its cloud.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;

/// A range of addresses with the same first bits, such as `10.0.0.0/8`, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Network(IpNet);

impl Network {
    /// Whether the address is in this network.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl FromStr for Network {
    type Err = String;

    /// Parses `10.0.0.0/8`, `fd00::/8` or a single address.
    ///
    /// # Errors
    /// The rule, with the text.
    fn from_str(text: &str) -> Result<Self, String> {
        let one = || text.parse().map(|address: IpAddr| IpNet::from(address));
        let network = text.parse().or_else(|_| one());
        network.map(Network).map_err(|_| {
            format!(
                "{text:?} is not a network: write a network such as 10.0.0.0/8 or fd00::/8, or an \
                 address"
            )
        })
    }
}

/// Whether an address belongs to the open internet: false for loopback, private, link-local,
/// multicast, metadata and reserved addresses.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Public are all addresses outside of the special ranges of the IANA registry, except one address
/// of a cloud.
fn is_public_v4(address: Ipv4Addr) -> bool {
    !matches!(
        address.octets(),
        [0 | 10 | 127, ..]
            | [100, 64..=127, ..]
            | [169, 254, ..]
            | [172, 16..=31, ..]
            | [192, 0, 0 | 2, _]
            | [192, 88, 99, _]
            | [192, 168, ..]
            | [198, 18..=19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _]
            | [224..=255, ..]
            // The metadata server of Azure.
            | [168, 63, 129, 16]
    )
}

/// Only 2000::/3 is assigned for public use. An address that embeds an address of version 4, as
/// IPv4-mapped, NAT64 and 6to4 addresses do, is judged by the embedded one.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let embedded = |high: u16, low: u16| {
        is_public_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            embedded(high, low)
        }
        [0x2002, high, low, ..] => embedded(high, low),
        [0x2001, 0..=0x01ff | 0xdb8, ..] | [0x3fff, 0..=0x0fff, ..] => false,
        [first, ..] => (0x2000..=0x3fff).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_internal_address_is_not_public_in_any_notation() {
        for inside in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.0.9",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(inside.parse().unwrap()), "{inside}");
        }
        for public in [
            "1.1.1.1",
            "100.63.0.1",
            "172.32.0.1",
            "168.63.129.17",
            "223.255.255.1",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn a_network_contains_the_addresses_with_its_prefix() {
        let has = |network: &str, address: &str| {
            let network: Network = network.parse().unwrap();
            network.contains(address.parse().unwrap())
        };
        assert!(has("10.0.0.0/8", "10.255.0.1"));
        assert!(!has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("127.0.0.1", "127.0.0.1"));
        assert!(!has("127.0.0.1", "127.0.0.2"));
        assert!(has("0.0.0.0/0", "1.2.3.4") && !has("0.0.0.0/0", "::1"));
        assert!(has("fd00::/8", "fd12::1") && !has("fd00::/8", "fe80::1"));
        assert!(has("::/0", "::1") && has("::1/128", "::1"));
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "::1/129", "10.0.0.0/x", "a"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
