//! The servers of the jobs: one Redis, or several in one of the supported topologies.

use std::path::{Path, PathBuf};
use std::process::Command;

use keyfall::embedded::Embedded;
use keyfall_testing::journals::Micros;
use keyfall_testing::proxies::FaultyProxy;
use keyfall_testing::server::{connect, signal_to, socket_of};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, ToRedisArgs};
use rustix::process::Signal;

use crate::aof;
use crate::clock::FakeClock;
use crate::cluster::Cluster;
use crate::journal::{Journal, What};
use crate::sentinels::{SERVERS, Sentinels};
use crate::setting::{Setting, Whose};
use crate::several::Several;
use crate::wires::Wires;

/// The key that is written to find out whether a server takes writes.
pub(crate) const PROBE: &str = "chaos-probe";

pub(crate) struct Deployment {
    servers: Servers,
    /// The network between a single server and all its clients.
    network: Option<FaultyProxy>,
}

enum Servers {
    One(Embedded),
    /// The primary, with its replicas and sentinels.
    Watched(Embedded, Box<Sentinels>),
    Cluster(Cluster),
    Several(Several),
}

impl Deployment {
    /// Starts the servers, under this clock if the setting gives it to them.
    pub(crate) async fn start(
        setting: &Setting,
        clock: Option<&(Whose, FakeClock)>,
        dir: &Path,
    ) -> Result<Self, String> {
        let with_clock = match clock {
            Some((Whose::Redis | Whose::OneServer, clock)) => Some(clock.redis_server()?),
            _ => None,
        };
        let with_clocks = match clock {
            Some((Whose::EachServer, clock)) => clocks_of_servers(clock)?,
            _ => Vec::new(),
        };
        let options_of = |server: u16| {
            let options = Embedded::options()
                // A rewrite of the log removes its history, which is evidence.
                .args(["--auto-aof-rewrite-percentage", "0"])
                .args(setting.redis.clone());
            let is_right = server > 0 && setting.clock == Some(Whose::OneServer);
            match (&with_clock, with_clocks.get(usize::from(server))) {
                (_, Some(binary)) => options.binary(binary),
                (Some(binary), None) if !is_right => options.binary(binary),
                _ => options,
            }
        };
        let options = || options_of(0);
        let wires = setting.wires.then(Wires::default);
        let mut network = None;
        let servers = if setting.cluster {
            Servers::Cluster(Cluster::start(options(), options_of(1), wires).await?)
        } else if setting.sentinels {
            let hosts = setting.hosts;
            let started = Sentinels::start(options_of, setting.network, wires, hosts, dir).await?;
            Servers::Watched(started.0, Box::new(started.1))
        } else if let Some(count) = setting.servers {
            let options = (0..count).map(options_of);
            Servers::Several(Several::start(options, setting.network, dir).await?)
        } else {
            let started = options().start().await;
            let server = started.map_err(|error| error.to_string())?;
            if setting.network {
                network = Some(network_around(&server, dir).await?);
            }
            Servers::One(server)
        };
        Ok(Deployment { servers, network })
    }

    /// The URL for programs.
    pub(crate) fn url(&self) -> String {
        match (&self.network, &self.servers) {
            (Some(network), _) => network.url.clone(),
            (None, Servers::One(server)) => server.url(),
            (None, Servers::Watched(_, sentinels)) => sentinels.url(),
            (None, Servers::Cluster(cluster)) => cluster.url(),
            (None, Servers::Several(several)) => several.url(),
        }
    }

    /// The URL for the harness, which is on none of the hosts.
    pub(crate) fn url_here(&self) -> String {
        match &self.servers {
            Servers::Watched(server, sentinels) if sentinels.have_hosts() => server.url(),
            _ => self.url(),
        }
    }

    /// The same command on the host of a client, if clients are on hosts of their own.
    pub(crate) fn on_the_host_of(&self, client: usize, command: Command) -> Command {
        match &self.servers {
            Servers::Watched(_, sentinels) => sentinels.on_the_host_of(client, command),
            _ => command,
        }
    }

    // A single server, or the primary that sentinels watch.

    /// The server, if it is a single one without sentinels.
    pub(crate) fn lone(&self) -> Option<&Embedded> {
        match &self.servers {
            Servers::One(server) => Some(server),
            _ => None,
        }
    }

    /// Whether one server has all keys, so that plain commands can be sent to it.
    pub(crate) fn is_one_place(&self) -> bool {
        matches!(self.servers, Servers::One(_) | Servers::Watched(..))
    }

    /// The only server, or the primary.
    ///
    /// # Panics
    /// If keys are in more than one place.
    pub(crate) fn server(&mut self) -> &mut Embedded {
        match &mut self.servers {
            Servers::One(server) | Servers::Watched(server, _) => server,
            Servers::Cluster(_) | Servers::Several(_) => panic!("keys are in more than one place"),
        }
    }

    fn the_server(&self) -> &Embedded {
        match &self.servers {
            Servers::One(server) | Servers::Watched(server, _) => server,
            Servers::Cluster(_) | Servers::Several(_) => panic!("keys are in more than one place"),
        }
    }

    pub(crate) async fn redis(&self) -> redis::RedisResult<MultiplexedConnection> {
        connect(&self.the_server().url()).await
    }

    pub(crate) async fn command<T: FromRedisValue>(
        &self,
        args: &[impl ToRedisArgs],
    ) -> redis::RedisResult<T> {
        let mut redis = self.redis().await?;
        redis::Cmd::new().arg(args).query_async(&mut redis).await
    }

    pub(crate) fn signal_server(&self, signal: Signal) {
        signal_to(self.the_server(), signal);
    }

    /// The files of the server's log.
    pub(crate) fn logs(&self) -> Vec<PathBuf> {
        logs_at(&socket_of(self.the_server()))
    }

    /// The network that the setting asked for.
    pub(crate) fn network(&self) -> Result<&FaultyProxy, &'static str> {
        self.network.as_ref().ok_or("there is no network")
    }

    // Several servers.

    /// The cluster that the setting asked for.
    pub(crate) fn cluster(&mut self) -> Result<&mut Cluster, &'static str> {
        match &mut self.servers {
            Servers::Cluster(cluster) => Ok(cluster),
            _ => Err("there is no cluster"),
        }
    }

    /// The independent servers that the setting asked for.
    pub(crate) fn several(&mut self) -> Result<&mut Several, &'static str> {
        match &mut self.servers {
            Servers::Several(several) => Ok(several),
            _ => Err("there are no several servers"),
        }
    }

    /// The sentinels that the setting asked for.
    pub(crate) fn sentinels(&mut self) -> Result<&mut Sentinels, &'static str> {
        match &mut self.servers {
            Servers::Watched(_, sentinels) => Ok(sentinels),
            _ => Err("there are no sentinels"),
        }
    }

    /// The primary, and the sentinels.
    fn watched(&self) -> Result<(&Embedded, &Sentinels), &'static str> {
        match &self.servers {
            Servers::Watched(server, sentinels) => Ok((server, sentinels)),
            _ => Err("there are no sentinels"),
        }
    }

    /// Waits until another server is the primary. Returns the port of the old primary, and the time
    /// from which the new one takes writes.
    pub(crate) async fn follow(&mut self) -> Result<(u16, Micros), String> {
        match &mut self.servers {
            Servers::Watched(server, sentinels) => sentinels.follow(server).await,
            _ => Err("there are no sentinels".into()),
        }
    }

    /// Sends a signal to the server that was the primary.
    pub(crate) fn signal_other(&mut self, port: u16, signal: Signal) -> Result<(), &'static str> {
        signal_to(self.sentinels()?.other(port), signal);
        Ok(())
    }

    /// Waits until all replicas follow the primary.
    pub(crate) async fn are_followed(&self) -> Result<(), String> {
        let (server, sentinels) = self.watched()?;
        sentinels.are_followed(server).await
    }

    /// Makes the server that was the primary follow the new one.
    pub(crate) async fn rejoin(&self, port: u16) -> Result<(), String> {
        let (server, sentinels) = self.watched()?;
        sentinels.rejoin(port, server).await
    }

    /// Fails if another server has become the primary unasked.
    pub(crate) async fn is_it_still(&self) -> Result<(), String> {
        match self.watched() {
            Ok((_, sentinels)) => sentinels.is_it_still().await,
            Err(_) => Ok(()),
        }
    }

    /// The whole log so far of each server whose data count, even if it was rewritten; the files
    /// stay in `dir`.
    pub(crate) fn kept_logs(&self, dir: &Path) -> std::io::Result<Vec<Vec<PathBuf>>> {
        let sockets = match &self.servers {
            Servers::One(server) | Servers::Watched(server, _) => vec![socket_of(server)],
            Servers::Cluster(cluster) => cluster.sockets(),
            Servers::Several(several) => several.sockets(),
        };
        let kept = sockets.iter().enumerate().map(|(number, socket)| {
            let dir = dir.join(format!("redis-{number}"));
            aof::keep(&logs_at(socket), &dir)?;
            Ok(aof::files(&dir))
        });
        kept.collect()
    }
}

/// For each server that sentinels watch a program that starts it under a clock of its own.
fn clocks_of_servers(clock: &FakeClock) -> Result<Vec<PathBuf>, String> {
    let own = SERVERS.map(|place| {
        let own = clock.of_server(place);
        own.set(0)?;
        own.redis_server()
    });
    own.collect()
}

/// A network around a server, which writes down its faults of scripts.
pub(crate) async fn network_around(
    server: &Embedded,
    journals: &Path,
) -> Result<FaultyProxy, String> {
    let journal = Journal::open(journals, "network");
    let told = move |name| {
        let process = None;
        journal.note(What::Fault { name, process });
    };
    let proxy = FaultyProxy::to(socket_of(server), told).await;
    proxy.map_err(|error| error.to_string())
}

/// The files of the log of the server with this socket.
fn logs_at(socket: &Path) -> Vec<PathBuf> {
    let dir = socket.parent();
    aof::files(dir.expect("the socket is in a directory"))
}
