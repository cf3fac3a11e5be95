//! Making connections on the client's side.

use core::sync::atomic::Ordering;
use std::os::fd::AsFd;

use libc::EINPROGRESS;
use shunt_core::handshake::Phase;
use shunt_shm::region::Side;
use shunt_shm::registry::{Listing, Scope};
use shunt_sys::{memory, sockinfo};
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use super::listener::{is_local, is_nonblocking, is_plain, track};
use crate::abi::{address, c_int, is_unspecific, sockaddr, socklen_t};
use crate::conn::{NONBLOCK, Sock};
use crate::endpoint;
use crate::errno::{self, KeepErrno};
use crate::fd_table::{self, Entry, Kind};
use crate::link::{self, Draft};
use crate::ops::process::{effective_user, may_mutate};
use crate::signals::SettingUp;
use crate::stream::{buffers, doubt, offered, tcp};
use crate::{agent_client, fresh, init, next, ops};

/// # Safety
/// As the C function.
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller keeps the C function's contract.
    let kernel = || unsafe { next::connect(fd, addr, len) };
    let entry = fd_table::lookup(fd);
    if !init::active() || !is_plain(entry) {
        let result = kernel();
        // SAFETY: as above; the kernel has just read the address.
        if result == 0 && unsafe { is_unspecific(addr, len) } {
            disconnected(fd);
        }
        return result;
    }
    if !memory::is_readable(addr.addr(), len as usize) {
        return kernel();
    }
    // SAFETY: it can be read.
    let Some(to) = (unsafe { address(addr, len) }) else { return kernel() };
    let kept = errno::get();
    if !fresh::is_tcp(fd, entry) || !may_mutate() {
        errno::set(kept);
        return kernel();
    }
    let Some(setting_up) = SettingUp::begin() else {
        errno::set(kept);
        return kernel();
    };
    let plan = plan(fd, entry, &to);
    let connecting = match &plan {
        Plan::Propose(draft) => Some(draft.target.table.connect_begins(draft.link.region)),
        Plan::Offer(_) | Plan::Tcp(_) => None,
    };
    // It may take long, and handlers may use other connections meanwhile.
    drop(setting_up);
    errno::set(kept);
    let result = kernel();
    let _setting_up = SettingUp::begin();
    let _keep = KeepErrno::new();
    let in_progress = result != 0 && errno::get() == EINPROGRESS;
    if result == 0 || in_progress {
        endpoint::count(Counter::Connections, 1);
        // Of a socket without timeouts and fast open: who did not wait does not block.
        let is_fresh = fd_table::lookup(fd).kind() == Kind::Fresh;
        let nonblocking = if is_fresh { in_progress } else { is_nonblocking(fd) };
        match &plan {
            Plan::Propose(draft) => connected(fd, &to, Ok(draft), nonblocking),
            Plan::Tcp(why) => connected(fd, &to, Err(why), nonblocking),
            Plan::Offer(open) => open.connected(fd, &loopback_for_unspecified(&to), nonblocking),
        }
        if entry.kind() == Kind::Fresh && !is_fresh {
            // By another thread, while the call was waiting.
            ops::sockopt::heed_times_of_sending(fd);
        }
    } else {
        match &plan {
            Plan::Propose(draft) => draft.drop_unposted(),
            Plan::Offer(open) => open.failed(),
            Plan::Tcp(_) => {}
        }
    }
    // Not before the proposal is posted.
    drop(connecting);
    result
}

/// The kernel has ended the connection by RST, and the descriptor stands for a fresh socket.
fn disconnected(fd: c_int) {
    let entry = fd_table::lookup(fd);
    let Some(sock) = Sock::of(entry).filter(|_| may_mutate()) else { return };
    let _keep = KeepErrno::new();
    // The socket keeps its options for the next connection.
    doubt::end_quietly(sock, fd);
    ops::epoll::on_disconnected(sock);
    for (same, other) in fd_table::iter(0..=fd_table::high_water()) {
        if other == entry {
            // Epoll instances go on watching the socket.
            ops::epoll::on_declined(same);
            fd_table::take(same);
            crate::object::disconnected(sock);
        }
    }
}

/// What is to be done about a connection that is about to be made.
enum Plan {
    /// There is a place for its proposal, to a listener of the same party.
    Propose(Draft),
    /// It was offered: it may lead to another party.
    Offer(offered::Open),
    /// Nothing.
    Tcp(Reason),
}

fn plan(fd: c_int, entry: Entry, to: &Addr) -> Plan {
    if entry.kind() != Kind::Fresh && sockinfo::tells_times_of_sending(tcp::borrow(fd)) {
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
    let found = endpoint.registry.find(&to, |listing| {
        let here = *netns.get_or_insert_with(|| fresh::netns(fd, entry));
        if listing.netns != here {
            why = Reason::OtherNamespace;
        } else if scope == Scope::User && endpoint.user != user {
            // All listeners are of the user that this program was; an agent for the host has a registry for each party.
            why = Reason::OtherUser;
        } else {
            return true;
        }
        false
    });
    // A listener at all addresses is the one at this address only where the address is one of this network.
    let is_here = |listing: &Listing| to.is_loopback() || !listing.addr.is_unspecified();
    if scope != Scope::User
        && !found.as_ref().is_some_and(is_here)
        && endpoint.registry.may_lead_elsewhere(&to)
    {
        if scope == Scope::Marked {
            return offered::open(fd, &to).map_or_else(Plan::Tcp, Plan::Offer);
        }
        why = Reason::Unmarked;
    }
    match found.ok_or(why).and_then(|listing| link::draft(listing.listener, endpoint)) {
        Ok(draft) => Plan::Propose(draft),
        Err(why) => Plan::Tcp(why),
    }
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

fn connected(fd: c_int, to: &Addr, plan: Result<&Draft, &Reason>, nonblocking: bool) {
    let drop_plan = || {
        if let Ok(draft) = plan {
            draft.drop_unposted();
        }
    };
    let Ok(local) = sockinfo::local_addr(tcp::borrow(fd).as_fd()) else { return drop_plan() };
    let tuple = FourTuple { local, peer: loopback_for_unspecified(to) };
    let Some(sock) = track(fd, &tuple) else {
        endpoint::decline(plan.err().copied().unwrap_or(Reason::TooManyConnections));
        return drop_plan();
    };
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
            let (index, key) = ticket.to_words();
            let id = &sock.record().id;
            id.ticket[0].store(index, Ordering::Relaxed);
            id.ticket[1].store(key, Ordering::Relaxed);
            sock.activate(draft.link, Side::Client, draft.slot, ticket.place().generation);
            sock.set_link(draft.link);
            sock.begin_learnt();
            // Options may have been set while the call was waiting.
            let is_fresh = fd_table::lookup(fd).kind() == Kind::Fresh;
            buffers::begin(sock, fd, !is_fresh);
            if is_fresh {
                sock.record().rx.timeout.set_none();
                sock.record().tx.timeout.set_none();
            }
            id.reason.store(Reason::Pending as u32, Ordering::Relaxed);
            sock.set_phase(Phase::Proposed);
            fd_table::set(fd, sock.entry(Kind::Stream));
            ops::epoll::on_connected(sock, fd);
        }
        Err(why) => {
            drop_plan();
            fd_table::set(fd, sock.entry(Kind::Tracked));
            sock.decline(fd, why);
        }
    }
}
