//! The order of a wait.

use shunt_shm::doorbell::{ON_QUEUE, arm};
use shunt_shm::sync::{AtomicU32, store_load_fence_after_rmw};
use shunt_wire::waits::Part;

use crate::spin::{NOBODY, Nanos};
use crate::wait::ports::{Handlers, Hearing, Host, Limits, Set, Slept, Wait, Way, Woken};
use crate::wait::spin::{learn, learn_wake_up, offer};

/// Waits once. Whoever calls it has looked, and looks again when it says so.
#[inline]
pub fn wait<W: Wait>(what: &mut W, host: &impl Host) -> Woken {
    if what.spin() {
        return Woken::Look;
    }
    let way = match what.turn_in() {
        Ok(way) => way,
        Err(woken) => return woken,
    };
    take_place(&*what, host);
    let slept = what.arm(way, |what, hearing| {
        let is_ready = look_armed(|| what.is_ready()) || !what.is_heard(way);
        if is_ready { None } else { Some(sleep(what, host, way, hearing)) }
    });
    let Some(slept) = slept else {
        what.stopwatch().stops();
        return Woken::Look;
    };
    if slept == Slept::Woken {
        what.was_woken();
    }
    if way == Way::Futex && matches!(slept, Slept::Woken | Slept::Over) && !what.is_ready() {
        what.visit(slept);
    }
    match slept {
        Slept::Woken => return Woken::Look,
        Slept::Over => host.look_after(host.now()),
        Slept::Interrupted | Slept::Failed | Slept::NotAtAll => {}
    }
    match what.handlers(slept) {
        Handlers::Continue => Woken::Look,
        Handlers::Restart => Woken::Restarted,
        Handlers::End => Woken::Interrupted,
    }
}

/// The thread is about to sleep, and goes where it is to go, if it follows others. Where nobody else wants its processor that would
/// idle, and the next wake-up bring it back: then it stays.
#[inline]
fn take_place(what: &impl Wait, host: &impl Host) {
    let (Some(to), learnt) = host.placing().take() else { return };
    host.learns_place(learnt);
    if !what.follows() {
        return;
    }
    let began = host.now();
    if offer(host, began) - began >= NOBODY {
        host.goes_to(to);
    }
}

/// The look of one who has said how it is to be woken.
#[inline(always)]
fn look_armed<T>(look: impl FnOnce() -> T) -> T {
    // SYNC POINT word-arm, SYNC POINT cq-arm: armed before the look here; the news before the look at who is armed in `tell`.
    store_load_fence_after_rmw();
    look()
}

/// The same look of a call that does not sleep itself: if it finds nothing, those with news for this word push the connection to
/// its completion queue, where others wait for it.
#[inline]
pub fn look_on_queue<T>(word: &AtomicU32, look: impl FnOnce() -> T) -> T {
    arm(word, ON_QUEUE);
    look_armed(look)
}

fn sleep<W: Wait>(what: &mut W, host: &impl Host, way: Way, hearing: Hearing) -> Slept {
    let limits = what.limits(way);
    what.stopwatch().goes_on(limits.now);
    host.sleeps(way);
    let doubt = if W::HEEDS_DOUBTS { host.doubt() } else { None };
    let woken = |what: &mut W, slept| {
        let now = host.now();
        host.wakes();
        host.rests(now);
        if slept == Slept::Woken {
            let lasted = what.stopwatch().ends(limits.now, now);
            what.lasted(Part::Slept, lasted);
            if let Some(waker) = what.rang(way, limits.now) {
                let took = now.saturating_sub(waker.at);
                what.lasted(Part::WakeUp, took);
                learn_wake_up(host, way, took);
                let has_spun = lasted > now.saturating_sub(limits.now);
                if !has_spun {
                    host.learns_place(host.placing().woken(waker, host.processor()));
                }
            }
        }
    };
    if way == Way::Futex && !limits.is_long {
        return what.sleep(way, soonest(limits, [doubt]), woken);
    }
    let deaf = (way == Way::Kernel && hearing == Hearing::Deaf).then_some(W::DEAF_LOOK);
    let longest = soonest(limits, [deaf, doubt, host.alarm()]);
    what.sleep(way, longest, |what, slept| {
        woken(what, slept);
        host.awake();
        if slept == Slept::Woken && what.teaches() {
            learn(host, limits.now);
        }
    })
}

/// The soonest of all that ends a sleep.
fn soonest<const N: usize>(limits: Limits, looks: [Option<Nanos>; N]) -> Option<Nanos> {
    let left = limits.deadline.map(|deadline| deadline.saturating_sub(limits.now));
    looks.into_iter().chain([left, limits.look]).flatten().min()
}

/// Looks and waits until there is an answer.
#[inline]
pub fn wait_for<S: Set>(set: &mut S, host: &impl Host) -> S::Answer {
    loop {
        if let Some(answer) = set.look() {
            return answer;
        }
        match wait(set, host) {
            Woken::Look => {}
            woken => return set.ended(woken),
        }
    }
}
