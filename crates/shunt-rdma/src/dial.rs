//! Connects to a host. Looking its name up may take as long as it likes, so a thread of its own does it.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use shunt_peer::PublicKey;

use crate::shared::Shared;

/// Time for one address of a host.
const PATIENCE: Duration = Duration::from_secs(3);

/// What has become of it.
#[derive(Debug)]
pub(crate) struct Dialed {
    pub(crate) key: PublicKey,
    /// Which of the attempts.
    pub(crate) number: u64,
    pub(crate) outcome: io::Result<(TcpStream, SocketAddr)>,
}

/// Begins to connect to a host on behalf of a peer.
pub(crate) fn begin(
    (host, port): (String, u16),
    (key, number): (PublicKey, u64),
    to: &Sender<Dialed>,
    shared: &Arc<Shared>,
) -> io::Result<()> {
    let (to, shared) = (to.clone(), Arc::clone(shared));
    let dial = move || {
        let outcome = connect(&host, port);
        // Where the plane has ended, nobody waits for it.
        let _ = to.send(Dialed { key, number, outcome });
        shared.wake();
    };
    std::thread::Builder::new().name("shunt-dial".into()).spawn(dial).map(|_| ())
}

/// The first of a host's addresses that answers.
fn connect(host: &str, port: u16) -> io::Result<(TcpStream, SocketAddr)> {
    let mut why = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for at in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&at, PATIENCE) {
            Ok(stream) => return Ok((stream, at)),
            Err(error) => why = error,
        }
    }
    Err(why)
}
