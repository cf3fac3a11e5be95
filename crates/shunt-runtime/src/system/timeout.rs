//! Times that programs pass to calls that wait.

use crate::system::abi::{c_int, timespec, timeval};
use crate::system::clock;

/// What the kernel takes for a time; none is one, too.
#[inline]
#[must_use]
pub fn is_valid(time: Option<&timespec>) -> bool {
    time.is_none_or(|t| t.tv_sec >= 0 && (0..1_000_000_000).contains(&t.tv_nsec))
}

/// A valid time, in nanoseconds.
#[inline]
#[must_use]
pub const fn nanos(time: &timespec) -> u64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec).cast_unsigned()
}

/// That many nanoseconds.
#[must_use]
pub fn of_nanos(nanos: u64) -> timespec {
    let part = |nanos: u64| i64::try_from(nanos).unwrap_or(0);
    timespec { tv_sec: part(nanos / 1_000_000_000), tv_nsec: part(nanos % 1_000_000_000) }
}

/// The same of select(2), which takes more than a second of microseconds.
#[must_use]
pub const fn nanos_of_timeval(time: &timeval) -> u64 {
    time.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_usec.saturating_mul(1000))
        .cast_unsigned()
}

/// When a valid time from now on is over.
#[inline]
#[must_use]
pub fn deadline(time: &timespec) -> u64 {
    clock::now().saturating_add(nanos(time))
}

/// The same of a time that a program has passed, of which none is no end. `None`: the kernel refuses it.
#[inline]
#[must_use]
pub fn valid_deadline(time: Option<&timespec>) -> Option<Option<u64>> {
    is_valid(time).then(|| time.map(deadline))
}

/// The same for milliseconds, of which a negative number is no end.
#[inline]
#[must_use]
pub fn deadline_of(millis: c_int) -> Option<u64> {
    let millis = u64::try_from(millis).ok()?;
    Some(clock::now().saturating_add(millis * 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn time(tv_sec: i64, tv_nsec: i64) -> timespec {
        timespec { tv_sec, tv_nsec }
    }

    #[test]
    fn what_the_kernel_refuses_is_no_time() {
        assert!(is_valid(None));
        assert_eq!((valid_deadline(None), valid_deadline(Some(&time(-1, 0)))), (Some(None), None));
        assert!(is_valid(Some(&time(0, 0))) && is_valid(Some(&time(i64::MAX, 999_999_999))));
        for refused in [time(-1, 0), time(0, -1), time(0, 1_000_000_000)] {
            assert!(!is_valid(Some(&refused)));
        }
    }

    #[test]
    fn a_time_is_nanoseconds_and_back() {
        assert_eq!(nanos(&time(2, 5)), 2_000_000_005);
        let back = of_nanos(2_000_000_005);
        assert_eq!((back.tv_sec, back.tv_nsec), (2, 5));
        assert_eq!(nanos(&time(i64::MAX, 0)), i64::MAX.unsigned_abs());
        assert_eq!(nanos_of_timeval(&timeval { tv_sec: 1, tv_usec: 2_000_000 }), 3_000_000_000);
    }

    #[test]
    fn less_than_nothing_has_no_end() {
        assert_eq!(deadline_of(-1), None);
        let now = clock::now();
        assert!(deadline_of(5).is_some_and(|end| end >= now + 5_000_000));
        assert!(deadline(&time(i64::MAX, 0)) >= i64::MAX.unsigned_abs());
    }
}
