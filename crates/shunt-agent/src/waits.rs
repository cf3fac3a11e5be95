//! Waits of calls, as JSON.

use serde_json::{Map, Value, json};
use shunt_wire::waits::{self, Histogram, Part, Waits};

/// In place of the end of the last bucket.
const ENDLESS: &str = "inf";

/// By part: `sum_ns`, and `buckets`, those that are not empty, by where they end in nanoseconds.
#[must_use]
pub fn to_json(waits: &Waits) -> Value {
    let of = |part: &Part| {
        let Histogram { counts, sum } = waits.of(*part);
        let name = |i| waits::end(i).map_or_else(|| ENDLESS.to_owned(), |end| end.to_string());
        let buckets = counts.iter().enumerate().filter(|(_, n)| **n > 0);
        let buckets: Map<_, _> = buckets.map(|(i, n)| (name(i), (*n).into())).collect();
        (part.name().to_owned(), json!({ "sum_ns": sum, "buckets": buckets }))
    };
    Value::Object(Part::ALL.iter().map(of).collect())
}

/// The reverse. What is missing counts 0, and so does a part or bucket that another version has; `None`: it makes no sense.
#[must_use]
pub fn from_json(value: &Value) -> Option<Waits> {
    let mut all = Waits::default();
    let parts = value.as_object()?;
    for part in Part::ALL {
        let Some(told) = parts.get(part.name()) else { continue };
        let told = told.as_object()?;
        let histogram = all.of_mut(part);
        histogram.sum = told.get("sum_ns").map_or(Some(0), Value::as_u64)?;
        for (end, n) in told.get("buckets").and_then(Value::as_object).into_iter().flatten() {
            let place = match end.as_str() {
                ENDLESS => Some(waits::BUCKETS - 1),
                end => waits::ending(end.parse().ok()?),
            };
            let n = n.as_u64()?;
            if let Some(count) = place.and_then(|place| histogram.counts.get_mut(place)) {
                *count = count.saturating_add(n);
            }
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(n: u64) -> Waits {
        let mut waits = Waits::default();
        for (part, nanos) in Part::ALL.into_iter().zip([1, 300, 70_000, u64::MAX >> 8]) {
            let histogram = waits.of_mut(part);
            histogram.counts[waits::bucket(nanos)] = n;
            histogram.sum = nanos.saturating_mul(n);
        }
        waits
    }

    #[test]
    fn json_and_back() {
        for waits in [Waits::default(), some(1), some(u64::MAX)] {
            assert_eq!(from_json(&to_json(&waits)), Some(waits));
        }
        assert_eq!(to_json(&some(2))["gave_way"]["buckets"], json!({ "320": 2 }));
        assert_eq!(to_json(&some(2))["wake_up"]["buckets"], json!({ "inf": 2 }));
        // Another version's.
        let later = json!({ "later": {}, "slept": { "buckets": { "300": 1, "320": 2 } } });
        assert_eq!(from_json(&later).unwrap().of(Part::Slept).count(), 2);
        for wrong in [
            json!([]),
            json!({ "slept": 1 }),
            json!({ "slept": { "sum_ns": -1 } }),
            json!({ "slept": { "buckets": { "x": 1 } } }),
            json!({ "slept": { "buckets": { "320": "x" } } }),
        ] {
            assert_eq!(from_json(&wrong), None, "{wrong}");
        }
    }
}
