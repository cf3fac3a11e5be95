//! Connections that a client offers to the agent before it connects.

use core::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::AsFd;
use shunt_engine::handshake::Phase;
use shunt_sys::sockinfo::{self};
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::decision::Decision;
use shunt_wire::offer::Offer;
use shunt_wire::reason::Reason;

use crate::conn::{ASKED, Conn, NONBLOCK, Sock};
use crate::control::agent_client;
use crate::epoll::tell;
use crate::fds::fd_table::{self, Entry};
use crate::processes::close;
use crate::processes::open::track;
use crate::stream::offer_budget::{Key, OFFERS, UNANSWERED};
use crate::system::abi;
use crate::system::clock;
use shunt_engine::handshake::course::withdraw_offer;

/// A connection that was offered and is being made.
pub struct Open {
    sock: &'static Sock,
}

/// Offers the socket `fd`, which is about to be connected.
pub fn open(fd: i32, to: &Addr) -> Result<Open, Reason> {
    /// Numbers of this process's offers: a record's uses are told by them.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let destination = Key::of_destination(to);
    if !UNANSWERED.permits(destination) {
        return Err(Reason::PeerNotShunted);
    }
    if !OFFERS.permits(destination) {
        return Err(Reason::ShortLived);
    }
    let tuple = FourTuple { local: Addr::default(), peer: *to };
    let sock = track(fd, &tuple).ok_or(Reason::TooManyConnections)?;
    let record = sock.record();
    sock.put(ASKED, true);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let index = sock.endpoint().arena.index_of(record);
    record.id.offer.store(Offer::Open(number).to_word(), Ordering::Release);
    let offered = u32::try_from(index)
        .map_err(|_| Reason::Internal)
        .and_then(|index| agent_client::offer(index, number, abi::borrow(fd)));
    let open = Open { sock };
    match offered {
        Ok(()) => Ok(open),
        Err(why) => {
            open.failed();
            Err(why)
        }
    }
}

impl Open {
    /// connect(2) has failed.
    pub fn failed(&self) {
        withdraw_offer(&self.sock.record().id);
        if self.sock.release() {
            close::finish(self.sock, |_| ());
        }
    }

    /// It has succeeded, or goes on. `now` is what the descriptor is until then.
    pub fn connected(&self, (fd, now): (i32, Entry), to: &Addr, nonblocking: bool) {
        let Ok(local) = sockinfo::local_addr(abi::borrow(fd).as_fd()) else {
            return self.failed();
        };
        let sock = self.sock;
        let id = &sock.record().id;
        id.set_tuple(&FourTuple { local, peer: *to });
        id.since.store(clock::now(), Ordering::Relaxed);
        id.reason.store(Reason::Pending as u32, Ordering::Relaxed);
        sock.put(NONBLOCK, nonblocking);
        sock.set_phase(Phase::Candidate);
        sock.note(Decision::Offered, None);
        let conn = Conn::new(fd, sock);
        if fd_table::replace_if(fd, now, conn.entry()) {
            tell::on_connected(conn);
        } else {
            // Closed meanwhile, by another thread.
            close::disconnected(sock);
        }
    }
}
