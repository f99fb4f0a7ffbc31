//! Two replicas of a primary, and three sentinels that watch it: real processes.

use std::collections::HashMap;
use std::path::Path;
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
use crate::wires::{Peer, Wires};

/// The sentinels' name for the primary.
const NAME: &str = "chaos";

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
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    port: u16,
    process: SentinelProcess,
}

/// The first sentinel comes after the servers.
const FIRST: Peer = 4;

impl Sentinels {
    /// Starts the servers and the sentinels. Returns the primary.
    pub(crate) async fn start(
        options: impl Fn() -> Options,
        has_networks: bool,
        wires: Option<Wires>,
        dir: &Path,
    ) -> Result<(Embedded, Self), String> {
        let mut networks = HashMap::new();
        let mut servers = Vec::new();
        let mut places = HashMap::new();
        for place in 1..FIRST {
            let mut port = free_port();
            let mut options = options();
            if wires.is_some() {
                options = options.args(Wires::source(place));
            }
            let server = node(options, port).await?;
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
        for (port, other) in &servers {
            follow_from_now_on(other, *port, primary)
                .await
                .map_err(|error| error.to_string())?;
        }
        let mut sentinels = Vec::new();
        for place in FIRST..FIRST + 3 {
            sentinels.push(Sentinel::start(dir, primary, place, wires.as_ref()).await?);
        }
        let it = Sentinels {
            primary,
            others: servers,
            networks,
            wires,
            places,
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
        let places = self.sentinels.iter();
        let places: Vec<String> = places.map(|it| format!("127.0.0.1:{}", it.port)).collect();
        format!("redis+sentinel://{}/{NAME}", places.join(","))
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
        let primary = self.primary.to_string();
        self.until("it is told whom to follow", async || {
            let follow = ["REPLICAOF", "127.0.0.1", &primary];
            ask::<()>(port, &follow).await.ok()
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
        primary: u16,
        place: Peer,
        wires: Option<&Wires>,
    ) -> Result<Self, String> {
        let port = free_port();
        let path = dir.join(format!("sentinel-{port}.conf"));
        let down = NEVER.as_millis();
        let mut config = format!(
            "port {port}\nbind 127.0.0.1\n\
             sentinel monitor {NAME} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {NAME} {down}\n\
             sentinel failover-timeout {NAME} 3000\n"
        );
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
        Ok(Sentinel { port, process })
    }

    async fn ask<T: FromRedisValue>(&self, args: &[impl ToRedisArgs]) -> redis::RedisResult<T> {
        ask(self.port, args).await
    }
}

async fn ask<T: FromRedisValue>(port: u16, args: &[impl ToRedisArgs]) -> redis::RedisResult<T> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let connect = client.get_multiplexed_async_connection();
    // A stopped sentinel does not answer.
    let connected = timeout(Duration::from_millis(500), connect).await;
    let mut redis: MultiplexedConnection =
        connected.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    redis::Cmd::new().arg(args).query_async(&mut redis).await
}

async fn node(options: Options, port: u16) -> Result<Embedded, String> {
    let options = options
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
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

/// Makes a server, which others know by this port, a replica.
async fn follow_from_now_on(server: &Embedded, port: u16, primary: u16) -> redis::RedisResult<()> {
    let mut redis = connect(&server.url()).await?;
    for (name, value) in [("ip", "127.0.0.1".to_owned()), ("port", port.to_string())] {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET")
            .arg(format!("replica-announce-{name}"))
            .arg(value);
        let () = set.query_async(&mut redis).await?;
    }
    let mut follow = redis::cmd("REPLICAOF");
    follow.arg("127.0.0.1").arg(primary);
    follow.query_async(&mut redis).await
}
