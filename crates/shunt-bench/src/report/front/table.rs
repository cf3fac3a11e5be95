//! The table below the chart, with its conditions.

use std::fmt::Write;

use super::{BEGIN, END, Shown, Unfit, conditions, shown, times};
use crate::contender::Contender;
use crate::report::Report;
use crate::report::table::{figure, short};

/// Chart, table and conditions, from mark to mark. `json` and `chart` are the links to the report and to the picture.
///
/// # Errors
/// The report lacks a row without which the figures would flatter.
pub fn markdown(report: &Report, json: &str, chart: &str) -> Result<String, Unfit> {
    let mut text = format!(
        "{BEGIN}{json} -->\n\
         ![How many times better than kernel TCP each load is, the least favourable first]({chart})\n\n\
         | | kernel TCP | Shunt | gain | p99, µs | p99.9, µs | CPU |\n|---|---:|---:|---:|---:|---:|---:|\n"
    );
    for row in shown(report)? {
        let gain = row.gain.map_or_else(|| "–".into(), times);
        let (tail, far) = (tail(&row, 0.99), tail(&row, 0.999));
        let _ = writeln!(
            text,
            "| {} | {} | {} {} | {gain} | {tail} | {far} | {} |",
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
         Every round: [{json}]({json}).",
        report.rounds,
        report.seconds,
        conditions(report),
        limits(report)
    );
    text.push_str(END);
    Ok(text)
}

/// A quantile over both, where the load program tells it.
fn tail(shown: &Shown<'_>, q: f64) -> String {
    let of = |contender| {
        let latency = &shown.row.result(contender)?.latency;
        latency.iter().find(|quantile| (quantile.q - q).abs() < 1e-9).map(|quantile| quantile.us)
    };
    match (of(Contender::Tcp), of(Contender::Attach)) {
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
    let cpu = |contender| shown.row.result(contender).and_then(|result| result.cpu);
    match (cpu(Contender::Tcp), cpu(Contender::Attach)) {
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
        let text = markdown(&report, "docs/bench/x.json", "docs/images/x.svg").unwrap();
        assert!(text.starts_with("<!-- figures of docs/bench/x.json -->\n"), "{text}");
        assert!(text.ends_with(END));
        let line = "| nginx, a connection per request | 10,000 | 9,000 req/s | 0.90× | 1,000 → **2,000** | – | 2.00 |";
        assert!(text.contains(line), "{text}");
        assert_eq!(text.matches("\n| ").count() - 1, shown(&report).unwrap().len());
    }

    #[test]
    fn microseconds_are_short() {
        assert_eq!([0.45, 12.34, 118.6, 1_640.0].map(micros), ["0.5", "12", "119", "1,640"]);
    }
}
