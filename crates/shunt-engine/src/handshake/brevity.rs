//! Whether a process that was forked for a connection sets it up at once, or only when it has proved that it lasts.
//!
//! Such a process begins with nothing: it introduces itself to the agent, maps the link group, and gets the doorbells of its peer. That
//! takes about as long as a hundred messages gain. A server that forks for each connection does it again and again, so what those
//! before have come to is kept where its children find it. While they were short, the next ones begin on TCP.

use crate::spin::Nanos;

use super::LASTING;

/// What the connections before have cost, less what they have gained, in messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Brevity(pub u32);

/// What it costs to set one up, in messages. On a virtual machine with two cores (Linux 6.18) a forked process of PostgreSQL took 1.3 ms
/// for it, and a message through the ring gained some 10 µs.
const COST: u32 = 128;
/// Bytes that count as a message. They gain less, but one that moves half a megabyte is not short: whoever makes such ones wants them fast.
const BYTES: u64 = 4 * 1024;
/// More than this: the next one is put off. Some short ones, as to see whether a server is there, say nothing of those to come.
const OPEN: u32 = 8 * COST;
/// The most that is kept: one that has lasted makes good for many.
const MOST: u32 = 12 * COST;
/// Calls after which one was not short: as many as make up for the cost, where a message takes two.
const LOOKS: u32 = 2 * COST;

impl Brevity {
    /// After one more that was set up, with so many messages and bytes in both directions.
    #[must_use]
    pub fn after(self, messages: u64, bytes: u64) -> Self {
        let gain = messages.saturating_add(bytes / BYTES);
        let gain = u32::try_from(gain).unwrap_or(u32::MAX);
        Self(self.0.saturating_add(COST).saturating_sub(gain).min(MOST))
    }

    /// True where the next one begins on TCP.
    #[must_use]
    pub const fn puts_off(self) -> bool {
        self.0 > OPEN
    }
}

/// True for one that was put off, and has lasted for so many calls, or nanoseconds.
#[must_use]
pub const fn has_lasted(looks: u32, age: Nanos) -> bool {
    looks >= LOOKS || age >= LASTING
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_short_ones_put_the_next_one_off_and_a_long_one_makes_good_for_them() {
        let mut brevity = Brevity::default();
        let short = (0..).take_while(|_| {
            let at_once = !brevity.puts_off();
            brevity = brevity.after(4, 500);
            at_once
        });
        assert_eq!(short.count(), 9);
        assert!(!brevity.after(10_000, 0).puts_off());
        assert!(!brevity.after(2, 1 << 30).puts_off(), "many bytes are as good");
        let bulk = (0..1000).fold(Brevity::default(), |brevity, _| brevity.after(8, 1 << 19));
        assert!(!bulk.puts_off(), "nor is half a megabyte short");
        for _ in 0..1000 {
            brevity = brevity.after(0, 0);
        }
        assert!(
            !brevity.after(MOST.into(), 0).puts_off(),
            "what many have cost is soon made good for"
        );
        assert!(Brevity(u32::MAX).after(0, 0).puts_off(), "whatever stands there");
    }

    #[test]
    fn those_that_gain_what_they_cost_are_set_up_at_once() {
        let brevity =
            (0..1000).fold(Brevity::default(), |brevity, _| brevity.after(COST.into(), 0));
        assert_eq!(brevity, Brevity::default());
    }

    #[test]
    fn one_lasts_by_its_calls_or_its_age() {
        assert!(!has_lasted(LOOKS - 1, LASTING - 1));
        assert!(has_lasted(LOOKS, 0) && has_lasted(0, LASTING));
    }
}
