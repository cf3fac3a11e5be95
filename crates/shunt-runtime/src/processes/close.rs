//! Descriptors of connections, listeners and epoll instances come and go. The objects behind them
//! end with the last one.

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use core::time::Duration;

use shunt_engine::conn::close::Tell;
use shunt_engine::handshake::course::AtEnd;
use shunt_engine::handshake::{Phase, why_unpromoted};
use shunt_engine::kernel::KernelSocket as _;
use shunt_shm::arena::Record;
use shunt_shm::capture::flag;
use shunt_shm::region::{RESET, Side};
use shunt_shm::ring::KEPT;
use shunt_wire::decision::Decision;

use crate::activity;
use crate::calls::Which;
use crate::conn::{Conn, SHUT_WR, Sock};
use crate::contain::contain;
use crate::control::endpoint;
use crate::control::link;
use crate::control::listener::Listener;
use crate::epoll::instance::Instance;
use crate::epoll::tell;
use crate::fds::fd_table::{Entry, Kind};
use crate::fds::owner;
use crate::fds::{fd_table, own_fds};
use crate::memory::imports;
use crate::point;
use crate::processes::account;
use crate::processes::fork_sharing;
use crate::stream::capture;
use crate::stream::in_doubt::InDoubt;
use crate::stream::pipe_tx;
use crate::stream::tcp::Socket;
use crate::stream::{demote, grants, leftover, liveness, notify, offer_budget, promote};
use crate::system::errno::KeepErrno;
use crate::threads::signals::Uncancelled;

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
        Kind::Kernel | Kind::Unconnected | Kind::Connecting | Kind::Own => {}
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
                    finish(conn.sock(), |record| end(conn, record));
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
        Kind::Kernel | Kind::Unconnected | Kind::Connecting | Kind::Own => {}
    }
}

/// The descriptor is about to be closed by other means than a hooked call.
pub fn forget(fd: c_int) {
    if !matches!(fd_table::lookup(fd).kind(), Kind::Kernel | Kind::Own)
        && owner::owns_process_state()
    {
        let entry = fd_table::take(fd);
        if entry.is_object() {
            let _keep = KeepErrno::new();
            before_close(fd, entry);
        }
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

/// Neither a descriptor nor a call of this process is left of the connection: the last one was a call.
pub fn end_of_calls(sock: &'static Sock) {
    let _keep = KeepErrno::new();
    let _uncancelled = Uncancelled::begin();
    // It may run while the call unwinds, and what panics then must stop here.
    contain(|| {
        let _in_doubt = InDoubt::on(sock);
        finish(sock, |record| match sock.lingering() {
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
fn at_exit() {
    for (fd, entry) in fd_table::of_program() {
        let Some(conn) = Conn::closing(fd, entry) else { continue };
        // Another thread may be in the middle of a call, or of closing the same descriptor.
        if fd_table::replace_if(fd, entry, Entry::KERNEL) && conn.release() {
            finish(conn.sock(), |record| end(conn, record));
        }
    }
    for sock in Sock::all().filter(|sock| sock.abandon_calls()) {
        let conn = sock.lingering().and_then(|fd| Conn::closing(fd, sock.entry(Kind::Stream)));
        finish(sock, |record| end(conn.unwrap_or(Conn::gone(sock)), record));
    }
    fork_sharing::leave();
}

/// The process ends without the handlers of exit(3): by `_exit`, or at the end of `quick_exit`. It may
/// be in a signal handler, and it may be a child that shares its parent's memory, or that was forked
/// without a word and has used none of what it inherited: these have nothing to give back.
pub fn ends() {
    let mine = owner::is_own();
    if mine && activity::deactivate() {
        at_exit();
    }
}

/// The connection of a descriptor is gone, and the descriptor stays open.
pub fn disconnected(sock: &'static Sock) {
    if sock.release() {
        finish(sock, |record| end(Conn::gone(sock), record));
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
        finish(sock, |record| end(if open < 0 { Conn::gone(sock) } else { conn }, record));
    }
}

/// This process has no part in the connection any more. Calls `last` if no other one has. Nothing
/// of the sock may be used after that.
pub fn finish(sock: &'static Sock, last: impl FnOnce(&'static Record)) {
    let (record, endpoint) = (sock.record(), sock.endpoint());
    let region = record.id.region.load(Ordering::Relaxed);
    let (side, slot) = (record.side(), record.slot());
    grants::leave(sock);
    sock.leave_brevity();
    if fork_sharing::let_go(endpoint, record) {
        last(record);
        record.id.live.store(0, Ordering::Release);
    }
    // Maybe since the end: only parent or child had used it.
    let link = sock.link();
    // Last: they are still of use to what is done at the end.
    sock.forget_peer();
    imports::release(sock);
    pipe_tx::release(sock);
    leftover::release(sock);
    if let Some(link) = link {
        let (tx, rx) = (&record.tx.cursor, &record.rx.cursor);
        link.is_left(slot, tx.pos().max(rx.pos()) > KEPT);
        link.users.fetch_sub(1, Ordering::AcqRel);
        endpoint.carries(false);
    }
    sock.give_back();
    if endpoint.is_inherited() && !activity::is_over() {
        link::let_go(region, side, slot);
        fork_sharing::shed(endpoint);
    }
}

/// Longest wait for threads that are still in a call on a connection which ends.
const PATIENCE: Duration = Duration::from_millis(200);

/// The last descriptor of a connection, in all processes, goes.
fn end(conn: Conn, record: &'static Record) {
    let sock = conn.sock();
    point!(close_ends);
    sock.leave_learnt();
    offer_budget::settle(sock);
    if conn.kernel().is_some() {
        promote::begins_to_end(conn);
        demote::finish_to_end(conn);
        // Also of one that has come to be TCP, or that nobody accepted.
        liveness::end_quietly(conn);
    }
    // Other threads may be in the middle of copying; those that come later find the descriptor gone.
    // What belongs to the slot's next use must not be touched by any of them: where one does not
    // come out, or where this is a signal handler above such a call, the slot is not given back.
    let quiet = [Which::Rx, Which::Tx].map(|which| conn.lock_within(which, PATIENCE));
    if quiet[1].is_some() {
        // The program may do with its memory what it likes from now on.
        grants::take_back(sock);
    }
    account::add(record, &sock.endpoint().arena);
    let is_captured = quiet[1].is_some() && capture::is_wanted(record);
    match sock.phase() {
        phase @ (Phase::Proposed | Phase::Candidate) => {
            let info = || conn.kernel().and_then(|fd| Socket(fd).info());
            let has_received = || info().is_some_and(|info| info.bytes_received > 0);
            if let Some(why) = why_unpromoted(phase, sock.age(), has_received) {
                endpoint::decline(why);
                sock.note(Decision::Ended, Some(why));
            }
        }
        Phase::Active | Phase::Broken => sock.note(Decision::Ended, None),
        Phase::Tcp => {}
    }
    if promote::ends(conn) == AtEnd::GivesBack {
        free_slot(sock, record);
        return;
    }
    let Some(shared) = sock.end() else { return };
    let socket = conn.kernel().map(Socket);
    match shared.close(socket.as_ref()) {
        Tell::All => notify::all(sock),
        Tell::Sender => notify::sender(sock),
        Tell::OnFutexes => notify::those_on_futexes(sock),
    }
    if is_captured {
        let is_reset = shared.mine.ctl.closed.load(Ordering::Relaxed) == RESET;
        if is_reset || !sock.has(SHUT_WR) {
            capture::ends(sock, conn.kernel(), if is_reset { flag::RST } else { flag::FIN });
        }
    }
    point!(close_ended);
    if quiet.iter().any(Option::is_none) {
        return;
    }
    shared.is_done(socket.as_ref());
    notify::all_if_of_host(sock);
    if let Some(link) = sock.link() {
        link.has_ended(record.slot());
    }
}

/// The slot of a proposal that was taken back.
fn free_slot(sock: &Sock, record: &Record) {
    if let Some(link) = sock.link().filter(|link| link.side == Side::Client) {
        link.free_slot(record.slot());
    }
}
