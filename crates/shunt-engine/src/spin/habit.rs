//! Whether a wait of a fixed length pays.

/// Whether a wait of a fixed length pays, for what comes after about as long each time, or not at all. In
/// the low half the share of such waits that paid, of `Habit::ALL`; in the upper half how many were
/// left out since the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Habit(pub u32);

impl Habit {
    const ALL: u32 = 1 << 12;
    /// After so many waits that were left out, one is tried again.
    const RETRY_AFTER: u32 = 64;
    /// The least share at which it pays.
    const PAYS: u32 = Self::ALL / 2;

    /// Whether to wait now, and what to remember about it. A word of 0 has learnt nothing yet.
    #[must_use]
    pub const fn begin(self) -> (bool, Self) {
        let (share, left_out) = (self.0 & 0xffff, self.0 >> 16);
        match share {
            0 => (true, Self(Self::ALL / 4 * 3)),
            Self::PAYS.. => (true, self),
            _ if left_out + 1 >= Self::RETRY_AFTER => (true, Self(share)),
            _ => (false, Self(share | (left_out + 1) << 16)),
        }
    }

    /// Learns from how it went. One that paid, after it was left out, makes it worth a few more.
    #[must_use]
    pub const fn end(self, paid: bool) -> Self {
        let share = self.0 & 0xffff;
        let kept = share - share / 8;
        let new = if paid { kept + Self::ALL / 8 } else { kept };
        let new = if paid && new < Self::PAYS { Self::PAYS + Self::ALL / 8 } else { new };
        Self(if new == 0 { 1 } else { new })
    }
}

#[cfg(test)]
mod tests {
    use super::super::times;
    use super::*;

    fn waits(paid: impl Fn(u32) -> bool) -> u32 {
        times(1000, Habit::begin, |habit, round| habit.end(paid(round)))
    }

    #[test]
    fn a_habit_that_pays_is_kept() {
        assert_eq!(waits(|_| true), 1000);
        assert!(waits(|round| round % 4 != 0) > 900);
    }

    #[test]
    fn a_habit_that_does_not_pay_is_left_and_tried_again_rarely() {
        let never = waits(|_| false);
        assert!((10..40).contains(&never), "{never}");
        assert!(waits(|round| round % 8 == 0) < 200);
        // What pays from some time on is taken up.
        assert!(waits(|round| round > 200) > 700);
    }
}
