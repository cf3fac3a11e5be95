//! Latencies of commands: a histogram whose places are 1/32 apart.

use std::time::Duration;

const SUB: u32 = 32;
/// Up to 2^40 ns.
const PLACES: usize = 36 * SUB as usize;

/// See the module's description.
#[derive(Clone, Debug)]
pub struct Latency {
    counts: Vec<u64>,
    total: u64,
}

impl Latency {
    pub fn new() -> Self {
        Self { counts: vec![0; PLACES], total: 0 }
    }

    pub fn add(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[place(nanos)] += 1;
        self.total += 1;
    }

    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
    }

    /// The time that so many of a thousand commands did not take longer than, in microseconds.
    pub fn quantile(&self, per_mille: u64) -> f64 {
        let wanted = (self.total * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper(place) / 1000.0;
            }
        }
        0.0
    }
}

/// The place of a number of nanoseconds.
fn place(nanos: u64) -> usize {
    let nanos = nanos.max(1);
    let power = nanos.ilog2();
    let (shift, sub) = (power.saturating_sub(5), u64::from(SUB));
    // Numbers below 32 have places of their own.
    let place = if power < 5 { nanos } else { u64::from(shift) * sub + (nanos >> shift) };
    usize::try_from(place).unwrap_or(PLACES).min(PLACES - 1)
}

/// The upper end of a place.
fn upper(place: usize) -> f64 {
    let sub = SUB as usize;
    let shift = (place / sub).saturating_sub(1);
    let base = place - shift * sub;
    ((base + 1) as f64) * (1_u64 << shift.min(62)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close() {
        let mut latency = Latency::new();
        assert!(latency.quantile(500) < 0.001);
        for micros in 1..=1000 {
            latency.add(Duration::from_micros(micros));
        }
        let mut other = Latency::new();
        other.merge(&latency);
        for (per_mille, expected) in [(500, 500.0), (990, 990.0), (1000, 1000.0), (1, 1.0)] {
            let found = other.quantile(per_mille);
            assert!((found - expected).abs() <= expected / 16.0, "{per_mille}: {found}");
        }
    }

    #[test]
    fn places_ascend() {
        let mut last = 0;
        for nanos in 1..100_000 {
            let place = place(nanos);
            assert!(place >= last && upper(place) > nanos as f64, "{nanos}");
            last = place;
        }
        assert_eq!(place(u64::MAX), PLACES - 1);
    }
}
