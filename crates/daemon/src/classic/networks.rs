//! The networks whose clients may use the classic interface.

use std::net::IpAddr;

use ipnet::IpNet;

/// The allowed networks. This machine is always allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// Reads addresses with or without prefix lengths, separated by commas or blanks.
    ///
    /// # Errors
    /// The first part that is not a network.
    pub fn from_list(text: &str) -> Result<Self, &str> {
        let is_between = |c: char| c == ',' || c.is_whitespace();
        let networks = text.split(is_between).filter(|one| !one.is_empty());
        let networks = networks.map(|one| {
            let alone = || one.parse().map(|address: IpAddr| IpNet::from(address));
            one.parse().or_else(|_| alone()).map_err(|_| one)
        });
        networks.collect::<Result<_, _>>().map(Networks)
    }

    /// Whether only this machine is allowed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn have(&self, address: IpAddr) -> bool {
        // An IPv4 client of a socket for both versions.
        let address = address.to_canonical();
        address.is_loopback() || self.0.iter().any(|network| network.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_network_whose_bits_it_has() {
        let networks = Networks::from_list("10.1.0.0/16, 192.168.7.9 fd00::/8").unwrap();
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
        let all = Networks::from_list("0.0.0.0/0").unwrap();
        assert!(all.have("8.8.8.8".parse().unwrap()) && !all.have("2001:db8::1".parse().unwrap()));
        assert!(!Networks::default().have("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn a_text_that_is_no_network_is_refused() {
        for text in [
            "10.0.0.0/33",
            "fd00::/129",
            "10.0.0/8",
            "home",
            "10.0.0.0/8/8",
            "::/-1",
        ] {
            assert_eq!(Networks::from_list(&format!("10.0.0.1, {text}")), Err(text));
        }
    }
}
