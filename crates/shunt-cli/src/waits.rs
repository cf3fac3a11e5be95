//! Waits of calls, for people and for other programs.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use shunt_agent::totals::{WAITS, WAITS_BY_PROGRAM};
use shunt_agent::waits::{from_json, to_json};
use shunt_wire::waits::{Histogram, Part, Waits};

use crate::table::{Table, human_count};

/// Of one connection, or of many. As JSON they have counts and quantiles besides what the agent tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WaitTimes(pub Waits);

impl Serialize for WaitTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        complete(&self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for WaitTimes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let told = Value::deserialize(deserializer)?;
        let read = from_json(&told).map(Self);
        read.ok_or_else(|| serde::de::Error::custom(format!("these are no waits: {told}")))
    }
}

/// The quantiles that are shown, in thousandths, and their names in JSON.
const QUANTILES: [(u16, &str); 3] = [(500, "p50_ns"), (990, "p99_ns"), (999, "p999_ns")];

fn complete(waits: &Waits) -> Value {
    let mut all = to_json(waits);
    for part in Part::ALL {
        let histogram = waits.of(part);
        let told = &mut all[part.name()];
        told["count"] = histogram.count().into();
        for (of_1000, name) in QUANTILES {
            told[name] = histogram.quantile(of_1000).map_or(Value::Null, Value::from);
        }
    }
    all
}

/// The waits in a report of the agent's; empty where an older one does not tell.
pub fn told(value: &Value) -> Waits {
    from_json(value).unwrap_or_default()
}

/// Puts counts and quantiles into a report of the agent's.
pub fn complete_report(report: &mut Value) {
    report[WAITS] = complete(&told(&report[WAITS]));
    let programs = by_program(report);
    if programs.is_empty() {
        return;
    }
    report[WAITS_BY_PROGRAM] =
        programs.iter().map(|(name, waits)| (name.clone(), complete(waits))).collect();
}

fn by_program(report: &Value) -> BTreeMap<String, Waits> {
    let programs = report[WAITS_BY_PROGRAM].as_object().into_iter().flatten();
    programs.map(|(name, value)| (name.clone(), told(value))).collect()
}

/// The waits in a report, a row for each program and end of a wait; empty where nothing has waited.
#[must_use]
pub fn table(report: &Value) -> String {
    let mut table = Table::new(
        &["Waits of", "Ended by", "Count", "p50", "p99", "p99.9"],
        &[false, false, true, true, true, true],
    );
    let mut is_empty = true;
    let mut programs: Vec<_> = by_program(report).into_iter().collect();
    let of_all = ("all programs".to_owned(), told(&report[WAITS]));
    // Of one run only those that live are told apart.
    if programs.len() != 1 || programs[0].1 != of_all.1 {
        programs.insert(0, of_all);
    }
    for (name, waits) in &programs {
        for part in Part::ALL {
            let histogram = waits.of(part);
            if histogram.count() > 0 {
                let ended_by = heading(part).to_owned();
                let mut row = vec![name.clone(), ended_by, human_count(histogram.count())];
                row.extend(QUANTILES.map(|(of_1000, _)| quantile(histogram, of_1000)));
                table.row(row);
                is_empty = false;
            }
        }
    }
    if is_empty { String::new() } else { table.render() }
}

/// What ended a wait, for people.
const fn heading(part: Part) -> &'static str {
    match part {
        Part::Spun => "spin",
        Part::GaveWay => "giving way",
        Part::Slept => "wake-up",
        Part::WakeUp => "(the wake-up alone)",
    }
}

/// A quantile; `-` where nothing has waited.
#[must_use]
pub fn quantile(histogram: &Histogram, of_1000: u16) -> String {
    histogram.quantile(of_1000).map_or_else(|| "-".to_owned(), human_nanos)
}

/// A time with a unit, three digits at the most.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "shown with three digits")]
pub fn human_nanos(nanos: u64) -> String {
    const UNITS: [&str; 4] = ["ns", "µs", "ms", "s"];
    let (mut n, mut unit) = (nanos as f64, 0);
    // What would be shown as 1000 of one is shown as 1 of the next.
    while n >= 999.5 && unit + 1 < UNITS.len() {
        n /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && n < 9.95);
    format!("{n:.digits$}{}", UNITS[unit])
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;
    use shunt_wire::waits::bucket;

    use super::*;

    /// So many waits that slept, half of them for 10 µs, and the others for 1 ms; wake-ups took 5 µs.
    pub fn slept(n: u64) -> Waits {
        let mut waits = Waits::default();
        for (part, nanos) in
            [(Part::Slept, 10_000), (Part::Slept, 1_000_000), (Part::WakeUp, 5_000)]
        {
            let histogram = waits.of_mut(part);
            histogram.counts[bucket(nanos)] += n / 2;
            histogram.sum += n / 2 * nanos;
        }
        waits
    }

    #[test]
    fn quantiles_come_with_the_buckets_and_do_not_matter_when_they_are_read() {
        let times = WaitTimes(slept(200));
        let json = serde_json::to_value(times).unwrap();
        let of = &json["slept"];
        assert_eq!((&of["count"], &of["sum_ns"]), (&200.into(), &101_000_000.into()));
        assert!((8_000..=10_240).contains(&of["p50_ns"].as_u64().unwrap()), "{of}");
        assert!((900_000..=1_048_576).contains(&of["p99_ns"].as_u64().unwrap()), "{of}");
        assert_eq!((&json["spun"]["count"], &json["spun"]["p50_ns"]), (&0.into(), &Value::Null));
        assert_eq!(serde_json::from_value::<WaitTimes>(json).unwrap(), times);
        assert!(serde_json::from_value::<WaitTimes>(json!(7)).is_err());
    }

    fn report(programs: &[(&str, Waits)]) -> Value {
        let mut all = Waits::default();
        programs.iter().for_each(|(_, waits)| all.add(waits));
        let by_program: Value =
            programs.iter().map(|(name, waits)| ((*name).to_owned(), to_json(waits))).collect();
        json!({ WAITS: to_json(&all), WAITS_BY_PROGRAM: by_program })
    }

    #[test]
    fn a_table_of_what_has_waited() {
        assert_eq!(table(&json!({})), "", "an older agent");
        assert_eq!(table(&report(&[])), "");
        let one = table(&report(&[("redis", slept(200))]));
        let expected = "\
            Waits of  Ended by             Count     p50    p99  p99.9\n\
            redis     wake-up                200    10µs  1.0ms  1.0ms\n\
            redis     (the wake-up alone)    100  4.6µs  5.1µs  5.1µs\n";
        let words = |text: &str| -> Vec<Vec<String>> {
            text.lines().map(|l| l.split_whitespace().map(str::to_owned).collect()).collect()
        };
        assert_eq!(words(&one), words(expected), "{one}");
        let two = table(&report(&[("redis", slept(2)), ("nginx", slept(4))]));
        let names: Vec<_> = two.lines().skip(1).map(|l| l.split("  ").next().unwrap()).collect();
        assert_eq!(names, ["all programs", "all programs", "nginx", "nginx", "redis", "redis"]);
    }

    #[test]
    fn a_report_is_completed() {
        let mut report = report(&[("redis", slept(2))]);
        complete_report(&mut report);
        assert_eq!(report[WAITS]["slept"]["count"], 2);
        assert_eq!(report[WAITS_BY_PROGRAM]["redis"], report[WAITS]);
        let mut older = json!({});
        complete_report(&mut older);
        assert_eq!(older[WAITS]["wake_up"]["count"], 0);
    }

    #[test]
    fn times_have_three_digits_at_the_most() {
        for (nanos, text) in [
            (0, "0ns"),
            (999, "999ns"),
            (1000, "1.0µs"),
            (9_949, "9.9µs"),
            (12_345, "12µs"),
            (999_600, "1.0ms"),
            (8_589_934_592, "8.6s"),
            (3_600_000_000_000, "3600s"),
        ] {
            assert_eq!(human_nanos(nanos), text);
        }
    }
}
