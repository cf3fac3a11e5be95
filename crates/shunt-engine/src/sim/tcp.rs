//! A model of kernel TCP between two sockets of one host: what is written has arrived.
//!
//! Ends and errors are those of `tcp_reset`, `tcp_fin`, `tcp_poll`, `tcp_recvmsg` and `tcp_sendmsg` (`net/ipv4/tcp*.c`): bytes that
//! have come are read before an error or an end; RST after FIN is `EPIPE` to those who send, and nothing to those who receive;
//! an error is told once.

use core::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::pace::point;
use super::{World, other, side};
use crate::call::{Errno, Kernel};
use crate::conn::close::Closing;
use crate::events;
use crate::kernel::{KernelSocket, TcpInfo, state};

/// Bytes that a direction holds unread: fewer than a ring, so that what is sent once more does not fit.
pub const ROOM: usize = 3000;

/// `TCP_FIN_WAIT2` (`include/net/tcp_states.h`).
const FIN_WAIT2: u8 = 5;

/// One direction.
#[derive(Debug, Default)]
pub struct Pipe {
    pub unread: RefCell<VecDeque<u8>>,
    pub written: Cell<u64>,
    /// Bytes that were sent beside those, and answered with RST.
    refused: Cell<u64>,
    pub fin: Cell<bool>,
}

impl Pipe {
    pub fn room(&self) -> usize {
        ROOM - self.unread.borrow().len()
    }

    fn write(&self, bytes: impl Iterator<Item = u8>) {
        let mut unread = self.unread.borrow_mut();
        let before = unread.len();
        unread.extend(bytes);
        self.written.set(self.written.get() + (unread.len() - before) as u64);
    }

    fn refuse(&self, n: usize) -> Kernel {
        self.refused.set(self.refused.get() + n as u64);
        Kernel::Moved(n)
    }

    fn read(&self, n: usize) -> Vec<u8> {
        self.unread.borrow_mut().drain(..n).collect()
    }
}

/// What else the kernel knows of a socket.
#[derive(Debug, Default)]
pub struct Kept {
    /// RST has come.
    pub is_reset: Cell<bool>,
    /// `sk_err`.
    pub error: Cell<Option<Errno>>,
    /// It is closed by RST (`SO_LINGER` of no time).
    pub lingers: Cell<bool>,
    /// Nobody holds it any more.
    pub is_closed: Cell<bool>,
    /// Something has come since an edge was last taken.
    pub edge: Cell<bool>,
    /// Whoever looked for bytes was told of an end.
    pub has_told_end: Cell<bool>,
    /// Its program has ended the direction in which it receives (`SHUT_RD`).
    pub is_deaf: Cell<bool>,
    /// `SO_RCVLOWAT`; 0: it was not set.
    pub low_water: Cell<usize>,
}

/// The socket of one of the two.
#[derive(Clone, Copy)]
pub struct Socket<'w> {
    pub world: &'w World,
    pub who: usize,
}

impl<'w> Socket<'w> {
    fn comes(&self) -> &'w Pipe {
        &self.world.pipes[other(self.who)]
    }

    fn goes(&self) -> &'w Pipe {
        &self.world.pipes[side(self.who)]
    }

    fn kept(&self) -> &'w Kept {
        &self.world.procs[self.who].socket
    }

    fn other(&self) -> Self {
        Self { world: self.world, who: other(self.who) }
    }

    fn is_reset(&self) -> bool {
        self.kept().is_reset.get()
    }

    /// RST has come.
    fn resets(&self) {
        let kept = self.kept();
        if !kept.is_reset.replace(true) {
            let error = if self.comes().fin.get() { Errno::PIPE } else { Errno::CONNRESET };
            kept.error.set(Some(error));
            kept.edge.set(true);
        }
    }

    fn ends(&self) {
        if !self.is_reset() && !self.goes().fin.replace(true) {
            self.other().kept().edge.set(true);
        }
    }

    /// The program ends its direction.
    pub fn shuts(&self) {
        self.ends();
        self.notes_refusal();
    }

    /// The same of the other direction.
    pub fn shuts_reading(&self) {
        self.kept().is_deaf.set(true);
        self.kept().edge.set(true);
        self.notes_refusal();
    }

    /// From now on it may refuse bytes.
    fn notes_refusal(&self) {
        if self.refuses() {
            self.world.begins_to_refuse(self.who);
        }
    }

    /// `SO_RCVLOWAT`: what is worth telling of now is told of (`tcp_set_rcvlowat`).
    pub fn sets_low_water(&self, bytes: usize) {
        self.kept().low_water.set(bytes);
        if self.has_bytes() {
            self.kept().edge.set(true);
        }
    }

    /// Bytes that are worth telling of are there, or more than that cannot come (`tcp_epollin_ready`).
    fn has_bytes(&self) -> bool {
        let there = self.comes().unread.borrow().len();
        there > 0 && (there >= self.kept().low_water.get() || there == ROOM)
    }

    /// More bytes are answered by RST (`tcp_rcv_state_process`).
    fn refuses(&self) -> bool {
        self.kept().is_deaf.get() && self.goes().fin.get()
    }

    /// The last descriptor is closed.
    pub fn closes(&self) {
        self.kept().is_closed.set(true);
        if self.kept().lingers.get() || !self.comes().unread.borrow().is_empty() {
            self.other().resets();
        } else {
            self.ends();
        }
    }

    /// The program throws the connection away.
    pub fn aborts(&self) {
        self.other().resets();
        self.kept().is_reset.set(true);
        self.kept().edge.set(true);
    }

    /// Sends some of the bytes.
    pub fn sends(&self, most: usize, bytes: impl Iterator<Item = u8>) -> Kernel {
        if let Some(error) = self.kept().error.take() {
            return Kernel::Failed(error);
        }
        if self.is_reset() || self.goes().fin.get() {
            return Kernel::Failed(Errno::PIPE);
        }
        if self.other().kept().is_closed.get() {
            self.resets();
            return self.goes().refuse(most);
        }
        if most > 0 && self.other().refuses() {
            self.other().resets();
            self.resets();
            return self.goes().refuse(most);
        }
        let n = self.goes().room().min(most);
        if n == 0 && most > 0 {
            return Kernel::Nothing;
        }
        self.goes().write(bytes.take(n));
        if self.other().has_bytes() {
            self.other().kept().edge.set(true);
        }
        Kernel::Moved(n)
    }

    /// Receives up to so many bytes; `None` says why there is none.
    pub fn receives(&self, most: usize, only_looks: bool) -> Result<Vec<u8>, Kernel> {
        let there = self.comes().unread.borrow().len();
        if there > 0 {
            let n = most.min(there);
            return Ok(if only_looks {
                self.comes().unread.borrow().iter().copied().take(n).collect()
            } else {
                self.takes(n)
            });
        }
        if self.comes().fin.get() {
            return Ok(Vec::new());
        }
        match self.kept().error.take() {
            Some(error) => Err(Kernel::Failed(error)),
            None if self.is_reset() || self.kept().is_deaf.get() => Ok(Vec::new()),
            None => Err(Kernel::Nothing),
        }
    }

    /// A call that receives would get an error.
    pub fn would_fail(&self) -> bool {
        let has_bytes = !self.comes().unread.borrow().is_empty();
        !has_bytes && !self.comes().fin.get() && self.kept().error.get().is_some()
    }

    fn has_much_room(&self) -> bool {
        // As `sk_stream_is_writeable` has it.
        self.goes().room() * 3 >= ROOM
    }

    fn takes(&self, n: usize) -> Vec<u8> {
        let had_room = self.other().has_much_room();
        let bytes = self.comes().read(n);
        if !had_room && self.other().has_much_room() {
            self.other().kept().edge.set(true);
        }
        bytes
    }

    /// poll(2)'s answer, without a point.
    pub fn poll(&self) -> u32 {
        let (comes, goes, reset) = (self.comes(), self.goes(), self.is_reset());
        let has_ended = comes.fin.get() || self.kept().is_deaf.get() || reset;
        let mut found = 0;
        if self.has_bytes() || has_ended {
            found |= events::IN | events::RDNORM;
        }
        if has_ended {
            found |= events::RDHUP;
        }
        if self.has_much_room() || goes.fin.get() || reset {
            found |= events::OUT | events::WRNORM;
        }
        if reset || has_ended && goes.fin.get() {
            found |= events::HUP;
        }
        if self.kept().error.get().is_some() {
            found |= events::ERR;
        }
        found
    }
}

impl Closing for Socket<'_> {
    fn is_to_reset(&self) -> bool {
        false
    }

    fn reset_on_close(&self) {
        point();
        self.kept().lingers.set(true);
    }
}

impl KernelSocket for Socket<'_> {
    fn waiting(&self) -> u64 {
        point();
        self.comes().unread.borrow().len() as u64
    }

    fn info(&self) -> Option<TcpInfo> {
        point();
        let (comes, goes) = (self.comes(), self.goes());
        let state = match (self.is_reset(), comes.fin.get(), goes.fin.get()) {
            (true, ..) => state::CLOSE,
            (_, true, true) => state::LAST_ACK,
            (_, true, false) => state::CLOSE_WAIT,
            (_, false, true) => FIN_WAIT2,
            (_, false, false) => state::ESTABLISHED,
        };
        // The kernel looks at the state before it counts.
        point();
        Some(TcpInfo {
            state,
            bytes_received: comes.written.get() + u64::from(comes.fin.get()),
            bytes_sent: goes.written.get() + goes.refused.get(),
            ..TcpInfo::default()
        })
    }

    fn readiness(&self, asked: u32) -> u32 {
        point();
        let told = self.poll() & (asked | events::ALWAYS);
        // Of one behind bytes it learns once it has read them.
        let is_silent = self.comes().unread.borrow().is_empty();
        if asked == events::IN | events::RDHUP && told & events::END != 0 && is_silent {
            self.kept().has_told_end.set(true);
        }
        told
    }

    fn has_fin_behind(&self, _waiting: u64) -> bool {
        point();
        self.comes().fin.get()
    }

    fn discard(&self, most: u64, note: &mut dyn FnMut(u64)) -> bool {
        point();
        let there = self.comes().unread.borrow().len() as u64;
        let n = there.min(most);
        self.world.drops(self.who, &self.takes(usize::try_from(n).unwrap()));
        note(n);
        n > 0
    }

    fn is_at_urgent_mark(&self) -> bool {
        false
    }

    fn shut(&self) {
        // `SHUT_RDWR`; what a receiver gets then is what a socket gives whose peer has ended.
        self.ends();
        if !self.is_reset() {
            self.comes().fin.set(true);
        }
    }
}
