//! The data path of a shunted connection: receiving, sending, waiting, and the handshake that is
//! completed on the way.

pub mod borrow;
pub mod buffers;
pub mod bytes;
pub mod call;
pub mod copy_mode;
pub mod demote;
pub mod doubt;
pub mod files;
pub mod grants;
pub mod killed;
pub mod notify;
pub mod offered;
pub mod pins;
pub mod promote;
pub mod pulls;
pub mod recv;
pub mod send;
pub mod sleep;
pub mod spin;
pub mod tcp;
pub mod worth;
pub mod zerocopy;

use core::cell::Cell;
use core::sync::atomic::Ordering;

use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::conn::Sock;
use crate::endpoint;

thread_local! {
    static TID: Cell<u32> = const { Cell::new(0) };
}

/// This thread's id.
#[inline]
pub fn tid() -> u32 {
    TID.with(|tid| match tid.get() {
        0 => {
            let id = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            tid.set(id);
            id
        }
        id => id,
    })
}

/// In a forked child: the one thread has another id.
pub fn forget_tid() {
    TID.with(|tid| tid.set(0));
}

/// The peer broke the protocol: this connection, and no other, answers `ECONNRESET` from now on. `fd`: an
/// open descriptor of it, -1: none.
#[cold]
pub fn broken(sock: &Sock, fd: i32) {
    if sock.break_off() {
        endpoint::count(Counter::Violations, 1);
        endpoint::decline(Reason::ProtocolViolation);
    }
    if let Some((mine, _)) = sock.sections() {
        // An end that is not announced is that of a killed process, whose slots are others' at once.
        mine.prod.fin.store(1, Ordering::Release);
    }
    // Threads may wait for what will not come, by words that the peer can have written to. What wakes
    // them all is the kernel's end.
    if fd >= 0 {
        tcp::shut(fd);
    }
    notify::own(sock);
}

/// True while the sending direction is in a TCP stretch: room to write is then the kernel's news.
pub fn sends_over_tcp(sock: &Sock) -> bool {
    let marks = sock.record().tx.marks.load(core::sync::atomic::Ordering::Relaxed);
    shunt_core::stretch::path(marks) == shunt_core::stretch::Path::Tcp
}
