//! How often something is tried.

use std::time::{Duration, Instant};

/// True when the long forms are asked for.
#[must_use]
pub fn are_long() -> bool {
    std::env::var_os("SHUNT_TEST_FULL").is_some_and(|v| v == "1")
}

/// The time that a long form has.
fn budget() -> Option<Duration> {
    let seconds = std::env::var("SOAK_SECONDS").ok().filter(|_| are_long())?;
    Some(Duration::from_secs(seconds.parse().expect("SOAK_SECONDS is a number")))
}

/// True when time may end a long form before its count is reached.
#[must_use]
pub fn is_bounded() -> bool {
    budget().is_some()
}

/// Counts rounds: so many in the short form, so many in the long one, or what `SOAK_SECONDS` have room for.
///
/// # Panics
/// When `SOAK_SECONDS` is no number.
pub fn rounds(short: u32, long: u32) -> impl Iterator<Item = u32> {
    let until = budget().map(|budget| Instant::now() + budget);
    let count = if are_long() { long } else { short };
    (0..count).take_while(move |_| until.is_none_or(|until| Instant::now() < until))
}

/// The start of the random choices: the same each time, unless `SHUNT_TEST_SEED` says otherwise.
///
/// # Panics
/// When that is no number.
#[must_use]
pub fn seed() -> u64 {
    std::env::var("SHUNT_TEST_SEED").map_or(1, |seed| seed.parse().expect("a number"))
}
