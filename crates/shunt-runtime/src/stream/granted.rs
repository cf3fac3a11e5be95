//! What is kept of what a connection grants, and what everybody may ask of it.

use shunt_shm::region::Section;
use shunt_shm::ring::Span;
use shunt_shm::zerocopy::{Open, ZeroCopy};
use shunt_wire::counter::Counter;

use crate::conn::Sock;

/// What is kept of the connection.
pub fn state(sock: &Sock) -> &'static ZeroCopy {
    sock.endpoint().arena.zero_copy(sock.record())
}

/// Counts for the connection, with the lock of the sending direction held.
pub fn count(sock: &Sock, which: Counter, n: u64) {
    state(sock).tally.add(which, n);
}

/// How far the receiver has come in the ring. Never back, whatever it says: the program's memory may be gone when it
/// was told that it is its own again. With the lock of the sending direction held.
pub fn taken(sock: &Sock, theirs: &Section) -> u64 {
    let cursor = &sock.record().tx.cursor;
    // What is impossible is not heeded here, and ends the connection elsewhere.
    let _ = cursor.refresh(&theirs.cons);
    cursor.taken()
}

/// How a call with `MSG_ZEROCOPY` has come out so far.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The position in the ring after its last granted byte; 0: none was granted.
    pub until: u64,
    /// Bytes were copied that could have been granted.
    pub copied: bool,
    /// Some of them lie in registered memory that the peer has not mapped: it is to be offered.
    pub is_unknown: bool,
    /// The call has its number, and the peer was told of its bytes after that.
    pub is_numbered: bool,
}

/// Bytes lie in registered memory that the peer has not mapped, or could be pinned in pipes that it has not got.
#[derive(Clone, Copy, Debug)]
pub struct Unknown;

/// The place of granted bytes in the ring.
pub fn place_of(sock: &Sock, open: &Open) -> Span {
    let cursor = &sock.record().tx.cursor;
    let behind = cursor.pos().saturating_sub(open.at);
    let len = usize::try_from(open.len).unwrap_or(0);
    cursor.last(behind, sock.ring() as u64).split(len).0
}
