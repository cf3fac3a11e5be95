//! How a program tells the other one of what it has done: as the library's `stream/notify.rs`.

use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::doorbell::{ON_BELL, ON_FUTEX, ON_QUEUE, take, take_futex};

use super::{World, other};
use crate::call::Direction;

impl World {
    /// A handler that waits may run above a call that has done something, and has not told of it yet: the peer's answer may be
    /// what it waits for. As the library's `notify::for_those_below`.
    pub fn tells_for_those_below(&self, who: usize) {
        if self.procs[who].mind.handlers.get() == 0 {
            return;
        }
        let untold = self.end(who).untold();
        if untold.data {
            self.tells_receiver(who);
        }
        if untold.room {
            self.tells_sender(who);
        }
    }

    /// Tells the peer of bytes, a mark, or an end: as the library's `notify::data`.
    pub fn tells_receiver(&self, who: usize) {
        let (ctl, peer) = (&self.procs[other(who)].section.ctl, &self.procs[other(who)]);
        let ctl_is_queued = ctl.queue.load(Relaxed) != 0;
        if ctl_is_queued {
            peer.is_queued.set(true);
        }
        if take(&ctl.rx_arm) != 0 || ctl_is_queued {
            self.wakes(who, Direction::Receiving);
        }
    }

    /// Tells the peer of room: as the library's `notify::space`.
    pub fn tells_sender(&self, who: usize) {
        let (ctl, peer) = (&self.procs[other(who)].section.ctl, &self.procs[other(who)]);
        let asked = take(&ctl.tx_arm);
        if asked & ON_QUEUE != 0 && ctl.queue.load(Relaxed) != 0 {
            peer.is_queued.set(true);
        }
        if asked != 0 {
            self.wakes(who, Direction::Sending);
        }
        debug_assert!(!self.is_honest() || asked & !(ON_FUTEX | ON_QUEUE | ON_BELL) == 0);
    }

    pub fn tells_of_end(&self, who: usize) {
        let ctl = &self.procs[other(who)].section.ctl;
        // Whoever shuts twice tells of it twice: of what is told for nothing the property asks no more.
        for (word, way) in [(&ctl.rx_arm, Direction::Receiving), (&ctl.tx_arm, Direction::Sending)]
        {
            if take_futex(word) {
                self.takes_word(other(who), way);
            }
        }
    }
}
