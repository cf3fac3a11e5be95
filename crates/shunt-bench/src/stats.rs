//! Medians, spreads and distributions.

use serde::{Deserialize, Serialize};

/// Median, least and greatest of several figures.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one; of an even number the mean of the middle two.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of these figures; none when there are none.
    #[must_use]
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { median: f64::midpoint(low, high), min: first, max: last })
    }
}

/// The median of those that are there.
#[must_use]
pub fn median_of(figures: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let there: Vec<f64> = figures.flatten().collect();
    Spread::of(&there).map(|s| s.median)
}

/// A point of a distribution.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Quantile {
    /// The part of all that is at or below, 0 to 1.
    pub q: f64,
    /// Microseconds.
    pub us: f64,
}

/// The parts at which distributions are reported.
pub const QUANTILES: [f64; 12] =
    [0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0];

/// Halves of an octave are cut into so many buckets: 1.5 % wide.
const STEPS: u32 = 64;
const STEP_BITS: u32 = STEPS.trailing_zeros();

/// A distribution of durations, in buckets that grow with the duration.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
    min: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        let buckets = (64 - STEP_BITS + 1) * STEPS;
        Self { buckets: vec![0; buckets as usize], count: 0, max: 0, min: u64::MAX }
    }
}

fn bucket_of(value: u64) -> usize {
    if value < u64::from(STEPS) {
        return usize::try_from(value).unwrap_or(0);
    }
    let octave = 63 - value.leading_zeros() - STEP_BITS;
    let step = (value >> octave) & u64::from(STEPS - 1);
    usize::try_from(u64::from((octave + 1) * STEPS) + step).unwrap_or(0)
}

/// The middle of a bucket.
fn value_of(bucket: usize) -> f64 {
    let steps = STEPS as usize;
    let (octave, step) = (bucket / steps, bucket % steps);
    if octave == 0 {
        return step as f64;
    }
    let width = 2_f64.powi(i32::try_from(octave).unwrap_or(0) - 1);
    (steps + step) as f64 * width + width / 2.0
}

impl Histogram {
    /// Adds one, in nanoseconds.
    pub fn record(&mut self, nanoseconds: u64) {
        if let Some(bucket) = self.buckets.get_mut(bucket_of(nanoseconds)) {
            *bucket += 1;
        }
        self.count += 1;
        self.max = self.max.max(nanoseconds);
        self.min = self.min.min(nanoseconds);
    }

    /// Adds all of another.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
        self.min = self.min.min(other.min);
    }

    /// The value, in nanoseconds, that the part `q` of all does not exceed.
    #[must_use]
    pub fn quantile(&self, q: f64) -> f64 {
        if q <= 0.0 && self.count > 0 {
            return self.min as f64;
        }
        let wanted = q * self.count as f64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if *count > 0 && seen as f64 >= wanted && q < 1.0 {
                return value_of(bucket).clamp(self.min as f64, self.max as f64);
            }
        }
        self.max as f64
    }

    /// At all of [`QUANTILES`]; empty when there is nothing.
    #[must_use]
    pub fn quantiles(&self) -> Vec<Quantile> {
        if self.count == 0 {
            return Vec::new();
        }
        QUANTILES.iter().map(|&q| Quantile { q, us: self.quantile(q) / 1000.0 }).collect()
    }
}

/// Several distributions of the same thing as one: the median at each part that all of them have.
#[must_use]
pub fn median_distribution(all: &[&[Quantile]]) -> Vec<Quantile> {
    let Some(first) = all.first() else { return Vec::new() };
    let at = |points: &[Quantile], q: f64| points.iter().find(|p| p.q == q).map(|p| p.us);
    first
        .iter()
        .filter_map(|point| {
            let there: Option<Vec<f64>> = all.iter().map(|points| at(points, point.q)).collect();
            Some(Quantile { q: point.q, us: Spread::of(&there?)?.median })
        })
        .collect()
}

/// The whole number nearest to a figure that is not negative.
#[must_use]
pub fn whole(figure: f64) -> u64 {
    // The cast saturates, and NaN becomes 0.
    #[expect(clippy::cast_possible_truncation, reason = "rounded, and saturating is right here")]
    #[expect(clippy::cast_sign_loss, reason = "negative becomes 0")]
    let whole = figure.round() as u64;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        assert_eq!(Spread::of(&[]), None);
        let odd = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(median_of([None, Some(2.0), Some(4.0), None].into_iter()), Some(3.0));
        assert_eq!(median_of([None].into_iter()), None);
    }

    #[test]
    fn buckets_are_narrow_and_in_order() {
        let mut before = 0;
        for value in (0..5000).chain((13..50).map(|n| 1 << n)).chain([u64::MAX]) {
            let bucket = bucket_of(value);
            assert!(bucket < Histogram::default().buckets.len(), "{value}");
            let middle = value_of(bucket);
            assert!((middle - value as f64).abs() <= value as f64 / 64.0, "{value}: {middle}");
            assert!(bucket >= before, "{value}");
            before = bucket;
        }
    }

    #[test]
    fn quantiles_of_a_distribution() {
        let mut histogram = Histogram::default();
        assert!(histogram.quantiles().is_empty());
        for n in 1..=1000 {
            histogram.record(n * 1000);
        }
        let mut twice = histogram.clone();
        twice.merge(&histogram);
        for h in [histogram, twice] {
            let points = h.quantiles();
            let at = |q: f64| points.iter().find(|p| p.q == q).unwrap().us;
            assert!((at(0.5) - 500.0).abs() < 10.0, "{}", at(0.5));
            assert!((at(0.99) - 990.0).abs() < 20.0);
            assert_eq!((at(0.0), at(1.0)), (1.0, 1000.0));
        }
    }

    #[test]
    fn distributions_are_merged_where_all_have_points() {
        let p = |q, us| Quantile { q, us };
        let (a, b) = ([p(0.5, 1.0), p(0.9, 5.0)], [p(0.5, 3.0), p(0.99, 9.0)]);
        assert_eq!(median_distribution(&[&a, &b]), [p(0.5, 2.0)]);
        assert_eq!(median_distribution(&[]), []);
    }

    #[test]
    fn whole_numbers() {
        assert_eq!((whole(2.5), whole(-3.0), whole(f64::NAN)), (3, 0, 0));
    }
}
