//! Names become addresses here, and an address that may not be called goes no further: it is the
//! one that would be connected to.

use std::error::Error as StdError;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::{Network, is_public};
use super::lookups::{Lookups, NameSource};

/// Which addresses may be called.
#[derive(Debug, Clone)]
pub(super) struct AddressFilter {
    /// Beside those of the open internet.
    pub(super) networks: Arc<[Network]>,
}

/// An address that may not be called.
#[derive(Debug, Clone)]
pub(super) struct RefusedAddress {
    host: String,
    address: IpAddr,
}

impl AddressFilter {
    /// # Errors
    /// If the host is an address that may not be called. Of a name nothing is known yet.
    pub(super) fn check_host(&self, url: &Url) -> Result<(), RefusedAddress> {
        let host = url.host_str().unwrap_or_default();
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        match literal.parse() {
            Ok(address) => self.check(host, address),
            Err(_) => Ok(()),
        }
    }

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

/// What connections ask for the address of a name.
pub(super) struct Resolver {
    pub(super) lookups: Arc<Lookups>,
    /// How long a lookup may take.
    pub(super) within: Duration,
    /// Whose the names are. Without a guard any address will do.
    pub(super) named: NameSource,
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
                // All of them: a name that has an address inside is up to something.
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
            write!(f, "{host} is no address of the open internet")?;
        } else {
            write!(
                f,
                "{host} stands for {address}, which is no address of the open internet"
            )?;
        }
        f.write_str(", and this route does not allow it")
    }
}

impl StdError for RefusedAddress {}
