//! A connection's grants and numbers, as the engine's values.

use shunt_engine::zerocopy::numbers::Numbers;
use shunt_engine::zerocopy::sender::Granting;
use shunt_shm::zerocopy::ZeroCopy;
use shunt_wire::counter::Counter;

use crate::conn::Sock;

/// What is kept of the connection.
pub fn state(sock: &Sock) -> &'static ZeroCopy {
    sock.endpoint().arena.zero_copy(sock.record())
}

/// Its grants, where there is a ring.
pub fn granting(sock: &Sock) -> Option<Granting<'static>> {
    Some(Granting { end: sock.end()?, state: state(sock) })
}

/// The numbers of its calls.
pub fn numbers(sock: &Sock) -> Numbers<'static> {
    Numbers { record: sock.record(), end: sock.end(), state: state(sock) }
}

/// Counts for the connection, with the lock of the sending direction held.
pub fn count(sock: &Sock, which: Counter, n: u64) {
    state(sock).tally.add(which, n);
}
