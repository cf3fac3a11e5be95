//! Counters of programs, added up.

use serde_json::{Map, Value};
use shunt_shm::arena::ArenaView;
use shunt_shm::zerocopy::Tally;
use shunt_wire::counter::{COUNTER_SLOTS, Counter};
use shunt_wire::reason::{REASON_SLOTS, Reason};
use shunt_wire::waits::Waits;

use crate::waits;

/// The listeners that were not registered, by reason.
pub const UNREGISTERED: &str = "listeners_unregistered";

/// Programs that run under Shunt now.
pub const LIVE: &str = "programs_live";

/// Programs that did and have ended.
pub const ENDED: &str = "programs_ended";

/// Totals by program.
pub const PROGRAMS: &str = "programs";

/// How long calls have waited: of all programs, and by program.
pub const WAITS: &str = "waits";
/// See [`WAITS`].
pub const WAITS_BY_PROGRAM: &str = "waits_by_program";

/// Counters of one or more programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Totals {
    /// By [`Counter`].
    pub counters: [u64; COUNTER_SLOTS],
    /// Connection ends not shunted, by the reason's code.
    pub declined: [u64; REASON_SLOTS],
    /// Listeners not registered, by the reason's code.
    pub unregistered: [u64; REASON_SLOTS],
    /// How long calls have waited.
    pub waits: Waits,
    /// Programs that were added up.
    pub programs: u64,
}

impl Default for Totals {
    fn default() -> Self {
        let (counters, reasons) = ([0; COUNTER_SLOTS], [0; REASON_SLOTS]);
        let waits = Waits::default();
        Self { counters, declined: reasons, unregistered: reasons, waits, programs: 0 }
    }
}

impl Totals {
    /// Those of one program: what it has counted, and what its open connections have.
    #[must_use]
    pub fn of(arena: &ArenaView) -> Self {
        let mut sum = Self {
            counters: arena.counters(),
            declined: arena.declined(),
            unregistered: arena.unregistered(),
            waits: arena.waits(),
            programs: 1,
        };
        for c in arena.connections() {
            let [rung, saved, full] = c.doorbells.map(u64::from);
            let [paid, unpaid] = c.spins.map(u64::from);
            let without_copies = Tally::COUNTERS.into_iter().zip(c.zero_copy.unwrap_or_default());
            let all = [
                (Counter::BytesSent, c.bytes_sent),
                (Counter::BytesReceived, c.bytes_received),
                (Counter::MessagesSent, c.messages_sent),
                (Counter::MessagesReceived, c.messages_received),
                (Counter::DoorbellsRung, rung),
                (Counter::DoorbellsSaved, saved),
                (Counter::RingFullWaits, full),
                (Counter::SpinsPaid, paid),
                (Counter::SpinsUnpaid, unpaid),
            ];
            for (counter, n) in all.into_iter().chain(without_copies) {
                let total = &mut sum.counters[counter as usize];
                *total = total.saturating_add(n);
            }
        }
        sum
    }

    /// Whether there is anything beside the number of programs.
    #[must_use]
    pub fn has_counted(&self) -> bool {
        let Self { counters, declined, unregistered, waits, programs: _ } = self;
        !waits.is_empty() || counters.iter().chain(declined).chain(unregistered).any(|n| *n > 0)
    }

    /// Adds another program's.
    pub fn add(&mut self, other: &Self) {
        let pairs = self.counters.iter_mut().zip(&other.counters);
        let pairs = pairs.chain(self.declined.iter_mut().zip(&other.declined));
        for (mine, theirs) in pairs.chain(self.unregistered.iter_mut().zip(&other.unregistered)) {
            *mine = mine.saturating_add(*theirs);
        }
        self.waits.add(&other.waits);
        self.programs = self.programs.saturating_add(other.programs);
    }

    /// The counters, `declined`, `listeners_unregistered` and `waits`, under their stable names.
    #[must_use]
    pub fn to_json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        for c in Counter::ALL {
            map.insert(c.name().into(), self.counters[*c as usize].into());
        }
        for (name, counts) in [("declined", &self.declined), (UNREGISTERED, &self.unregistered)] {
            let of = |r: &Reason| (r.name().to_owned(), Value::from(counts[*r as usize]));
            map.insert(name.into(), Value::Object(Reason::ALL.iter().map(of).collect()));
        }
        map.insert(WAITS.into(), waits::to_json(&self.waits));
        map
    }

    /// The reverse of [`Self::to_json`]. A name that is missing counts 0, so that a file of an
    /// earlier version can be read; one that is not a number makes the whole invalid.
    #[must_use]
    pub fn from_json(value: &Value) -> Option<Self> {
        let map = value.as_object()?;
        let by_reason = |name| {
            map.get(name).map_or_else(|| Some(Map::new()), |v: &Value| v.as_object().cloned())
        };
        let (declined, unregistered) = (by_reason("declined")?, by_reason(UNREGISTERED)?);
        let number = |map: &Map<String, Value>, name: &str| match map.get(name) {
            Some(v) => v.as_u64(),
            None => Some(0),
        };
        let waits = map.get(WAITS).map_or_else(|| Some(Waits::default()), waits::from_json)?;
        let programs = number(map, ENDED)?;
        let mut totals = Self { programs, waits, ..Self::default() };
        for c in Counter::ALL {
            totals.counters[*c as usize] = number(map, c.name())?;
        }
        for r in Reason::ALL {
            totals.declined[*r as usize] = number(&declined, r.name())?;
            totals.unregistered[*r as usize] = number(&unregistered, r.name())?;
        }
        Some(totals)
    }
}
