//! The report as one HTML file: no script, no font, no picture from elsewhere; light or dark as the
//! reader's system is, light on paper.

pub(super) mod chart;
mod heat;
pub(super) mod text;

use std::fmt::Write;

use super::judged::judged;
use super::table::{cost_units, figure, maybe, short};
use super::{Report, ResultReport, RowReport, Status};
use crate::contender::Contender;
use crate::stats::Quantile;
use crate::targets::Verdict;
use crate::workload::Per;
use chart::{Curve, Dot, DotRow, Lines};
use text::escape;

const STYLE: &str = include_str!("style.css");

/// The file.
#[must_use]
pub fn page(report: &Report) -> String {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>shunt bench, {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
        escape(&report.date)
    );
    heading(report, &mut html);
    overview(report, &mut html);
    targets(report, &mut html);
    limits(report, &mut html);
    heat::section(&report.rows, &mut html);
    curves(report, &mut html);
    distributions(report, &mut html);
    rows(report, &mut html);
    method(report, &mut html);
    html.push_str("</body>\n</html>\n");
    html
}

fn heading(report: &Report, html: &mut String) {
    let m = &report.machine;
    let programs: Vec<_> =
        m.programs.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let _ = write!(
        html,
        "<h1>Shunt beside kernel TCP</h1>\n\
         <p class=\"faint\">shunt {} on {} with {} cores and {:.0} GiB, Linux {}, {} ({} for TCP); {}. \
         {} rounds of {} s each, interleaved, {}.</p>\n",
        escape(&report.shunt),
        escape(&m.cpu),
        m.cores,
        m.memory as f64 / f64::from(1 << 30),
        escape(&m.kernel),
        escape(&m.system),
        escape(&m.congestion_control),
        escape(&programs.join(", ")),
        report.rounds,
        report.seconds,
        escape(&report.date)
    );
    if report.quick {
        html.push_str(
            "<p><span class=\"mark\">quick run</span> Few rows, few and short rounds: for a look, not \
             for comparison.</p>\n",
        );
    }
    if m.busy > 0.1 {
        let _ = writeln!(
            html,
            "<p><span class=\"mark\">busy machine</span> Other programs used {:.0} % of the processors \
             when the run began.</p>",
            m.busy * 100.0
        );
    }
    html.push_str("<nav>");
    let has_cells = !judged(&report.rows).is_empty();
    let has_curves = !curve_names(report).is_empty();
    for (id, title) in [
        ("overview", "Overview"),
        ("targets", "Targets"),
        ("limits", "What the machine allows"),
        ("shapes", "Shapes of servers"),
        ("curves", "As the work grows"),
        ("latency", "Latency"),
        ("rows", "All rows"),
        ("method", "How it was measured"),
    ] {
        if id == "shapes" && !has_cells || id == "curves" && !has_curves {
            continue;
        }
        let _ = write!(html, "<a href=\"#{id}\">{title}</a>");
    }
    html.push_str("</nav>\n");
}

/// The contenders that have figures in the run.
fn present(report: &Report) -> Vec<Contender> {
    let has = |c: &Contender| report.rows.iter().any(|row| row.median(*c).is_some());
    Contender::ALL.into_iter().filter(has).collect()
}

fn legend(contenders: &[Contender], html: &mut String) {
    html.push_str("<div class=\"legend\">");
    for contender in contenders {
        let (class, title) = (contender.name(), contender.title());
        let _ = write!(html, "<span><i class=\"key {class}\"></i>{title}</span>");
    }
    html.push_str("</div>\n");
}

/// Most rows of an overview in which all have a place.
const OVERVIEW: usize = 30;

/// Rows of a curve stand for each other; these stand for the curves.
fn is_typical(row: &RowReport) -> bool {
    const OF_CURVES: [&str; 25] = [
        "ipc.1",
        "ipc.100",
        "ipc.4096",
        "ipc.64000",
        "ipc.1048576",
        "pairs.4",
        "pairs.64",
        "nginx.612.w1.c1",
        "nginx.612.w1.c50",
        "nginx.612.w1.c400",
        "nginx.612.w2.c100",
        "nginx.1M.w1.c50",
        "nginx.1M.w2.c100",
        "open.10000.10",
        "open.10000.all",
        "nvme.granted.write.4096",
        "nvme.granted.write.65536",
        "nvme.granted.read.65536",
        "nginx.stock.w1.c8",
        "redis.get.c1",
        "postgres.simple.c8",
        "haproxy.c8",
        "node.c8",
        "java.threads.c32",
        "memcached.c32",
    ];
    row.point.is_none() && row.cell.is_none() || OF_CURVES.contains(&row.id.as_str())
}

fn overview(report: &Report, html: &mut String) {
    html.push_str(
        "<h2 id=\"overview\">Overview</h2>\n<p>How many times better than kernel TCP in the same run: \
         higher rate, or lower time. To the right of the dashed line is better than TCP; a red bar is \
         the limit of the machine that is next to the row, which it passes where it does without: a spin \
         sleeps less, two programs on one core copy within its cache. The axis is logarithmic. Of a long run, \
         some rows of each curve stand for it.</p>\n",
    );
    let mut others = present(report);
    others.retain(|c| *c != Contender::Tcp);
    legend(&others, html);
    let all = report.rows.len() <= OVERVIEW;
    let rows: Vec<_> = report
        .rows
        .iter()
        .filter(|row| all || is_typical(row))
        .filter_map(|row| {
            let gain =
                |c: &Contender| Some((c.name(), c.title().to_owned(), row.result(*c)?.gain?));
            let dots: Vec<_> = others.iter().filter_map(gain).collect();
            let tcp = row.kernel_median();
            let limit = row.limit.as_ref().and_then(|limit| row.gain(limit.value, tcp?));
            (!dots.is_empty()).then(|| DotRow { name: row.title.clone(), dots, limit })
        })
        .collect();
    let svg = chart::dots("Gain over kernel TCP by row", "times better than kernel TCP", &rows);
    let _ = writeln!(html, "<figure class=\"whole\">{svg}</figure>");
}

fn targets(report: &Report, html: &mut String) {
    html.push_str(
        "<h2 id=\"targets\">Targets</h2>\n<p>What Shunt is to reach with default settings, as ratios to \
         kernel TCP in the same run. Of several rows the worst counts.</p>\n<div class=\"wide\"><table>\
         <tr><th class=\"text\">Target</th><th>at least</th><th>moonshot</th><th>reached</th>\
         <th class=\"text\">verdict</th><th class=\"text\">row that decided</th></tr>\n",
    );
    for target in &report.targets {
        let sign = if target.at_most { "≤ " } else { "" };
        let class = match target.verdict {
            Verdict::Moonshot | Verdict::Reached => "good",
            Verdict::Missed => "bad",
            Verdict::NotMeasured => "faint",
        };
        let or_dash = |n: Option<f64>| n.map_or_else(|| "–".into(), short);
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{sign}{}</td><td>{}</td><td><b>{}</b></td>\
             <td class=\"text {class}\">{}</td><td class=\"text\"><code>{}</code></td></tr>",
            escape(&target.title),
            short(target.goal),
            or_dash(target.moonshot),
            or_dash(target.value),
            target.verdict.title(),
            escape(target.row.as_deref().unwrap_or("–"))
        );
    }
    html.push_str("</table></div>\n");
}

fn limits(report: &Report, html: &mut String) {
    html.push_str(
        "<h2 id=\"limits\">What the machine allows</h2>\n<p>Measured at the beginning of the same run. \
         Each bounds what does as it says; a row that takes another way can pass it.</p>\n<div class=\"wide\"><table>\
         <tr><th class=\"text\">Limit</th><th>figure</th><th>spread</th><th class=\"text\">what it \
         means</th></tr>\n",
    );
    for limit in &report.limits {
        let value = limit.value.map_or_else(|| "–".into(), |value| figure(value.median));
        let spread = limit.value.map_or_else(String::new, |value| {
            format!("{} … {}", figure(value.min), figure(value.max))
        });
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td><b>{value}</b> {}</td><td>{spread}</td><td class=\"text faint\">{}</td></tr>",
            escape(&limit.title),
            escape(&limit.unit),
            escape(&limit.meaning)
        );
    }
    html.push_str("</table></div>\n");
}

/// The curves of the run, each of two points or more: their names, in the order of the rows.
fn curve_names(report: &Report) -> Vec<&str> {
    let (mut once, mut names) = (Vec::new(), Vec::new());
    for point in report.rows.iter().filter_map(|row| row.point.as_ref()) {
        let name = point.curve.as_str();
        if !once.contains(&name) {
            once.push(name);
        } else if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// What of a result is drawn, at this place.
type Pick = fn(&ResultReport, f64) -> Option<Dot>;

fn curves(report: &Report, html: &mut String) {
    if curve_names(report).is_empty() {
        return;
    }
    html.push_str(
        "<h2 id=\"curves\">As the work grows</h2>\n<p>Each curve should be flat, or its slope the work's \
         own (a message of twice the size takes twice the copying). Bars show the spread over the \
         rounds. Processor time is that of all programs, servers and clients.</p>\n",
    );
    let contenders = present(report);
    legend(&contenders, html);
    html.push_str("<div class=\"charts\">\n");
    for name in curve_names(report) {
        let on = |row: &&RowReport| row.point.as_ref().is_some_and(|point| point.curve == name);
        let rows: Vec<_> = report.rows.iter().filter(on).collect();
        let Some(first) = rows.first() else { continue };
        let [cpu_unit, ..] = cost_units(first.per);
        let axis = first.point.as_ref().map_or("", |point| point.axis.as_str());
        let value: Pick =
            |r, x| r.value.map(|v| Dot { x, y: v.median, band: Some((v.min, v.max)) });
        let cpu: Pick = |r, x| r.cpu.map(|y| Dot { x, y, band: None });
        let latency: Pick = |r, x| {
            let median = r.latency.iter().find(|point| point.q == 0.5)?;
            Some(Dot { x, y: median.us, band: None })
        };
        for (what, unit, pick) in [
            ("", first.unit.as_str(), value),
            (", median latency", "µs", latency),
            (", processor time", cpu_unit, cpu),
        ] {
            let curves = contenders.iter().map(|c| {
                let dots =
                    rows.iter().filter_map(|row| pick(row.result(*c)?, row.point.as_ref()?.x));
                Curve { class: c.name(), name: c.title().into(), dots: dots.collect() }
            });
            let curves = curves.filter(|curve| !curve.dots.is_empty()).collect();
            let title = format!("{name}{what}");
            let lines =
                Lines { title: &title, x_title: axis, y_title: unit, curves, x_ticks: vec![] };
            draw(&lines, html);
        }
    }
    html.push_str("</div>\n");
}

fn draw(lines: &Lines<'_>, html: &mut String) {
    let svg = lines.svg();
    if !svg.is_empty() {
        let _ = writeln!(
            html,
            "<figure><figcaption>{} <span>({})</span></figcaption>{svg}</figure>",
            escape(lines.title),
            escape(lines.y_title)
        );
    }
}

/// Where a part of all lies on the axis of a distribution: each step has ten times fewer above it.
fn rarity(q: f64) -> f64 {
    1.0 / (1.0 - q.min(0.99995))
}

fn distributions(report: &Report, html: &mut String) {
    const MARKS: [(f64, &str); 5] =
        [(0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %")];
    html.push_str(
        "<h2 id=\"latency\">Latency</h2>\n<p>How long requests took: for each part of them, the time that \
         it did not exceed. The right ends are the slowest of many: there the scheduler of the machine \
         shows, for all contenders. Medians over the rounds.</p>\n",
    );
    let contenders = present(report);
    legend(&contenders, html);
    html.push_str("<div class=\"charts\">\n");
    for row in report.rows.iter().filter(|row| has_distribution(row)) {
        let curves = contenders.iter().filter_map(|c| {
            let dots: Vec<_> = row
                .result(*c)?
                .latency
                .iter()
                .filter(|point| (0.25..1.0).contains(&point.q))
                .map(|Quantile { q, us }| Dot { x: rarity(*q), y: *us, band: None })
                .collect();
            let drawn = Curve { class: c.name(), name: c.title().into(), dots };
            (!drawn.dots.is_empty()).then_some(drawn)
        });
        let lines = Lines {
            title: &row.title,
            x_title: "part of all requests",
            y_title: "µs",
            curves: curves.collect(),
            x_ticks: MARKS.map(|(q, name)| (rarity(q), name.to_owned())).to_vec(),
        };
        draw(&lines, html);
    }
    html.push_str("</div>\n");
}

fn has_distribution(row: &RowReport) -> bool {
    is_typical(row) && row.results.iter().any(|result| result.latency.len() > 2)
}

fn rows(report: &Report, html: &mut String) {
    html.push_str("<h2 id=\"rows\">All rows</h2>\n");
    let mut family = "";
    for row in &report.rows {
        if row.family != family {
            family = &row.family;
            let _ = writeln!(
                html,
                "<h3>{}</h3>\n<p class=\"faint\">{}</p>",
                escape(&row.family),
                escape(&row.meaning)
            );
        }
        row_table(row, html);
    }
}

fn row_table(row: &RowReport, html: &mut String) {
    let [cpu, switches, syscalls] = cost_units(row.per);
    let _ = writeln!(
        html,
        "<div class=\"wide\"><table><caption>{} <code>{}</code></caption>\
         <tr><th class=\"text\"></th><th>{}</th><th>gain</th><th>spread</th><th>{cpu}</th>\
         <th>{switches}</th><th>{syscalls}</th><th>median µs</th><th>99 % µs</th><th>99.9 % µs</th></tr>",
        escape(&row.title),
        escape(&row.id),
        escape(&row.unit)
    );
    for result in &row.results {
        let (class, title) = (result.contender.name(), result.contender.title());
        let _ = write!(html, "<tr><td><i class=\"key {class}\"></i>{title}</td>");
        let why = escape(result.why.as_deref().unwrap_or(""));
        match (result.status, result.value) {
            (Status::Measured, Some(value)) => {
                let gain =
                    result.gain.map_or_else(|| "–".into(), |gain| format!("{}×", short(gain)));
                let at = |q: f64| maybe(result.latency.iter().find(|p| p.q == q).map(|p| p.us));
                let _ = writeln!(
                    html,
                    "<td><b>{}</b></td><td>{gain}</td><td>{} … {}</td><td>{}</td><td>{}</td><td>{}</td>\
                     <td>{}</td><td>{}</td><td>{}</td></tr>",
                    figure(value.median),
                    figure(value.min),
                    figure(value.max),
                    maybe(result.cpu),
                    maybe(result.switches),
                    maybe(result.syscalls),
                    at(0.5),
                    at(0.99),
                    at(0.999)
                );
            }
            (Status::Failed, _) => {
                let _ =
                    writeln!(html, "<td class=\"text bad\" colspan=\"9\">failed: {why}</td></tr>");
            }
            _ => {
                let _ = writeln!(
                    html,
                    "<td class=\"text faint\" colspan=\"9\">skipped: {why}</td></tr>"
                );
            }
        }
    }
    if let Some(limit) = &row.limit {
        let _ = writeln!(
            html,
            "<tr class=\"faint\"><td>limit: {}</td><td>{}</td><td colspan=\"8\"></td></tr>",
            escape(&limit.title),
            figure(limit.value)
        );
    }
    html.push_str("</table></div>\n");
}

fn method(report: &Report, html: &mut String) {
    let per = |per| cost_units(per).join(", ");
    let _ = write!(
        html,
        "<h2 id=\"method\">How it was measured</h2>\n\
         <p>Each row runs {} times for each contender, the contenders in turn, with servers started \
         anew each time; a figure is the median, the spread its least and greatest. A contender under \
         Shunt counts only if the counters of its own agent show that its connections were shunted; the \
         sockmap, only if connections were entered in it. Client and server share the machine, and are \
         bound to no core.</p>\n\
         <p>Costs ({} or {}) are those of all programs of the pair, the agent included, while the load \
         runs: processor time and context switches as the kernel counts them per thread and reports \
         them of ended children, so for programs of others (wrk, sockperf, iperf3, redis-benchmark, pgbench) with \
         their start; system calls by a tracepoint, in a round of its own whose figures are not used \
         otherwise. A dash means that there is no such figure.</p>\n",
        report.rounds,
        per(Per::Request),
        per(Per::Gigabyte)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typical_rows_exist() {
        let all = crate::workload::all();
        let curves = all.iter().filter(|row| row.point.is_some()).map(RowReport::of);
        assert_eq!(curves.filter(is_typical).count(), 25);
    }

    #[test]
    fn a_run_without_curves_has_no_section_for_them() {
        let mut report = crate::report::tests::sample();
        let has_section = |report: &Report| page(report).contains("As the work grows");
        assert!(has_section(&report));
        report.rows.retain(|row| row.point.is_none());
        assert!(!has_section(&report));
    }

    #[test]
    fn the_file_stands_alone() {
        let report = crate::report::tests::sample();
        let html = page(&report);
        for elsewhere in ["http:", "https:", "<script", "<link", "<img", "@import", "url("] {
            assert!(!html.contains(elsewhere), "{elsewhere}");
        }
        assert!(html.contains("<svg") && html.contains("@media print"));
        assert!(html.contains("prefers-color-scheme: dark"));
        for row in &report.rows {
            assert!(html.contains(&escape(&row.title)), "{}", row.id);
        }
        for tag in ["table", "figure", "svg", "div", "g"] {
            let opened = html.matches(&format!("<{tag}>")).count()
                + html.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }
}
