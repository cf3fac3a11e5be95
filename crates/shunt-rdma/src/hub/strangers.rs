//! Connections of those who have not proved who they are.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use shunt_peer::Session;
use shunt_verbs::port::Port;
use tracing::warn;

use super::Hub;
use crate::conn::Conn;

/// Connections of others that have not proved who they are. One more takes the place of the oldest.
const UNPROVED: usize = 16;
/// Connections that are accepted in one turn.
const BATCH: usize = 16;
/// How long a socket that cannot be accepted from is left alone.
const PAUSE: Duration = Duration::from_millis(200);

impl<P: Port + Clone + Send + 'static> Hub<P> {
    pub(super) fn accept(&mut self, now: Duration) {
        if now < self.accept_at {
            return;
        }
        for _ in 0..BATCH {
            match self.listener.accept() {
                Ok((stream, at)) => self.accepted(stream, at, now),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    // One that was gone before it was accepted.
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    _ => return self.accept_at = now + PAUSE,
                },
            }
        }
    }

    fn accepted(&mut self, stream: TcpStream, at: SocketAddr, now: Duration) {
        let is_unproved =
            |id: &u64, conn: &Conn| !conn.is_open() && !self.peers.iter().any(|peer| peer.has(*id));
        let unproved: Vec<_> = self
            .conns
            .iter()
            .filter(|(id, conn)| is_unproved(id, conn))
            .map(|(id, _)| *id)
            .collect();
        if unproved.len() >= UNPROVED {
            self.conns.remove(&unproved[0]);
            self.turn_away(at, "others connected, while it had not proved who it is");
        }
        let keys = self.peers.iter().map(|peer| peer.name.key).collect();
        let session = Session::answer(self.secret.clone(), keys, self.hello(), now);
        let number = self.number();
        if let Ok(conn) = Conn::new(stream, at, session, self.device().is_some()) {
            self.conns.insert(number, conn);
        }
    }

    pub(super) fn turn_away(&mut self, at: SocketAddr, why: &str) {
        let why = format!("{}: {why}", at.ip().to_canonical());
        self.turned_away.0 += 1;
        if self.turned_away.1.as_ref() != Some(&why) {
            warn!("an agent was turned away, from {why}");
        }
        self.turned_away.1 = Some(why);
    }
}
