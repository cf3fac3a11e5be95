//! Models of what the engine works on, for its tests.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use shunt_shm::Violation;
use shunt_shm::arena::Record;
use shunt_shm::doorbell::ON_QUEUE;
use shunt_shm::grants::Grants;
use shunt_shm::region::Section;
use shunt_shm::ring::{Content, Span, TxCursor};

use crate::call::{Errno, Kernel, Moment, Step, enter};
use crate::conn::End;
use crate::conn::recv::{Incoming, Looked};
use crate::conn::repeated::are_awaited;
use crate::conn::send::Outgoing;
use crate::events;
use crate::kernel::{KernelSocket, Look, TcpInfo, look_for_end, state};

/// What comes to a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    Bytes(u64),
    Fin,
    Reset,
}

/// The receiving half of a kernel socket, and what will come to it before its nth question.
///
/// Modelled on `tcp_get_info`, which reads the state before it counts: something may come between the two.
#[derive(Debug, Default)]
pub struct Socket {
    written: Cell<u64>,
    arrived: Cell<u64>,
    read: Cell<u64>,
    fin: Cell<bool>,
    reset: Cell<bool>,
    shut: Cell<bool>,
    /// Its own program has ended the receiving direction.
    is_deaf: Cell<bool>,
    queues_errors: Cell<bool>,
    has_room: Cell<bool>,
    is_urgent: Cell<bool>,
    is_told: Cell<bool>,
    questions: Cell<usize>,
    later: RefCell<Vec<(usize, Arrival)>>,
    deeds: RefCell<Vec<(usize, Deed)>>,
}

/// What the peer does in shared memory.
struct Deed(Box<dyn FnOnce()>);

impl core::fmt::Debug for Deed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Deed")
    }
}

impl Socket {
    pub fn arrive(&self, what: Arrival) {
        if self.fin.get() && matches!(what, Arrival::Bytes(_)) || self.reset.get() {
            return;
        }
        match what {
            Arrival::Bytes(n) => self.arrived.set(self.arrived.get() + n),
            Arrival::Fin => self.fin.set(true),
            Arrival::Reset => self.reset.set(true),
        }
    }

    /// It comes before the question of this number, counted from now.
    pub fn arrive_at(&self, question: usize, what: Arrival) {
        self.later.borrow_mut().push((self.questions.get() + question, what));
    }

    /// The peer does this before the question of this number, counted from now, and before what arrives then.
    pub fn before(&self, question: usize, deed: impl FnOnce() + 'static) {
        let at = self.questions.get() + question;
        self.deeds.borrow_mut().push((at, Deed(Box::new(deed))));
    }

    /// How many questions it was asked.
    pub fn asked(&self) -> usize {
        self.questions.get()
    }

    /// All that is to come has come.
    pub fn settle(&self) {
        self.questions.set(usize::MAX / 2);
        self.happens();
    }

    /// There is something on the error queue: a completion, a timestamp.
    pub fn queue_error(&self) {
        self.queues_errors.set(true);
    }

    /// There is room for more to send.
    pub fn give_room(&self) {
        self.has_room.set(true);
    }

    /// Urgent data is what is next.
    pub fn come_to_urgent_mark(&self) {
        self.is_urgent.set(true);
    }

    /// The program reads.
    pub fn read(&self, n: u64) {
        assert!(n <= self.unread());
        self.read.set(self.read.get() + n);
    }

    /// The program writes.
    pub fn write(&self, n: u64) {
        self.written.set(self.written.get() + n);
    }

    /// The program ends the receiving direction.
    pub fn end_reading(&self) {
        self.is_deaf.set(true);
    }

    pub fn is_shut(&self) -> bool {
        self.shut.get()
    }

    fn unread(&self) -> u64 {
        self.arrived.get() - self.read.get()
    }

    fn happens(&self) {
        let now = self.questions.get();
        let done: Vec<_> = self.deeds.borrow_mut().extract_if(.., |(at, _)| *at <= now).collect();
        done.into_iter().for_each(|(_, Deed(deed))| deed());
        let due: Vec<Arrival> = {
            let mut later = self.later.borrow_mut();
            let due = later.iter().filter(|(at, _)| *at <= now).map(|(_, what)| *what).collect();
            later.retain(|(at, _)| *at > now);
            due
        };
        due.into_iter().for_each(|what| self.arrive(what));
        self.questions.set(now + 1);
    }
}

impl KernelSocket for Socket {
    fn waiting(&self) -> u64 {
        self.happens();
        self.unread()
    }

    fn info(&self) -> Option<TcpInfo> {
        self.happens();
        let state = match (self.reset.get(), self.fin.get()) {
            (true, _) => state::CLOSE,
            (false, true) => state::CLOSE_WAIT,
            (false, false) => state::ESTABLISHED,
        };
        self.happens();
        let bytes_received = self.arrived.get() + u64::from(self.fin.get());
        Some(TcpInfo {
            state,
            bytes_received,
            bytes_sent: self.written.get(),
            ..TcpInfo::default()
        })
    }

    fn readiness(&self, asked: u32) -> u32 {
        self.happens();
        let mut found = 0;
        let has_ended = self.fin.get() || self.is_deaf.get() || self.reset.get();
        if self.unread() > 0 || has_ended {
            found |= events::IN;
        }
        if has_ended {
            found |= events::RDHUP;
        }
        if self.reset.get() {
            found |= events::HUP | events::ERR;
        }
        if self.queues_errors.get() {
            found |= events::ERR;
        }
        if self.has_room.get() {
            found |= events::OUT;
        }
        found & (asked | events::ALWAYS)
    }

    fn has_fin_behind(&self, _waiting: u64) -> bool {
        self.happens();
        self.fin.get()
    }

    fn discard(&self, most: u64, note: &mut dyn FnMut(u64)) -> bool {
        self.happens();
        // The kernel may give fewer than there are.
        let n = most.min(self.unread()).min(3);
        self.read(n);
        note(n);
        n > 0
    }

    fn is_at_urgent_mark(&self) -> bool {
        self.happens();
        self.is_urgent.get()
    }

    fn shut(&self) {
        self.shut.set(true);
    }
}

/// The memory of an end of the client's side, with a ring of 64 KiB.
#[derive(Debug, Default)]
pub struct Memory {
    record: Record,
    mine: Section,
    theirs: Section,
}

impl Memory {
    pub const RING: u64 = 64 << 10;

    pub fn end(&self) -> End<'_> {
        End { record: &self.record, mine: &self.mine, theirs: &self.theirs, ring: Self::RING }
    }

    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// Both directions go to the ring from their first byte on, and both ends are there.
    pub fn enter_ring(&self) {
        for (line, passed) in
            [(&self.mine.prod, &self.theirs.cons), (&self.theirs.prod, &self.mine.cons)]
        {
            TxCursor::set_mark(line, 0);
            passed.marks_passed.store(1, Relaxed);
        }
        self.record.tx.marks.store(1, Relaxed);
        self.record.rx.marks.store(1, Relaxed);
    }

    /// The handshake is done.
    pub fn activate(&self) {
        self.record.id.phase.store(crate::handshake::Phase::Active as u32, Relaxed);
    }

    /// This end puts so many bytes into the ring.
    pub fn send(&self, n: u64) {
        self.record.tx.cursor.publish(&self.mine.prod, n);
    }

    /// This end takes so many bytes out of the ring.
    pub fn take(&self, n: u64) {
        let rx = &self.record.rx.cursor;
        let there = rx.refresh(&self.theirs.prod, Self::RING).unwrap();
        assert!(n <= there);
        let _ = rx.consume(&self.mine.cons, Self::RING, n);
    }

    /// The peer puts so many bytes into the ring.
    pub fn receive(&self, n: u64) {
        self.theirs.prod.prod.fetch_add(n, Relaxed);
    }
}

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
