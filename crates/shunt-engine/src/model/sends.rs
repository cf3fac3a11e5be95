//! A call that sends, and notes what it is asked to do.

use core::cell::RefCell;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::doorbell::ON_QUEUE;
use shunt_shm::ring::{Content, Span};

use super::{Memory, Socket};
use crate::call::{Errno, Kernel, Moment, Step, enter};
use crate::conn::send::Outgoing;
use crate::kernel::KernelSocket;

/// What a call that sends did beside the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// Copied so many bytes to the ring.
    Copied(usize),
    /// Gave the lock back.
    Unlocked,
    /// Told the receiver, which could see so many bytes then.
    Told(u64),
    /// Put granted bytes into the ring.
    TookBack,
    /// Left the ring, with so many bytes to be sent once more.
    Left(u64),
    /// Sent some of them once more.
    Repeated,
    /// Wrote so many bytes to the kernel socket.
    Wrote(usize),
}

/// A call that sends.
#[derive(Debug)]
pub struct Sends<'a> {
    pub memory: &'a Memory,
    pub socket: &'a Socket,
    pub total: usize,
    pub sent: usize,
    pub did: RefCell<Vec<Did>>,
    /// Its source has no more bytes.
    pub is_dry: bool,
    /// The doorbells of the peer are at hand.
    pub can_tell: bool,
    pub is_orphaned: bool,
    pub is_cut_off: bool,
    pub time: u64,
    /// What the kernel socket says to bytes.
    pub kernel: Kernel,
    /// What granted bytes that were not read do.
    pub can_take_back: bool,
    /// All that waited was sent once more.
    pub can_repeat: bool,
    /// A handler sends while this call copies.
    pub is_interrupted: bool,
    /// What the peer says of its leaving by the time that the mark is set.
    pub handed_over_at_mark: u32,
    /// The receiver takes all before this look for room, counted from 1.
    pub room_at_find: Option<u32>,
    /// Whether the queue was asked for at each look for room.
    pub is_queued_at_find: Vec<bool>,
}

impl<'a> Sends<'a> {
    pub fn new(memory: &'a Memory, socket: &'a Socket, total: usize) -> Self {
        Self {
            memory,
            socket,
            total,
            sent: 0,
            did: RefCell::default(),
            is_dry: false,
            can_tell: true,
            is_orphaned: false,
            is_cut_off: false,
            time: 1 << 20,
            kernel: Kernel::Moved(usize::MAX),
            can_take_back: true,
            can_repeat: true,
            is_interrupted: false,
            handed_over_at_mark: 0,
            room_at_find: None,
            is_queued_at_find: Vec::new(),
        }
    }

    /// One step.
    pub fn step(&mut self) -> Step {
        self.did.borrow_mut().clear();
        self.memory.end().send(self, false, true).unwrap()
    }

    /// What the last step did.
    pub fn did(&self) -> Vec<Did> {
        self.did.borrow().clone()
    }

    fn does(&self, what: Did) {
        self.did.borrow_mut().push(what);
    }
}

impl Outgoing for Sends<'_> {
    fn socket(&self) -> impl KernelSocket {
        self.socket
    }

    fn sent(&self) -> usize {
        self.sent
    }

    fn next_piece(&mut self) -> Result<(usize, Content), Errno> {
        Ok((self.total - self.sent, Content::Put))
    }

    fn longest_ring(&mut self) -> u64 {
        let asked = self.memory.mine.ctl.tx_arm.load(Relaxed);
        self.is_queued_at_find.push(asked & ON_QUEUE != 0);
        self.room_at_find = self.room_at_find.and_then(|n| n.checked_sub(1));
        if self.room_at_find == Some(0) {
            let put = self.memory.mine.prod.prod.load(Acquire);
            self.memory.theirs.cons.cons.store(put, Relaxed);
        }
        Memory::RING
    }

    fn copy(&mut self, place: Span) {
        self.does(Did::Copied(place.len()));
        if self.is_interrupted {
            assert!(enter(true, &self.memory.record.tx.copying).is_some());
        }
    }

    fn complete(&mut self, place: Span) -> usize {
        let n = if self.is_dry { 0 } else { place.len() };
        self.sent += n;
        n
    }

    fn run_dry(&self) -> Option<Step> {
        self.is_dry.then_some(Step::Done)
    }

    fn goes_far(&self) {}

    fn is_published(&self) {}

    fn unlock(&mut self) {
        self.does(Did::Unlocked);
    }

    fn tell(&mut self) -> bool {
        self.does(Did::Told(self.memory.mine.prod.prod.load(Acquire)));
        false
    }

    fn over_kernel(&mut self) -> Kernel {
        let Kernel::Moved(most) = self.kernel else { return self.kernel };
        let n = most.min(self.total - self.sent);
        self.sent += n;
        self.does(Did::Wrote(n));
        Kernel::Moved(n)
    }

    fn repeat(&mut self) -> bool {
        self.does(Did::Repeated);
        self.can_repeat
    }

    fn take_back(&mut self) -> bool {
        self.does(Did::TookBack);
        self.can_take_back
    }

    fn leave_ring(&mut self, untaken: u64) {
        self.does(Did::Left(untaken));
        self.memory.end().leave_ring(untaken, || {});
    }

    fn is_promoted(&self, _is_unused: bool) {}

    fn can_tell(&self) -> bool {
        self.can_tell
    }

    fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    fn is_orphaned(&self) -> bool {
        self.is_orphaned
    }

    fn now(&self) -> u64 {
        self.time
    }

    fn reaches(&self, moment: Moment) {
        if moment == Moment::MarkSet {
            self.memory.theirs.ctl.handed_over.store(self.handed_over_at_mark, Relaxed);
        }
    }
}
