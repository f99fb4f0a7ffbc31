//! Two replicas of a primary, and three sentinels that watch it: real processes.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use keyfall::embedded::{Embedded, Options};
use keyfall_testing::journals::{Micros, now};
use keyfall_testing::patience::within;
use keyfall_testing::ports::free_port;
use keyfall_testing::proxies::{FaultyProxy, Weather};
use keyfall_testing::sentinel::SentinelProcess;
use keyfall_testing::server::connect;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, ToRedisArgs};
use rustix::process::Signal;
use tokio::time::timeout;

use crate::deployment::{PROBE, network_around};
use crate::hosts::{Hosts, Place};
use crate::wires::{Peer, Wires};

/// The sentinels' name for the primary.
pub(crate) const NAME: &str = "chaos";

/// How long a silent primary still counts as alive, while a scenario waits for a fail-over. On a
/// busy machine, a healthy primary may be silent for a second or two.
const DOWN_AFTER: Duration = Duration::from_secs(4);

/// The same at all other times.
const NEVER: Duration = Duration::from_secs(3600);

/// The limit of every wait here. Sentinels that cannot agree try again after ten seconds.
const PATIENCE: Duration = Duration::from_secs(90);

/// The servers and sentinels beside the primary.
pub(crate) struct Sentinels {
    /// The port of the primary, and the other servers with their ports, as clients know them.
    primary: u16,
    others: Vec<(u16, Embedded)>,
    /// The networks around the servers, by port, if there are any.
    networks: HashMap<u16, FaultyProxy>,
    /// The network between all of them, if there is one, and the port of each peer in it.
    wires: Option<Wires>,
    places: HashMap<u16, Peer>,
    /// The hosts of the servers, each with a sentinel, and of their clients, if they have any.
    hosts: Option<Hosts>,
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    /// Host and port for programs.
    address: String,
    /// The URL for the harness.
    url: String,
    process: SentinelProcess,
}

/// The places of the servers.
pub(crate) const SERVERS: std::ops::RangeInclusive<Peer> = 1..=3;

/// The first sentinel comes after the servers.
const FIRST: Peer = 4;

/// How many replicas may take the place of the primary.
pub(crate) const REPLICAS: usize = 2;

/// The hosts of the clients that are cut off together with the primary, and of the others.
const NEAR: Place = 4;
const FAR: Place = 5;

/// The packets that are dropped between the primary, with its host and some clients, and all others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    All,
    /// Those that leave it.
    Out,
    /// Those that come to it.
    In,
}

impl Sentinels {
    /// Starts the servers and the sentinels. Returns the primary.
    pub(crate) async fn start(
        options: impl Fn(u16) -> Options,
        has_networks: bool,
        wires: Option<Wires>,
        has_hosts: bool,
        dir: &Path,
    ) -> Result<(Embedded, Self), String> {
        let hosts = has_hosts.then(|| Hosts::start(FAR)).transpose()?;
        let mut networks = HashMap::new();
        let mut servers = Vec::new();
        let mut places = HashMap::new();
        for place in SERVERS {
            let mut port = free_port();
            let mut options = options(u16::from(place) - 1);
            if wires.is_some() {
                options = options.args(Wires::source(place));
            }
            if let Some(hosts) = &hosts {
                let server = hosts.redis_server(place, dir)?;
                options = options.binary(server).args(["--protected-mode", "no"]);
            }
            let server = node(options, port, bound(&hosts)).await?;
            if let Some(wires) = &wires {
                port = wires.to(place, port).await?;
            }
            if has_networks {
                let proxy = network_around(&server, dir).await?;
                port = proxy.port;
                networks.insert(port, proxy);
            }
            places.insert(port, place);
            servers.push((port, server));
        }
        let (primary, server) = servers.remove(0);
        let ip = |port: u16| ip_of(&hosts, places[&port]);
        for (port, other) in &servers {
            let primary = (ip(primary), primary);
            follow_from_now_on(other, (ip(*port), *port), primary)
                .await
                .map_err(|error| error.to_string())?;
        }
        let mut sentinels = Vec::new();
        for place in FIRST..FIRST + 3 {
            let primary = (ip(primary), primary);
            let sentinel = match &hosts {
                Some(hosts) => Sentinel::start_on(hosts, place - FIRST + 1, dir, primary)?,
                None => Sentinel::start(dir, primary, place, wires.as_ref()).await?,
            };
            sentinels.push(sentinel);
        }
        let it = Sentinels {
            primary,
            others: servers,
            networks,
            wires,
            places,
            hosts,
            sentinels,
        };
        it.until("the sentinels know each other", async || {
            for sentinel in &it.sentinels {
                let told = sentinel.ask::<Vec<String>>(&["SENTINEL", "MASTER", NAME]);
                let told = told.await.ok()?.join(" ");
                let all = ["num-slaves 2", "num-other-sentinels 2", "flags master"];
                all.iter().all(|part| told.contains(part)).then_some(())?;
            }
            Some(())
        })
        .await?;
        it.are_followed(&server).await?;
        Ok((server, it))
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+sentinel://{}/{NAME}", self.addresses().join(","))
    }

    /// The addresses of the sentinels for programs.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let sentinels = self.sentinels.iter();
        sentinels.map(|it| it.address.clone()).collect()
    }

    /// The same command on the host of a client: of the first one, which is cut off together with
    /// the primary, or of another one.
    pub(crate) fn on_the_host_of(&self, client: usize, command: Command) -> Command {
        let place = if client == 0 { NEAR } else { FAR };
        match &self.hosts {
            Some(hosts) => hosts.on(place, &command),
            None => command,
        }
    }

    pub(crate) fn have_hosts(&self) -> bool {
        self.hosts.is_some()
    }

    /// The places of the primary and of the other servers, from 1.
    pub(crate) fn place(&self) -> Peer {
        self.places[&self.primary]
    }

    pub(crate) fn other_places(&self) -> Vec<Peer> {
        let others = self.others.iter();
        others.map(|(port, _)| self.places[port]).collect()
    }

    /// Sets whether the sentinels replace a silent primary.
    pub(crate) async fn are_alert(&self, alert: bool) -> Result<(), String> {
        let down = if alert { DOWN_AFTER } else { NEVER };
        let ms = down.as_millis().to_string();
        for sentinel in &self.sentinels {
            let set = ["SENTINEL", "SET", NAME, "down-after-milliseconds", &ms];
            self.until("a sentinel is told", async || {
                sentinel.ask::<()>(&set).await.ok()
            })
            .await?;
        }
        Ok(())
    }

    /// Asks for a fail-over of a healthy primary.
    pub(crate) async fn fail_over(&self) -> Result<(), String> {
        self.until("a fail-over is begun", async || {
            let asked = self.sentinels[0].ask::<()>(&["SENTINEL", "FAILOVER", NAME]);
            asked.await.ok()
        })
        .await
    }

    /// Stops one sentinel, or lets it go on.
    pub(crate) fn signal_one(&self, signal: Signal) {
        self.sentinels[0].process.signal(signal);
    }

    /// Cuts the primary off from everybody else.
    pub(crate) fn cut_off(&self) {
        self.cut(self.primary, true);
    }

    /// Cuts the primary off from its replicas, and from nobody else.
    pub(crate) fn cut_off_replicas(&self) -> Result<(), &'static str> {
        let others = self.others.iter().map(|(port, _)| self.places[port]);
        let wires = self.wires.as_ref().ok_or("there is nothing to cut")?;
        wires.cut(self.places[&self.primary], others);
        Ok(())
    }

    /// Cuts one sentinel off from all servers, and from the other sentinels.
    pub(crate) fn cut_off_one(&self) -> Result<(), &'static str> {
        let wires = self.wires.as_ref().ok_or("there is nothing to cut")?;
        wires.cut(FIRST, (1..FIRST).chain([FIRST + 1, FIRST + 2]));
        Ok(())
    }

    /// Drops packets between the host of the primary, with the clients there, and all others.
    pub(crate) fn part(&self, lost: Lost) -> Result<(), String> {
        let hosts = self.hosts.as_ref().ok_or("there are no hosts")?;
        let near = [self.place(), NEAR];
        let others: Vec<Place> = hosts.all().filter(|it| !near.contains(it)).collect();
        if lost != Lost::In {
            hosts.cut(&near, others.clone())?;
        }
        if lost != Lost::Out {
            hosts.cut(&others, near)?;
        }
        Ok(())
    }

    /// No packet is dropped any more.
    pub(crate) fn unite(&self) -> Result<(), String> {
        self.hosts.as_ref().map_or(Ok(()), Hosts::join)
    }

    /// Waits until a server that was the primary refuses writes.
    pub(crate) async fn refuses(&mut self, port: u16) -> Result<(), String> {
        let url = self.other(port).url();
        self.until("the old primary refuses writes", async || {
            let set = ask::<()>(&url, &["SET", PROBE, ""]).await;
            let code = set.err()?.code()?.to_owned();
            ["NOREPLICAS", "READONLY"].contains(&&*code).then_some(())
        })
        .await
    }

    /// Ends all cuts.
    pub(crate) fn join(&self) {
        if let Some(wires) = &self.wires {
            wires.join();
        }
        self.networks.keys().for_each(|port| self.cut(*port, false));
    }

    fn cut(&self, port: u16, cut: bool) {
        if let Some(network) = self.networks.get(&port) {
            network.set(Weather {
                cut,
                ..Weather::default()
            });
        }
    }

    /// Waits until another server is the primary instead of `server`. Returns the port of the old
    /// one, and the time from which the new one takes writes: sentinels tell of it later.
    pub(crate) async fn follow(&mut self, server: &mut Embedded) -> Result<(u16, Micros), String> {
        let (new, since) = self
            .until("another server takes writes", async || {
                for (place, (_, other)) in self.others.iter().enumerate() {
                    if takes_writes(other).await {
                        return Some((place, now()));
                    }
                }
                None
            })
            .await?;
        let port = self.others[new].0;
        self.until("it is named as the primary", async || {
            self.named().await.filter(|named| *named == port)
        })
        .await?;
        let old = self.primary;
        std::mem::swap(&mut self.others[new].1, server);
        self.primary = std::mem::replace(&mut self.others[new].0, old);
        Ok((old, since))
    }

    /// The server that was the primary before, by its port.
    pub(crate) fn other(&mut self, port: u16) -> &mut Embedded {
        let other = self.others.iter_mut().find(|(known, _)| *known == port);
        &mut other.expect("it was the primary").1
    }

    /// Makes a server a replica, as an operator would, and waits until both are.
    pub(crate) async fn rejoin(&self, port: u16, server: &Embedded) -> Result<(), String> {
        let (ip, primary) = (ip_of(&self.hosts, self.place()), self.primary.to_string());
        let old = self.others.iter().find(|(known, _)| *known == port);
        let url = old.ok_or("it was never the primary")?.1.url();
        self.until("it is told whom to follow", async || {
            ask::<()>(&url, &["REPLICAOF", &ip, &primary]).await.ok()
        })
        .await?;
        self.are_followed(server).await?;
        self.is_it_still().await
    }

    /// Fails if another server has become the primary unasked.
    pub(crate) async fn is_it_still(&self) -> Result<(), String> {
        match self.named().await {
            Some(named) if named != self.primary => Err(
                "the sentinels have made another primary by themselves: is this machine too busy?"
                    .into(),
            ),
            _ => Ok(()),
        }
    }

    /// Waits until both other servers follow the primary.
    pub(crate) async fn are_followed(&self, server: &Embedded) -> Result<(), String> {
        let client = redis::Client::open(server.url()).map_err(|error| error.to_string())?;
        self.until("both replicas follow", async || {
            let mut redis = client.get_multiplexed_async_connection().await.ok()?;
            let mut info = redis::cmd("INFO");
            let told: String = info.arg("replication").query_async(&mut redis).await.ok()?;
            (told.matches("state=online").count() == self.others.len()).then_some(())
        })
        .await
    }

    /// The port that most sentinels name.
    async fn named(&self) -> Option<u16> {
        let mut named: Vec<u16> = Vec::new();
        for sentinel in &self.sentinels {
            let ask = sentinel.ask::<(String, u16)>(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
            named.extend(ask.await.map(|(_, port)| port));
        }
        let votes = |port: &u16| named.iter().filter(|named| *named == port).count();
        named.iter().copied().find(|port| votes(port) >= 2)
    }

    async fn until<T>(
        &self,
        what: &str,
        probe: impl AsyncFnMut() -> Option<T>,
    ) -> Result<T, String> {
        within(PATIENCE, what, probe).await
    }
}

impl Sentinel {
    async fn start(
        dir: &Path,
        primary: (String, u16),
        place: Peer,
        wires: Option<&Wires>,
    ) -> Result<Self, String> {
        let port = free_port();
        let path = dir.join(format!("sentinel-{port}.conf"));
        let mut config = config(port, "127.0.0.1", &primary);
        if let Some(wires) = wires {
            let [name, source] = Wires::source(place);
            let seat = wires.to(place, port).await?;
            config += &format!(
                "{} {source}\nsentinel announce-ip 127.0.0.1\nsentinel announce-port {seat}\n",
                name.trim_start_matches('-'),
            );
        }
        let process = SentinelProcess::start(&path, &config);
        let process = process.map_err(|error| format!("a sentinel: {error}"))?;
        let address = format!("127.0.0.1:{port}");
        Ok(Sentinel {
            url: format!("redis://{address}"),
            address,
            process,
        })
    }

    /// Starts a sentinel on a host.
    fn start_on(
        hosts: &Hosts,
        place: Place,
        dir: &Path,
        primary: (String, u16),
    ) -> Result<Self, String> {
        let port = free_port();
        let path = dir.join(format!("sentinel-{port}.conf"));
        let (ip, socket) = (Hosts::address(place), dir.join(format!("sentinel-{port}")));
        let socket = socket.display();
        let mut config = config(port, EVERYWHERE, &primary);
        config += &format!(
            "protected-mode no\nunixsocket {socket}\n\
             sentinel announce-ip {ip}\nsentinel announce-port {port}\n"
        );
        let program = hosts.redis_server(place, dir)?;
        let process = SentinelProcess::start_as(program, &path, &config);
        Ok(Sentinel {
            address: format!("{ip}:{port}"),
            url: format!("redis+unix://{socket}"),
            process: process.map_err(|error| format!("a sentinel: {error}"))?,
        })
    }

    async fn ask<T: FromRedisValue>(&self, args: &[impl ToRedisArgs]) -> redis::RedisResult<T> {
        ask(&self.url, args).await
    }
}

/// The address at which servers on hosts listen.
const EVERYWHERE: &str = "0.0.0.0";

fn bound(hosts: &Option<Hosts>) -> &'static str {
    match hosts {
        Some(_) => EVERYWHERE,
        None => "127.0.0.1",
    }
}

fn ip_of(hosts: &Option<Hosts>, place: Peer) -> String {
    match hosts {
        Some(_) => Hosts::address(place),
        None => "127.0.0.1".into(),
    }
}

/// The configuration of a sentinel that watches this primary.
fn config(port: u16, bound: &str, (ip, primary): &(String, u16)) -> String {
    let down = NEVER.as_millis();
    format!(
        "port {port}\nbind {bound}\n\
         sentinel monitor {NAME} {ip} {primary} 2\n\
         sentinel down-after-milliseconds {NAME} {down}\n\
         sentinel failover-timeout {NAME} 3000\n"
    )
}

async fn ask<T: FromRedisValue>(url: &str, args: &[impl ToRedisArgs]) -> redis::RedisResult<T> {
    let client = redis::Client::open(url)?;
    let connect = client.get_multiplexed_async_connection();
    // A stopped sentinel does not answer.
    let connected = timeout(Duration::from_millis(500), connect).await;
    let mut redis: MultiplexedConnection =
        connected.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    redis::Cmd::new().arg(args).query_async(&mut redis).await
}

async fn node(options: Options, port: u16, bound: &str) -> Result<Embedded, String> {
    let options = options
        .args(["--bind", bound, "--port", &port.to_string()])
        .args(["--repl-diskless-sync-delay", "0"]);
    options.start().await.map_err(|error| error.to_string())
}

async fn takes_writes(server: &Embedded) -> bool {
    let write = async {
        let mut redis = connect(&server.url()).await?;
        redis::cmd("SET")
            .arg(&[PROBE, ""])
            .exec_async(&mut redis)
            .await
    };
    write.await.is_ok()
}

/// Makes a server, which others know by this address, a replica.
async fn follow_from_now_on(
    server: &Embedded,
    (ip, port): (String, u16),
    primary: (String, u16),
) -> redis::RedisResult<()> {
    let mut redis = connect(&server.url()).await?;
    for (name, value) in [("ip", ip), ("port", port.to_string())] {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET")
            .arg(format!("replica-announce-{name}"))
            .arg(value);
        let () = set.query_async(&mut redis).await?;
    }
    let mut follow = redis::cmd("REPLICAOF");
    follow.arg(primary.0).arg(primary.1);
    follow.query_async(&mut redis).await
}
