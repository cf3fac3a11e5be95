//! How a program tells others of what it has done: the engine's own code ([`crate::wait::tell`]), as the library's
//! `stream/notify.rs` has it.
//!
//! A program may stop, be killed, or have a handler run between the two halves: who waits is out of the word then, or in the
//! queue, and sleeps on.

use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::region::Ctl;
use shunt_shm::sync::AtomicU32;

use super::pace::point;
use super::{World, other};
use crate::call::Direction;
use crate::wait::tell::{self, Armed, Untold, Wake};

/// Those who hold one end of a connection, and wait by its words.
struct Waiters<'w> {
    world: &'w World,
    /// Who tells them.
    teller: usize,
    /// One of them.
    of: usize,
    /// What they are told of is of use to those who wait so; `None`: to all.
    direction: Option<Direction>,
}

/// The doorbell of those who wait in poll(2), and of those at the queue.
const BELL: usize = 1;
const AT_QUEUE: usize = 2;

const WAYS: [Direction; 2] = [Direction::Receiving, Direction::Sending];

fn words(ctl: &Ctl) -> [Armed<'_>; 2] {
    [
        Armed { word: &ctl.rx_arm, bells: &ctl.rx_bells },
        Armed { word: &ctl.tx_arm, bells: &ctl.tx_bells },
    ]
}

impl<'w> Waiters<'w> {
    fn ctl(&self) -> &'w Ctl {
        &self.world.procs[self.of].section.ctl
    }

    fn wakes(&self, direction: Direction) {
        if self.direction.is_some() {
            self.world.has_cause(self.teller, direction);
        }
        self.world.wakes_armed(self.of, direction);
    }

    fn wakes_queue(&self) {
        if let Some(direction) = self.direction {
            self.world.has_cause(self.teller, direction);
        }
        let me = &self.world.procs[self.of];
        let is_there = me.mind.sleeps() == Some(self.world.conn);
        if me.mind.asleep.get().is_some_and(|asleep| asleep.by_edge && is_there) {
            me.is_woken.set(true);
        }
    }
}

impl Wake for Waiters<'_> {
    fn futex(&self, word: &AtomicU32) {
        point();
        let receives = core::ptr::eq(word, &raw const self.ctl().rx_arm);
        self.wakes(WAYS[usize::from(!receives)]);
    }

    fn ring(&self, vectors: impl Iterator<Item = usize>) {
        for vector in vectors {
            point();
            match (vector, self.direction) {
                (AT_QUEUE, _) => self.wakes_queue(),
                (_, Some(direction)) => self.wakes(direction),
                (_, None) => WAYS.into_iter().for_each(|way| self.wakes(way)),
            }
        }
    }

    fn is_queued(&self) -> bool {
        self.ctl().queue.load(Relaxed) != 0
    }

    fn push(&self) -> Option<usize> {
        point();
        let was_queued = self.world.procs[self.of].is_queued.replace(true);
        (!was_queued).then_some(AT_QUEUE)
    }

    fn push_again(&self) -> Option<usize> {
        self.push();
        Some(AT_QUEUE)
    }

    fn ring_all(&self) {
        self.ring([BELL, AT_QUEUE].into_iter());
    }

    fn in_halves<T>(&self, halves: impl FnOnce() -> T) -> T {
        let telling = &self.world.procs[self.teller].mind.telling;
        let before = telling.replace(Some(self.world.conn));
        let result = halves();
        telling.set(before);
        result
    }
}

impl World {
    fn waiters(&self, teller: usize, of: usize, direction: Option<Direction>) -> Waiters<'_> {
        Waiters { world: self, teller, of, direction }
    }

    /// A handler that waits may run above a call that has done something, and has not told of it yet: the peer's answer may be
    /// what it waits for. As the library's `notify::for_those_below`.
    pub fn tells_for_those_below(&self, who: usize) {
        let me = &self.procs[who];
        // Once in each call: two that wait for each other would else wake each other all the time.
        if me.mind.handlers.get() == 0 || !me.mind.tells_below.take() {
            return;
        }
        let is_halfway = me.mind.telling.get() == Some(self.conn);
        let theirs = self.waiters(who, other(who), None);
        tell::untold(self.end(who).untold(), is_halfway, words(theirs.ctl()), &theirs);
        if is_halfway {
            let (ours, nothing) =
                (self.waiters(who, who, None), Untold { data: false, room: false });
            tell::untold(nothing, true, words(ours.ctl()), &ours);
        }
    }

    /// Tells the peer of bytes, a mark, or an end: as the library's `notify::data`.
    pub fn tells_receiver(&self, who: usize) {
        let theirs = self.waiters(who, other(who), Some(Direction::Receiving));
        tell::data(words(theirs.ctl())[0], &theirs);
    }

    /// Tells the peer of room: as the library's `notify::space`.
    pub fn tells_sender(&self, who: usize) {
        let theirs = self.waiters(who, other(who), Some(Direction::Sending));
        tell::space(words(theirs.ctl())[1], &theirs);
    }

    /// Whoever shuts twice tells of it twice: of what is told for nothing the property asks no more.
    pub fn tells_of_end(&self, who: usize) {
        let theirs = self.waiters(who, other(who), None);
        tell::those_on_futexes(words(theirs.ctl()), &theirs);
    }

    /// Tells other calls of the same program, and of those that hold the end with it.
    pub fn tells_own(&self, who: usize) {
        let ours = self.waiters(who, who, None);
        tell::own(words(ours.ctl()), &ours);
    }
}
