//! Totals by program.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::totals::{ENDED, LIVE, Totals, WAITS};
use crate::waits;

/// Programs that are told apart. Whoever may run programs must not have the agent, and those who read metrics, keep ever more.
pub const PROGRAMS: usize = 32;

/// The name under which all other programs are added up.
pub const OTHER: &str = "other";

/// Those of one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Program {
    /// Of all of them.
    pub totals: Totals,
    /// How many of them live.
    pub live: u64,
}

/// Totals of programs that have ended, by name. The first [`PROGRAMS`] that have counted anything, those that live among them, have a
/// name here, which they keep.
#[derive(Clone, Debug, Default)]
pub struct Programs(RefCell<BTreeMap<String, Totals>>);

impl Programs {
    /// Adds those of a program that has ended.
    pub fn fold(&self, program: &str, totals: &Totals) {
        if totals.has_counted() {
            let mut named = self.0.borrow_mut();
            let name = place(&mut named, program);
            named.entry(name).or_default().add(totals);
        }
    }

    /// Those of ended programs and of these, which live.
    #[must_use]
    pub fn with<'a>(
        &self,
        live: impl Iterator<Item = (&'a str, Totals)>,
    ) -> BTreeMap<String, Program> {
        let mut live: Vec<_> = live.filter(|(_, totals)| totals.has_counted()).collect();
        live.sort_by_key(|(program, _)| *program);
        let mut named = self.0.borrow_mut();
        let places: Vec<_> = live.iter().map(|(program, _)| place(&mut named, program)).collect();
        let ended = |(name, totals): (&String, &Totals)| {
            (name.clone(), Program { totals: *totals, live: 0 })
        };
        let mut all: BTreeMap<_, _> = named.iter().map(ended).collect();
        for (name, (_, totals)) in places.into_iter().zip(&live) {
            let program = all.entry(name).or_default();
            program.totals.add(totals);
            program.live += totals.programs;
        }
        all
    }

    /// As JSON, by name: what is not 0.
    pub(crate) fn to_json(&self) -> Value {
        let of = |(name, totals): (&String, &Totals)| {
            let mut map = totals.to_json();
            map.insert(ENDED.into(), totals.programs.into());
            (name.clone(), Value::Object(without_zeros(map)))
        };
        Value::Object(self.0.borrow().iter().map(of).collect())
    }

    /// The reverse of [`Self::to_json`].
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let mut named = BTreeMap::new();
        for (program, totals) in value.as_object()? {
            let name = place(&mut named, program);
            named.entry(name).or_default().add(&Totals::from_json(totals)?);
        }
        Some(Self(RefCell::new(named)))
    }
}

/// The name under which a program is counted. It has it from now on.
fn place(named: &mut BTreeMap<String, Totals>, program: &str) -> String {
    let others = usize::from(named.contains_key(OTHER));
    if !named.contains_key(program) && named.len() - others >= PROGRAMS {
        return OTHER.to_owned();
    }
    named.entry(program.to_owned()).or_default();
    program.to_owned()
}

fn without_zeros(map: Map<String, Value>) -> Map<String, Value> {
    let each = map.into_iter().map(|(name, value)| match value {
        Value::Object(inner) => (name, Value::Object(without_zeros(inner))),
        other => (name, other),
    });
    each.filter(|(_, value)| *value != 0 && value.as_object().is_none_or(|map| !map.is_empty()))
        .collect()
}

/// The counters of programs by name, what is not 0, and their waits by name.
#[must_use]
pub fn to_json(all: &BTreeMap<String, Program>) -> [Value; 2] {
    let counters = all.iter().map(|(name, Program { totals, live })| {
        let mut map = totals.to_json();
        map.remove(WAITS);
        map.insert(LIVE.into(), (*live).into());
        map.insert(ENDED.into(), totals.programs.saturating_sub(*live).into());
        (name.clone(), Value::Object(without_zeros(map)))
    });
    let waited = all.iter().filter(|(_, program)| !program.totals.waits.is_empty());
    let waits = waited.map(|(name, program)| (name.clone(), waits::to_json(&program.totals.waits)));
    [Value::Object(counters.collect()), Value::Object(waits.collect())]
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shunt_wire::counter::Counter;
    use shunt_wire::waits::{Part, Waits};

    use super::*;

    fn some(n: u64) -> Totals {
        let mut totals = Totals { programs: 1, ..Totals::default() };
        totals.counters[Counter::Connections as usize] = n;
        totals.waits.of_mut(Part::Spun).counts[3] = n;
        totals
    }

    #[test]
    fn programs_are_told_apart_up_to_a_number_and_keep_their_names() {
        let programs = Programs::default();
        let idle = Totals { programs: 1, ..Totals::default() };
        programs.fold("idle", &idle);
        assert_eq!(programs.to_json(), json!({}), "it has counted nothing");
        // One that lives has its name from the first look on.
        let count = |all: &BTreeMap<String, Program>, name: &str| {
            all.get(name)
                .map_or(0, |program| program.totals.counters[Counter::Connections as usize])
        };
        let look = || programs.with([("live", some(2)), ("idle", idle)].into_iter());
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

    #[test]
    fn what_is_0_is_left_out_and_waits_are_told_apart() {
        let programs = Programs::default();
        let idle = Totals { waits: Waits::default(), ..some(1) };
        programs.fold("a", &some(2));
        let [counters, waits] = to_json(&programs.with([("a", some(1)), ("b", idle)].into_iter()));
        assert_eq!(counters["a"], json!({ "connections": 3, LIVE: 1, ENDED: 1 }));
        assert_eq!(counters["b"], json!({ "connections": 1, LIVE: 1 }));
        assert_eq!(waits.as_object().unwrap().keys().collect::<Vec<_>>(), ["a"]);
    }
}
