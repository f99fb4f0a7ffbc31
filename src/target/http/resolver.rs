//! The resolver of HTTP clients, which refuses forbidden addresses. The client connects to the very
//! addresses that were checked, so a name cannot change its address in between.

use std::error::Error as StdError;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::{Network, is_public};
use super::lookups::{Lookups, NameSource};

/// The addresses that jobs and redirects may lead to: public addresses, and addresses in
/// `networks`.
#[derive(Debug, Clone)]
pub(super) struct AddressFilter {
    /// Allowed networks beside the open internet.
    pub(super) networks: Arc<[Network]>,
}

/// The error of a forbidden address, with the host that it belongs to.
#[derive(Debug, Clone)]
pub(super) struct RefusedAddress {
    host: String,
    address: IpAddr,
}

impl AddressFilter {
    /// Verifies a URL with a literal address. A URL with a name passes: its addresses are checked
    /// when it is resolved.
    ///
    /// # Errors
    /// If the host is a forbidden address.
    pub(super) fn check_host(&self, url: &Url) -> Result<(), RefusedAddress> {
        let host = url.host_str().unwrap_or_default();
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        match literal.parse() {
            Ok(address) => self.check(host, address),
            Err(_) => Ok(()),
        }
    }

    /// # Errors
    /// If the address is neither public nor in an allowed network.
    fn check(&self, host: &str, address: IpAddr) -> Result<(), RefusedAddress> {
        let mut allowed = self.networks.iter();
        if is_public(address) || allowed.any(|network| network.contains(address)) {
            return Ok(());
        }
        Err(RefusedAddress {
            host: host.to_owned(),
            address,
        })
    }
}

/// The resolver of one HTTP client.
pub(super) struct Resolver {
    pub(super) lookups: Arc<Lookups>,
    /// The limit for one lookup.
    pub(super) within: Duration,
    /// Whether routes or jobs give the names, which decides the limits of lookups.
    pub(super) named: NameSource,
    /// `None` allows any address.
    pub(super) guard: Option<AddressFilter>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let name = name.as_str().to_owned();
        let (lookups, guard) = (self.lookups.clone(), self.guard.clone());
        let (named, within) = (self.named, self.within);
        Box::pin(async move {
            let found = lookups.find(&name, named, within).await?;
            if let Some(guard) = guard {
                // Each address must pass: a name with a single private address is suspicious.
                found
                    .iter()
                    .try_for_each(|address| guard.check(&name, *address))?;
            }
            let found = found.iter().map(|address| SocketAddr::new(*address, 0));
            Ok(Box::new(found.collect::<Vec<_>>().into_iter()) as Addrs)
        })
    }
}

impl fmt::Display for RefusedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RefusedAddress { host, address } = self;
        if host.contains(&address.to_string()) {
            write!(f, "{host} is not a public internet address")?;
        } else {
            write!(
                f,
                "{host} resolves to {address}, which is not a public internet address"
            )?;
        }
        f.write_str(", and this route does not allow it")
    }
}

impl StdError for RefusedAddress {}
