//! Heat maps of the family `shapes`: a map for each number of cores and each amount of work, in
//! which a line is a shape, and a column a number of connections.

use std::fmt::Write;

use super::text::escape;
use crate::contender::Contender;
use crate::load::shapes::Shape;
use crate::report::RowReport;
use crate::report::judged::{Judged, judged};
use crate::report::table::{maybe, short};
use crate::workload::shapes::{CONNECTIONS, CORES, WORK};

/// What a map shows.
struct Measure {
    title: &'static str,
    ratio: fn(&Judged<'_>) -> Option<f64>,
    /// True where less is better.
    at_most: bool,
}

const MEASURES: [Measure; 4] = [
    Measure {
        title: "times better than kernel TCP",
        ratio: |cell| Some(cell.gain),
        at_most: false,
    },
    Measure {
        title: "times better than the best fixed spin",
        ratio: |cell| Some(cell.fixed?.0),
        at_most: false,
    },
    Measure {
        title: "part of TCP's processor time per request",
        ratio: |cell| cell.cpu,
        at_most: true,
    },
    Measure { title: "part of TCP's 99 % latency", ratio: |cell| cell.tail, at_most: true },
];

/// The colours, from bad to good, and up to which ratio each goes; level is within 5 %.
const STEPS: [(f64, &str); 8] = [
    (0.25, "h0"),
    (0.5, "h1"),
    (0.8, "h2"),
    (0.95, "h3"),
    (1.05, "h4"),
    (1.5, "h5"),
    (3.0, "h6"),
    (10.0, "h7"),
];

/// The colour of a ratio of which more is better.
fn heat(ratio: f64) -> &'static str {
    STEPS.iter().find(|(below, _)| ratio < *below).map_or("h8", |(_, class)| class)
}

/// The section; nothing when the run has no such row.
pub fn section(rows: &[RowReport], html: &mut String) {
    let cells = judged(rows);
    if cells.is_empty() {
        return;
    }
    html.push_str(
        "<h2 id=\"shapes\">Shapes of servers</h2>\n<p>Default settings in all ways that servers wait, by \
         the number of connections. Red is worse than what it is compared with, green is better; what \
         is level within 5 % has no colour. The fixed spins are never, 20, 50, 100 and 200 µs.</p>\n\
         <div class=\"charts\">\n",
    );
    for cores in CORES.into_iter().rev() {
        for work in WORK {
            let there: Vec<_> = cells
                .iter()
                .filter(|judged| (judged.cell.cores, judged.cell.work) == (cores, work))
                .collect();
            for measure in &MEASURES {
                map(measure, (cores, work), &there, html);
            }
        }
    }
    html.push_str("</div>\n");
}

fn map(measure: &Measure, (cores, work): (u32, u32), cells: &[&Judged<'_>], html: &mut String) {
    if !cells.iter().any(|cell| (measure.ratio)(cell).is_some()) {
        return;
    }
    let s = if cores == 1 { "" } else { "s" };
    let work = if work == 0 { "no work".to_owned() } else { format!("{work} µs of work") };
    let _ = write!(
        html,
        "<figure><figcaption>{} <span>({cores} core{s}, {work})</span></figcaption>\
         <div class=\"wide\"><table class=\"heat\"><tr><th>connections</th>",
        measure.title
    );
    for connections in CONNECTIONS {
        let _ = write!(html, "<th>{connections}</th>");
    }
    html.push_str("</tr>\n");
    for shape in Shape::ALL {
        let of_shape = || cells.iter().filter(|judged| judged.cell.shape == shape);
        if of_shape().next().is_none() {
            continue;
        }
        let _ = write!(html, "<tr><td title=\"{}\">{shape}</td>", shape.title());
        for connections in CONNECTIONS {
            let judged = of_shape().find(|judged| judged.cell.connections == connections);
            match judged.and_then(|judged| Some((judged, (measure.ratio)(judged)?))) {
                Some((judged, ratio)) => {
                    let goodness = if measure.at_most { 1.0 / ratio } else { ratio };
                    let _ = write!(
                        html,
                        "<td class=\"{}\" title=\"{}\">{}</td>",
                        heat(goodness),
                        escape(&rates(judged.row)),
                        short(ratio)
                    );
                }
                None => html.push_str("<td></td>"),
            }
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div></figure>\n");
}

/// What each contender reached.
fn rates(row: &RowReport) -> String {
    let mut text = row.id.clone();
    for contender in Contender::ALL {
        if let Some(value) = row.median(contender) {
            let cpu = maybe(row.result(contender).and_then(|result| result.cpu));
            let (name, rate) = (contender.name(), maybe(Some(value)));
            let _ = write!(text, "; {name}: {rate} {}, {cpu} µs CPU", row.unit);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::shapes::tests::row;

    #[test]
    fn colours_go_from_bad_to_good() {
        let ratios = [0.1, 0.3, 0.7, 0.9, 1.0, 1.2, 2.0, 5.0, 20.0];
        assert_eq!(ratios.map(heat), ["h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"]);
    }

    #[test]
    fn a_map_has_a_place_for_each_cell() {
        let rows = [
            row("shapes.poll.8", [100_000.0, 150_000.0, 90_000.0, 200_000.0]),
            row("shapes.poll.100", [100_000.0, 20_000.0, 19_000.0, 18_000.0]),
            row("shapes.edge.8", [100_000.0, 1_200_000.0, 1.0, 1.0]),
            row("shapes.edge.8.1c", [100_000.0; 4]),
            row("ipc.100", [1.0; 4]),
        ];
        let mut html = String::new();
        section(&rows, &mut html);
        // Of two cores without work, and of one.
        assert_eq!(html.matches("<figure>").count(), 2 * MEASURES.len());
        let first = html.split("</figure>").next().unwrap();
        let lines: Vec<_> = first.lines().skip_while(|line| !line.starts_with("<tr>")).collect();
        let bare = |line: &str| {
            let mut text = line.to_owned();
            while let Some(at) = text.find(" title=\"") {
                let end = text[at + 8..].find('"').unwrap();
                text.replace_range(at..=at + 8 + end, "");
            }
            text
        };
        assert_eq!(
            lines.iter().map(|line| bare(line)).collect::<Vec<_>>(),
            [
                "<tr><td>poll</td><td></td><td></td><td class=\"h6\">1.5</td><td></td>\
                 <td class=\"h0\">0.2</td><td></td></tr>",
                "<tr><td>edge</td><td></td><td></td><td class=\"h8\">12</td><td></td><td></td>\
                 <td></td></tr>",
                "</table></div>",
            ]
        );
        assert!(html.contains(
            "title=\"shapes.poll.8; tcp: 100,000 req/s, 100 µs CPU; attach: 150,000 req/s, 66.67 µs CPU; \
             never: 90,000 req/s, 111 µs CPU; spin-50: 200,000 req/s, 50.00 µs CPU\""
        ));
        // Less of TCP's time is better: the ratio is below 1, the colour good.
        let cpu = html.split("<figure>").nth(3).unwrap();
        let edge = cpu.split("<td class=\"h8\"").nth(1).unwrap();
        assert!(edge.split("</td>").next().unwrap().ends_with(">0.08"), "{cpu}");

        let mut none = String::new();
        section(&rows[4..], &mut none);
        assert_eq!(none, "");
    }
}
