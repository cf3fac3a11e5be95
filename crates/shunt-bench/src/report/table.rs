//! The rendering for the terminal.

use std::fmt::Write;

use super::{Report, ResultReport, RowReport, Status};
use crate::limits::Limit;
use crate::targets::{TargetReport, Verdict};
use crate::workload::Per;

/// A number for people: three digits at least, and thousands in groups.
#[must_use]
pub fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    if value.abs() < 10.0 {
        return format!("{value:.3}");
    }
    if value.abs() < 100.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number, or nothing.
#[must_use]
pub fn maybe(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), figure)
}

/// What was measured on, in a few lines.
#[must_use]
pub fn heading(report: &Report) -> String {
    let m = &report.machine;
    let programs: Vec<_> = m.programs.iter().map(|(name, v)| format!("{name} {v}")).collect();
    let mut text = format!(
        "shunt bench {}, {}\n{}, {} cores, {:.1} GiB; Linux {}, {}; {}\n\
         {} round{} of {} s, interleaved; medians\n",
        report.shunt,
        report.date,
        m.cpu,
        m.cores,
        m.memory as f64 / f64::from(1 << 30),
        m.kernel,
        m.system,
        programs.join(", "),
        report.rounds,
        if report.rounds == 1 { "" } else { "s" },
        report.seconds,
    );
    if m.busy > 0.1 {
        let _ = writeln!(
            text,
            "BUSY MACHINE: other programs used {:.0} % of the processors just before the run",
            m.busy * 100.0
        );
    }
    if report.quick {
        text.push_str(
            "QUICK RUN: few rows, few and short rounds; for a look, not for comparison\n",
        );
    }
    text
}

/// The headings of the columns of costs.
#[must_use]
pub const fn cost_units(per: Per) -> [&'static str; 3] {
    match per {
        Per::Request => ["CPU µs/req", "switches/req", "syscalls/req"],
        Per::Gigabyte => ["CPU s/GB", "switches/MB", "syscalls/MB"],
    }
}

/// The width of the column of contenders.
const NAMES: usize = 30;

/// One row, a line per contender.
#[must_use]
pub fn row(row: &RowReport) -> String {
    let [cpu, switches, syscalls] = cost_units(row.per);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}  [{}]\n{:NAMES$} {:>12} {:>8}  {:^23} {cpu:>11} {switches:>13} {syscalls:>13}",
        row.title, row.id, "", row.unit, "gain", "spread"
    );
    for result in &row.results {
        let _ = writeln!(text, "{}", line(result));
    }
    if let Some(limit) = &row.limit {
        let value = figure(limit.value);
        let _ = writeln!(text, "{:<NAMES$} {value:>12}  {}", "  limit", limit.title);
    }
    text
}

fn line(result: &ResultReport) -> String {
    let name = format!("  {}", result.contender.title());
    let why = result.why.as_deref().unwrap_or("");
    match (result.status, result.value) {
        (Status::Measured, Some(value)) => {
            let gain = result.gain.map_or_else(|| "–".into(), |gain| format!("{gain:.2}×"));
            let spread = match result.samples.len() {
                0 | 1 => "one round".to_owned(),
                _ => format!("{} … {}", figure(value.min), figure(value.max)),
            };
            let part = match (result.ends_shunted, result.ends) {
                (Some(shunted), Some(ends)) if shunted < ends => {
                    format!("  ({shunted} of {ends} ends shunted)")
                }
                _ => String::new(),
            };
            let [cpu, switches, calls] = [result.cpu, result.switches, result.syscalls].map(maybe);
            format!(
                "{name:<NAMES$} {:>12} {gain:>8}  {spread:^23} {cpu:>11} {switches:>13} {calls:>13}{part}",
                figure(value.median)
            )
        }
        (Status::Failed, _) => format!("{name:<NAMES$} FAILED: {why}"),
        _ => format!("{name:<NAMES$} skipped: {why}"),
    }
}

/// What the machine allows.
#[must_use]
pub fn limits(limits: &[Limit]) -> String {
    let mut text = String::from("What this machine allows\n");
    for limit in limits {
        let value = maybe(limit.value.map(|value| value.median));
        let _ = writeln!(text, "{:<52} {value:>12} {}", format!("  {}", limit.title), limit.unit);
    }
    text
}

/// The targets that could be judged.
#[must_use]
pub fn targets(targets: &[TargetReport]) -> String {
    let mut text = format!(
        "{:<58} {:>9} {:>9} {:>9}\n",
        "Targets (ratios to kernel TCP)", "goal", "moonshot", "value"
    );
    for target in targets.iter().filter(|t| t.verdict != Verdict::NotMeasured) {
        let sign = if target.at_most { "≤" } else { "≥" };
        let row = target.row.as_deref().unwrap_or("");
        let goal = format!("{sign} {}", short(target.goal));
        let [moonshot, value] =
            [target.moonshot, target.value].map(|n| n.map_or_else(String::new, short));
        let (name, verdict) = (format!("  {}", target.title), target.verdict.title());
        let _ = writeln!(text, "{name:<58} {goal:>9} {moonshot:>9} {value:>9}  {verdict} ({row})");
    }
    text
}

/// A ratio, or a number of bytes, without digits that say nothing.
#[must_use]
pub fn short(value: f64) -> String {
    if value.abs() >= 100.0 {
        return figure(value);
    }
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(figure(3.2), "3.200");
        assert_eq!(figure(42.0), "42.00");
        assert_eq!(figure(226_754.4), "226,754");
        assert_eq!(figure(-1_226_754.0), "-1,226,754");
        assert_eq!(figure(f64::NAN), "–");
        assert_eq!(maybe(None), "–");
        assert_eq!([0.95, 2.0, 0.5, 8192.0].map(short), ["0.95", "2", "0.5", "8,192"]);
    }
}
