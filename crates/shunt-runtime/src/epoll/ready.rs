//! Readiness of a shunted connection, of use to epoll, poll and select: the engine's look ([`poll::look`]) at the connections of
//! this process.

use shunt_engine::conn::poll::{self, KernelReadiness, Polled};

use crate::conn::Conn;
use crate::stream::tcp::Socket;
use crate::stream::{again, broken, demote, liveness, promote, zerocopy};
use crate::system::clock;

/// Something else whenever bytes or room have come, or a stretch or direction has ended or been passed;
/// never 0.
pub fn stamp(conn: Conn) -> u64 {
    promote::poll_handshake(conn);
    let completions = u64::from(zerocopy::stamp(conn.sock()));
    conn.end().map_or(completions << 1 | 1, |end| end.stamp(completions))
}

/// The connection's readiness now. `wanted`: the events that the asker is interested in. `heard`: what
/// the asker knows, and knows afterwards.
#[inline]
pub fn of(conn: Conn, wanted: u32, heard: &mut KernelReadiness) -> u32 {
    let phase = promote::poll_handshake(conn);
    let sock = conn.sock();
    let ready = poll::look((sock.record(), sock.end()), phase, (wanted, heard), &Looked(conn));
    ready | zerocopy::readiness(sock)
}

/// A connection that is looked at.
struct Looked(Conn);

impl Polled for Looked {
    type Socket = Socket;

    fn ask<T>(&self, mut question: impl FnMut(&Socket) -> T) -> Option<T> {
        self.0.ask(|fd| question(&Socket(fd)))
    }

    fn now(&self) -> u64 {
        clock::now()
    }

    fn low_water(&self) -> u64 {
        self.0.low_water() as u64
    }

    fn can_tell(&self) -> bool {
        self.0.peer().is_some()
    }

    fn is_cut_off(&self) -> bool {
        liveness::is_cut_off(self.0.sock())
    }

    fn is_orphaned(&self) -> bool {
        liveness::is_orphaned(self.0.sock())
    }

    fn follows(&self) {
        demote::follow(self.0);
    }

    fn repeats(&self) {
        demote::go_on(self.0);
    }

    fn breaks_off(&self) {
        let _lock = self.0.lock_tx();
        broken(self.0);
    }

    fn settles(&self) {
        again::settle(self.0);
    }

    fn doubts(&self) {
        liveness::arise();
    }

    fn finds_unmarked(&self) {
        liveness::unmarked(self.0.sock());
    }
}
