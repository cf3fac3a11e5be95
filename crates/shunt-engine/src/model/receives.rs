//! A call that receives.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::Violation;
use shunt_shm::grants::Grants;
use shunt_shm::ring::{Span, TxCursor};

use super::{Memory, Socket};
use crate::call::{Errno, Kernel, enter};
use crate::conn::recv::{Incoming, Looked};
use crate::conn::repeated::are_awaited;
use crate::kernel::{KernelSocket, Look, look_for_end};

/// A call that receives.
#[derive(Debug)]
pub struct Receives<'a> {
    pub memory: &'a Memory,
    pub socket: &'a Socket,
    pub total: usize,
    /// `SO_RCVLOWAT`.
    pub enough: usize,
    pub got: usize,
    /// Bytes of it that were in the ring.
    pub in_ring: usize,
    pub only_looks: bool,
    /// Bytes in the kernel socket that looks have passed; `None`: each look begins at the first one.
    pub looked_at: Option<usize>,
    pub is_bad: bool,
    /// A handler receives while this call copies.
    pub is_interrupted: bool,
    /// So many bytes come into the ring while this call copies.
    pub comes_at_copy: u64,
    /// Another program has what was left.
    pub is_claimed: bool,
    pub is_leftover: bool,
    pub can_look_behind: bool,
    /// Bytes that no mark explains have been there for long.
    pub is_unmarked_for_long: bool,
    pub is_cut_off: bool,
    /// What a call that leaves the ring and stays is told.
    pub stays: bool,
    pub time: u64,
    /// So many marks are set, and a handler passes all but one, while this call tells.
    pub passes_at_tell: Option<u32>,
    /// So many entries lie behind granted bytes that it copies; `None`: all.
    pub entries: Option<u32>,
    /// How often the sender was told of room.
    pub told: Cell<u32>,
    /// Marks that led into the ring were passed: those who wait were to look again.
    pub passed: RefCell<Vec<bool>>,
}

impl<'a> Receives<'a> {
    pub fn new(memory: &'a Memory, socket: &'a Socket, total: usize) -> Self {
        Self {
            memory,
            socket,
            total,
            enough: 1,
            got: 0,
            in_ring: 0,
            only_looks: false,
            looked_at: None,
            is_bad: false,
            is_interrupted: false,
            comes_at_copy: 0,
            is_claimed: false,
            is_leftover: false,
            can_look_behind: false,
            is_unmarked_for_long: false,
            is_cut_off: false,
            stays: true,
            time: 0,
            passes_at_tell: None,
            entries: None,
            told: Cell::default(),
            passed: RefCell::default(),
        }
    }
}

impl Incoming for Receives<'_> {
    fn socket(&self) -> impl KernelSocket {
        self.socket
    }

    fn got(&self) -> usize {
        self.got
    }

    fn receives(&mut self, n: usize) {
        self.got += n;
        self.in_ring += n;
    }

    fn begins_anew(&mut self) {
        (self.got, self.in_ring) = (0, 0);
    }

    fn looks_go_on(&self) -> bool {
        self.looked_at.is_some()
    }

    fn total(&self) -> usize {
        self.total
    }

    fn enough(&self) -> usize {
        self.enough
    }

    fn only_looks(&self) -> bool {
        self.only_looks
    }

    fn want(&self) -> usize {
        self.total - self.got
    }

    fn is_bad(&self) -> bool {
        self.is_bad
    }

    fn read_kernel(&mut self, most: usize) -> Kernel {
        self.socket.happens();
        let unread = usize::try_from(self.socket.unread()).unwrap();
        let there = unread - self.looked_at.unwrap_or(0);
        let n = most.min(self.total - self.got).min(there);
        // Behind a FIN receivers do not hear of RST (`tcp_recvmsg_locked`: `SOCK_DONE`).
        let is_failure = self.socket.reset.get() && !self.socket.fin.get();
        if there == 0 && is_failure && !self.socket.is_told.replace(true) {
            return Kernel::Failed(Errno::CONNRESET);
        }
        let has_ended = self.socket.fin.get() || self.socket.is_deaf.get();
        if there == 0 && !has_ended && !self.socket.reset.get() {
            return Kernel::Nothing;
        }
        match &mut self.looked_at {
            Some(looked_at) => *looked_at += n,
            None if self.only_looks => {}
            None => self.socket.read(n as u64),
        }
        self.got += n;
        Kernel::Moved(n)
    }

    fn look_behind(&mut self, repeated: u64) {
        assert!(self.only_looks);
        let there = usize::try_from(self.socket.unread() - repeated).unwrap();
        self.got += there.min(self.total - self.got);
    }

    fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    fn can_look_behind(&self) -> bool {
        self.can_look_behind
    }

    fn takes_otherwise(&mut self, _place: Span) -> Option<Looked> {
        None
    }

    fn copy(&mut self, _place: Span) {
        self.memory.receive(core::mem::take(&mut self.comes_at_copy));
        if core::mem::take(&mut self.is_interrupted) {
            assert!(enter(true, &self.memory.record.rx.copying).is_some());
        }
    }

    fn copy_granted(&mut self, _place: Span) -> Result<Option<u32>, Violation> {
        let Memory { record, theirs, .. } = self.memory;
        if !Grants::are_possible(&theirs.prod, record.rx.grants.load(Relaxed)) {
            return Err(Violation::Grants);
        }
        Ok(Some(self.entries.unwrap_or_else(|| theirs.prod.grants.load(Relaxed))))
    }

    fn has_copied(&self) {}

    fn claims(&mut self, _n: usize) -> bool {
        // The other one takes them for good.
        if self.is_claimed {
            self.memory.take(self.memory.end().in_ring());
        }
        !self.is_claimed
    }

    fn tell(&self) {
        if let Some(more) = self.passes_at_tell {
            let Memory { record, theirs, .. } = self.memory;
            record.rx.marks.fetch_add(more - 1, Relaxed);
            theirs.prod.marks.fetch_add(more, Relaxed);
            theirs.prod.mark_at.iter().for_each(|at| at.store(Memory::RING, Relaxed));
        }
        self.told.set(self.told.get() + 1);
    }

    fn drop_repeated(&mut self) -> bool {
        self.memory.end().drop_repeated(self.socket)
    }

    fn settle(&self) {
        let end = self.memory.end();
        if end.pass_end_of_ring() == crate::stretch::Path::Tcp {
            end.drop_repeated(self.socket);
        }
    }

    fn stay(&self) -> bool {
        assert!(!are_awaited(&self.memory.record));
        if !self.stays {
            TxCursor::set_mark(&self.memory.theirs.prod, self.memory.record.rx.cursor.pos());
        }
        self.stays
    }

    fn is_leftover(&self) -> bool {
        self.is_leftover
    }

    fn is_unmarked_for_long(&self) -> bool {
        self.is_unmarked_for_long
    }

    fn await_end(&self) -> Look {
        look_for_end(self.socket)
    }

    fn has_passed(&self, is_late: bool) {
        self.passed.borrow_mut().push(is_late);
    }

    fn now(&self) -> u64 {
        self.time
    }
}
