//! connect(2).

use core::cell::Cell;
use core::sync::atomic::Ordering;
use std::os::fd::AsFd;

use libc::{EINPROGRESS, MSG_ZEROCOPY, O_NONBLOCK, sockaddr_storage};
use shunt_engine::handshake::{Phase, proposals};
use shunt_shm::region::Side;
use shunt_shm::registry::{Listing, Scope};
use shunt_shm::table::Connecting;
use shunt_sys::{memory, sockinfo};
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::counter::Counter;
use shunt_wire::decision::Decision;
use shunt_wire::reason::Reason;

use crate::activity;
use crate::calls::{Has, UnderWay};
use crate::conn::{Conn, NONBLOCK, Sock};
use crate::contain::contain;
use crate::control::agent_client;
use crate::control::endpoint;
use crate::control::link::{self, Draft};
use crate::control::listener::is_local;
use crate::control::user::effective_user;
use crate::epoll::tell;
use crate::fds::fd_table::{self, Entry, Kind};
use crate::fds::owner::owns_process_state;
use crate::fds::stdio;
use crate::fds::unconnected;
use crate::panics;
use crate::point;
use crate::processes::close;
use crate::processes::offers;
use crate::processes::open::track;
use crate::stream::decline::decline;
use crate::stream::{buffers, liveness, options};
use crate::system::abi;
use crate::system::abi::{address, c_int, is_unspecific, sockaddr, socklen_t, ssize_t};
use crate::system::errno::{self, KeepErrno};
use crate::threads::signals::SettingUp;

/// Whether a connection of this descriptor may be the library's.
fn concerns(entry: Entry) -> bool {
    activity::active() && entry.is_plain()
}

/// A call that connects a socket, and that the library has left to the kernel, is over; `failed` with `errno`.
/// `undoes`: whether its address asks for the end of the connection, which is read only where the kernel has read it.
fn was_called(fd: c_int, entry: Entry, failed: bool, undoes: impl FnOnce() -> bool) {
    if failed && errno::get() != EINPROGRESS {
        return;
    }
    if undoes() {
        contain(|| disconnected(fd));
    } else if activity::retired() && entry.is_plain() {
        contain(|| is_bypassed(fd));
    }
}

/// connect(2), by `kernel`.
///
/// # Safety
/// As the C function: `addr` points to `len` bytes, or to what the kernel refuses.
pub unsafe fn connect(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { connect_by(fd, addr, len, false, kernel) }
}

/// A send with `MSG_FASTOPEN` on a socket that is not known for a connection, by `kernel`: it connects the socket.
///
/// # Safety
/// As of [`connect`].
#[cold]
pub unsafe fn by_send(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
    flags: c_int,
    kernel: impl FnOnce() -> ssize_t,
) -> ssize_t {
    // A call that sends bytes with the SYN does not wait, whether or not the socket blocks.
    unconnected::forget(fd, fd_table::lookup(fd));
    // SAFETY: the caller's promise.
    let result = unsafe { connect_by(fd, addr, len, true, kernel) };
    if flags & MSG_ZEROCOPY != 0 {
        // The kernel has begun to number the sends.
        options::go_to_kernel(fd);
    }
    result
}

/// Connects a socket by `kernel`, whose result is less than zero where it fails. `sends`: with bytes of the program's.
///
/// # Safety
/// As of [`connect`].
unsafe fn connect_by<T: Default + PartialOrd>(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
    sends: bool,
    kernel: impl FnOnce() -> T,
) -> T {
    let entry = fd_table::lookup(fd);
    if !concerns(entry) {
        let result = kernel();
        let failed = result < T::default();
        // SAFETY: the caller's promise; the kernel has just read the address.
        was_called(fd, entry, failed, || unsafe { is_unspecific(addr, len) });
        return result;
    }
    // What is longer than any address the kernel refuses without a look.
    if len as usize > size_of::<sockaddr_storage>()
        || !memory::is_readable(addr.addr(), len as usize)
    {
        return kernel();
    }
    // SAFETY: it can be read.
    match unsafe { address(addr, len) } {
        Some(to) => connect_to(fd, entry, (&to, sends), kernel),
        None => kernel(),
    }
}

/// Connects a socket that [`concerns`] the library, by `kernel`, whose result is less than zero where it fails.
fn connect_to<T: Default + PartialOrd>(
    fd: c_int,
    entry: Entry,
    (to, sends): (&Addr, bool),
    kernel: impl FnOnce() -> T,
) -> T {
    let kept = errno::get();
    if !unconnected::is_tcp(fd, entry) || !owns_process_state() {
        errno::set(kept);
        return kernel();
    }
    let Some(setting_up) = SettingUp::begin() else {
        errno::set(kept);
        return kernel();
    };
    let plan = plan(fd, entry, (to, sends));
    let _plan = UnderWay::note(Has::value(&plan));
    let attempt = Attempt::new(fd, entry, &plan);
    let noted = UnderWay::note(Has::value(&attempt));
    point!(connect_planned);
    // It may take long, and handlers may use other connections meanwhile.
    drop(setting_up);
    if let Plan::Propose(draft) = &plan {
        tell::before_connect(fd, draft.link.endpoint);
    }
    errno::set(kept);
    let result = kernel();
    let _setting_up = SettingUp::begin();
    let _keep = KeepErrno::new();
    let failed = result < T::default();
    if !failed || errno::get() == EINPROGRESS {
        // The kernel has connected it, whatever becomes of this.
        contain(|| {
            point!(connect_done);
            attempt.has_connected(to, failed);
        });
    }
    drop(noted);
    result
}

/// The library takes no connections up any more.
fn is_bypassed(fd: c_int) {
    let _keep = KeepErrno::new();
    if sockinfo::is_tcp(abi::borrow(fd)) && owns_process_state() {
        endpoint::count(Counter::Connections, 1);
        endpoint::decline(Reason::Bypassed);
    }
}

/// A call that connects a socket. What was prepared for it is given up with it.
struct Attempt<'a> {
    fd: c_int,
    before: Entry,
    /// What the descriptor is meanwhile: another file of the same number would be something else.
    meanwhile: Entry,
    plan: &'a Plan,
    /// Not before the proposal is posted.
    _connecting: Option<Connecting<'a>>,
    is_settled: Cell<bool>,
}

impl<'a> Attempt<'a> {
    fn new(fd: c_int, before: Entry, plan: &'a Plan) -> Self {
        let connecting = match plan {
            Plan::Propose(draft) => Some(draft.target.table.connect_begins(draft.link.region)),
            Plan::Offer(_) | Plan::Tcp(_) => None,
        };
        let meanwhile = Entry::connecting(before.kind() == Kind::Unconnected);
        fd_table::replace_if(fd, before, meanwhile);
        let is_settled = Cell::new(false);
        Self { fd, before, meanwhile, plan, _connecting: connecting, is_settled }
    }

    /// The entry as it is now; `None` when the descriptor was closed meanwhile.
    fn now(&self) -> Option<Entry> {
        let now = fd_table::lookup(self.fd);
        let is_it = now == self.meanwhile || now == self.meanwhile.no_longer_fresh();
        is_it.then_some(now)
    }

    /// The kernel has connected the socket, or does so.
    fn has_connected(&self, to: &Addr, in_progress: bool) {
        endpoint::count(Counter::Connections, 1);
        let Some(now) = self.now() else {
            endpoint::decline(Reason::ShortLived);
            return;
        };
        self.is_settled.set(true);
        // Of a socket without timeouts and fast open: who did not wait does not block.
        let is_fresh = self.before.kind() == Kind::Unconnected && now == self.meanwhile;
        let nonblocking = if is_fresh { in_progress } else { is_nonblocking(self.fd) };
        let socket = Connected { fd: self.fd, now, is_fresh, nonblocking };
        match self.plan {
            Plan::Propose(draft) => connected(&socket, to, Ok(draft)),
            Plan::Tcp(why) => connected(&socket, to, Err(why)),
            Plan::Offer(open) => {
                open.connected((self.fd, now), &loopback_for_unspecified(to), nonblocking);
            }
        }
        if self.before.kind() == Kind::Unconnected && !is_fresh {
            // By another thread, while the call was waiting.
            options::heed_kernel(self.fd);
            if sockinfo::raises_signals(abi::borrow(self.fd)) {
                options::go_to_kernel(self.fd);
            }
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.is_settled.get() {
            return;
        }
        match self.plan {
            Plan::Propose(draft) => draft.drop_unposted(),
            Plan::Offer(open) => open.failed(),
            Plan::Tcp(_) => {}
        }
        if let Some(now) = self.now() {
            let after = if now == self.meanwhile { self.before } else { Entry::KERNEL };
            fd_table::replace_if(self.fd, now, after);
        }
    }
}

/// A socket that the kernel has connected.
struct Connected {
    fd: c_int,
    /// Its entry.
    now: Entry,
    is_fresh: bool,
    nonblocking: bool,
}

/// The kernel has ended the connection by RST, and the descriptor stands for a fresh socket.
fn disconnected(fd: c_int) {
    let entry = fd_table::lookup(fd);
    let Some(sock) = Sock::of(entry).filter(|_| owns_process_state()) else { return };
    let _keep = KeepErrno::new();
    point!(connect_undone);
    // The socket keeps its options for the next connection.
    liveness::end_quietly(Conn::new(fd, sock));
    tell::on_disconnected(sock);
    for (same, other) in fd_table::of_program() {
        if other == entry {
            // Epoll instances go on watching the socket.
            tell::on_declined(same);
            fd_table::take(same);
            close::disconnected(sock);
        }
    }
}

/// What is to be done about a connection that is about to be made.
enum Plan {
    /// There is a place for its proposal, to a listener of the same party.
    Propose(Draft),
    /// It was offered: it may lead to another party.
    Offer(offers::Open),
    /// Nothing.
    Tcp(Reason),
}

fn plan(fd: c_int, entry: Entry, (to, sends): (&Addr, bool)) -> Plan {
    if stdio::uses(fd) {
        return Plan::Tcp(Reason::HandedOver);
    }
    let socket = abi::borrow(fd);
    if entry.kind() != Kind::Unconnected
        && (sockinfo::asks_for_kernel(socket) || sockinfo::raises_signals(socket))
    {
        return Plan::Tcp(Reason::Unsupported);
    }
    if agent_client::hung_up_now_and_then() {
        let _ = agent_client::endpoint();
    }
    let endpoint = match agent_client::endpoint() {
        Ok(endpoint) => endpoint,
        Err(why) => return Plan::Tcp(why),
    };
    let to = loopback_for_unspecified(to);
    let scope = endpoint.registry.scope();
    let user = effective_user();
    let mut why = Reason::PeerNotShunted;
    let mut netns = None;
    let mut may_have = |listing: &Listing| {
        let here = *netns.get_or_insert_with(|| unconnected::netns(fd, entry));
        if listing.netns != here {
            why = Reason::OtherNamespace;
        } else if scope == Scope::User && endpoint.user != user {
            // All listeners are of the user that this program was; an agent for the host has a registry for each party.
            why = Reason::OtherUser;
        } else {
            return true;
        }
        false
    };
    let mut found = endpoint.registry.find(&to, &mut may_have);
    // A network may hold addresses of this machine, at which its own programs listen.
    if found.as_ref().is_some_and(Listing::is_wide) && sockinfo::is_own_address(&to) {
        found = endpoint.registry.find(&to, |listing| !listing.is_wide() && may_have(listing));
    }
    // A listener at all addresses is the one at this address only where the address is one of this network.
    let is_here =
        |listing: &Listing| to.is_loopback() || listing.is_wide() || !listing.addr.is_unspecified();
    if scope != Scope::User
        && !found.as_ref().is_some_and(is_here)
        && endpoint.registry.may_lead_elsewhere(&to)
    {
        if scope == Scope::Marked {
            return offers::open(fd, &to).map_or_else(Plan::Tcp, Plan::Offer);
        }
        why = Reason::Unmarked;
    }
    match found.ok_or(why).and_then(|listing| link::draft(listing.listener, endpoint)) {
        Ok(draft) => match marked(fd, &draft, sends) {
            Ok(()) => Plan::Propose(draft),
            Err(why) => {
                draft.drop_unposted();
                Plan::Tcp(why)
            }
        },
        Err(why) => Plan::Tcp(why),
    }
}

/// Has a socket marked that is to lead to a kernel's SMC-R. Not where bytes go with the SYN, or may: the server would take them for the
/// agent's.
fn marked(fd: c_int, draft: &Draft, sends: bool) -> Result<(), Reason> {
    if !draft.link.is_to_kernel() {
        return Ok(());
    }
    if sends || sockinfo::connects_with_bytes(abi::borrow(fd)) {
        return Err(Reason::Unsupported);
    }
    agent_client::mark(draft.link.region, draft.slot, abi::borrow(fd))
}

/// Connecting to `0.0.0.0` or `::` reaches this host.
fn loopback_for_unspecified(to: &Addr) -> Addr {
    match (to.is_unspecified(), to.is_v4()) {
        (true, true) => {
            Addr { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1], ..*to }
        }
        (true, false) => Addr { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], ..*to },
        (false, _) => *to,
    }
}

fn connected(socket: &Connected, to: &Addr, plan: Result<&Draft, &Reason>) {
    let Connected { fd, now, is_fresh, nonblocking } = *socket;
    let drop_plan = || {
        if let Ok(draft) = plan {
            draft.drop_unposted();
        }
    };
    let Ok(local) = sockinfo::local_addr(abi::borrow(fd).as_fd()) else { return drop_plan() };
    let tuple = FourTuple { local, peer: loopback_for_unspecified(to) };
    let Some(sock) = track(fd, &tuple) else {
        endpoint::decline(plan.err().copied().unwrap_or(Reason::TooManyConnections));
        fd_table::replace_if(fd, now, Entry::KERNEL);
        return drop_plan();
    };
    let conn = Conn::new(fd, sock);
    sock.put(NONBLOCK, nonblocking);
    let posted = match plan {
        Ok(draft) if is_local(&tuple) || draft.link.is_far() => {
            draft.post(&tuple).map(|ticket| (draft, ticket))
        }
        Ok(_) => Err(Reason::Remote),
        // Who would serve a connection of this machine does not matter to one that leaves it.
        Err(Reason::PeerNotShunted | Reason::OtherUser | Reason::OtherNamespace)
            if !is_local(&tuple) =>
        {
            Err(Reason::Remote)
        }
        Err(why) => Err(*why),
    };
    match posted {
        Ok((draft, ticket)) => {
            let id = &sock.record().id;
            proposals::note(sock.record(), ticket);
            sock.activate(draft.link, Side::Client, draft.slot, ticket.place().generation);
            sock.set_link(draft.link);
            sock.begin_learnt();
            // Options may have been set while the call was waiting.
            buffers::begin(Conn::closing(fd, conn.entry()).unwrap_or(conn), !is_fresh);
            if is_fresh {
                sock.record().rx.timeout.set_none();
                sock.record().tx.timeout.set_none();
            }
            id.reason.store(Reason::Pending as u32, Ordering::Relaxed);
            sock.note(Decision::Proposed, None);
            // From here on the acceptor may answer.
            sock.set_phase(Phase::Proposed);
            draft.link.tell_of_proposal();
            let enter = || {
                point!(connect_posted);
                if fd_table::replace_if(fd, now, conn.entry()) {
                    point!(connect_entered);
                    tell::on_connected(conn);
                } else {
                    close::disconnected(sock);
                }
            };
            if !contain(enter) {
                fd_table::replace_if(fd, now, conn.entry());
                panics::give_back(conn);
            }
        }
        Err(why) => {
            drop_plan();
            if fd_table::replace_if(fd, now, sock.entry(Kind::Tracked)) {
                decline(conn, why);
            } else {
                close::disconnected(sock);
            }
        }
    }
}

fn is_nonblocking(fd: c_int) -> bool {
    rustix::fs::fcntl_getfl(abi::borrow(fd))
        .is_ok_and(|flags| flags.bits() & O_NONBLOCK.cast_unsigned() != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nowhere_is_this_host() {
        let addr = |text: &str| Addr::from(text.parse::<std::net::SocketAddr>().unwrap());
        let to = |text| loopback_for_unspecified(&addr(text));
        assert_eq!(to("0.0.0.0:7"), addr("127.0.0.1:7"));
        assert_eq!(to("[::]:7"), addr("[::1]:7"));
        assert_eq!(to("10.1.2.3:7"), addr("10.1.2.3:7"));
        assert_eq!(to("[fd00::1]:7"), addr("[fd00::1]:7"));
    }
}
