//! What a program sets of a socket, and what that has the other end or its own calls look at: as the library's `stream/buffers.rs`.

use core::sync::atomic::Ordering::Relaxed;

use super::World;
use super::pace::{at_once, point};
use crate::buffers::share;

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

    /// A step begins that receives: what is there by now is not behind an end that its own program has made.
    pub fn notes_there(&self, who: usize) {
        let (me, peer) = (&self.procs[who], &self.procs[super::other(who)]);
        at_once(|| me.there.set(peer.sent.get() - peer.unseen.get()));
    }
}
