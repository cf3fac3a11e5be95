//! What the rows of the family `shapes` say together: default settings beside kernel TCP and beside
//! the best of the fixed lengths of spinning.

use std::fmt::Write;

use super::judged::{FIXED_GOAL, Judged, judged};
use super::table::{figure, short};
use super::{RowReport, Status};
use crate::contender::Contender;

/// The summary; empty when there is no such row.
#[must_use]
pub fn summary(rows: &[RowReport]) -> String {
    let all = judged(rows);
    let mut text = String::new();
    let failed = rows.iter().filter(|row| row.cell.is_some()).flat_map(|row| {
        let failed = row.results.iter().filter(|result| result.status == Status::Failed);
        failed.map(move |result| (row, result))
    });
    for (row, result) in failed {
        let (who, why) = (result.contender.title(), result.why.as_deref().unwrap_or(""));
        let _ = writeln!(text, "  FAILED: {}, {who}: {why}", row.id);
    }
    if let Some(worst) = all.first() {
        let behind = all.iter().filter(|cell| cell.gain < 1.0).count();
        let _ = writeln!(
            text,
            "  {} cell{}; against kernel TCP the worst has {} ({}); {behind} below 1",
            all.len(),
            if all.len() == 1 { "" } else { "s" },
            times(worst.gain),
            worst.row.id
        );
        list(&mut text, all.iter().filter(|cell| cell.gain < 1.0));
    }
    let mut fixed: Vec<_> = all.iter().filter_map(|cell| Some((cell.fixed?, cell))).collect();
    fixed.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
    if let Some(((worst, contender), cell)) = fixed.first() {
        let behind = fixed.iter().filter(|(fixed, _)| fixed.0 < FIXED_GOAL).count();
        let _ = writeln!(
            text,
            "  against the best fixed spin the worst has {} ({}, {}); {behind} below {FIXED_GOAL}",
            times(*worst),
            cell.row.id,
            spin(*contender)
        );
        let behind = fixed.iter().filter(|(fixed, _)| fixed.0 < FIXED_GOAL);
        list(&mut text, behind.map(|(_, cell)| *cell));
    }
    let mut costs: Vec<_> = all.iter().filter_map(|cell| Some((cell.cpu?, cell))).collect();
    costs.sort_by(|a, b| b.0.total_cmp(&a.0));
    if let Some((worst, cell)) = costs.first() {
        let above = costs.iter().filter(|(cpu, _)| *cpu > 1.0);
        let _ = writeln!(
            text,
            "  of TCP's processor time the worst takes {} ({}); {} above 1",
            times(*worst),
            cell.row.id,
            above.clone().count()
        );
        list(&mut text, above.map(|(_, cell)| *cell));
    }
    for (cell, (shunted, ends)) in all.iter().filter_map(|cell| Some((cell, cell.partly()?))) {
        let _ = writeln!(text, "  {}: {shunted} of {ends} ends shunted", cell.row.id);
    }
    if text.is_empty() { text } else { format!("Shapes of servers, default settings\n{text}") }
}

fn times(ratio: f64) -> String {
    format!("{}×", short(ratio))
}

fn spin(contender: Contender) -> String {
    let name = contender.name();
    format!("--spin {}", name.strip_prefix("spin-").unwrap_or(name))
}

/// Some cells, a line each.
fn list<'c, 'r: 'c>(text: &mut String, cells: impl Iterator<Item = &'c Judged<'r>>) {
    let mut heading = Some(format!(
        "    {:<32} {:>8} {:>8} {:>8}  {:>23} {:>12}\n",
        "", "gain", "CPU", "99 %", "against the best fixed", "req/s"
    ));
    for cell in cells {
        text.push_str(&heading.take().unwrap_or_default());
        let or_dash = |ratio: Option<f64>| ratio.map_or_else(|| "–".into(), times);
        let fixed = cell.fixed.map(|(ratio, of)| format!("{} of {}", times(ratio), spin(of)));
        let _ = writeln!(
            text,
            "    {:<32} {:>8} {:>8} {:>8}  {:>23} {:>12}",
            cell.row.id,
            times(cell.gain),
            or_dash(cell.cpu),
            or_dash(cell.tail),
            fixed.unwrap_or_else(|| "–".into()),
            figure(cell.row.median(Contender::Attach).unwrap_or(f64::NAN))
        );
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::report::ResultReport;
    use crate::report::judged::against_fixed;
    use crate::stats::Quantile;
    use crate::workload;

    /// A row with rates of TCP, default settings, and two fixed lengths.
    pub fn row(id: &str, [tcp, attach, never, spin]: [f64; 4]) -> RowReport {
        let all = workload::all();
        let mut row = RowReport::of(all.iter().find(|row| row.id == id).unwrap());
        for (contender, rate) in [
            (Contender::Tcp, tcp),
            (Contender::Attach, attach),
            (Contender::Never, never),
            (Contender::Spin50, spin),
        ] {
            row.results.push(ResultReport {
                cpu: Some(1e7 / rate),
                latency: vec![Quantile { q: 0.99, us: 2e6 / rate }],
                ends: Some(32),
                ends_shunted: Some(if contender == Contender::Attach && rate < tcp {
                    30
                } else {
                    32
                }),
                ..ResultReport::measured(contender, &[rate])
            });
        }
        row.compare();
        row
    }

    #[test]
    fn a_cell_without_any_answer_is_the_worst() {
        let mut starved = row("shapes.poll.8", [100.0, 1.0, 50.0, 40.0]);
        starved.results[1] = ResultReport::measured(Contender::Attach, &[0.0]);
        starved.compare();
        let rows = [row("shapes.edge.8", [100.0, 1.0, 100.0, 100.0]), starved];
        let text = summary(&rows);
        assert!(text.contains("the worst has 0× (shapes.poll.8); 2 below 1"), "{text}");
        assert!(
            text.contains("against the best fixed spin the worst has 0× (shapes.poll.8"),
            "{text}"
        );
        // A fixed length that answers nothing is none to be compared with.
        let cell = row("shapes.edge.8", [100.0, 90.0, 0.0, 45.0]);
        assert_eq!(against_fixed(&cell), Some((2.0, Contender::Spin50)));
    }

    #[test]
    fn the_least_favourable_come_first() {
        let mut broken = row("shapes.edge.8", [100.0; 4]);
        let failure = Failure::Failed("none of 16 connection ends was shunted".into());
        broken.results[1] = ResultReport::without(Contender::Attach, &failure);
        let rows = [
            row("shapes.poll.8", [100_000.0, 150_000.0, 90_000.0, 200_000.0]),
            row("shapes.thread-poll.100", [80_000.0, 20_000.0, 19_000.0, 18_000.0]),
            row("ipc.100", [100.0, 1.0, 1.0, 1.0]),
            row("shapes.process.8.1c", [100_000.0, 90_000.0, 50_000.0, 45_000.0]),
            broken,
        ];
        let text = "\
Shapes of servers, default settings
  FAILED: shapes.edge.8, Shunt attach: none of 16 connection ends was shunted
  3 cells; against kernel TCP the worst has 0.25× (shapes.thread-poll.100); 2 below 1
                                         gain      CPU     99 %   against the best fixed        req/s
    shapes.thread-poll.100              0.25×       4×       4×    1.05× of --spin never       20,000
    shapes.process.8.1c                  0.9×    1.11×    1.11×     1.8× of --spin never       90,000
  against the best fixed spin the worst has 0.75× (shapes.poll.8, --spin 50); 1 below 0.9
                                         gain      CPU     99 %   against the best fixed        req/s
    shapes.poll.8                        1.5×    0.67×    0.67×       0.75× of --spin 50      150,000
  of TCP's processor time the worst takes 4× (shapes.thread-poll.100); 2 above 1
                                         gain      CPU     99 %   against the best fixed        req/s
    shapes.thread-poll.100              0.25×       4×       4×    1.05× of --spin never       20,000
    shapes.process.8.1c                  0.9×    1.11×    1.11×     1.8× of --spin never       90,000
  shapes.thread-poll.100: 30 of 32 ends shunted
  shapes.process.8.1c: 30 of 32 ends shunted
";
        assert_eq!(summary(&rows), text);
        assert_eq!(summary(&rows[2..3]), "");
    }
}
