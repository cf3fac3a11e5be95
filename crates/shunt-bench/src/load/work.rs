//! Work that a server does for each request, beside talking.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

/// Steps of one try of the calibration.
const TRIAL: u32 = 20_000;

/// Tries of the calibration, of which the shortest counts: the others were disturbed.
const TRIES: u32 = 25;

/// Works so many steps. Each needs the result of the one before, so none is left out or overtaken.
pub fn work(steps: u64) {
    let mut state = black_box(1_u64);
    for _ in 0..steps {
        state = (state ^ (state >> 33)).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    }
    black_box(state);
}

/// Steps that take so many microseconds of a processor. A run counts once, so that the work is the
/// same for all contenders, whatever the clock of the processor does meanwhile.
#[must_use]
pub fn steps_of(microseconds: u32) -> u64 {
    static PER_MICROSECOND: OnceLock<f64> = OnceLock::new();
    let rate = PER_MICROSECOND.get_or_init(|| {
        let time = |_| {
            let start = Instant::now();
            work(TRIAL.into());
            start.elapsed()
        };
        let shortest = (0..TRIES).map(time).min().unwrap_or_default();
        f64::from(TRIAL) / (shortest.as_secs_f64() * 1e6).max(1e-3)
    });
    crate::stats::whole(rate * f64::from(microseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_once_and_grows_with_the_time() {
        assert_eq!(steps_of(0), 0);
        let (five, fifty) = (steps_of(5), steps_of(50));
        assert!(five > 0 && fifty.abs_diff(five * 10) <= 10, "{five}, {fifty}");
    }
}
