//! Buffers of calls without copies, and what a program that is told of them must find.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shunt_shm::completions::Notice;
use shunt_shm::grants::{GRANTS, Held};
use shunt_shm::region::DEAF;

use super::Lends;
use crate::sim::pace::at_once;
use crate::sim::{World, other};
use crate::zerocopy::numbers::Outcome;

/// Addresses of registered memory begin here, and those of private memory. None is 0.
pub const REGISTERED: usize = 1 << 20;
pub const PRIVATE: usize = 1 << 40;

/// Where a buffer lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lies {
    Registered,
    Private,
}

/// Some of its bytes, which were granted.
#[derive(Clone, Copy, Debug)]
struct Granted {
    /// The number of the entry, and the place in the ring.
    number: u32,
    at: u64,
    len: usize,
}

/// The buffer of a call.
#[derive(Debug)]
pub struct Buffer {
    pub lies: Lies,
    from: usize,
    pub len: usize,
    /// It is several buffers, one behind the other.
    pub is_in_parts: bool,
    pub outcome: RefCell<Outcome>,
    granted: RefCell<Vec<Granted>>,
    /// Some of it was copied, and could have been granted.
    pub could_have_been: Cell<bool>,
    /// Some of it was taken back after the call had its number. What was taken back before that may go untold.
    is_restored: Cell<bool>,
    /// Its program was killed in the call.
    is_orphaned: Cell<bool>,
    number: Cell<Option<u32>>,
    is_told: Cell<bool>,
    is_changed: Cell<bool>,
}

impl Buffer {
    pub const fn address(&self) -> usize {
        self.from
            + match self.lies {
                Lies::Registered => REGISTERED,
                Lies::Private => PRIVATE,
            }
    }

    pub fn is_granted(&self, number: u32, at: u64, len: usize) {
        self.granted.borrow_mut().push(Granted { number, at, len });
    }

    /// Its program was killed, with the cursor at `pos`.
    pub fn is_bereaved(&self, pos: u64) {
        self.is_orphaned.set(true);
        self.granted.borrow_mut().retain(|part| part.at < pos);
    }

    const fn has(&self, lies: Lies, at: usize) -> bool {
        self.lies as usize == lies as usize && self.from <= at && at < self.from + self.len
    }
}

impl Lends {
    pub const fn memory(&self, lies: Lies) -> &RefCell<Vec<u8>> {
        match lies {
            Lies::Registered => &self.registered,
            Lies::Private => &self.private,
        }
    }

    /// A buffer for a call, or several ones.
    pub fn buffer(&self, (lies, is_in_parts): (Lies, bool), len: usize) -> Buffer {
        let mut memory = self.memory(lies).borrow_mut();
        let from = memory.len();
        memory.resize(from + len, 0);
        Buffer {
            lies,
            from,
            len,
            is_in_parts,
            outcome: RefCell::default(),
            granted: RefCell::default(),
            could_have_been: Cell::new(false),
            is_restored: Cell::new(false),
            is_orphaned: Cell::new(false),
            number: Cell::new(None),
            is_told: Cell::new(false),
            is_changed: Cell::new(false),
        }
    }

    /// The program has put these bytes into its buffer.
    pub fn fills(&self, buffer: &Buffer, skip: usize, bytes: impl Iterator<Item = u8>) {
        let mut memory = self.memory(buffer.lies).borrow_mut();
        let from = buffer.from + skip;
        memory[from..].iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
    }

    /// The call is about to get its number. Where it was killed just before, the next call gets it.
    pub fn numbers(&self, buffer: &Buffer, number: u32) {
        buffer.number.set(Some(number));
    }

    /// What lies there was copied to the ring.
    pub fn is_restored(&self, lies: Lies, at: usize) {
        let buffers = self.buffers.borrow();
        let is_it = |its: &&Rc<Buffer>| its.has(lies, at) && its.number.get().is_some();
        buffers.iter().filter(is_it).for_each(|its| its.is_restored.set(true));
        self.restored.set(self.restored.get() + 1);
    }

    /// The program does with a buffer what it likes.
    fn changes(&self, buffer: &Buffer) {
        if buffer.is_changed.replace(true) {
            return;
        }
        let mut memory = self.memory(buffer.lies).borrow_mut();
        memory[buffer.from..buffer.from + buffer.len].iter_mut().for_each(|byte| *byte = !*byte);
    }

    /// The same with all of this kind, whether it was told or not.
    pub fn changes_all(&self, lies: Lies) {
        let buffers = self.buffers.borrow();
        buffers.iter().filter(|its| its.lies == lies).for_each(|its| self.changes(its));
    }
}

impl World {
    /// A program is told that some buffers are its own again, and changes them.
    pub fn hears_of(&self, who: usize, lends: &Lends, notice: &Notice) {
        let Notice { first, last, copied } = *notice;
        let next = at_once(|| lends.state.completions.next());
        assert_eq!(first, lends.told.get(), "{who} is told out of order, or twice: {notice:?}");
        assert!(
            first <= last && last < next,
            "{who} is told of calls that were not made: {notice:?}"
        );
        lends.told.set(last + 1);
        for number in first..=last {
            let buffers = lends.buffers.borrow();
            let Some(buffer) = buffers.iter().rev().find(|its| its.number.get() == Some(number))
            else {
                panic!("{who} is told of nobody's call {number}");
            };
            let buffer = Rc::clone(buffer);
            drop(buffers);
            assert!(!buffer.is_told.replace(true), "{who} is told of {number} twice");
            if self.is_honest() {
                self.is_its_own(who, &buffer);
                self.was_copied(who, &buffer, copied);
            }
            lends.changes(&buffer);
        }
    }

    /// Nobody reads a buffer any more.
    fn is_its_own(&self, who: usize, buffer: &Buffer) {
        let (me, peer) = (&self.procs[who], &self.procs[other(who)]);
        at_once(|| {
            let shown = me.section.prod.grants.load(Relaxed);
            let taken = peer.section.cons.cons.load(Relaxed);
            let is_read = |part: &Granted| {
                let is_there =
                    shown.wrapping_sub(part.number) as usize <= GRANTS && shown > part.number;
                is_there
                    && taken < part.at + part.len as u64
                    && part.at < me.record.tx.cursor.pos()
                    && self.entries(other(who)).held(part.number) != Held::TakenBack
            };
            // It has said so, or its kernel has.
            let is_closed = !matches!(peer.section.ctl.closed.load(Relaxed), 0 | DEAF);
            let is_over = peer.ending.get().is_over() || is_closed;
            let reads = !is_over && buffer.granted.borrow().iter().any(is_read);
            assert!(!reads, "{who} is told of {buffer:?}, which can still be read");
        });
    }

    /// It says whether bytes were copied.
    fn was_copied(&self, who: usize, buffer: &Buffer, copied: bool) {
        if buffer.is_orphaned.get() || self.procs[who].has_reset.get() {
            return;
        }
        let is_granted = !buffer.granted.borrow().is_empty();
        // What a peer that is gone has not read was over when that one went; the program may have unmapped it later.
        let is_over = self.procs[other(who)].ending.get().is_over();
        let is_restored = buffer.is_restored.get();
        let was = !is_granted || buffer.could_have_been.get() || (is_restored && !is_over);
        // What the receiver had read from a pipe by then, nobody had to copy.
        let is_back = |part: &Granted| self.entries(other(who)).held(part.number) != Held::Granted;
        let may_be = was || is_restored || at_once(|| buffer.granted.borrow().iter().any(is_back));
        let is_right = if copied { may_be } else { !was };
        assert!(is_right, "{who} is told of copies, or of none: {copied} {buffer:?}");
    }
}
