//! How a program ends its direction, and closes the connection.

use shunt_shm::sync::store_load_fence;

use super::calls::Lock;
use super::pace::{at_once, point};
use super::{Ending, Op, World};
use crate::call::{Direction, Step, Until, enter};
use crate::conn::close::{Shut, Tell, shut};
use crate::conn::flags::SHUT_RD;
use crate::conn::has;
use crate::conn::repeated::are_pending;

impl World {
    /// shutdown(2): as the library's `stream/shut.rs`.
    pub fn shuts(&self, who: usize, what: Shut) -> Step {
        let me = &self.procs[who];
        let record = &me.record;
        self.advances(who);
        // What is to be sent once more comes before the end.
        if what.ends_sending() && !self.has_sent_rest(who) {
            return Step::Wait(Until::Both);
        }
        let alone = self.holds_off(who);
        // A panic in the middle of it resets the connection: the peer would wait for an end, or find bytes behind one.
        let was_in_step = me.in_step.replace(true);
        {
            let lock = Lock::of(self, who, Direction::Sending);
            // Above a step whose bytes may not be visible yet, and would come behind the end. One that only copies notices.
            let Some(_entered) = enter(lock.is_nested(), &record.tx.copying) else {
                me.is_to_shut.set(me.is_to_shut.get() || what.ends_sending());
                me.is_to_shut_reading.set(me.is_to_shut_reading.get() || what.ends_receiving());
                me.in_step.set(was_in_step);
                return Step::Done;
            };
            if what.ends_sending() && me.ending.get() == Ending::Not {
                me.ending.set(Ending::Announced);
            }
            let kernel = || {
                point();
                self.shuts_in_kernel(who, what);
                if what.ends_sending() {
                    // A handler may have gone further.
                    me.ending.set(me.ending.get().max(Ending::Shut));
                }
                point();
                true
            };
            let steps = || shut(record, what, || self.linked(who), kernel);
            // Who of several is killed in the middle of it leaves the others with an end that is none (docs/design/unfinished.md).
            let is_spared = me.shaking.is_new.get() && self.has_relatives(who);
            if is_spared {
                at_once(steps)
            } else {
                steps()
            };
        }
        // The end of its sending alone was announced.
        if at_once(|| has(record, SHUT_RD)) {
            // Where it is about to get its place, one of the two announces it.
            store_load_fence();
            if let Some(end) = self.linked(who) {
                end.announce_shut();
            }
        }
        drop(alone);
        self.tells_of_end(who);
        if what.ends_receiving() {
            self.tells_own(who);
        }
        me.in_step.set(was_in_step);
        Step::Done
    }

    /// The kernel's part of it.
    pub fn shuts_in_kernel(&self, who: usize, what: Shut) {
        let socket = self.socket(who);
        if what.ends_sending() {
            socket.shuts();
        }
        if what.ends_receiving() {
            socket.shuts_reading();
        }
    }

    /// What a handler above a step was to shut, or to have leave, once that is over.
    pub fn ends_late(&self, who: usize) {
        let me = &self.procs[who];
        if !self.is_in_step(who, Direction::Sending) {
            match (me.is_to_shut.take(), me.is_to_shut_reading.take()) {
                (true, true) => self.does(who, Op::ShutBoth),
                (true, false) => self.does(who, Op::Shut),
                (false, true) => self.does(who, Op::ShutReading),
                (false, false) => {}
            }
        }
        let ways = [Direction::Receiving, Direction::Sending];
        if ways.iter().all(|way| !self.is_in_step(who, *way)) && me.is_to_leave.replace(false) {
            self.leaves(who);
            if are_pending(&me.record) {
                self.goes_on(who);
            }
        }
    }

    pub fn closes(&self, who: usize) -> Step {
        let (end, me) = (self.end(who), &self.procs[who]);
        me.mind.forgets(self.conn);
        if !me.has_let_go.get() {
            if !self.lets_go(who) {
                self.leaves_it(who);
                return Step::Done;
            }
            me.has_let_go.set(true);
            self.begins_to_end(who);
        }
        if !self.has_sent_rest(who) {
            return Step::Wait(Until::Both);
        }
        // What comes later is sent to a socket that is closed.
        self.notes_end(who);
        if me.ending.get() == Ending::Not {
            me.ending.set(Ending::Announced);
        }
        if !self.ends_alone(who) {
            self.takes_back_at_end(who);
            match end.close(Some(&self.socket(who))) {
                Tell::Sender => self.tells_sender(who),
                Tell::OnFutexes => self.tells_of_end(who),
                Tell::All => {
                    self.tells_receiver(who);
                    self.tells_sender(who);
                }
            }
            self.is_done(who);
        }
        point();
        if me.ending.get() < Ending::Closed {
            me.ending.set(Ending::Closed);
        }
        me.is_gone.set(true);
        self.socket(who).closes();
        Step::Done
    }
}
