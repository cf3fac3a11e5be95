//! The table below the chart, with its conditions.

use std::fmt::Write;

use super::{BEGIN, END, Shown, Unfit, conditions, shown, times};
use crate::contender::Contender;
use crate::report::table::{figure, short};
use crate::report::{Report, ResultReport};
use crate::stats::Spread;

/// Chart, table and conditions, from mark to mark, of reports and their links, the first of which has the figures; the
/// others show how far gains spread. `chart` is the link to the picture.
///
/// # Errors
/// The first report lacks a row without which the figures would flatter.
pub fn markdown(reports: &[(String, &Report)], chart: &str) -> Result<String, Unfit> {
    let Some(((json, report), others)) = reports.split_first() else { return Err(Unfit::NoReport) };
    let names: Vec<_> = reports.iter().map(|(name, _)| &**name).collect();
    let (title, line) = match others.len() {
        0 => (String::new(), ""),
        n => (format!(" {} runs |", n + 1), "---:|"),
    };
    let mut text = format!(
        "{BEGIN}{} -->\n\
         ![How many times better than kernel TCP each load is, the least favourable first]({chart})\n\n\
         | | kernel TCP | Shunt | gain |{title} p99, µs | p99.9, µs | CPU |\n|---|---:|---:|---:|{line}---:|---:|---:|\n",
        names.join(" ")
    );
    for row in shown(report)? {
        let gain = row.gain.map_or_else(|| "–".into(), times);
        let spread =
            if others.is_empty() { String::new() } else { format!(" {} |", range(&row, others)) };
        let (tail, far) = (tail(&row, 0.99), tail(&row, 0.999));
        let _ = writeln!(
            text,
            "| {} | {} | {} {} | {gain} |{spread} {tail} | {far} | {} |",
            row.name,
            figure(row.tcp),
            figure(row.shunt),
            row.row.unit,
            processor(&row)
        );
    }
    let _ = writeln!(
        text,
        "\nMedians of {} rounds of {} s, taken in turn, default settings, on {}.{} *p99* and *p99.9*: the latency that one answer in 100 and \
         in 1,000 exceeds, TCP → Shunt, bold where Shunt's is worse. *CPU*: processor time of all programs for the same work, as a part of TCP's. \
         Every round: [{json}]({json}).{}",
        report.rounds,
        report.seconds,
        conditions(report),
        limits(report),
        elsewhere(others)
    );
    text.push_str(END);
    Ok(text)
}

/// The lowest and the highest gain of this run and others, as far as these have the row.
fn range(shown: &Shown<'_>, others: &[(String, &Report)]) -> String {
    let gains = others.iter().filter_map(|(_, report)| {
        let row = report.row(&shown.row.id)?;
        row.gain(row.median(Contender::Attach)?, row.kernel_median()?)
    });
    let all: Vec<_> = shown.gain.into_iter().chain(gains).collect();
    match (shown.gain, Spread::of(&all)) {
        (Some(_), Some(spread)) if all.len() > 1 => {
            format!("{} … {}", times(spread.min), times(spread.max))
        }
        _ => "–".into(),
    }
}

/// What the other runs were.
fn elsewhere(others: &[(String, &Report)]) -> String {
    let runs = others.iter().map(|(json, report)| {
        let limit =
            |id: &str| report.limits.iter().find(|l| l.id == id)?.value.map(|value| value.median);
        let limits = match (limit("futex"), limit("ring")) {
            (Some(futex), Some(ring)) => {
                format!(" ({futex:.0} µs, {} GB/s)", short((ring / 100.0).round() / 10.0))
            }
            _ => String::new(),
        };
        format!("[{}]({json}){limits}", report.machine.cpu)
    });
    let runs: Vec<_> = runs.collect();
    if runs.is_empty() {
        String::new()
    } else {
        format!(
            " *{} runs*: the lowest and highest gain with {}.",
            runs.len() + 1,
            runs.join(" and ")
        )
    }
}

/// A quantile over both, where the load program tells it.
fn tail(shown: &Shown<'_>, q: f64) -> String {
    let of = |result: Option<&ResultReport>| {
        let latency = &result?.latency;
        latency.iter().find(|quantile| (quantile.q - q).abs() < 1e-9).map(|quantile| quantile.us)
    };
    match (of(shown.row.kernel()), of(shown.row.result(Contender::Attach))) {
        (Some(tcp), Some(shunt)) => {
            let mark = if shunt > tcp { "**" } else { "" };
            format!("{} → {mark}{}{mark}", micros(tcp), micros(shunt))
        }
        _ => "–".into(),
    }
}

/// Microseconds in two or three digits.
fn micros(us: f64) -> String {
    if us < 10.0 {
        format!("{us:.1}")
    } else {
        figure(us.round()).trim_end_matches(".00").to_owned()
    }
}

fn processor(shown: &Shown<'_>) -> String {
    let cpu = |result: Option<&ResultReport>| result.and_then(|result| result.cpu);
    match (cpu(shown.row.kernel()), cpu(shown.row.result(Contender::Attach))) {
        (Some(tcp), Some(shunt)) if tcp > 0.0 && shown.gain.is_some() => {
            format!("{:.2}", shunt / tcp)
        }
        _ => "–".into(),
    }
}

/// What decides about the ratios of a machine: what a sleep costs there, and what a copy.
fn limits(report: &Report) -> String {
    let of = |id: &str| {
        report.limits.iter().find(|limit| limit.id == id)?.value.map(|value| value.median)
    };
    match (of("futex"), of("ring")) {
        (Some(futex), Some(ring)) => format!(
            " There a sleep and wake-up, there and back, takes {futex:.0} µs, and a ring with two copies carries {} GB/s.",
            short((ring / 100.0).round() / 10.0)
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fit;
    use super::*;
    use crate::stats::Quantile;

    #[test]
    fn a_line_for_each_row_and_worse_tails_stand_out() {
        let mut report = fit();
        let row = report.rows.iter_mut().find(|row| row.id == "nginx.close.w1").unwrap();
        for (result, us) in row.results.iter_mut().zip([1_000.0, 2_000.4]) {
            result.latency = vec![Quantile { q: 0.99, us }];
            result.cpu = Some(us);
        }
        let json = "docs/bench/x.json".to_owned();
        let text = markdown(&[(json, &report)], "docs/images/x.svg").unwrap();
        assert!(text.starts_with("<!-- figures of docs/bench/x.json -->\n"), "{text}");
        assert!(text.ends_with(END));
        let line = "| nginx, a connection per request | 10,000 | 9,000 req/s | 0.90× | 1,000 → **2,000** | – | 2.00 |";
        assert!(text.contains(line), "{text}");
        assert_eq!(text.matches("\n| ").count() - 1, shown(&report).unwrap().len());
    }

    #[test]
    fn other_runs_show_how_far_gains_spread() {
        let (report, mut other) = (fit(), fit());
        other.rows.retain(|row| row.id != "nginx.612.w1.c32");
        let row = other.rows.iter_mut().find(|row| row.id == "nginx.stock.w1.c32").unwrap();
        row.results[1].value = Spread::of(&[15_000.0]);
        let reports = [("a.json".to_owned(), &report), ("b.json".to_owned(), &other)];
        let text = markdown(&reports, "x.svg").unwrap();
        assert!(text.contains("| gain | 2 runs | p99"), "{text}");
        assert!(text.contains("20,000 req/s | 2.00× | 1.50× … 2.00× |"), "{text}");
        assert!(text.contains("45,000 req/s | 4.50× | – |"), "{text}");
        assert!(
            text.contains("*2 runs*: the lowest and highest gain with [A & B <C>](b.json)."),
            "{text}"
        );
    }

    #[test]
    fn microseconds_are_short() {
        assert_eq!([0.45, 12.34, 118.6, 1_640.0].map(micros), ["0.5", "12", "119", "1,640"]);
    }
}
