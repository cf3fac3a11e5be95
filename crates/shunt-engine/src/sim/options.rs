//! What a program sets of a socket, and what that has the other end or its own calls look at: as the library's `stream/buffers.rs`
//! and `stream/shut.rs`.

use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::sync::store_load_fence;

use super::calls::Lock;
use super::pace::{at_once, point};
use super::{Op, World};
use crate::buffers::share;
use crate::call::{Direction, Step, enter};
use crate::conn::flags::{KERNEL_HINT, SHUT_RD};
use crate::conn::put;

impl World {
    /// Whether its program has ended the direction in which it receives.
    pub fn is_deaf(&self, who: usize) -> bool {
        self.procs[who].socket.is_deaf.get()
    }

    /// Bytes that are worth telling of, at least 1.
    pub fn low_water(&self, who: usize) -> usize {
        self.procs[who].socket.low_water.get().max(1)
    }

    /// As much lies unread as it has said: it waits for the other one to read, as over TCP.
    pub fn is_at_limit(&self, who: usize) -> bool {
        let is_set = at_once(|| self.procs[who].record.tx.buffer.load(Relaxed)) != 0;
        let (free, of) = at_once(|| self.end(who).room());
        is_set && free * 3 < of
    }

    pub fn shuts_reading(&self, who: usize) -> Step {
        let me = &self.procs[who];
        self.advances(who);
        let was_in_step = me.in_step.replace(true);
        {
            let lock = Lock::of(self, who, Direction::Sending);
            let Some(_entered) = enter(lock.is_nested(), &me.record.tx.copying) else {
                me.is_to_shut_reading.set(true);
                me.in_step.set(was_in_step);
                return Step::Done;
            };
            point();
            self.socket(who).shuts_reading();
            point();
        }
        put(&me.record, SHUT_RD | KERNEL_HINT, true);
        // Where it is about to get its place, one of the two announces it.
        store_load_fence();
        if let Some(end) = self.linked(who) {
            end.announce_shut();
        }
        self.tells_of_end(who);
        self.tells_own(who);
        me.in_step.set(was_in_step);
        Step::Done
    }

    /// `SO_RCVLOWAT`.
    pub fn sets_low_water(&self, who: usize, bytes: usize) {
        let me = &self.procs[who];
        point();
        self.socket(who).sets_low_water(bytes);
        point();
        me.record.rx.low_water.store(u32::try_from(bytes).unwrap(), Relaxed);
        self.tells_own(who);
        me.is_queued.set(true);
    }

    /// `SO_SNDBUF` and `SO_RCVBUF`; the kernel reports the double of them.
    pub fn sets_buffers(&self, who: usize, bytes: usize) {
        let me = &self.procs[who];
        let size = share(u32::try_from(bytes * 2).unwrap());
        if self.linked(who).is_some() {
            me.section.ctl.window.store(size, Relaxed);
        }
        me.record.tx.buffer.store(size, Relaxed);
        if self.linked(who).is_some() {
            self.tells_own(who);
            me.has_set_buffers.set(true);
            self.tells_sender(who);
            me.has_set_buffers.set(false);
        }
    }

    /// What was put off of that, above a step.
    pub fn shuts_reading_late(&self, who: usize) {
        if self.procs[who].is_to_shut_reading.replace(false) {
            self.does(who, Op::ShutReading);
        }
    }

    /// A step begins that receives: what is there by now is not behind an end that its own program has made.
    pub fn notes_there(&self, who: usize) {
        let (me, peer) = (&self.procs[who], &self.procs[super::other(who)]);
        at_once(|| me.there.set(peer.sent.get() - peer.unseen.get()));
    }
}
