//! A primary, its replicas, and sentinels that watch them: real processes.

use std::collections::HashMap;
use std::path::PathBuf;

use keyfall_testing::files::Folder;
use keyfall_testing::ports::free_port;
use keyfall_testing::sentinel::SentinelProcess;
use rustix::process::Signal;

use super::nodes::Node;
use crate::runs::eventually;
use crate::site::connect;

/// The sentinels' name for the primary.
const NAME: &str = "main";

struct WatchingSentinel {
    process: SentinelProcess,
    /// The port for the direct commands of this test.
    port: u16,
    /// The port for clients: the same port, or the TLS port.
    seat: u16,
    password: Option<&'static str>,
}

/// The requirements for connections.
#[derive(Default, Clone)]
pub(super) struct SentinelTerms {
    /// The password of the sentinels.
    pub(super) password: Option<&'static str>,
    /// Whether a silent primary, as on a busy machine, keeps its place.
    pub(super) is_steady: bool,
    /// Further arguments of the servers.
    pub(super) args: &'static [&'static str],
    /// TLS with the files `ca.pem`, `redis.pem` and `redis.key` in this folder.
    pub(super) tls: Option<PathBuf>,
}

/// One primary, two replicas, three sentinels.
pub(super) struct Sentineled {
    pub(super) nodes: Vec<Node>,
    sentinels: Vec<WatchingSentinel>,
    _files: Folder,
}

impl SentinelTerms {
    /// The TLS settings of a server, by name and value; and its TLS port.
    fn tls(&self) -> Option<(u16, Vec<[String; 2]>)> {
        let folder = self.tls.as_ref()?;
        let file = |name: &str| folder.join(name).display().to_string();
        let port = free_port();
        let told = [
            ("tls-port", port.to_string()),
            ("tls-replication", "yes".into()),
            ("tls-auth-clients", "no".into()),
            ("tls-ca-cert-file", file("ca.pem")),
            ("tls-cert-file", file("redis.pem")),
            ("tls-key-file", file("redis.key")),
        ];
        Some((port, told.map(|(name, value)| [name.into(), value]).into()))
    }

    async fn node(&self, primary: Option<u16>) -> Node {
        let Some((port, told)) = self.tls() else {
            return Node::with(primary, self.args).await;
        };
        let args: Vec<String> = told
            .into_iter()
            .flat_map(|[name, value]| [format!("--{name}"), value])
            .collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let node = Node::with(primary, &args).await;
        Node { port, ..node }
    }
}

/// A sentinel that does not know the others.
pub(super) struct Lone {
    _process: SentinelProcess,
    _files: Folder,
}

impl Lone {
    pub(super) fn start(config: &str) -> Self {
        let files = folder();
        Lone {
            _process: SentinelProcess::start(files.path("sentinel.conf").as_ref(), config).unwrap(),
            _files: files,
        }
    }
}

fn folder() -> Folder {
    Folder::new("sentinel")
}

impl WatchingSentinel {
    fn start(files: &Folder, primary: u16, terms: &SentinelTerms) -> Self {
        let port = free_port();
        let path = files.path(&format!("sentinel-{port}.conf"));
        let down = if terms.is_steady { 600_000 } else { 1000 };
        let mut config = format!(
            "port {port}\nbind 127.0.0.1\n\
             sentinel monitor {NAME} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {NAME} {down}\n\
             sentinel failover-timeout {NAME} 5000\n"
        );
        if let Some(password) = terms.password {
            config += &format!("requirepass {password}\nsentinel sentinel-pass {password}\n");
        }
        let mut seat = port;
        if let Some((tls, told)) = terms.tls() {
            seat = tls;
            for [name, value] in told {
                config += &format!("{name} {value}\n");
            }
        }
        let process = SentinelProcess::start(path.as_ref(), &config).unwrap();
        WatchingSentinel {
            process,
            port,
            seat,
            password: terms.password,
        }
    }

    fn url(&self) -> String {
        let user = self.password.map(|password| format!(":{password}@"));
        format!(
            "redis://{}127.0.0.1:{}",
            user.unwrap_or_default(),
            self.port
        )
    }

    async fn knows(&self) -> Option<HashMap<String, String>> {
        let client = redis::Client::open(self.url()).unwrap();
        // A stopped sentinel does not answer, and a busy machine may make one late.
        let mut redis = client.get_multiplexed_async_connection().await.ok()?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("MASTER").arg(NAME);
        ask.query_async(&mut redis).await.ok()
    }
}

impl Sentineled {
    pub(super) async fn start() -> Self {
        Sentineled::with(SentinelTerms::default()).await
    }

    pub(super) async fn with(terms: SentinelTerms) -> Self {
        let files = folder();
        let primary = terms.node(None).await;
        let port = primary.port;
        let nodes = vec![
            primary,
            terms.node(Some(port)).await,
            terms.node(Some(port)).await,
        ];
        let sentinels = (0..3).map(|_| WatchingSentinel::start(&files, port, &terms));
        let it = Sentineled {
            nodes,
            sentinels: sentinels.collect(),
            _files: files,
        };
        it.are_agreed(port).await;
        it
    }

    /// Waits until each sentinel knows the primary, both replicas and the other sentinels.
    async fn are_agreed(&self, port: u16) {
        for sentinel in &self.sentinels {
            eventually("the sentinels know each other", async || {
                let told = sentinel.knows().await?;
                let is = |name: &str, value: &str| told.get(name).is_some_and(|is| is == value);
                (is("port", &port.to_string())
                    && is("num-slaves", "2")
                    && is("num-other-sentinels", "2")
                    && is("flags", "master"))
                .then_some(())
            })
            .await;
        }
    }

    /// The addresses of the sentinels, in the form of a URL.
    pub(super) fn seats(&self) -> String {
        let places = self.sentinels.iter();
        let places: Vec<String> = places.map(|it| format!("127.0.0.1:{}", it.seat)).collect();
        places.join(",")
    }

    /// The URL for clients.
    pub(super) fn url(&self) -> String {
        format!("redis+sentinel://{}/{NAME}", self.seats())
    }

    /// Sends one of the sentinels a signal, such as one that stops it.
    pub(super) fn signal_sentinel(&self, place: usize, signal: Signal) {
        self.sentinels[place].process.signal(signal);
    }

    /// The index in `nodes` of the primary that most sentinels name; at least two must answer.
    pub(super) async fn primary(&self) -> usize {
        let ports = eventually("sentinels say where the primary is", async || {
            let mut ports = Vec::new();
            for sentinel in &self.sentinels {
                let told = sentinel.knows().await.unwrap_or_default();
                ports.extend(told.get("port").and_then(|port| port.parse::<u16>().ok()));
            }
            (ports.len() > 1).then_some(ports)
        });
        let ports = ports.await;
        let of = |port: u16| ports.iter().filter(|known| **known == port).count();
        let places = 0..self.nodes.len();
        places
            .max_by_key(|place| of(self.nodes[*place].port))
            .unwrap()
    }

    /// Waits until another node is the primary.
    pub(super) async fn fails_over_from(&self, old: usize) -> usize {
        eventually("a fail-over", async || {
            let now = self.primary().await;
            (now != old).then_some(now)
        })
        .await
    }

    /// Requests a fail-over without a fault.
    pub(super) async fn fail_over(&self) {
        eventually("a fail-over is begun", async || {
            // Not the first sentinel: some tests stop it.
            let mut sentinel = connect(&self.sentinels[2].url()).await;
            let mut cmd = redis::cmd("SENTINEL");
            cmd.arg("FAILOVER").arg(NAME);
            cmd.query_async::<()>(&mut sentinel).await.ok()
        })
        .await;
    }
}
