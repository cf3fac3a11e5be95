//! Waits of calls, as JSON, and by program.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use shunt_wire::waits::{self, Histogram, Part, Waits};

/// Programs that are told apart. Whoever may run programs must not have the agent, and those who read metrics, keep ever more.
pub const PROGRAMS: usize = 32;

/// The name under which all other programs are added up.
pub const OTHER: &str = "other";

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

/// Waits by program. The first [`PROGRAMS`] that have waited have a name here, which they keep.
#[derive(Clone, Debug, Default)]
pub struct Programs(RefCell<BTreeMap<String, Waits>>);

impl Programs {
    /// Adds those of a program that has ended.
    pub fn fold(&self, program: &str, waits: &Waits) {
        if !waits.is_empty() {
            let mut named = self.0.borrow_mut();
            let name = place(&mut named, program);
            named.entry(name).or_default().add(waits);
        }
    }

    /// Those of ended programs and of these, which live.
    #[must_use]
    pub fn with<'a>(
        &self,
        live: impl Iterator<Item = (&'a str, Waits)>,
    ) -> BTreeMap<String, Waits> {
        let mut live: Vec<_> = live.filter(|(_, waits)| !waits.is_empty()).collect();
        live.sort_by_key(|(program, _)| *program);
        let mut named = self.0.borrow_mut();
        let places: Vec<_> = live.iter().map(|(program, _)| place(&mut named, program)).collect();
        let mut all = named.clone();
        for (name, (_, waits)) in places.into_iter().zip(&live) {
            all.entry(name).or_default().add(waits);
        }
        all
    }

    /// As JSON, by name.
    #[must_use]
    pub fn to_json(&self) -> Value {
        by_program(&self.0.borrow())
    }

    /// The reverse of [`Self::to_json`].
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let mut named = BTreeMap::new();
        for (program, waits) in value.as_object()? {
            let name = place(&mut named, program);
            named.entry(name).or_default().add(&from_json(waits)?);
        }
        Some(Self(RefCell::new(named)))
    }
}

/// The name under which a program is counted. It has it from now on.
fn place(named: &mut BTreeMap<String, Waits>, program: &str) -> String {
    let others = usize::from(named.contains_key(OTHER));
    if !named.contains_key(program) && named.len() - others >= PROGRAMS {
        return OTHER.to_owned();
    }
    named.entry(program.to_owned()).or_default();
    program.to_owned()
}

/// As JSON, by name.
pub(crate) fn by_program(all: &BTreeMap<String, Waits>) -> Value {
    Value::Object(all.iter().map(|(name, waits)| (name.clone(), to_json(waits))).collect())
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

    #[test]
    fn programs_are_told_apart_up_to_a_number_and_keep_their_names() {
        let programs = Programs::default();
        programs.fold("idle", &Waits::default());
        assert_eq!(programs.to_json(), json!({}), "it has not waited");
        // One that lives has its name from the first look on.
        let count = |all: &BTreeMap<String, Waits>, name: &str| {
            all.get(name).map_or(0, |waits| waits.of(Part::Spun).count())
        };
        let look = || programs.with([("live", some(2)), ("idle", Waits::default())].into_iter());
        assert_eq!((count(&look(), "live"), look().len()), (2, 1));
        for n in 0..100 {
            programs.fold(&format!("p{n:02}"), &some(1));
        }
        let all = look();
        assert_eq!(all.len(), PROGRAMS + 1);
        assert_eq!((count(&all, "live"), count(&all, "p30"), count(&all, "p31")), (2, 1, 0));
        assert_eq!(count(&all, OTHER), 100 - 31);
        let again = Programs::from_json(&programs.to_json()).unwrap();
        again.fold("new", &some(1));
        assert_eq!(count(&again.with([].into_iter()), OTHER), 100 - 30);
        assert!(Programs::from_json(&json!({ "p": 7 })).is_none());
    }
}
