//! A network between servers, who can be cut off from each other while clients still reach all of
//! them. It tells servers from clients by where they connect from.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// How many bytes are read at once.
const CHUNK: usize = 64 * 1024;

/// How soon it is noticed that nobody is cut off any more.
const PAUSE: Duration = Duration::from_millis(20);

/// A server, from 1.
pub(crate) type Peer = u8;

/// Clones are the same network.
#[derive(Clone, Default)]
pub(crate) struct Wires(Arc<Mutex<HashSet<(Peer, Peer)>>>);

impl Wires {
    /// What a server is told, so that it is known by where it connects from.
    pub(crate) fn source(place: Peer) -> [String; 2] {
        ["--bind-source-addr".into(), format!("127.0.1.{place}")]
    }

    /// Forwards what is sent to a server. Returns the port at which it is reached from now on.
    pub(crate) async fn to(&self, place: Peer, port: u16) -> Result<u16, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.map_err(|error| error.to_string())?;
        let seat = listener.local_addr().map_err(|error| error.to_string())?;
        let wires = self.clone();
        tokio::spawn(async move {
            while let Ok((near, from)) = listener.accept().await {
                let (wires, from) = (wires.clone(), place_of(from));
                tokio::spawn(async move {
                    // It ends when either side does.
                    let _ = wires.serve(near, from, place, port).await;
                });
            }
        });
        Ok(seat.port())
    }

    /// From now on nothing passes between this server and those, either way, and nobody is told.
    pub(crate) fn cut(&self, place: Peer, others: impl IntoIterator<Item = Peer>) {
        let mut cut = self.0.lock().expect("no panic while held");
        for other in others {
            cut.extend([(place, other), (other, place)]);
        }
    }

    /// Nobody is cut off any more. Connections that were are broken.
    pub(crate) fn join(&self) {
        self.0.lock().expect("no panic while held").clear();
    }

    fn is_cut(&self, from: Option<Peer>, to: Peer) -> bool {
        let cut = self.0.lock().expect("no panic while held");
        from.is_some_and(|from| cut.contains(&(from, to)))
    }

    async fn serve(
        &self,
        near: TcpStream,
        from: Option<Peer>,
        place: Peer,
        port: u16,
    ) -> io::Result<()> {
        near.set_nodelay(true)?;
        let far = TcpStream::connect(("127.0.0.1", port)).await?;
        far.set_nodelay(true)?;
        let ((hear, say), (told, tell)) = (near.into_split(), far.into_split());
        // Until the first of them ends.
        tokio::select! {
            ended = self.pass(hear, tell, from, place) => ended,
            ended = self.pass(told, say, from, place) => ended,
        }
    }

    async fn pass(
        &self,
        mut read: OwnedReadHalf,
        mut write: OwnedWriteHalf,
        from: Option<Peer>,
        place: Peer,
    ) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        loop {
            let count = read.read(&mut chunk).await?;
            if count == 0 {
                return Ok(());
            }
            if self.is_cut(from, place) {
                while self.is_cut(from, place) {
                    sleep(PAUSE).await;
                }
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            write.write_all(&chunk[..count]).await?;
        }
    }
}

/// The server that connects from there, if it is none of the clients.
fn place_of(from: SocketAddr) -> Option<Peer> {
    match from.ip() {
        IpAddr::V4(ip) => match ip.octets() {
            [127, 0, 1, place] => Some(place),
            _ => None,
        },
        IpAddr::V6(_) => None,
    }
}
