//! Several independent servers that hold the jobs together: real processes.

use std::path::{Path, PathBuf};

use keyfall::embedded::{Embedded, Options};
use keyfall::server_of;
use keyfall_testing::proxies::{FaultyProxy, Weather};
use keyfall_testing::server::{signal_to, socket_of};
use rustix::process::Signal;

use crate::deployment::network_around;
use crate::load::KINDS;

/// A server, by its place among all.
pub(crate) type Number = u16;

pub(crate) struct Several {
    servers: Vec<Embedded>,
    /// The networks around the servers, if there are any.
    networks: Vec<FaultyProxy>,
}

impl Several {
    pub(crate) async fn start(
        options: impl IntoIterator<Item = Options>,
        has_networks: bool,
        dir: &Path,
    ) -> Result<Self, String> {
        let (mut servers, mut networks) = (Vec::new(), Vec::new());
        for options in options {
            let server = options.start().await.map_err(|error| error.to_string())?;
            if has_networks {
                networks.push(network_around(&server, dir).await?);
            }
            servers.push(server);
        }
        Ok(Several { servers, networks })
    }

    pub(crate) fn url(&self) -> String {
        let urls: Vec<String> = match &self.networks[..] {
            [] => self.servers.iter().map(Embedded::url).collect(),
            networks => networks.iter().map(|network| network.url.clone()).collect(),
        };
        urls.join(" ")
    }

    pub(crate) fn count(&self) -> Number {
        self.servers.len().try_into().expect("they are few")
    }

    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        self.servers.iter().map(socket_of).collect()
    }

    /// The ledgers of a server, `app:module:biz/3`, of kinds that have so many each.
    pub(crate) fn ledgers_on(&self, place: Number, shards: u16) -> Vec<String> {
        let all = KINDS
            .iter()
            .flat_map(|kind| (0..shards).map(move |shard| (kind, shard)));
        all.filter(|(kind, shard)| server_of(kind, *shard, self.count()) == place)
            .map(|(kind, shard)| format!("{kind}/{shard}"))
            .collect()
    }

    // Faults of one server.

    pub(crate) fn server(&mut self, place: Number) -> &mut Embedded {
        &mut self.servers[usize::from(place)]
    }

    pub(crate) fn signal(&self, place: Number, signal: Signal) {
        signal_to(&self.servers[usize::from(place)], signal);
    }

    /// Cuts the server off from everybody, or ends the cut.
    pub(crate) fn cut(&self, place: Number, cut: bool) -> Result<(), &'static str> {
        let network = self.networks.get(usize::from(place));
        network.ok_or("there is nothing to cut")?.set(Weather {
            cut,
            ..Weather::default()
        });
        Ok(())
    }
}
