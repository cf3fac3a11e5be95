//! What must hold.
//!
//! Over TCP a program that is killed with bytes unread, or closes so, has its kernel send RST: after what it has sent before, one
//! call of the peer's fails with `ECONNRESET`, and the next ones find an end. Without unread bytes it is FIN. Here the same is
//! asked for, with three things left open. Of bytes that a program was just moving when it (or the other one) was killed nobody
//! can say whether they lay unread. What is sent after the kill, before the sender has heard of it, lies unread, too. And a sender
//! may go on for a while before it hears (`NOW_AND_THEN`).

use shunt_shm::handover;
use shunt_shm::region::DEAF;

use super::forks::Which;
use super::pace::at_once;
use super::program::Doing;
use super::sleep::Asleep;
use super::tcp::ROOM;
use super::{Ending, Op, World, other, side};
use crate::call::{Direction, Errno, Step, Until};
use crate::conn::flags::{FROZEN, RESET_DUE};
use crate::conn::repeated::{are_known, are_pending};
use crate::conn::state::State;
use crate::conn::{has, sends_over_tcp};
use crate::events;
use core::sync::atomic::Ordering::Relaxed;

impl World {
    /// Where an end stands; of one that lies nothing is asked.
    pub fn state(&self, who: usize) -> Option<State> {
        let state = || State::of(&self.end(who)).expect("words that go together");
        (self.is_honest() && self.is_in_place()).then(state)
    }

    /// Both ends have gone no other ways than there are, and no further than a program comes that passes so many points.
    pub fn have_moved(&self, before: [Option<State>; 2], gap: u32) -> [Option<State>; 2] {
        let now = [0, 1].map(|who| self.state(who));
        for (who, (from, to)) in before.into_iter().zip(now).enumerate() {
            let (Some(from), Some(to)) = (from, to) else { continue };
            // One that sets a mark, and stops before it has noted that, goes two steps at once where the peer has passed it meanwhile.
            let is_far = |steps: usize| steps as u64 > u64::from(gap) + 2;
            let goes = from == to || from.distance(to).is_ok_and(|steps| !is_far(steps));
            assert!(goes, "end {who} cannot go from {from:?} to {to:?} in {gap} points");
        }
        now
    }

    /// These are the bytes that come next.
    pub fn checks(&self, who: usize, at: u64, bytes: &[u8]) {
        if !self.is_honest() {
            return;
        }
        let sent = self.procs[other(who)].sent.get();
        assert!(at + bytes.len() as u64 <= sent, "program {who} got bytes that were not sent");
        let is_right = |(n, found): (usize, &u8)| *found == self.byte(other(who), at + n as u64);
        assert!(bytes.iter().enumerate().all(is_right), "program {who} got wrong bytes at {at}");
    }

    /// These come a second time. Of what this end was just reading out of a pipe the other one may have found nothing to send; nobody
    /// else gets to see that.
    pub fn drops(&self, who: usize, bytes: &[u8]) {
        at_once(|| {
            let me = &self.procs[who];
            if self.pins(other(who)) {
                return;
            }
            let again = u64::from(me.record.rx.again.load(Relaxed));
            self.checks(who, me.received.get() - again, bytes);
        });
    }

    /// A program is over, right now.
    pub fn notes_end(&self, who: usize) {
        let (me, peer) = (&self.procs[who], &self.procs[other(who)]);
        // Of a direction that has ended before, RST is no news.
        if me.ending.get() < Ending::Shut {
            let sent = peer.sent.get() - peer.unseen.get();
            let unread = sent.saturating_sub(me.received.get());
            // Of a ring that it has left only the other one knows.
            let has_left = at_once(|| self.end(who).mine.ctl.handed_over.load(Relaxed) != 0);
            peer.left_unread.set(if has_left { 0 } else { unread });
        }
    }

    /// Over TCP, this program's next call would hear of a reset. `is_plain`: of one that knows of no ring.
    fn must_be_reset(&self, who: usize, is_plain: bool) -> bool {
        let (me, peer) = (&self.procs[who], &self.procs[other(who)]);
        let is_first = matches!(peer.ending.get(), Ending::Killed | Ending::Closed);
        // Where it leaves a full ring at that moment the kernel has only heard of a FIN, and says `EPIPE`.
        let has_left = me.record.tx.marks.load(Relaxed) != 0 && sends_over_tcp(&me.record);
        // The call below a handler, or another program's, may be about to tell it.
        let is_below = me.mind.handlers.get() > 0 || self.has_relatives(who);
        let is_reset = me.left_unread.get() > 0 || peer.is_aborted.get();
        // Without the library nobody knows of bytes in a ring, which one that has ended its direction does not leave, nor of an error
        // that the kernel has told the library, and it not yet the program.
        let is_unknown = (me.mind.is_foreign.get() || is_plain)
            && (!sends_over_tcp(&me.record) || has(&me.record, RESET_DUE));
        // Where its own reading has ended nobody looks for that beside the kernel.
        let is_asked = !self.is_deaf(who) || peer.is_aborted.get();
        let is_unheard = has_left || is_below || is_unknown || !is_asked;
        is_first && is_reset && !me.is_told.get() && !is_unheard
    }

    /// It may. To a program without the library the kernel tells of RST also where the library had told the one before it.
    fn may_be_reset(&self, who: usize, is_plain: bool) -> bool {
        let (me, peer) = (&self.procs[who], &self.procs[other(who)]);
        let is_unread = me.sent.get() > peer.received.get() - peer.untaken.get();
        let is_reset = me.socket.is_reset.get() || peer.has_reset.get();
        let is_over =
            peer.ending.get().is_over() || self.has_refused(who) || self.has_refused(other(who));
        let is_told = me.is_told.get() && !(is_plain && me.socket.is_reset.get());
        is_over && !is_told && (is_unread || is_reset)
    }

    /// Its program has ended both directions: the kernel answers more bytes with RST, which ends the connection on both sides.
    pub fn begins_to_refuse(&self, who: usize) {
        let (me, peer) = (&self.procs[who], &self.procs[other(who)]);
        if me.refuses_from.get().is_none() {
            me.refuses_from.set(Some(peer.sent.get()));
            let is_pending = at_once(|| are_pending(&peer.record));
            me.is_owed.set(is_pending || !self.is_free(other(who), Direction::Sending));
        }
    }

    /// A step begins in which an end may leave the ring. While the other one has not said that it has ended both directions, or
    /// nobody does who knows of the ring, what is sent once more meets the kernel's RST.
    pub fn notes_owed(&self, who: usize) {
        let peer = &self.procs[other(who)];
        if peer.refuses_from.get().is_some() && peer.section.ctl.closed.load(Relaxed) == 0 {
            peer.is_owed.set(true);
        }
    }

    /// More bytes have come than those that it knew from before: so RST is what TCP answers.
    fn has_refused(&self, who: usize) -> bool {
        let (me, peer) = (&self.procs[who], &self.procs[other(who)]);
        let is_more = |from| peer.sent.get() > from || me.is_owed.get();
        me.refuses_from.get().is_some_and(is_more)
    }

    /// The other end has said that its program has ended both directions, and this one has been told of no end yet.
    pub fn is_refused(&self, who: usize) -> bool {
        let is_deaf = || self.procs[other(who)].section.ctl.closed.load(Relaxed) == DEAF;
        self.is_honest() && self.linked(who).is_some() && at_once(is_deaf)
    }

    /// It has sent bytes to such a one.
    pub fn has_met_reset(&self, who: usize) {
        let is_reset = self.procs[who].socket.is_reset.get();
        assert!(is_reset, "program {who} sends to one that has shut both directions");
    }

    /// Of one that has ended its reading, bytes that had come before its step and that it has not had. Those that its kernel
    /// refuses do not count.
    fn unread_at_own_end(&self, who: usize, is_plain: bool) -> u64 {
        let me = &self.procs[who];
        // To one that has left the ring what lies there comes once more, and it has ended its reading before.
        let has_left = || self.linked(who).is_some_and(|end| at_once(|| end.has(FROZEN)));
        if is_plain || me.is_owed.get() || has_left() {
            return 0;
        }
        let there = me.there.get().min(me.refuses_from.get().unwrap_or(u64::MAX));
        there.saturating_sub(me.received.get())
    }

    /// Bytes that a receiver has not had, of those that it can have.
    fn unread(&self, who: usize) -> u64 {
        let (me, peer) = (&self.procs[who], &self.procs[other(who)]);
        (peer.sent.get() - peer.unseen.get()).saturating_sub(me.received.get())
    }

    /// All that was sent has come. `is_plain`: to a call that knows of no ring, so what lies in one that the other end has not left
    /// by then does not count. Nor does, for one that has left, what the other end was sending once more when it was killed.
    fn has_all(&self, who: usize, is_plain: bool) {
        let in_ring = if is_plain { self.kept_from(who) } else { 0 };
        let unread = if is_plain { self.unread_past(who) } else { self.unread(who) };
        // It may have had some of it; and of what was just moved nobody can say whether the other one had put it there.
        let in_ring = in_ring.min(unread);
        let lost = in_ring..=in_ring + self.never_repeated(who);
        assert!(lost.contains(&unread), "program {who} lost {unread} bytes at the end: {lost:?}");
    }

    /// Of bytes that a program without the library has not had, those that it can have.
    fn unread_past(&self, who: usize) -> u64 {
        let (me, peer) = (&self.procs[who], &self.procs[other(who)]);
        let at = self.next_in_kernel(who, me.received.get());
        (peer.sent.get() - peer.unseen.get()).saturating_sub(at)
    }

    /// It sleeps over bytes that the other end is to send once more, and nobody looks at the connection there.
    fn is_forgotten(&self, who: usize, doing: Doing) -> bool {
        let is_pending = || are_pending(&self.procs[other(who)].record);
        let is_kept = doing.is_plain && self.kept_from(who) > 0;
        // Of how much it is the one that sends has to ask, each millisecond.
        let asks = is_pending() && !are_known(&self.procs[other(who)].record);
        asks || (is_kept || is_pending()) && self.is_unlooked(who)
    }

    /// A call is over.
    pub fn is_over(&self, who: usize, doing: Doing, step: Step) {
        let (me, peer) = (&self.procs[who], &self.procs[other(who)]);
        let step = if doing.moved > 0 { Step::Done } else { step };
        if step == Step::Failed(Errno::INTR) {
            assert_ne!(me.mind.handlers.get(), 0, "program {who} was interrupted by nothing");
            return;
        }
        // A call below the one that has panicked.
        if me.has_reset.get() {
            return;
        }
        if !self.is_honest() {
            use Errno as E;
            if let Step::Failed(error) = step {
                assert!([E::CONNRESET, E::PIPE, E::AGAIN].contains(&error), "{who}: {error:?}");
            }
            return;
        }
        let receives = match doing.op {
            Op::Receive(_)
            | Op::ReceiveAll(_)
            | Op::PollReceive(_)
            | Op::EdgeReceive(_)
            | Op::CountReceive(_)
            | Op::Skip(_)
            | Op::Look(_) => true,
            Op::Send(_)
            | Op::PollSend(_)
            | Op::EdgeSend(_)
            | Op::Grant(_)
            | Op::Pin(_)
            | Op::Parts(_) => false,
            _ => return,
        };
        match (step, receives) {
            // An end that it has made itself.
            (Step::Done, true) if doing.moved == 0 && self.is_deaf(who) => {
                let there = self.unread_at_own_end(who, doing.is_plain);
                assert_eq!(there, 0, "program {who} lost bytes at its end");
            }
            (Step::Done, true) if doing.moved == 0 => {
                let has_ended = peer.ending.get() >= Ending::Shut;
                assert!(has_ended, "program {who} saw an end too early");
                self.has_all(who, doing.is_plain);
                assert!(
                    !self.must_be_reset(who, doing.is_plain),
                    "program {who} saw an end for a reset"
                );
            }
            (Step::Failed(Errno::CONNRESET), _) => {
                let may_be = self.may_be_reset(who, doing.is_plain);
                assert!(may_be, "program {who} saw a reset: {doing:?}");
                if receives && !self.is_deaf(who) {
                    self.has_all(who, doing.is_plain);
                } else if receives {
                    let there = self.unread_at_own_end(who, doing.is_plain);
                    assert_eq!(there, 0, "program {who} lost bytes at a reset");
                }
                me.is_told.set(true);
            }
            (Step::Failed(Errno::PIPE), false) => {
                let is_own = me.ending.get() >= Ending::Announced;
                let is_refused = self.has_refused(other(who));
                let is_over = peer.ending.get().is_over() || is_refused;
                assert!(is_over || is_own, "program {who} cannot send");
                assert!(
                    is_own || !self.must_be_reset(who, doing.is_plain),
                    "program {who} missed a reset"
                );
            }
            (Step::Failed(error), _) => panic!("program {who}: {error:?} in {doing:?}"),
            _ => {}
        }
    }

    /// Neither program goes on, but by time: who sleeps has been told of all there is.
    pub fn rests(&self, who: usize) {
        if !self.is_honest() {
            return;
        }
        let (me, peer) = (&self.procs[who], &self.procs[other(who)]);
        let Some(asleep) = me.mind.asleep.get().filter(|_| !me.is_gone.get()) else { return };
        // It waits for a lock, or looks again after a moment.
        let is_short = asleep.lock.is_some() || asleep.doing.op == Op::Sleep;
        if is_short || self.is_untold(who, &asleep) {
            return;
        }
        // Another program of its end has come to a place meanwhile: it finds that at its next look.
        let has_place = self.linked(who).is_some();
        if !has_place && asleep.looks_at.is_some() && self.has_relatives(who) {
            return;
        }
        if asleep.doing.op == Op::HearAll {
            return self.waits_for_notice(who, &asleep);
        }
        assert!(!me.has_reset.get(), "{who} sleeps over a reset of its own: {asleep:?}");
        // Whoever is killed tells nobody; the kernel does, and on a futex nobody hears it, but who has looked before knows: a
        // handler above that look does not.
        let is_above = me.mind.handlers.get() > 0;
        let knows = me.socket.has_told_end.get() && !self.has_relatives(who) && !is_above;
        if peer.ending.get().is_over() && asleep.events.is_none() && !asleep.by_edge && !knows {
            return;
        }
        // How much it is to send once more it asks each millisecond, or has when it began to sleep.
        if asleep.events == Some(0) && asleep.looks_at.is_some() {
            return;
        }
        let Asleep { doing, until, .. } = asleep;
        // A look is told of more in the kernel socket by time alone; and who is to hear of an end has to find it.
        let looks = matches!(until, Some(Until::More(_)));
        match doing.op.direction() {
            Direction::Receiving if !looks && !self.is_forgotten(who, doing) => {
                let unread = if doing.is_plain { self.unread_past(who) } else { self.unread(who) };
                // Of fewer than the mark nobody tells; of those on both sides of one time alone does.
                let is_marked = self.low_water(who) > 1;
                assert!(
                    unread == 0 || is_marked,
                    "{who} was not told of {unread} bytes: {asleep:?}"
                );
                let has_ended = peer.ending.get() >= Ending::Shut || self.is_deaf(who);
                assert!(!has_ended, "{who} was not told of the end: {asleep:?}");
            }
            Direction::Sending if peer.ending.get().is_over() => {
                // Whoever has ended its direction before is looked for now and then.
                let is_later = peer.ending.get() == Ending::KilledLater
                    // In poll, between an announcement and its FIN: it looks once more as the ring is full.
                    || (peer.ending.get() == Ending::Closed && asleep.looks_at.is_some())
                    // To one that has ended its reading itself the kernel's end is no news: it goes over to TCP after a while.
                    || self.is_deaf(who)
                    // In a handler above a step that is to follow.
                    || !self.is_free(who, Direction::Sending)
                    // The same in poll.
                    || (are_pending(&me.record) && !are_known(&me.record));
                assert!(is_later, "{who} was not told that the other one is gone: {asleep:?}");
            }
            Direction::Sending if until == Some(Until::Ring) => {
                // Of less it is told by time alone, as the receiver does not look each time that it takes something.
                let (free, of) = self.end(who).room();
                assert!(free * 3 < of, "{who} was not told of room: {asleep:?}");
            }
            // In poll and epoll a third is room, of which the receiver tells before it has taken another quarter.
            // One that waits for the kernel's room hears of that, though another program has gone back to the ring. Above a step
            // that has half ended the direction a send is turned away.
            Direction::Sending
                if until.is_none()
                    && self.is_free(who, Direction::Sending)
                    && !sends_over_tcp(&me.record)
                    // A relative was killed in the middle of shutdown(2) (docs/design/unfinished.md).
                    && me.ending.get() != Ending::Announced
                    && !(asleep.by_edge && self.has_relatives(who))
                    && asleep.events.is_none_or(|asked| asked & events::OUT == 0) =>
            {
                let (free, of) = self.end(who).room();
                assert!(free * 12 < of * 7, "{who} was not told of room in poll: {asleep:?}");
            }
            _ => {}
        }
    }

    /// Whoever was to wake it was killed, and others hold that end: they tell of what they do themselves. Where the one that was
    /// killed was about to say how far it had read, they say so once they receive.
    fn is_untold(&self, who: usize, asleep: &Asleep) -> bool {
        let sends = asleep.doing.op.direction() == Direction::Sending;
        let peer = &self.procs[other(who)];
        let is_leaving = || at_once(|| handover::is_leaving(&peer.section.ctl.handed_over));
        peer.untold[usize::from(sends)].get() || (sends && is_leaving())
    }

    /// Nobody will wake it: nothing may be there for it.
    pub fn rests_for_good(&self, who: usize) {
        let (me, peer) = (&self.procs[who], &self.procs[other(who)]);
        let Some(asleep) = me.mind.asleep.get().filter(|_| !me.is_gone.get()) else { return };
        if let Some(which) = asleep.lock {
            return self.waits_for_good(who, which);
        }
        if asleep.doing.op == Op::Sleep || self.is_untold(who, &asleep) {
            return;
        }
        let what = (who, asleep.doing, asleep.until);
        if !self.is_honest() {
            // What it says may be anything; its kernel does not lie.
            let is_over = peer.ending.get().is_over() && !me.mind.is_liar.get();
            assert!(!is_over, "{what:?} waits for a liar that is gone");
            return;
        }
        if asleep.doing.op == Op::HearAll {
            return self.waits_for_notice_for_good(who);
        }
        match asleep.doing.op.direction() {
            Direction::Sending => {
                assert!(!peer.ending.get().is_over(), "{what:?} waits for one that is gone");
                let room = self.pipes[side(who)].room();
                let is_full = room * 3 < ROOM || self.is_at_limit(who);
                assert!(is_full, "{what:?} waits though there is room");
            }
            Direction::Receiving if self.is_forgotten(who, asleep.doing) => {}
            Direction::Receiving => {
                let has_ended = peer.ending.get() >= Ending::Shut || self.is_deaf(who);
                assert!(!has_ended, "{what:?} sleeps over the end");
                let is_plain = asleep.doing.is_plain;
                let unread = if is_plain { self.unread_past(who) } else { self.unread(who) };
                // A look does not see across two switch points (docs/design/unfinished.md).
                let looks = matches!(asleep.doing.op, Op::Look(_)) && self.low_water(who) > 1;
                let is_enough = unread >= self.low_water(who) as u64 && !looks;
                assert!(unread == 0 || !is_enough, "{what:?} sleeps over {unread} bytes");
            }
        }
    }

    /// What readiness says is what calls find.
    pub fn checks_readiness(&self, who: usize) {
        // Above a step it would be turned away.
        let locks =
            [Which::from(Direction::Receiving), Direction::Sending.into(), Which::Handshake];
        if locks.into_iter().any(|lock| !self.is_free(who, lock)) {
            return;
        }
        self.leaps.set(true);
        at_once(|| {
            let ready = self.readiness(who, events::IN | events::OUT | events::RDHUP);
            let told = ready & (events::IN | events::ERR | events::HUP) != 0;
            let (step, got) = self.would_receive(who);
            if !self.is_honest() {
                return;
            }
            let step = step.unwrap();
            let doing = Doing { op: Op::Look(1), moved: got, is_plain: false };
            let finds = matches!(step, Step::Done | Step::Failed(_));
            assert!(finds || !told, "{who} is told of something: {ready:#x}, {step:?}");
            // Whoever only asks hears of one that was killed when it sleeps, or after a while.
            let is_killed = self.procs[other(who)].ending.get() >= Ending::Killed;
            // Of fewer bytes than are worth telling of it is told nothing, and finds them.
            let is_short = got > 0 && self.low_water(who) > 1;
            let may_find = is_short || (is_killed && got == 0);
            assert!(told || !finds || may_find, "{who} is not told: {step:?} {got}");
            if finds {
                self.is_over(who, doing, step);
            }
            let out = ready & (events::OUT | events::ERR | events::HUP) != 0;
            let kernel = self.socket(who).poll() & events::OUT != 0;
            let end = self.end(who);
            let ring = end.sends_through_ring() && end.room().0 > 0;
            let has_room = ring || (kernel && !are_pending(end.record));
            assert!(!out || has_room || !kernel, "{who} is told of room: {ready:#x}");
        });
    }
}
