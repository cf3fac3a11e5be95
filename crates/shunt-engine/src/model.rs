//! Models of what the engine works on, for its tests: a kernel socket, the memory of an end, and calls.

mod receives;
mod sends;

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::arena::Record;
use shunt_shm::region::Section;
use shunt_shm::ring::TxCursor;

use crate::conn::End;
use crate::events;
use crate::kernel::{KernelSocket, TcpInfo, state};
pub use receives::Receives;
pub use sends::{Did, Sends};

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
