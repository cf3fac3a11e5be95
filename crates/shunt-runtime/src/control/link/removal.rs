//! Link groups that are no longer in use.

use core::sync::atomic::{AtomicPtr, Ordering};
use std::collections::VecDeque;

use shunt_shm::region::Side;

use crate::control::agent_client;
use crate::control::endpoint::Endpoint;
use crate::control::link::{HIGH, Link, TABLE};
use crate::threads::mutex::Mutex;

/// Link groups that are kept, though no connection uses them, for the next connection.
const KEPT_UNUSED: usize = 16;

/// Frees attached link groups whose owner is gone and that no connection uses. Runs only when another
/// one is about to be attached, under the lock.
pub(super) fn collect() {
    GRAVEYARD.clear();
    for place in &TABLE[..HIGH.load(Ordering::Acquire)] {
        let at = place.load(Ordering::Acquire);
        // SAFETY: entries are live links; removal happens here alone, under the lock.
        let Some(link) = (unsafe { at.as_ref() }) else { continue };
        if link.side == Side::Server
            && !link.is_inherited()
            && link.users.load(Ordering::Acquire) == 0
            && (!link.owner_lives() || link.view().lane(0).owner.load(Ordering::Acquire) == 0)
        {
            remove(place);
        }
    }
}

/// Gives back own link groups in which no connection of this process is left: some are kept for the
/// next connection, but not where slots would be lost whose acceptor ended without a word. Runs only
/// when another one is about to be made, under the lock. Those that a forked child has inherited are
/// its parent's to give back.
pub(super) fn retire_unused() {
    let pid = Endpoint::current().map(|endpoint| endpoint.pid);
    let mut kept = 0;
    for place in &TABLE[..HIGH.load(Ordering::Acquire)] {
        // SAFETY: entries are live links; removal happens under the lock alone.
        let Some(link) = (unsafe { place.load(Ordering::Acquire).as_ref() }) else { continue };
        let own = link.side == Side::Client && Some(link.endpoint.pid) == pid;
        let unused = own && link.users.load(Ordering::Acquire) == 0 && !link.drafted();
        if unused && (kept >= KEPT_UNUSED || link.has_lost_slots()) {
            remove(place);
        } else if unused {
            kept += 1;
        }
    }
}

/// Takes a link out of the table. A thread that is just walking it may still look at the link, so
/// its memory is released only after a grace period.
fn remove(place: &AtomicPtr<Link>) {
    let at = place.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if at.is_null() {
        return;
    }
    // SAFETY: made by Box::leak in install, and out of the table from now on.
    let link = unsafe { Box::from_raw(at) };
    if link.side == Side::Client {
        // The acceptors see that they can let go of it, too.
        link.view().lane(0).owner.store(0, Ordering::Release);
    }
    agent_client::detach(link.region);
    // Descriptors are few, and those who are at the link go without them.
    drop(link.owner.lock().take());
    link.peers.drop_idle();
    GRAVEYARD.bury(link);
}

/// Links that were removed, kept for a while because a thread may be looking at them.
struct Graveyard(Mutex<VecDeque<(u64, Box<Link>)>>);

static GRAVEYARD: Graveyard = Graveyard(Mutex::new(VecDeque::new()));

/// Longer than any walk of the table takes.
const GRACE: u64 = 2_000_000_000;

impl Graveyard {
    fn bury(&self, link: Box<Link>) {
        self.clear();
        let mut graves = self.0.lock();
        graves.push_back((crate::system::clock::now(), link));
    }

    /// Frees those that have been here for long enough.
    fn clear(&self) {
        let now = crate::system::clock::now();
        let mut graves = self.0.lock();
        let over = |(since, _): &mut (u64, _)| now.saturating_sub(*since) >= GRACE;
        while let Some((_, oldest)) = graves.pop_front_if(over) {
            if oldest.users.load(Ordering::Acquire) > 0 {
                graves.push_back((now, oldest));
            }
        }
    }
}
