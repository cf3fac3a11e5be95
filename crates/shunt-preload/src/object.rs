//! What stands behind an entry of the fd table.
//!
//! The entry points that the descriptor calls ([`crate::ops::fd`], [`crate::ops::process`]) use on
//! whatever kind of object it is.

use core::cell::RefCell;
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use core::time::Duration;

use shunt_engine::conn::End;
use shunt_engine::conn::repeated::are_pending;
use shunt_engine::handshake::Phase;
use shunt_engine::kernel::has_ended_unannounced;
use shunt_shm::arena::{Arena, Record};
use shunt_shm::region::{CLOSED, RESET, SLOTS, Section, Side};
use shunt_shm::zerocopy::Tally;
use shunt_wire::clc::Answer;
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use crate::activity;
use crate::calls::{self, Which};
use crate::conn::{APPENDS, Conn, LEFTOVER, NONBLOCK, SHUT_RD, Sock};
use crate::contain::contain;
use crate::endpoint::{self, Endpoint};
use crate::epoll;
use crate::epoll::instance::Instance;
use crate::epoll::tell;
use crate::errno::KeepErrno;
use crate::fd_table::{Entry, Kind};
use crate::ops::listener::Listener;
use crate::panics::InDoubt;
use crate::points::point;
use crate::signals::Uncancelled;
use crate::stream::tcp::Socket;
use crate::stream::{
    self, again, demote, doubt, grants, leftover, notify, offered, promote, tcp, trim, worth,
};
use crate::{agent_client, exports, fd_table, fresh, imports, link, ops, own_fds, relatives};

/// `fd` becomes one more descriptor of the object; called before it is entered in the table.
pub fn retain(_fd: c_int, entry: Entry) {
    match entry.kind() {
        Kind::Stream | Kind::Tracked => {
            if let Some(sock) = Sock::of(entry) {
                sock.retain();
            }
        }
        Kind::Listener => {
            if let Some(listener) = Listener::of(entry) {
                listener.retain();
            }
        }
        Kind::Epoll => {
            if let Some(instance) = Instance::of(entry) {
                instance.retain();
            }
        }
        Kind::Kernel | Kind::Fresh | Kind::Connecting | Kind::Own => {}
    }
}

/// `fd` is about to be closed. It is no longer in the table, and still open in the kernel.
pub fn before_close(fd: c_int, entry: Entry) {
    match entry.kind() {
        Kind::Stream | Kind::Tracked => {
            if let Some(conn) = Conn::closing(fd, entry) {
                tell::before_close(conn.sock(), fd);
                settle(conn);
                point!(close_settled);
                if conn.release() {
                    conn.sock().finish(|record| end(conn, record));
                }
            }
        }
        Kind::Listener => {
            if let Some(listener) = Listener::of(entry) {
                listener.release();
            }
        }
        Kind::Epoll => {
            if let Some(instance) = Instance::of(entry) {
                instance.release(fd);
            }
        }
        Kind::Kernel | Kind::Fresh | Kind::Connecting | Kind::Own => {}
    }
}

/// Waits until no step of a call uses the descriptor, which is out of the table: later ones do not find
/// it there. Calls that hold the connection get another descriptor.
fn settle(conn: Conn) {
    let _steps = [Which::Rx, Which::Tx].map(|which| conn.lock_within(which, PATIENCE));
    if conn.is_held()
        && let Some(fd) = conn.kernel()
        && let Ok(fd) = own_fds::duplicate(fd)
    {
        conn.linger(fd);
        notify::own(conn.sock());
    }
}

/// A call is over that held the connection.
pub fn let_go(sock: &'static Sock) {
    if !sock.let_go() {
        return;
    }
    let _keep = KeepErrno::new();
    let _uncancelled = Uncancelled::begin();
    // It may run while the call unwinds, and what panics then must stop here.
    contain(|| {
        let _in_doubt = InDoubt::on(sock);
        sock.finish(|record| match sock.lingering() {
            Some(fd) => {
                if let Some(conn) = Conn::closing(fd, sock.entry(Kind::Stream)) {
                    end(conn, record);
                }
            }
            None => end(Conn::gone(sock), record),
        });
    });
}

/// The process ends: what it leaves open is closed by the kernel, right after this. Takes no lock that
/// a thread could hold which this one has interrupted.
pub fn at_exit() {
    for (fd, entry) in fd_table::iter(0..=c_int::MAX) {
        let Some(conn) = Conn::closing(fd, entry) else { continue };
        // Another thread may be in the middle of a call, or of closing the same descriptor.
        if fd_table::replace_if(fd, entry, Entry::KERNEL) && conn.release() {
            conn.sock().finish(|record| end(conn, record));
        }
    }
    for sock in Sock::all().filter(|sock| sock.abandon_calls()) {
        let conn = sock.lingering().and_then(|fd| Conn::closing(fd, sock.entry(Kind::Stream)));
        sock.finish(|record| end(conn.unwrap_or(Conn::gone(sock)), record));
    }
    relatives::leave();
}

/// The connection of a descriptor is gone, and the descriptor stays open.
pub fn disconnected(sock: &'static Sock) {
    if sock.release() {
        sock.finish(|record| end(Conn::gone(sock), record));
    }
}

/// `fd` was closed behind the library's back and the number is in use for something else now.
pub fn abandoned(fd: c_int, entry: Entry) {
    replaced(fd, entry, -1);
}

/// The same where another descriptor of what it was is open still; -1: none.
pub fn replaced(fd: c_int, entry: Entry, open: c_int) {
    let Some(conn) = Conn::closing(open, entry) else { return before_close(fd, entry) };
    // What the descriptor stands for now must not be touched.
    let sock = conn.sock();
    tell::before_close(sock, fd);
    if sock.release() {
        sock.finish(|record| end(if open < 0 { Conn::gone(sock) } else { conn }, record));
    }
}

/// Longest wait for threads that are still in a call on a connection which ends.
const PATIENCE: Duration = Duration::from_millis(200);

/// The last descriptor of a connection, in all processes, goes.
fn end(conn: Conn, record: &'static Record) {
    let sock = conn.sock();
    point!(close_ends);
    sock.leave_learnt();
    worth::settle(sock);
    if conn.kernel().is_some() {
        demote::finish(conn);
        // Also of one that has come to be TCP, or that nobody accepted.
        doubt::end_quietly(conn);
    }
    // Other threads may be in the middle of copying; those that come later find the descriptor gone.
    // What belongs to the slot's next use must not be touched by any of them: where one does not
    // come out, or where this is a signal handler above such a call, the slot is not given back.
    let quiet = [Which::Rx, Which::Tx].map(|which| conn.lock_within(which, PATIENCE));
    if quiet[1].is_some() {
        // The program may do with its memory what it likes from now on.
        grants::take_back(sock);
    }
    account(record, &sock.endpoint().arena);
    match sock.phase() {
        Phase::Proposed => {
            endpoint::decline(Reason::ShortLived);
            if promote::withdraw(sock) {
                free_slot(sock, record);
                return;
            }
        }
        Phase::Candidate => {
            endpoint::decline(Reason::ShortLived);
            offered::withdraw(record);
        }
        Phase::Active | Phase::Broken => {}
        Phase::Tcp => {
            free_slot(sock, record);
            return;
        }
    }
    let Some((mine, theirs)) = sock.sections() else { return };
    // Another program may have the connection, to which the peer sends all that was not read here.
    let handed_over = sock.is_handed_over();
    // What TCP answers when bytes that nobody read are thrown away is RST.
    let rx = &record.rx;
    let unread =
        !handed_over && rx.cursor.refresh(&theirs.prod, sock.ring() as u64).is_ok_and(|n| n > 0);
    let fd = conn.kernel();
    if let Some(fd) = fd.filter(|_| unread) {
        tcp::reset_on_close(fd);
    }
    let announced = mine.prod.fin.swap(1, Ordering::Relaxed) != 0;
    if !handed_over {
        let resets = unread || fd.is_some_and(tcp::resets_on_close);
        mine.ctl.closed.store(if resets { RESET } else { CLOSED }, Ordering::Release);
    }
    if fd.is_none() {
        // The kernel has told the end before us.
        notify::all(sock);
    } else if announced && !unread {
        // After a half-close the end is no news to a reader, as it is none in the kernel.
        notify::sender(sock);
    } else {
        notify::those_on_futexes(sock);
    }
    point!(close_ended);
    if quiet.iter().any(Option::is_none) {
        return;
    }
    if fd.is_some_and(|fd| was_killed(sock, fd, theirs)) {
        // Nobody is left there who could say that it is done.
        theirs.setup.done.store(1, Ordering::Release);
    }
    mine.setup.done.store(1, Ordering::Release);
    if let Some(link) = sock.link() {
        link.has_ended(record.slot());
    }
}

/// True when every process at the acceptor's end was killed. A peer that lives and whose connection was
/// reset by somebody else (a firewall, `ss -K`) still uses the slot, which must not be another
/// connection's. Of a killed client the whole link group goes.
fn was_killed(sock: &Sock, fd: c_int, theirs: &Section) -> bool {
    let fin = &theirs.prod.fin;
    // An acceptor that has half-closed before it found the proposal says so when it answers.
    theirs.setup.state.load(Ordering::Acquire) == Answer::Accepted as u32
        // After it the kernel reports an end of our own making.
        && !sock.has(SHUT_RD)
        && theirs.ctl.handed_over.load(Ordering::Relaxed) == 0
        && fin.load(Ordering::Acquire) == 0
        && sock.link().is_some_and(|link| link.side == Side::Client)
        // Nothing is known of the acceptor's process; but that its end came by FIN.
        && has_ended_unannounced(&Socket(fd), fin)
}

/// The slot of a proposal that was taken back.
fn free_slot(sock: &Sock, record: &Record) {
    if let Some(link) = sock.link().filter(|link| link.side == Side::Client) {
        link.free_slot(record.slot());
    }
}

/// Adds what the connection did to the totals.
pub fn account(record: &Record, arena: &Arena) {
    let load = |word: &shunt_shm::sync::AtomicU32| u64::from(word.load(Ordering::Relaxed));
    let (rx, tx) = (&record.rx, &record.tx);
    let without_copies = arena.tallied(record).unwrap_or_default();
    let all = [
        (Counter::BytesSent, tx.bytes.load(Ordering::Relaxed)),
        (Counter::BytesReceived, rx.bytes.load(Ordering::Relaxed)),
        (Counter::MessagesSent, tx.messages.load(Ordering::Relaxed)),
        (Counter::MessagesReceived, rx.messages.load(Ordering::Relaxed)),
        (Counter::DoorbellsRung, load(&tx.rung)),
        (Counter::DoorbellsSaved, load(&tx.saved)),
        (Counter::RingFullWaits, load(&tx.full)),
        (Counter::SpinsPaid, load(&rx.spins[0])),
        (Counter::SpinsUnpaid, load(&rx.spins[1])),
    ];
    for (which, n) in all.into_iter().chain(Tally::COUNTERS.into_iter().zip(without_copies)) {
        endpoint::count(which, n);
    }
}

/// `O_NONBLOCK` was set to this on a descriptor of the object.
pub fn set_nonblocking(entry: Entry, on: bool) {
    if let Some(sock) = Sock::of(entry) {
        sock.put(NONBLOCK, on);
    }
}

/// `O_APPEND` was set to this on a descriptor of the object.
pub fn set_appending(entry: Entry, on: bool) {
    if let Some(sock) = Sock::of(entry).filter(|sock| sock.has(APPENDS) != on) {
        sock.put(APPENDS, on);
    }
}

/// Bytes that a read would find when that is told by the ring alone: the connection is in a ring
/// stretch that has no end yet.
pub fn in_ring(entry: Entry) -> Option<c_int> {
    c_int::try_from(Sock::of(entry)?.end()?.unread_in_ring_alone()?).ok()
}

/// Bytes that a read would find, or `None` for what the kernel says.
pub fn fionread(conn: Conn) -> Option<c_int> {
    promote::advance(conn);
    let sock = conn.sock();
    let lock = sock.lock_rx();
    let (fd, end) = (conn.kernel()?, sock.end()?);
    if end.may_settle() && !lock.nested() {
        again::settle_locked(sock, fd);
    }
    c_int::try_from(end.unread(&Socket(fd))?).ok()
}

/// True while there are bytes in the ring that come before whatever the kernel socket has.
pub fn has_unread(entry: Entry) -> bool {
    let Some(sock) = Sock::of(entry) else { return false };
    let Some(end) = sock.end() else { return false };
    let lock = sock.lock_rx();
    if sock.has(LEFTOVER)
        && !lock.nested()
        && let Some(fd) = sock.descriptor()
    {
        leftover::sync(sock, fd);
    }
    end.reads_ring_first()
}

/// Bytes that have not arrived yet, as the kernel would count those in the ring, or `None` for what it says: they
/// arrive when the receiver's buffer has room for them, and not when they are read.
pub fn outq(_fd: c_int, entry: Entry) -> Option<c_int> {
    let sock = Sock::of(entry)?;
    let end = sock.end().filter(End::sends_through_ring)?;
    let _lock = sock.lock_tx();
    c_int::try_from(end.not_arrived()?).ok()
}

/// `fd` (or a duplicate) goes to a program that may not run under Shunt: it must work there as
/// the kernel socket that it is.
pub fn hand_over(fd: c_int, entry: Entry) {
    let Some(conn) = Conn::of(fd, entry) else { return };
    let in_doubt = InDoubt::begins(conn);
    point!(exec_hands_over);
    promote::is_left_to_others(&conn);
    give_back(conn, Reason::HandedOver);
    in_doubt.ends();
}

/// The connection goes on over TCP.
pub fn give_back(conn: Conn, why: Reason) {
    if conn.has(LEFTOVER) {
        // It is on TCP but for what was left, which goes on to the next program, or stays.
        return leftover::catch_up(conn, false);
    }
    match conn.phase() {
        Phase::Proposed if promote::withdraw(&conn) => conn.decline(why),
        // Also where the acceptor was quicker than the withdrawal.
        Phase::Proposed | Phase::Active => {
            demote::leave(conn, why);
            demote::finish(conn);
            if are_pending(conn.record()) {
                // Nobody would send the rest, in front of what the other program sends.
                let _lock = conn.lock_tx();
                stream::broken(conn);
            }
        }
        Phase::Candidate => conn.decline(why),
        Phase::Tcp | Phase::Broken => {}
    }
}

/// A lock that is held across fork, so that no other thread has it while the child comes to be.
trait Held {}
impl<T> Held for T {}

thread_local! {
    static LOCKS: RefCell<Option<[Box<dyn Held>; 6]>> = const { RefCell::new(None) };
}

/// The process is about to fork, and the program's own handlers have run.
pub fn fork_prepare() {
    fresh::forget_all();
    if activity::active() {
        agent_client::invite_child();
    }
    relatives::fork_begins();
    // In the order in which they nest.
    let held: [Box<dyn Held>; 6] = [
        Box::new(epoll::table::lock_for_fork()),
        Box::new(ops::listener::lock_for_fork()),
        Box::new(link::lock_for_fork()),
        Box::new(agent_client::lock_for_fork()),
        Box::new(exports::lock_for_fork()),
        Box::new(imports::lock_for_fork()),
    ];
    LOCKS.with(|locks| *locks.borrow_mut() = Some(held));
    relatives::fork_prepare();
    point!(fork_prepared);
}

/// The process has forked (or failed to); this is the parent, and the program's own handlers are next.
pub fn fork_parent() {
    point!(fork_parent);
    LOCKS.with(|locks| drop(locks.borrow_mut().take()));
    agent_client::child_has_come();
    relatives::fork_parent();
}

/// The same after a panic in it.
pub fn fork_parent_again() {
    LOCKS.with(|locks| drop(locks.borrow_mut().take()));
    agent_client::child_has_come();
    relatives::fork_parent();
}

/// The process has forked; this is the child, with one thread, before the program's own handlers.
/// [`fork_prepare`] did not run if the program forked by a raw system call.
pub fn fork_child() {
    point!(fork_child);
    LOCKS.with(|locks| drop(locks.borrow_mut().take()));
    calls::fork_child();
    fresh::forget_all();
    promote::forget_in_child();
    agent_client::forget_in_child(has_listeners());
    Endpoint::forget_in_child();
    link::forget_in_child();
    relatives::fork_child();
    trim::fork_child();
    point!(fork_counted);
    epoll::table::forget_in_child();
    point!(fork_adopted);
}

fn has_listeners() -> bool {
    fd_table::iter(0..=c_int::MAX).any(|(_, entry)| Listener::of(entry).is_some())
}

const _: () = assert!(SLOTS < 256);
