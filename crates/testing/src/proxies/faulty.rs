//! A network between Redis and everybody else that ill-treats scripts on their way.
//!
//! A client must not be able to tell these apart: its request was lost, the reply was lost, the
//! request is still on its way and will arrive after its repeat.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use crate::files::repository;
use crate::resp;

/// The most bytes of one read.
const CHUNK: usize = 256 * 1024;

/// A fault that can hit a connection when a script is called on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ill {
    /// The request does not arrive, and the connection breaks.
    LosesRequest,
    /// Redis carries it out, and the connection breaks before the reply.
    SwallowsReply,
    /// The connection breaks, and Redis gets the request when it has been repeated.
    DeliversLate,
    /// Nothing passes any more, and neither side is told.
    HalfOpen,
}

/// The present faults of the network.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    /// The delay of every reply.
    pub delay: Duration,
    /// The fault, and the least time between two faults.
    pub ill: Option<(Ill, Duration)>,
    /// Nothing passes, and neither side is told.
    pub cut: bool,
}

/// Forwards connections to a server.
pub struct FaultyProxy {
    pub url: String,
    pub port: u16,
    state: Arc<Mutex<State>>,
}

struct State {
    weather: Weather,
    /// Reports each fault, with the script that it hits.
    told: Box<dyn Fn(String) + Send>,
    /// The scripts that there are.
    names: Vec<String>,
    /// The loaded scripts, by their hash.
    loaded: HashMap<String, String>,
    /// The scripts that were hit, and the time of the last hit.
    struck: HashSet<String>,
    last: Option<Instant>,
}

impl FaultyProxy {
    /// A proxy to the server at a socket. `told` hears of each fault before it happens.
    pub async fn to(
        socket: PathBuf,
        told: impl Fn(String) + Send + 'static,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let place = listener.local_addr()?;
        let url = format!("redis://{place}");
        let state = Arc::new(Mutex::new(State {
            weather: Weather::default(),
            told: Box::new(told),
            names: scripts()?,
            loaded: HashMap::new(),
            struck: HashSet::new(),
            last: None,
        }));
        tokio::spawn({
            let state = state.clone();
            async move {
                while let Ok((near, _)) = listener.accept().await {
                    let (state, socket) = (state.clone(), socket.clone());
                    tokio::spawn(async move {
                        // It ends when either side does.
                        let _ = Connection::serve(near, &socket, &state).await;
                    });
                }
            }
        });
        Ok(FaultyProxy {
            url,
            port: place.port(),
            state,
        })
    }

    pub fn set(&self, weather: Weather) {
        self.state.lock().expect("no panic while held").weather = weather;
    }

    /// The scripts that have not been ill-treated yet.
    pub fn spared(&self) -> Vec<String> {
        let state = self.state.lock().expect("no panic while held");
        let names = state.names.iter();
        let spared = names.filter(|name| !state.struck.contains(*name));
        spared.cloned().collect()
    }
}

/// Scripts that no producer or worker of the fault suite calls on one server within seconds, with
/// the reasons.
const NOT_CALLED: [(&str, &str); 6] = [
    ("activity", "workers call it once a minute"),
    ("allot", "no limit of a group is shared by several ledgers"),
    ("arm", "only a cluster is called with it"),
    ("found", "only a cluster is called with it"),
    ("share", "no limit is shared by several ledgers"),
    ("start", "no kind begins with several shards"),
];

/// The names of the other scripts, by the files in `lua/`.
fn scripts() -> std::io::Result<Vec<String>> {
    let dir = repository().join("lua");
    let files = fs::read_dir(dir)?.filter_map(Result::ok);
    let name = |file: fs::DirEntry| {
        let name = file.file_name().into_string().ok()?;
        Some(name.strip_suffix(".lua")?.to_owned())
    };
    let mut names: Vec<String> = files.filter_map(name).collect();
    for (script, _) in NOT_CALLED {
        let place = names.iter().position(|name| name == script);
        names.swap_remove(place.unwrap_or_else(|| panic!("there is no script {script}")));
    }
    Ok(names)
}

impl State {
    /// The fault for this command, if it calls a script whose turn it is.
    fn judge(&mut self, command: &resp::Command) -> Option<Ill> {
        let is = |place: usize, word: &[u8]| {
            command
                .get(place)
                .is_some_and(|found| found.eq_ignore_ascii_case(word))
        };
        if is(0, b"SCRIPT") && is(1, b"LOAD") {
            let text = String::from_utf8_lossy(command.get(2)?);
            let begins = |name: &&String| text.contains(&format!("\n-- {name}: "));
            let name = self.names.iter().find(begins)?.clone();
            let hash = redis::Script::new(&text).get_hash().to_owned();
            self.loaded.insert(hash, name);
            return None;
        }
        let (ill, gap) = self.weather.ill?;
        if !is(0, b"EVALSHA") {
            return None;
        }
        let hash = std::str::from_utf8(command.get(1)?).ok()?;
        let name = self.loaded.get(hash)?;
        let is_new = !self.struck.contains(name);
        let is_soon = self.last.is_some_and(|last| last.elapsed() < gap);
        // The first call of each script is met, for some are seldom called; but connections
        // that are dead for seconds, one after the other, would leave nothing else to be seen.
        if is_soon && (!is_new || ill == Ill::HalfOpen) {
            return None;
        }
        // By chance: otherwise a client that repeats its calls at the same pace would be met every
        // time.
        if !is_new && rand::random_bool(0.95) {
            return None;
        }
        self.struck.insert(name.clone());
        self.last = Some(Instant::now());
        (self.told)(format!("{ill:?}: {name}"));
        Some(ill)
    }
}

struct Connection {
    near: TcpStream,
    far: UnixStream,
}

impl Connection {
    async fn serve(near: TcpStream, socket: &Path, state: &Mutex<State>) -> std::io::Result<()> {
        near.set_nodelay(true)?;
        let far = UnixStream::connect(socket).await?;
        let mut connection = Connection { near, far };
        let (mut asked, mut replies) = (Vec::new(), Vec::new());
        // The replies of Redis, and the time at which each may pass.
        let mut delayed: std::collections::VecDeque<(Instant, Vec<u8>)> = Default::default();
        loop {
            let Connection { near, far } = &mut connection;
            let first = delayed.front().map(|(when, _)| *when);
            // A read takes no more than there is room for.
            asked.reserve(CHUNK);
            replies.reserve(CHUNK);
            tokio::select! {
                read = near.read_buf(&mut asked) => {
                    if read? == 0 {
                        return Ok(());
                    }
                    held_up(state).await?;
                    let mut rest = &asked[..];
                    loop {
                        let before = rest;
                        let command = resp::next(&mut rest);
                        if command.is_none() {
                            // A replica that loads its data sends these between its commands.
                            let Some(after) = rest.strip_prefix(b"\n") else {
                                break;
                            };
                            rest = after;
                        }
                        let request = &before[..before.len() - rest.len()];
                        let judge = |command| {
                            state.lock().expect("no panic while held").judge(&command)
                        };
                        if let Some(ill) = command.and_then(judge) {
                            let request = request.to_vec();
                            return connection.suffer(ill, &request).await;
                        }
                        far.write_all(request).await?;
                    }
                    let done = asked.len() - rest.len();
                    asked.drain(..done);
                }
                read = far.read_buf(&mut replies) => {
                    if read? == 0 {
                        return Ok(());
                    }
                    held_up(state).await?;
                    let delay = state.lock().expect("no panic while held").weather.delay;
                    delayed.push_back((Instant::now() + delay, std::mem::take(&mut replies)));
                }
                () = tokio::time::sleep_until(first.unwrap_or_else(Instant::now)), if first.is_some() => {
                    if let Some((_, reply)) = delayed.pop_front() {
                        near.write_all(&reply).await?;
                    }
                }
            }
        }
    }

    async fn suffer(self, ill: Ill, request: &[u8]) -> std::io::Result<()> {
        let Connection { near, mut far } = self;
        match ill {
            Ill::LosesRequest => {}
            Ill::SwallowsReply => {
                far.write_all(request).await?;
                carried_out(&mut far).await;
                drop(near);
            }
            Ill::DeliversLate => {
                drop(near);
                sleep(Duration::from_millis(rand::random_range(20..600))).await;
                far.write_all(request).await?;
                carried_out(&mut far).await;
            }
            // Longer than any client waits for a reply.
            Ill::HalfOpen => {
                sleep(Duration::from_secs(20)).await;
                drop((near, far));
            }
        }
        Ok(())
    }
}

/// If it is cut, waits until it is not; then the connection is no good any more.
async fn held_up(state: &Mutex<State>) -> std::io::Result<()> {
    let is_cut = || state.lock().expect("no panic while held").weather.cut;
    if !is_cut() {
        return Ok(());
    }
    while is_cut() {
        sleep(Duration::from_millis(50)).await;
    }
    Err(std::io::ErrorKind::ConnectionReset.into())
}

/// Waits until Redis has sent a reply.
async fn carried_out(far: &mut UnixStream) {
    let _ = timeout(Duration::from_millis(500), far.read(&mut [0; 1024])).await;
}
