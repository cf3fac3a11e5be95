//! What the connections that a server forks for have come to, kept for the children that it forks next: the engine's rule
//! ([`shunt_engine::handshake::brevity`]).

use core::sync::atomic::{AtomicU32, Ordering};

use shunt_engine::handshake::Phase;
use shunt_engine::handshake::brevity::Brevity;
use shunt_shm::arena::{Arena, Record};
use shunt_shm::region::Side;

use crate::conn::Sock;
use crate::control::endpoint::Endpoint;
use crate::knobs;

impl Sock {
    /// True in a child that knows no agent yet, where its parent has accepted the connection, and those before it were too short.
    #[inline]
    pub fn is_put_off(&self) -> bool {
        self.endpoint().is_inherited() && self.those_before_were_short()
    }

    #[cold]
    fn those_before_were_short(&self) -> bool {
        let learnt = learnt(&self.endpoint().arena, self.record());
        Brevity(learnt.load(Ordering::Relaxed)).puts_off()
            && Endpoint::current().is_none()
            && knobs::get().short_lived() != u32::MAX
    }

    /// This process lets go of the connection. If it was forked for it, and has set it up, those that are forked next learn what it came
    /// to.
    pub fn leave_brevity(&self) {
        let is_set_up_here = || self.link().is_some_and(|link| !link.endpoint.is_inherited());
        if self.endpoint().is_inherited() && is_set_up_here() {
            settle(self.record(), &self.endpoint().arena);
        }
    }
}

/// The same of one that a process had which was killed.
pub fn settle(record: &Record, arena: &Arena) {
    let (rx, tx) = (&record.rx, &record.tx);
    let phase = Phase::from_code(record.id.phase.load(Ordering::Relaxed));
    if phase != Phase::Active || record.side() != Side::Server {
        return;
    }
    let messages = rx.messages.load(Ordering::Relaxed) + tx.messages.load(Ordering::Relaxed);
    let bytes = rx.bytes.load(Ordering::Relaxed) + tx.bytes.load(Ordering::Relaxed);
    let after = |word| Some(Brevity(word).after(messages, bytes).0);
    let _ = learnt(arena, record).fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
}

fn learnt<'a>(arena: &'a Arena, record: &Record) -> &'a AtomicU32 {
    arena.families().brevity(record.id.tuple().local.port)
}
