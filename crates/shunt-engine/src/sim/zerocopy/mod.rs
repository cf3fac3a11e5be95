//! Programs that send without copies (`MSG_ZEROCOPY`), as the library's `stream/{zerocopy,grants,pipe_tx,pipe_rx}.rs`: calls that
//! get a number, the error queue, and the program's memory.
//!
//! A buffer is a program's own again when it was told of the call that sent it, and is changed at once. So bytes that are read
//! there later are others than those that were sent, in whatever way they are found.

mod buffers;
mod ports;

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shunt_shm::ring::{Content, Span};
use shunt_shm::zerocopy::ZeroCopy;
use shunt_wire::agent::LANES;

use super::calls::{Lock, Sending};
use super::pace::{at_once, point};
use super::program::Doing;
use super::sleep::Asleep;
use super::{Ending, Op, World, other, side};
use crate::call::Direction;
use crate::conn::flags::NUMBERED;
use crate::conn::has;
use crate::events;
use crate::handshake::Phase;
use crate::pinning::Pin;
use crate::zerocopy::batch::Batch;
use crate::zerocopy::choice::{Hint, LEAST, Piece};
use crate::zerocopy::granting::Put;
use crate::zerocopy::numbers::{ErrorQueue, Numbers};
use crate::zerocopy::pipes::{Adopted, Wanted};
use crate::zerocopy::sender::Granting;
pub use buffers::Buffer;
use buffers::Lies;
pub use ports::Look;
use ports::{Own, Pipe};

/// Names of the registered memory of an end, and of its pipes.
const REGION: u64 = 7;
const PIPES: u64 = 8;

/// What an end has of its sends without copies, from the first one on.
#[derive(Default)]
pub struct Lends {
    state: ZeroCopy,
    /// The program's memory, and its pipes.
    registered: RefCell<Vec<u8>>,
    private: RefCell<Vec<u8>>,
    pipes: [RefCell<Pipe>; LANES],
    buffers: RefCell<Vec<Rc<Buffer>>>,
    /// Numbers of which the program was told.
    told: Cell<u32>,
    /// Pieces that were taken back.
    restored: Cell<u64>,
    /// Until then those who wait look now and then.
    doubts_until: Cell<u64>,
    /// The program that has told the agent of the registered memory.
    teller: Cell<Option<usize>>,
}

/// What a program has of sends without copies on a connection.
#[derive(Default)]
pub struct Sharing {
    /// The calls that it is in, the last one above the others.
    under_way: RefCell<Vec<Rc<Buffer>>>,
    /// The other one's memory is mapped here, and its pipes are here.
    has_mapped: Cell<bool>,
    has_pulled: Cell<bool>,
    /// It has the pipes of its own end, as it made them, or was forked since.
    has_pipes: Cell<bool>,
    has_made_pipes: Cell<bool>,
}

impl Sharing {
    /// The program was killed in a step, with the cursor at `pos`.
    pub fn is_bereaved(&self, pos: u64) {
        self.under_way.borrow().iter().for_each(|buffer| buffer.is_bereaved(pos));
    }

    /// What a child has of it.
    pub fn is_inherited_by(&self, child: &Self) {
        child.has_mapped.set(self.has_mapped.get());
        child.has_pulled.set(self.has_pulled.get());
        child.has_pipes.set(self.has_pipes.get());
    }
}

/// What of the other one's memory the programs of an end are willing to have.
#[derive(Default)]
pub struct Taste {
    /// Nothing more.
    refuses: Cell<bool>,
    has_accepted: [Cell<bool>; 2],
}

/// A call that is under way, as long as this lives.
struct UnderWay<'w>(&'w Sharing);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.borrow_mut().pop();
    }
}

impl Op {
    /// How a call without copies has its bytes, and how many.
    const fn lends(self) -> Option<((Lies, bool), usize)> {
        match self {
            Self::Grant(n) => Some(((Lies::Registered, false), n)),
            Self::Pin(n) => Some(((Lies::Private, false), n)),
            Self::Parts(n) => Some(((Lies::Registered, true), n)),
            _ => None,
        }
    }
}

/// Of several buffers of `len` bytes in all: how many bytes come after the first `done` in the same one, and what is to become of them.
fn part_at(done: usize, len: usize) -> (usize, Hint) {
    /// In turn.
    const PARTS: [(usize, Hint); 5] =
        [(3, Hint::Copy), (7, Hint::Grant), (1, Hint::Grant), (2, Hint::Copy), (90, Hint::Grant)];
    let mut at = 0;
    for (n, hint) in PARTS.into_iter().cycle() {
        at += n;
        if done < at {
            return (at.min(len).saturating_sub(done), hint);
        }
    }
    (0, Hint::Auto)
}

/// Calls of the program.
impl World {
    fn lends(&self, who: usize) -> Option<&Lends> {
        self.procs[who].lends.get().map(Box::as_ref)
    }

    fn granting<'w>(&'w self, who: usize, lends: &'w Lends) -> Granting<'w> {
        Granting { end: self.end(who), state: &lends.state }
    }

    fn numbers<'w>(&'w self, who: usize, lends: &'w Lends) -> Numbers<'w> {
        Numbers { record: &self.procs[who].record, end: self.linked(who), state: &lends.state }
    }

    const fn own<'w>(&'w self, who: usize, lends: &'w Lends) -> Own<'w> {
        Own { world: self, who, lends }
    }

    /// A whole call that is to have a number, if it asks for one.
    pub fn numbered(&self, who: usize, doing: &mut Doing) {
        let Some((kind, len)) = doing.op.lends() else { return self.calls(who, doing) };
        // The kernel copies what goes over loopback.
        if self.advances(who) == Phase::Tcp {
            return self.calls(who, doing);
        }
        let lends = self.procs[who].lends.get_or_init(Box::default).as_ref();
        let is_nested = self.is_in_step(who, Direction::Sending);
        if self.numbers(who, lends).begin(is_nested, false, || self.begins_to_count(who)).is_err() {
            return;
        }
        let buffer = Rc::new(lends.buffer(kind, len));
        lends.buffers.borrow_mut().push(Rc::clone(&buffer));
        let sharing = &self.procs[who].sharing;
        sharing.under_way.borrow_mut().push(Rc::clone(&buffer));
        let under_way = UnderWay(sharing);
        self.calls(who, doing);
        drop(under_way);
        self.settles_call(who, lends, &buffer, doing.moved);
    }

    /// The other one has mapped the memory, and has the pipes, as if they had been offered long ago.
    pub fn shares(&self, who: usize) {
        if self.linked(who).is_none() || self.lends(who).is_some() {
            return;
        }
        let lends = self.procs[who].lends.get_or_init(Box::default).as_ref();
        self.begins_to_count(who);
        at_once(|| {
            let (state, sharing) = (&lends.state, &self.procs[who].sharing);
            sharing.has_pipes.set(true);
            sharing.has_made_pipes.set(true);
            lends.teller.set(Some(who));
            state.pinned.name.store(PIPES, Relaxed);
            for region in [REGION, PIPES] {
                state.granted.offer(region);
                assert!(state.granted.is_known(region, region));
                self.procs[other(who)].section.ctl.accepted.store(region, Relaxed);
            }
            for peer in self.programs(other(who)).map(|peer| &self.procs[peer]) {
                peer.sharing.has_mapped.set(true);
                peer.sharing.has_pulled.set(true);
                peer.taste.has_accepted.iter().for_each(|accepted| accepted.set(true));
            }
        });
    }

    fn begins_to_count(&self, who: usize) {
        let _lock = Lock::of(self, who, Direction::Sending);
        if let Some(lends) = self.lends(who) {
            let queue = ErrorQueue { is_in_use: false, is_v6: false };
            self.numbers(who, lends).begin_to_count(|| Some(queue));
        }
    }

    /// After a call that was to have a number, and has sent so much.
    fn settles_call(&self, who: usize, lends: &Lends, buffer: &Buffer, sent: usize) {
        if buffer.outcome.borrow().is_unknown {
            self.offers(who, lends, buffer.lies);
        }
        if sent > 0 && !buffer.outcome.borrow().is_numbered {
            let _lock = Lock::of(self, who, Direction::Sending);
            let numbers = self.numbers(who, lends);
            lends.numbers(buffer, at_once(|| numbers.next()));
            numbers.number_after(&buffer.outcome.borrow());
        }
    }

    /// Offers the memory in which a buffer lies, or pipes.
    fn offers(&self, who: usize, lends: &Lends, lies: Lies) {
        if self.linked(who).is_none() {
            return;
        }
        let granting = self.granting(who, lends);
        let region = match lies {
            Lies::Registered => {
                lends.teller.set(lends.teller.get().or(Some(who)));
                Some(REGION)
            }
            Lies::Private => self.pipes_to_offer(who, lends),
        };
        let Some(region) = region else { return };
        let lock = Lock::of(self, who, Direction::Sending);
        granting.offer(&self.own(who, lends), region, lock.is_nested());
    }

    fn pipes_to_offer(&self, who: usize, lends: &Lends) -> Option<u64> {
        let (granting, sharing) = (self.granting(who, lends), &self.procs[who].sharing);
        match granting.wanted_pipes(Pin::From(1), sharing.has_pipes.get()) {
            Wanted::None => None,
            Wanted::Named(name) => Some(name),
            Wanted::ToBeMade => {
                let lock = Lock::of(self, who, Direction::Sending);
                let keep = || {
                    sharing.has_pipes.set(true);
                    sharing.has_made_pipes.set(true);
                };
                let adopted = match lock.is_nested() {
                    true => Adopted::Not,
                    false => granting.adopt(PIPES, keep),
                };
                (adopted == Adopted::Used).then_some(PIPES)
            }
        }
    }

    /// Asks the error queue until nothing is left there. True when it was told of something.
    pub fn hears(&self, who: usize) -> bool {
        let Some(lends) = self.lends(who) else { return false };
        let (me, mut is_told) = (&self.procs[who], false);
        loop {
            let (own, numbers) = (self.own(who, lends), self.numbers(who, lends));
            if !numbers.has_news(&own) {
                return is_told;
            }
            let lock = Lock::of(self, who, Direction::Sending);
            let was_in_step = me.in_step.replace(true);
            let notice = numbers.take(lock.is_nested(), Some(&own));
            if let Some(notice) = &notice {
                self.hears_of(who, lends, notice);
                numbers.notes_told(notice);
            }
            me.in_step.set(was_in_step);
            let is_turned_away = notice.is_none() && lock.is_nested();
            drop(lock);
            self.ends_late(who);
            if is_turned_away {
                self.tells_for_those_below(who);
            }
            if notice.is_none() {
                return is_told;
            }
            is_told = true;
        }
    }

    /// True when no call is left of which no program was told.
    fn are_all_told(&self, who: usize, lends: &Lends) -> bool {
        at_once(|| self.numbers(who, lends).next()) == lends.told.get()
    }

    /// The same until it was told of all calls: waits for that in poll(2).
    pub fn hears_all(&self, who: usize, doing: Doing) {
        let Some(lends) = self.lends(who) else { return };
        let me = &self.procs[who];
        loop {
            self.hears(who);
            if self.are_all_told(who, lends) || me.mind.handlers.get() > 0 || me.is_gone.get() {
                return;
            }
            me.mind.had_handler.set(false);
            self.polls(who, doing);
            // Of one that has ended poll says so at once, each time.
            if self.readiness(who, 0) & events::ALWAYS != 0 {
                let looks_at = Some(self.now.get() + Self::LOOK);
                self.rests_until(who, Asleep { looks_at, ..Asleep::nothing(doing) });
            }
        }
    }

    /// What poll(2) says to one who waits for completions, too. True when some wait.
    pub fn awaits_notice(&self, who: usize) -> bool {
        self.lends(who).is_some_and(|lends| {
            self.numbers(who, lends).await_notice(Some(&self.own(who, lends))) != 0
        })
    }

    /// The sending direction's word wakes it for completions, too.
    pub fn is_numbered(&self, who: usize) -> bool {
        self.lends(who).is_some() && at_once(|| has(&self.procs[who].record, NUMBERED))
    }

    /// It has sent private memory without copies.
    pub fn pins(&self, who: usize) -> bool {
        self.lends(who).is_some_and(|lends| !lends.private.borrow().is_empty())
    }

    /// Nobody tells of what is held too long.
    pub fn doubts_grants(&self, who: usize) -> bool {
        self.lends(who).is_some_and(|lends| self.now.get() < lends.doubts_until.get())
    }

    /// The program has from now on nothing more of the other one's mapped.
    pub fn refuses(&self, who: usize) {
        self.procs[who].taste.refuses.set(true);
    }
}

/// Steps of a call.
impl World {
    /// The call without copies that a program is in.
    pub fn buffer(&self, who: usize, op: Op) -> Option<Rc<Buffer>> {
        op.lends()?;
        self.procs[who].sharing.under_way.borrow().last().cloned()
    }

    /// The bytes of a buffer after the first `done`, if they are to be granted.
    pub fn piece(&self, who: usize, buffer: &Buffer, done: usize) -> Option<Piece> {
        let lends = self.lends(who)?;
        let bytes = (buffer.address() + done, buffer.len - done);
        let piece = self.granting(who, lends).piece(&self.own(who, lends), Hint::Grant, bytes);
        buffer.outcome.borrow_mut().is_unknown |= piece.is_err();
        piece.ok().flatten()
    }

    /// What of a call with several buffers goes together. With one of them, or with none that is granted, as the library, by itself.
    pub fn gathers(&self, call: &mut Sending<'_>, buffer: &Buffer) -> (usize, Content) {
        /// The most that goes together.
        const CHUNK: usize = 40;
        let (who, done) = (call.who, call.sent);
        call.piece = self.piece_in_parts(who, buffer, done);
        let (n, hint) = part_at(done, buffer.len);
        let alone = match (&call.piece, hint) {
            (Some(piece), _) => (piece.len, Content::Granted),
            (None, Hint::Copy) => (n, Content::Put),
            (None, _) => (n.min(CHUNK), Content::Put),
        };
        let Some(lends) = self.lends(who).filter(|_| done + alone.0 < call.total) else {
            return alone;
        };
        let mut at = done;
        let parts = core::iter::from_fn(|| {
            let (n, hint) = part_at(at, buffer.len);
            let part = (hint, (buffer.address() + at, n));
            at += n;
            (n > 0).then_some(part)
        });
        let mut batch = Batch::new();
        self.granting(who, lends).gather(&self.own(who, lends), parts, CHUNK, &mut batch);
        buffer.outcome.borrow_mut().is_unknown |= batch.is_unknown;
        if !batch.is_worth_it() {
            return alone;
        }
        call.piece = None;
        let batch = call.batch.insert(batch);
        (batch.len(), batch.content())
    }

    /// The same as [`Self::piece`] for one of several buffers.
    fn piece_in_parts(&self, who: usize, buffer: &Buffer, done: usize) -> Option<Piece> {
        let lends = self.lends(who)?;
        let (n, hint) = part_at(done, buffer.len);
        let bytes = (buffer.address() + done, n);
        let piece = self.granting(who, lends).piece(&self.own(who, lends), hint, bytes);
        buffer.outcome.borrow_mut().is_unknown |= piece.is_err();
        piece.ok().flatten()
    }

    /// Sees to it that what goes together is in its place.
    fn places_all(
        &self,
        call: &Sending<'_>,
        lends: &Lends,
        (buffer, batch): (&Buffer, &Batch),
        place: Span,
    ) {
        let who = call.who;
        let (end, granting) = (self.end(who), self.granting(who, lends));
        let mut outcome = buffer.outcome.borrow_mut();
        lends.fills(buffer, call.sent, call.rest().take(place.len()));
        let at = at_once(|| end.record.tx.cursor.pos());
        let mut is_granted = false;
        let number = || at_once(|| lends.state.granted.made()).wrapping_sub(1);
        granting.put_all(&self.own(who, lends), batch, place.len(), |put, before, (_, len)| {
            let from = at + before as u64;
            match put {
                Put::Granted(n) => {
                    buffer.is_granted(number(), from, n);
                    is_granted = true;
                }
                Put::Refused => {
                    call.puts(before, place.split(before).1.split(len).0);
                    buffer.could_have_been.set(true);
                }
                Put::Copied if len >= LEAST => buffer.could_have_been.set(true),
                Put::Copied => {}
            }
            outcome.notes(put, len, from + len as u64);
        });
        if call.sent + place.len() >= call.total {
            let numbers = self.numbers(who, lends);
            lends.numbers(buffer, at_once(|| numbers.next()));
            let put = if is_granted { Put::Granted(place.len()) } else { Put::Copied };
            numbers.number_before(&mut outcome, put);
        }
    }

    /// As the library's `longest_ring` has it.
    pub fn withdraws(&self, who: usize) {
        if let Some(lends) = self.lends(who).filter(|_| self.end(who).has(NUMBERED)) {
            self.granting(who, lends).withdraw();
        }
    }

    /// Sees to it that a piece of a buffer is in its place. How many bytes of it are.
    pub fn places(&self, call: &mut Sending<'_>, buffer: &Buffer, place: Span) -> usize {
        let who = call.who;
        let Some(lends) = self.lends(who) else { return place.len() };
        if let Some(batch) = call.batch.take() {
            self.places_all(call, lends, (buffer, &batch), place);
            return place.len();
        }
        let end = self.end(who);
        let cursor = &end.record.tx.cursor;
        let put = match call.piece.as_ref() {
            None => Put::Copied,
            Some(piece) => {
                // The program has filled its buffer before; what comes in front of it is only known now.
                lends.fills(buffer, call.sent, call.rest().take(place.len()));
                let granting = self.granting(who, lends);
                granting.put(&self.own(who, lends), piece, place.len())
            }
        };
        if put == Put::Refused {
            call.piece = None;
            call.puts(0, place);
        }
        let n = if let Put::Granted(n) = put { n } else { place.len() };
        let at = at_once(|| cursor.pos());
        match put {
            Put::Granted(n) => {
                let number = at_once(|| end.mine.prod.grants.load(Relaxed)).wrapping_sub(1);
                buffer.is_granted(number, at, n);
            }
            Put::Refused => buffer.could_have_been.set(true),
            Put::Copied if n >= LEAST => buffer.could_have_been.set(true),
            Put::Copied => {}
        }
        let mut outcome = buffer.outcome.borrow_mut();
        outcome.notes(put, n, at + n as u64);
        if call.sent + n >= call.total {
            let numbers = self.numbers(who, lends);
            lends.numbers(buffer, at_once(|| numbers.next()));
            numbers.number_before(&mut outcome, put);
        }
        n
    }

    /// The receiver can see a piece.
    pub fn covers(&self, who: usize, piece: Option<&Piece>) {
        if let (Some(lends), Some(piece)) = (self.lends(who), piece) {
            self.granting(who, lends).is_covered(piece);
        }
    }

    /// Copies what is granted to the ring.
    pub fn takes_back(&self, who: usize) -> bool {
        let Some(lends) = self.lends(who).filter(|_| self.linked(who).is_some()) else {
            return true;
        };
        self.granting(who, lends).take_back(&self.own(who, lends))
    }

    /// The last program that holds the end is about to close it: its memory is its own from now on.
    pub fn takes_back_at_end(&self, who: usize) {
        let Some(lends) = self.lends(who) else { return };
        let lock = Lock::of(self, who, Direction::Sending);
        if !lock.is_nested() {
            let are_back = self.takes_back(who);
            // After a panic nobody knows what is in a pipe, nor after a relative was killed that was at it.
            let is_known = !self.procs[who].has_reset.get() && !self.has_relatives(who);
            let may_fail = !self.is_honest() || !is_known;
            assert!(are_back || may_fail, "{who} cannot take back");
            if are_back {
                lends.changes_all(Lies::Registered);
                lends.changes_all(Lies::Private);
            }
        }
    }

    /// A program has something else where its registered memory was: as the library's `take_back_in`.
    pub fn unmaps(&self, who: usize) {
        let Some(lends) = self.lends(who).filter(|_| self.linked(who).is_some()) else { return };
        let lock = Lock::of(self, who, Direction::Sending);
        // In a handler above a call that grants it is taken back later.
        if lock.is_nested() {
            return;
        }
        let (from, to) = (buffers::REGISTERED as u64, buffers::PRIVATE as u64);
        let is_open = self.is_numbered(who) && self.granting(who, lends).is_open_in(from, to);
        let are_back = !is_open || self.takes_back(who);
        let may_fail = !self.is_honest() || self.procs[who].has_reset.get();
        assert!(are_back || may_fail, "{who} cannot take back");
        if are_back {
            lends.changes_all(Lies::Registered);
        }
    }

    /// A program is about to let go of an end that others hold, too.
    pub fn leaves_grants(&self, who: usize) {
        let Some(lends) = self.lends(who).filter(|_| self.has_relatives(who)) else { return };
        if self.linked(who).is_none() || !self.is_numbered(who) {
            return;
        }
        point();
        if at_once(|| self.procs[who].record.id.holders.count()) < 2 {
            return;
        }
        let _lock = Lock::of(self, who, Direction::Sending);
        let has_told = |region| region == REGION && lends.teller.get() == Some(who);
        let are_its = self.procs[who].sharing.has_made_pipes.get();
        self.granting(who, lends).leave(&self.own(who, lends), are_its, has_told);
    }

    /// A connection that breaks though nobody lies: a program was killed while it read pipes, and nobody knows how far it came.
    pub fn may_break(&self, who: usize) -> bool {
        let is_killed = |who: usize| {
            let its = &self.procs[who];
            its.is_gone.get() && (its.in_step.get() || its.ending.get() >= Ending::Killed)
        };
        let uses_pipes = |who: usize| self.lends(who).is_some_and(Lends::uses_pipes);
        let of = |who: usize| self.programs(who).any(is_killed);
        (uses_pipes(other(who)) && (of(who) || of(other(who)))) || (uses_pipes(who) && of(who))
    }
}

impl Lends {
    fn uses_pipes(&self) -> bool {
        at_once(|| self.state.pinned.name.load(Relaxed)) != 0
    }
}

impl World {
    /// Something else whenever a program was told of a call, or has taken something back.
    pub fn lent(&self) -> u64 {
        let of = |who: usize| {
            self.lends(side(who))
                .map_or(0, |lends| u64::from(lends.told.get()) + lends.restored.get())
        };
        of(0) + of(1)
    }

    /// A program that waits for completions is asleep, and nobody goes on but by time: none is there.
    pub fn waits_for_notice(&self, who: usize, asleep: &Asleep) {
        // Of what another program of the end takes back it hears when it looks again.
        if asleep.armed[1].is_none() || self.has_relatives(who) {
            return;
        }
        let Some(lends) = self.lends(who) else { return };
        let has_notice = at_once(|| self.numbers(who, lends).readiness()) != 0;
        assert!(!has_notice, "{who} was not told that a buffer is its own: {asleep:?}");
    }

    /// The same, and nobody ever will: others have heard of all.
    pub fn waits_for_notice_for_good(&self, who: usize) {
        let are_told = |lends: &Lends| self.are_all_told(who, lends);
        // After a panic nobody knows what is in a pipe: those are its own when the other one has closed.
        let is_in_doubt = self.procs[who].has_reset.get();
        let is_right = is_in_doubt || self.lends(who).is_none_or(are_told);
        assert!(is_right, "{who} is never told that its buffers are its own");
    }
}
