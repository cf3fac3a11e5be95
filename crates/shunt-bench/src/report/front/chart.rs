//! The chart: a bar for each row, from kernel TCP's figure to Shunt's, on a logarithmic axis.

use std::fmt::Write;

use super::{Shown, Unfit, conditions, shown, times};
use crate::contender::Contender;
use crate::report::Report;
use crate::report::html::chart::Scale;
use crate::report::html::text::escape;
use crate::report::table::figure;

const WIDTH: f64 = 900.0;
/// Where names end, and the plot begins.
const LEFT: f64 = 262.0;
/// Where the plot ends.
const RIGHT: f64 = 640.0;
const TOP: f64 = 92.0;
const STEP: f64 = 26.0;

const STYLE: &str = "\
    .bg { fill: #ffffff; } text { fill: #1f2328; } .dim { fill: #59636e; font-size: 12px; }
    .grid { stroke: #d1d9e0; } .one { stroke: #59636e; stroke-width: 1.5; }
    .better { fill: #1f883d; } .worse { fill: #cf222e; } .spread { stroke: #1f2328; stroke-width: 1.5; }
    @media (prefers-color-scheme: dark) {
      .bg { fill: #0d1117; } text { fill: #e6edf3; } .dim { fill: #9da7b3; }
      .grid { stroke: #30363d; } .one { stroke: #9da7b3; }
      .better { fill: #2ea043; } .worse { fill: #f85149; } .spread { stroke: #e6edf3; }
    }
";

/// Draws it: one file, light or dark as the reader's system is.
///
/// # Errors
/// The report lacks a row without which the figures would flatter.
pub fn svg(report: &Report) -> Result<String, Unfit> {
    let all = shown(report)?;
    let bars: Vec<_> = all.iter().filter_map(|shown| Some((shown, shown.gain?))).collect();
    let bottom = TOP + STEP * bars.len() as f64;
    let height = bottom + 46.0;
    let spreads = bars.iter().flat_map(|(shown, gain)| {
        let (low, high) = spread(shown).unwrap_or((*gain, *gain));
        [low, high, 1.0]
    });
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"t d\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         \x20 <title id=\"t\">Shunt beside kernel TCP</title>\n  <desc id=\"d\">{}</desc>\n\
         \x20 <style>\n{STYLE}  </style>\n  <rect class=\"bg\" width=\"{WIDTH}\" height=\"{height}\" rx=\"10\"/>\n\
         \x20 <text x=\"20\" y=\"30\" font-size=\"16\" font-weight=\"600\">How many times better than kernel TCP, \
         the least favourable first</text>\n\
         \x20 <text class=\"dim\" x=\"20\" y=\"50\">{}</text>\n",
        bars.iter()
            .map(|(s, gain)| format!("{}: {}.", s.name, times(*gain)))
            .collect::<Vec<_>>()
            .join(" "),
        escape(&format!(
            "{}, {}",
            conditions(report),
            report.date.get(..10).unwrap_or(&report.date)
        )),
    );
    if let Some(scale) = Scale::log(spreads, LEFT, RIGHT) {
        axis(&mut text, scale, bottom);
        for (n, (shown, gain)) in bars.iter().enumerate() {
            bar(&mut text, scale, TOP + STEP * n as f64, shown, *gain);
        }
    }
    let _ = writeln!(
        text,
        "  <text class=\"dim\" x=\"20\" y=\"{:.0}\">Logarithmic. Bars: medians of {} rounds; lines: lowest and highest round. \
         Right: the gain, and kernel TCP → Shunt.</text>\n</svg>",
        bottom + 30.0,
        report.rounds
    );
    Ok(text)
}

/// The gains of the rounds, least and greatest, against the median of kernel TCP.
fn spread(shown: &Shown<'_>) -> Option<(f64, f64)> {
    let value = shown.row.result(Contender::Attach)?.value?;
    let (a, b) = (shown.row.gain(value.min, shown.tcp)?, shown.row.gain(value.max, shown.tcp)?);
    Some((a.min(b), a.max(b)))
}

fn axis(text: &mut String, scale: Scale, bottom: f64) {
    let (top, label) = (TOP - 6.0, TOP - 14.0);
    for tick in scale.ticks() {
        let (at, class) = (scale.at(tick), if (tick - 1.0).abs() < 1e-9 { "one" } else { "grid" });
        let name = match tick {
            t if t < 1.0 => format!("{t}×"),
            t => format!("{t:.0}×"),
        };
        let _ = writeln!(
            text,
            "  <path class=\"{class}\" d=\"M{at:.1} {top} V{bottom}\"/>\
             <text class=\"dim\" x=\"{at:.1}\" y=\"{label}\" text-anchor=\"middle\">{name}</text>"
        );
    }
}

fn bar(text: &mut String, scale: Scale, y: f64, shown: &Shown<'_>, gain: f64) {
    let (one, to) = (scale.at(1.0), scale.at(gain));
    let class = if gain < 1.0 { "worse" } else { "better" };
    let base = y + 17.0;
    let _ = writeln!(
        text,
        "  <text x=\"{:.0}\" y=\"{base}\" text-anchor=\"end\">{}</text>\
         <rect class=\"{class}\" x=\"{:.1}\" y=\"{}\" width=\"{:.1}\" height=\"14\" rx=\"2\"/>",
        LEFT - 10.0,
        escape(shown.name),
        one.min(to),
        y + 5.0,
        (one - to).abs().max(1.0),
    );
    if let Some((low, high)) = spread(shown) {
        let _ = writeln!(
            text,
            "  <path class=\"spread\" d=\"M{:.1} {} H{:.1}\"/>",
            scale.at(low),
            y + 12.0,
            scale.at(high)
        );
    }
    let _ = writeln!(
        text,
        "  <text x=\"{:.0}\" y=\"{base}\" text-anchor=\"end\" font-weight=\"600\">{}</text>\
         <text class=\"dim\" x=\"{:.0}\" y=\"{base}\">{} → {} {}</text>",
        RIGHT + 54.0,
        times(gain),
        RIGHT + 64.0,
        figure(shown.tcp),
        figure(shown.shunt),
        escape(&shown.row.unit)
    );
}

#[cfg(test)]
mod tests {
    use super::super::tests::fit;
    use super::*;

    #[test]
    fn a_bar_for_each_row_with_a_ratio_and_what_is_worse_looks_so() {
        let report = fit();
        let text = svg(&report).unwrap();
        let bars = shown(&report).unwrap().iter().filter(|shown| shown.gain.is_some()).count();
        assert_eq!(
            text.matches("<rect class=\"better\"").count()
                + text.matches("<rect class=\"worse\"").count(),
            bars
        );
        assert!(text.contains("<rect class=\"worse\""), "nginx.close is slower there");
        assert!(text.contains("prefers-color-scheme: dark"));
        assert!(text.contains("A &amp; B &lt;C&gt;"), "the processor's name is text");
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }
}
