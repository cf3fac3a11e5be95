//! Charts as SVG. Colours come from the page's style, by the class of each contender.

use std::fmt::Write;

use super::text::escape;
use crate::report::table::short;

/// An axis: where numbers lie on it.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    from: f64,
    to: f64,
    low: f64,
    high: f64,
}

impl Scale {
    /// A logarithmic one that covers all of these figures, drawn from `from` to `to`; none when
    /// there is nothing above zero.
    #[must_use]
    pub fn log(figures: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let there = figures.filter(|f| *f > 0.0 && f.is_finite()).map(f64::log10);
        let (low, high) = there
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), f| (low.min(f), high.max(f)));
        if low > high {
            return None;
        }
        // Never less than a factor of two, and some air at both ends.
        let missing = (0.3 - (high - low)).max(0.0) / 2.0;
        let air = (high - low + 2.0 * missing) * 0.06;
        Some(Self { from, to, low: low - missing - air, high: high + missing + air })
    }

    /// Where a figure lies.
    #[must_use]
    pub fn at(&self, figure: f64) -> f64 {
        let part = (figure.log10() - self.low) / (self.high - self.low);
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Round figures on the axis, not too many.
    #[must_use]
    pub fn ticks(&self) -> Vec<f64> {
        let decades = self.high - self.low;
        let steps: &[f64] = if decades < 1.6 {
            &[1.0, 2.0, 5.0]
        } else if decades < 3.5 {
            &[1.0, 3.0]
        } else {
            &[1.0]
        };
        let every = if decades > 7.0 { 2 } else { 1 };
        (-12..15)
            .filter(|decade| decade % every == 0)
            .flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)))
            .filter(|tick| (self.low..=self.high).contains(&tick.log10()))
            .collect()
    }
}

/// A figure in a few characters: `1.5k`, `20M`.
#[must_use]
pub fn brief(figure: f64) -> String {
    for (unit, name) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if figure.abs() >= unit {
            return format!("{}{name}", short(figure / unit));
        }
    }
    if figure.abs() < 0.01 && figure != 0.0 { format!("{figure:.0e}") } else { short(figure) }
}

/// A point of a line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Dot {
    /// Along it.
    pub x: f64,
    /// The figure.
    pub y: f64,
    /// Its least and greatest.
    pub band: Option<(f64, f64)>,
}

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Which colour.
    pub class: &'static str,
    /// For people.
    pub name: String,
    /// From left to right.
    pub dots: Vec<Dot>,
}

/// A chart of lines.
#[derive(Clone, Debug)]
pub struct Lines<'a> {
    /// Above it.
    pub title: &'a str,
    /// Below it.
    pub x_title: &'a str,
    /// Beside it.
    pub y_title: &'a str,
    /// The lines.
    pub curves: Vec<Curve>,
    /// What is written at places on the x axis; round figures when empty.
    pub x_ticks: Vec<(f64, String)>,
}

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 40.0;

impl Lines<'_> {
    /// Draws it; empty when there is nothing to draw.
    #[must_use]
    pub fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.dots);
        let x = Scale::log(points().map(|p| p.x), LEFT, WIDTH - RIGHT);
        let ys = points().flat_map(|p| {
            let (low, high) = p.band.unwrap_or((p.y, p.y));
            [p.y, low, high]
        });
        let y = Scale::log(ys, HEIGHT - BOTTOM, TOP);
        let (Some(x), Some(y)) = (x, y) else { return String::new() };
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(self.title)
        );
        self.axes(&mut svg, x, y);
        for curve in &self.curves {
            curve.draw(&mut svg, x, y);
        }
        svg.push_str("</svg>");
        svg
    }

    fn axes(&self, svg: &mut String, x: Scale, y: Scale) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in y.ticks() {
            let at = y.at(tick);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                brief(tick)
            );
        }
        let ticks = if self.x_ticks.is_empty() {
            x.ticks().into_iter().map(|tick| (tick, brief(tick))).collect()
        } else {
            self.x_ticks.clone()
        };
        for (tick, name) in ticks {
            let at = x.at(tick);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 15.0,
                escape(&name)
            );
        }
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\
             <text x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"4\" y=\"12\">{}</text>",
            HEIGHT - 6.0,
            escape(self.x_title),
            escape(self.y_title)
        );
    }
}

impl Curve {
    fn draw(&self, svg: &mut String, x: Scale, y: Scale) {
        let _ = write!(svg, "<g class=\"{}\">", self.class);
        let path: Vec<_> =
            self.dots.iter().map(|p| format!("{:.1},{:.1}", x.at(p.x), y.at(p.y))).collect();
        let _ = write!(svg, "<polyline class=\"curve\" points=\"{}\"/>", path.join(" "));
        for &Dot { x: px, y: py, band } in &self.dots {
            let (cx, cy) = (x.at(px), y.at(py));
            if let Some((low, high)) = band {
                let (low, high) = (y.at(low), y.at(high));
                let _ = write!(
                    svg,
                    "<line class=\"band\" x1=\"{cx:.1}\" x2=\"{cx:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>"
                );
            }
            let _ = write!(
                svg,
                "<circle class=\"dot\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.2\"><title>{}: {} at {}</title></circle>",
                escape(&self.name),
                crate::report::table::figure(py),
                brief(px)
            );
        }
        svg.push_str("</g>");
    }
}

/// A row of dots on a common axis.
#[derive(Clone, Debug)]
pub struct DotRow {
    /// Beside it.
    pub name: String,
    /// Class, name, figure.
    pub dots: Vec<(&'static str, String, f64)>,
    /// What the machine allows those that it bounds.
    pub limit: Option<f64>,
}

/// Dots in rows on one logarithmic axis, with a line at 1.
#[must_use]
pub fn dots(title: &str, x_title: &str, rows: &[DotRow]) -> String {
    const CHARACTER: f64 = 6.8;
    const PITCH: f64 = 22.0;
    const WIDE: f64 = 1000.0;
    // The longest name fits, and leaves the dots half of the width.
    let longest = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let names = (longest as f64 * CHARACTER + 14.0).min(WIDE / 2.0);
    let figures =
        rows.iter().flat_map(|row| row.dots.iter().map(|dot| dot.2).chain(row.limit)).chain([1.0]);
    let Some(x) = Scale::log(figures, names, WIDE - RIGHT) else { return String::new() };
    let height = TOP + PITCH * rows.len() as f64 + BOTTOM;
    let bottom = height - BOTTOM;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDE} {height}\" role=\"img\" aria-label=\"{}\">",
        escape(title)
    );
    for tick in x.ticks() {
        let at = x.at(tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}×</text>",
            bottom + 15.0,
            brief(tick)
        );
    }
    let one = x.at(1.0);
    let _ = write!(
        svg,
        "<line class=\"one\" x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        WIDE - RIGHT,
        height - 6.0,
        escape(x_title)
    );
    for (n, row) in rows.iter().enumerate() {
        let at = TOP + PITCH * (n as f64 + 0.5);
        let _ = write!(
            svg,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <line class=\"grid\" x1=\"{names:.1}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
            names - 10.0,
            at + 4.0,
            escape(&row.name),
            WIDE - RIGHT
        );
        if let Some(limit) = row.limit {
            let _ = write!(
                svg,
                "<line class=\"bar\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{2:.1}\">\
                 <title>limit of the machine: {3}×</title></line>",
                x.at(limit),
                at - 8.0,
                at + 8.0,
                short(limit)
            );
        }
        for (class, name, figure) in &row.dots {
            let _ = write!(
                svg,
                "<g class=\"{class}\"><circle class=\"dot\" cx=\"{:.1}\" cy=\"{at:.1}\" r=\"5\">\
                 <title>{}: {}×</title></circle></g>",
                x.at(*figure),
                escape(name),
                short(*figure)
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales() {
        let scale = Scale::log([1.0, 1000.0, f64::NAN, 0.0].into_iter(), 0.0, 100.0).unwrap();
        assert!(scale.at(1.0) > 0.0 && scale.at(1000.0) < 100.0);
        assert!((scale.at(31.6) - 50.0).abs() < 1.0);
        assert_eq!(scale.ticks().first(), Some(&1.0));
        assert!(scale.ticks().len() <= 10);
        assert!(Scale::log([0.0].into_iter(), 0.0, 1.0).is_none());
        let flat = Scale::log([5.0].into_iter(), 0.0, 100.0).unwrap();
        assert!((flat.at(5.0) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn brief_figures() {
        let all = [0.001, 0.25, 7.0, 1500.0, 2e7].map(brief);
        assert_eq!(all, ["1e-3", "0.25", "7", "1.5k", "20M"]);
    }

    /// Names end at the left of the dots, so a long one must not begin outside of the picture.
    #[test]
    fn long_names_have_room() {
        let start = |name: &str| {
            let dots = vec![("attach", "Shunt".to_owned(), 2.0)];
            let svg = super::dots("", "", &[DotRow { name: name.into(), dots, limit: None }]);
            let (_, rest) = svg.split_once("class=\"name\" x=\"").unwrap();
            rest.split('"').next().unwrap().parse::<f64>().unwrap()
        };
        assert!(start(&"x".repeat(63)) > 63.0 * 6.5 && start(&"x".repeat(500)) < 500.0);
        assert!(start("short") < 100.0);
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let lines = Lines { title: "", x_title: "", y_title: "", curves: vec![], x_ticks: vec![] };
        assert_eq!(lines.svg(), "");
    }
}
