//! Networks whose clients are let in.

use std::net::IpAddr;

use super::fault::Wrong;
use super::value::{Form, Value, cut};

/// Networks, beside this machine, which always belongs to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Networks(Vec<Network>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    /// How many of its bits an address of the network shares.
    bits: u32,
}

impl Networks {
    /// This machine alone.
    pub(crate) fn none() -> Self {
        Networks(Vec::new())
    }

    pub(crate) fn have(&self, address: IpAddr) -> bool {
        // What came over IPv4 to a socket that does both.
        let address = address.to_canonical();
        address.is_loopback() || self.0.iter().any(|network| network.has(address))
    }
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then_some(Network { address, bits })
    }

    fn has(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= self.bits
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.leading_zeros() >= self.bits
            }
            _ => false,
        }
    }
}

impl Value for Networks {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "NETWORKS";

    fn parse(text: &str) -> Result<Self, Wrong> {
        let is_between = |c: char| c == ',' || c.is_whitespace();
        let networks = text.split(is_between).filter(|one| !one.is_empty());
        let networks = networks.map(|one| {
            Network::parse(one).ok_or_else(|| {
                Wrong::new(
                    format_args!("{} is no network", cut(one)),
                    "write an address and how many bits of it count, such as 10.0.0.0/8",
                )
            })
        });
        let networks: Vec<Network> = networks.collect::<Result<_, _>>()?;
        if networks.is_empty() {
            return Err(Wrong::new(
                "it names no network",
                "write one, such as 10.0.0.0/8, or leave the setting out",
            ));
        }
        Ok(Networks(networks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_network_whose_bits_it_has() {
        let networks = Networks::parse("10.1.0.0/16, 192.168.7.9 fd00::/8").unwrap();
        let have = |text: &str| networks.have(text.parse().unwrap());
        for inside in [
            "10.1.255.9",
            "::ffff:10.1.2.3",
            "192.168.7.9",
            "fdff::1",
            "127.0.0.9",
            "::1",
        ] {
            assert!(have(inside), "{inside}");
        }
        for outside in ["10.2.0.1", "192.168.7.8", "fe80::1", "::ffff:9.9.9.9"] {
            assert!(!have(outside), "{outside}");
        }
        let all = Networks::parse("0.0.0.0/0").unwrap();
        assert!(all.have("8.8.8.8".parse().unwrap()) && !all.have("2001:db8::1".parse().unwrap()));
        assert!(!Networks::none().have("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in [
            "",
            " , ",
            "10.0.0.0/33",
            "fd00::/129",
            "10.0.0/8",
            "home",
            "10.0.0.0/8/8",
            "::/-1",
        ] {
            assert!(Networks::parse(text).is_err(), "{text}");
        }
    }
}
