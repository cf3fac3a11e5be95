//! Decides whether connections with a peer gain by being promoted, and when to measure that anew. No I/O.
//!
//! A link that is slower than TCP in one of both, round trips or bytes, is not used. What was decided stays until two measurements in a
//! row speak against it; and a link in use is given up only where it is slower by more than a tenth, so that chance does not decide.

use std::time::Duration;

use serde::Serialize;

/// Times between two measurements that agree: doubled each time.
const CALM: Duration = Duration::from_secs(60);
const RARE: Duration = Duration::from_secs(16 * 60);
/// Time to the one that is to confirm what speaks against what was decided.
const CONFIRM: Duration = Duration::from_secs(10);
/// Times between attempts that fail: doubled each time.
const SOON: Duration = Duration::from_secs(2);
const LATE: Duration = Duration::from_secs(5 * 60);
/// Time to the next look at a link that is in use, or at a peer that measures another one.
const BUSY: Duration = Duration::from_secs(5);
/// Hundredths by which a link in use may seem slower.
const TOLERANCE: u64 = 10;
/// Time after one before the peer may have another.
const REST: Duration = Duration::from_secs(8);
/// So many measurements in a row change what was decided.
const ENOUGH: u32 = 2;

/// What was measured, by medians.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Figures {
    /// Nanoseconds of a small message there and back over the link, from agent to agent.
    pub link_round_trip_ns: u64,
    /// The same over TCP.
    pub tcp_round_trip_ns: u64,
    /// Bytes per second over the link, from this host to the peer's.
    pub link_bytes_per_s: u64,
    /// The same over TCP.
    pub tcp_bytes_per_s: u64,
    /// Nanoseconds to wake a thread, on this host.
    pub wake_up_ns: u64,
    /// The same on the peer's host, as it says.
    pub peer_wake_up_ns: u64,
}

impl Figures {
    /// Nanoseconds from program to program. On its way over the link a message wakes each agent and each program once more than was
    /// measured: a program wakes its agent to send, and the agent its program at what arrives.
    pub const fn programs_round_trip_ns(&self) -> u64 {
        let wakes = self.wake_up_ns.saturating_add(self.peer_wake_up_ns).saturating_mul(2);
        self.link_round_trip_ns.saturating_add(wakes)
    }

    /// True when the link is slower, in one of both, by more than so many hundredths.
    const fn is_slower(&self, percent: u64) -> bool {
        let (link, tcp) = (self.programs_round_trip_ns(), self.tcp_round_trip_ns);
        let is_late = link.saturating_mul(100) > tcp.saturating_mul(100 + percent);
        let (link, tcp) = (self.link_bytes_per_s, self.tcp_bytes_per_s);
        is_late || link.saturating_mul(100 + percent) < tcp.saturating_mul(100)
    }
}

/// What was decided.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Verdict {
    #[default]
    Unmeasured,
    Faster,
    Slower,
}

/// Why nothing was measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Lack {
    /// Connections use the link, or one of both sides measures another one.
    Busy,
    /// It could not be done: why.
    Failed(String),
}

/// What is known of the link to a peer.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    verdict: Verdict,
    figures: Option<Figures>,
    /// Measurements in a row that speak against the verdict; those that agreed with it; attempts that failed since the last one.
    against: u32,
    agreed: u32,
    failed: u32,
    /// Why the last attempt failed.
    lack: Option<String>,
    due: Duration,
    /// Until when a peer that would measure is refused: so that none takes up all of the time in which others are measured.
    rests: Duration,
}

/// `first`, doubled so often, but no more than `most`.
fn doubled(first: Duration, times: u32, most: Duration) -> Duration {
    first.saturating_mul(1 << times.min(16)).min(most)
}

impl Judge {
    pub(crate) const fn verdict(&self) -> Verdict {
        self.verdict
    }

    pub(crate) const fn figures(&self) -> Option<&Figures> {
        self.figures.as_ref()
    }

    /// True when the peer may begin to measure.
    pub(crate) fn may_be_asked(&self, now: Duration) -> bool {
        now >= self.rests
    }

    /// When to measure next.
    pub(crate) const fn due(&self) -> Duration {
        self.due
    }

    /// There is another link, or one again: what was decided stays until it is measured, and then one measurement decides.
    pub(crate) fn is_renewed(&mut self, now: Duration) {
        (self.failed, self.agreed, self.against) = (0, 0, ENOUGH - 1);
        self.due = now;
    }

    /// It was measured. True: it is decided otherwise than before.
    pub(crate) fn measured(&mut self, figures: Figures, now: Duration) -> bool {
        self.figures = Some(figures);
        self.rests = now + REST;
        (self.failed, self.lack) = (0, None);
        let (would_be, enough) = match self.verdict {
            Verdict::Unmeasured => (!figures.is_slower(0), 1),
            Verdict::Faster => (!figures.is_slower(TOLERANCE), ENOUGH),
            Verdict::Slower => (!figures.is_slower(0), ENOUGH),
        };
        let would_be = if would_be { Verdict::Faster } else { Verdict::Slower };
        if would_be == self.verdict {
            self.against = 0;
            self.due = now + doubled(CALM, self.agreed, RARE);
            self.agreed += 1;
            return false;
        }
        (self.against, self.agreed) = (self.against + 1, 0);
        if self.against < enough {
            self.due = now + CONFIRM;
            return false;
        }
        (self.verdict, self.against) = (would_be, 0);
        self.due = now + CALM;
        self.agreed = 1;
        true
    }

    /// It could not be measured.
    pub(crate) fn lacks(&mut self, lack: Lack, now: Duration) {
        let wait = match lack {
            Lack::Busy => BUSY,
            Lack::Failed(why) => {
                self.lack = Some(why);
                let wait = doubled(SOON, self.failed, LATE);
                self.failed += 1;
                self.rests = now + wait;
                wait
            }
        };
        self.due = now + wait;
    }

    /// Why connections are not promoted, for people; `None`: they are.
    pub(crate) fn reason(&self) -> Option<String> {
        match (self.verdict, &self.figures, &self.lack) {
            (Verdict::Faster, ..) => None,
            (Verdict::Slower, Some(figures), _) => Some(in_words(figures)),
            (_, _, Some(lack)) => Some(format!("the link could not be measured: {lack}")),
            (_, _, None) => Some("the link was not measured yet".to_owned()),
        }
    }
}

fn in_words(figures: &Figures) -> String {
    let us = |ns: u64| (ns + 500) / 1000;
    let [link, tcp] = [figures.link_bytes_per_s, figures.tcp_bytes_per_s].map(|it| it / 1_000_000);
    let (here, there) = (us(figures.programs_round_trip_ns()), us(figures.tcp_round_trip_ns));
    format!(
        "the link is slower than TCP: {here} \u{b5}s there and back (TCP {there}), {link} MB/s (TCP {tcp})"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Duration = Duration::from_secs(1000);

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// A link with this part of TCP's time, and of its rate, in hundredths.
    fn figures(time: u64, rate: u64) -> Figures {
        Figures {
            link_round_trip_ns: 400 * time - 20_000,
            tcp_round_trip_ns: 40_000,
            link_bytes_per_s: 10_000_000 * rate,
            tcp_bytes_per_s: 1_000_000_000,
            wake_up_ns: 4_000,
            peer_wake_up_ns: 6_000,
        }
    }

    #[test]
    fn messages_of_programs_wake_four_times_more() {
        assert_eq!(figures(100, 100).programs_round_trip_ns(), 40_000);
        let most = Figures { wake_up_ns: u64::MAX, ..figures(100, 100) };
        assert_eq!(most.programs_round_trip_ns(), u64::MAX);
    }

    #[test]
    fn the_first_measurement_decides() {
        for (time, rate, verdict) in [
            (100, 100, Verdict::Faster),
            (51, 300, Verdict::Faster),
            (101, 300, Verdict::Slower),
            (51, 99, Verdict::Slower),
        ] {
            let mut judge = Judge::default();
            assert_eq!((judge.verdict(), judge.due()), (Verdict::Unmeasured, Duration::ZERO));
            assert!(judge.reason().unwrap().contains("not measured yet"));
            assert!(judge.measured(figures(time, rate), AT));
            assert_eq!(
                (judge.verdict(), judge.due()),
                (verdict, AT + seconds(60)),
                "{time} {rate}"
            );
            assert_eq!(judge.reason().is_none(), verdict == Verdict::Faster);
        }
    }

    #[test]
    fn the_reason_has_the_figures() {
        let mut judge = Judge::default();
        judge.measured(figures(200, 50), AT);
        let reason = judge.reason().unwrap();
        let wanted = "80 \u{b5}s there and back (TCP 40), 500 MB/s (TCP 1000)";
        assert!(reason.ends_with(wanted), "{reason}");
    }

    #[test]
    fn measurements_that_agree_become_rarer() {
        let mut judge = Judge::default();
        let waits = [60, 120, 240, 480, 960, 960].map(|wait| {
            judge.measured(figures(80, 100), AT);
            assert_eq!(judge.due(), AT + seconds(wait));
        });
        assert_eq!(waits.len(), 6);
        // What speaks against it is looked at again soon, and what agrees then begins anew.
        assert!(!judge.measured(figures(200, 100), AT));
        assert_eq!(judge.due(), AT + seconds(10));
        judge.measured(figures(80, 100), AT);
        assert_eq!(judge.due(), AT + seconds(60));
    }

    #[test]
    fn one_measurement_changes_nothing_and_two_in_a_row_do() {
        let mut judge = Judge::default();
        judge.measured(figures(80, 100), AT);
        let slow = figures(150, 100);
        assert!(!judge.measured(slow, AT));
        assert!(!judge.measured(figures(80, 100), AT));
        assert!(!judge.measured(slow, AT));
        assert_eq!(judge.verdict(), Verdict::Faster);
        assert!(judge.measured(slow, AT));
        assert_eq!((judge.verdict(), judge.due()), (Verdict::Slower, AT + seconds(60)));
        // Another link is judged at once.
        judge.is_renewed(AT);
        assert!(judge.measured(figures(80, 100), AT));
        judge.is_renewed(AT);
        assert!(judge.measured(slow, AT));
        // And back.
        assert!(!judge.measured(figures(100, 100), AT));
        assert!(judge.measured(figures(100, 100), AT));
        assert_eq!(judge.verdict(), Verdict::Faster);
    }

    #[test]
    fn a_link_in_use_may_be_slower_by_a_tenth_and_one_that_is_not_may_not() {
        let mut used = Judge::default();
        used.measured(figures(80, 100), AT);
        let mut other = Judge::default();
        other.measured(figures(150, 100), AT);
        for _ in 0..4 {
            for barely in [figures(110, 100), figures(100, 91)] {
                assert!(!used.measured(barely, AT) && !other.measured(barely, AT));
            }
        }
        assert_eq!((used.verdict(), other.verdict()), (Verdict::Faster, Verdict::Slower));
        used.measured(figures(111, 100), AT);
        assert!(used.measured(figures(100, 90), AT));
    }

    #[test]
    fn attempts_that_fail_become_rarer_and_change_nothing() {
        let mut judge = Judge::default();
        let failed = || Lack::Failed("it does not answer".into());
        for wait in [2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            judge.lacks(failed(), AT);
            assert_eq!(judge.due(), AT + seconds(wait));
        }
        assert_eq!(judge.verdict(), Verdict::Unmeasured);
        assert!(judge.reason().unwrap().ends_with("measured: it does not answer"));
        // A link that is in use is looked at again and again, which costs nothing.
        for _ in 0..9 {
            judge.lacks(Lack::Busy, AT);
            assert_eq!(judge.due(), AT + seconds(5));
        }
        judge.is_renewed(AT);
        assert_eq!(judge.due(), AT);
        judge.lacks(failed(), AT);
        assert_eq!(judge.due(), AT + seconds(2));
        judge.measured(figures(80, 100), AT);
        judge.lacks(failed(), AT);
        assert_eq!((judge.verdict(), judge.reason()), (Verdict::Faster, None));
    }

    #[test]
    fn a_peer_cannot_have_itself_measured_all_the_time() {
        let mut judge = Judge::default();
        assert!(judge.may_be_asked(AT));
        judge.lacks(Lack::Busy, AT);
        assert!(judge.may_be_asked(AT));
        judge.measured(figures(80, 100), AT);
        assert!(!judge.may_be_asked(AT + seconds(7)) && judge.may_be_asked(AT + seconds(8)));
        for wait in [2, 4, 8] {
            judge.lacks(Lack::Failed(String::new()), AT);
            let until = AT + seconds(wait);
            assert!(!judge.may_be_asked(until - seconds(1)) && judge.may_be_asked(until));
        }
    }

    #[test]
    fn figures_that_cannot_be_decide_against_the_link_or_nothing() {
        let zero = Figures {
            link_round_trip_ns: 0,
            tcp_round_trip_ns: 0,
            link_bytes_per_s: 0,
            tcp_bytes_per_s: 0,
            wake_up_ns: 0,
            peer_wake_up_ns: 0,
        };
        let most = Figures { peer_wake_up_ns: u64::MAX, link_round_trip_ns: u64::MAX, ..zero };
        let mut judge = Judge::default();
        judge.measured(most, AT);
        assert_eq!(judge.verdict(), Verdict::Slower);
        judge.measured(zero, AT);
        assert_eq!(judge.verdict(), Verdict::Slower);
    }
}
