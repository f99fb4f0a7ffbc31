//! A network between servers, which can be cut off from each other while clients still reach all of
//! them. It tells servers from clients by their source address.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// The most bytes of one read.
const CHUNK: usize = 64 * 1024;

/// How soon a connection notices the end of a cut.
const PAUSE: Duration = Duration::from_millis(20);

/// A server, from 1.
pub(crate) type Peer = u8;

/// Clones are the same network.
#[derive(Clone, Default)]
pub(crate) struct Wires(Arc<Mutex<HashSet<(Peer, Peer)>>>);

impl Wires {
    /// The option that gives a server its source address.
    pub(crate) fn source(place: Peer) -> [String; 2] {
        ["--bind-source-addr".into(), format!("127.0.1.{place}")]
    }

    /// Forwards the data for a server. Returns the port at which it is reached from now on.
    pub(crate) async fn to(&self, place: Peer, port: u16) -> Result<u16, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.map_err(|error| error.to_string())?;
        let seat = listener.local_addr().map_err(|error| error.to_string())?;
        let wires = self.clone();
        tokio::spawn(async move {
            while let Ok((near, from)) = listener.accept().await {
                let (wires, from) = (wires.clone(), place_of(from));
                tokio::spawn(async move {
                    // The connection ends when either side ends.
                    let _ = wires.serve(near, from, place, port).await;
                });
            }
        });
        Ok(seat.port())
    }

    /// From now on nothing passes between this server and the others, either way, and neither is
    /// told.
    pub(crate) fn cut(&self, place: Peer, others: impl IntoIterator<Item = Peer>) {
        let mut cut = self.0.lock().expect("no panic while held");
        for other in others {
            cut.extend([(place, other), (other, place)]);
        }
    }

    /// Ends all cuts, and breaks the connections that were cut.
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
        // Until the first direction ends.
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

/// The server that connects from this address; `None` for a client.
fn place_of(from: SocketAddr) -> Option<Peer> {
    match from.ip() {
        IpAddr::V4(ip) => match ip.octets() {
            [127, 0, 1, place] => Some(place),
            _ => None,
        },
        IpAddr::V6(_) => None,
    }
}
