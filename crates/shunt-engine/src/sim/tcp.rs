//! A model of kernel TCP between two sockets of one host: what is written has arrived.

use core::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::World;
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
    pub fin: Cell<bool>,
}

impl Pipe {
    pub fn room(&self) -> usize {
        ROOM - self.unread.borrow().len()
    }

    pub fn write(&self, bytes: impl Iterator<Item = u8>) {
        let mut unread = self.unread.borrow_mut();
        let before = unread.len();
        unread.extend(bytes);
        self.written.set(self.written.get() + (unread.len() - before) as u64);
    }

    pub fn read(&self, n: usize) -> Vec<u8> {
        self.unread.borrow_mut().drain(..n).collect()
    }
}

/// The socket of one of the two.
#[derive(Clone, Copy)]
pub struct Socket<'w> {
    pub world: &'w World,
    pub who: usize,
}

impl Socket<'_> {
    fn comes(&self) -> &Pipe {
        &self.world.pipes[1 - self.who]
    }

    fn goes(&self) -> &Pipe {
        &self.world.pipes[self.who]
    }

    fn is_reset(&self) -> bool {
        self.world.procs[self.who].is_reset.get()
    }

    /// poll(2)'s answer, without a pause.
    pub fn poll(&self) -> u32 {
        let (comes, goes, reset) = (self.comes(), self.goes(), self.is_reset());
        let mut found = 0;
        if !comes.unread.borrow().is_empty() || comes.fin.get() || reset {
            found |= events::IN;
        }
        if comes.fin.get() || reset {
            found |= events::RDHUP;
        }
        if goes.room() > 0 || reset {
            found |= events::OUT;
        }
        if reset || comes.fin.get() && goes.fin.get() {
            found |= events::HUP;
        }
        if reset && !self.world.procs[self.who].is_told.get() {
            found |= events::ERR;
        }
        found
    }
}

impl KernelSocket for Socket<'_> {
    fn waiting(&self) -> u64 {
        self.world.pause(self.who);
        self.comes().unread.borrow().len() as u64
    }

    fn info(&self) -> Option<TcpInfo> {
        self.world.pause(self.who);
        let (comes, goes) = (self.comes(), self.goes());
        let state = match (self.is_reset(), comes.fin.get(), goes.fin.get()) {
            (true, ..) => state::CLOSE,
            (_, true, true) => state::LAST_ACK,
            (_, true, false) => state::CLOSE_WAIT,
            (_, false, true) => FIN_WAIT2,
            (_, false, false) => state::ESTABLISHED,
        };
        // The kernel looks at the state before it counts.
        self.world.pause(self.who);
        Some(TcpInfo {
            state,
            bytes_received: comes.written.get() + u64::from(comes.fin.get()),
            bytes_sent: goes.written.get(),
            ..TcpInfo::default()
        })
    }

    fn readiness(&self, asked: u32) -> u32 {
        self.world.pause(self.who);
        self.poll() & (asked | events::ALWAYS)
    }

    fn has_fin_behind(&self, _waiting: u64) -> bool {
        self.world.pause(self.who);
        self.comes().fin.get()
    }

    fn discard(&self, most: u64, note: &mut dyn FnMut(u64)) -> bool {
        self.world.pause(self.who);
        let there = self.comes().unread.borrow().len() as u64;
        let n = there.min(most);
        self.world.drops(self.who, &self.comes().read(usize::try_from(n).unwrap()));
        note(n);
        n > 0
    }

    fn is_at_urgent_mark(&self) -> bool {
        false
    }

    fn shut(&self) {
        self.goes().fin.set(true);
    }
}
