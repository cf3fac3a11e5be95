//! Text for people: tables and numbers.

use std::fmt::Write;

/// A table with aligned columns.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
    width: Option<u16>,
    colour: Option<(usize, Paint)>,
}

/// The colour of a cell, by its text.
pub type Paint = fn(&str) -> Option<Colour>;

/// A colour of the terminal's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Colour {
    /// As it should be.
    Green = 32,
    /// Worth a look.
    Yellow = 33,
}

/// No column gets narrower to fit a terminal.
const NARROWEST: usize = 6;

impl Table {
    /// With this heading.
    #[must_use]
    pub fn new(heading: &[&str], right: &[bool]) -> Self {
        let mut table = Self::without_heading(right);
        table.row(heading.iter().map(|h| (*h).to_owned()).collect());
        table
    }

    /// Without heading. `right[i]`: column `i` holds numbers.
    #[must_use]
    pub fn without_heading(right: &[bool]) -> Self {
        Self { rows: Vec::new(), right: right.to_vec(), width: None, colour: None }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Has lines fit so many columns: what is too long in columns of text is cut.
    #[must_use]
    pub const fn fitting(mut self, width: Option<u16>) -> Self {
        self.width = width;
        self
    }

    /// True where nothing has to be cut.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.width.is_none_or(|most| length(&self.whole_widths()) <= usize::from(most))
    }

    /// Leaves columns of these titles out, one by one, until nothing has to be cut.
    #[must_use]
    pub fn dropping(mut self, titles: &[&str]) -> Self {
        for title in titles {
            let heading = self.rows.first().filter(|_| !self.fits());
            let Some(at) = heading.and_then(|row| row.iter().position(|cell| cell == title)) else {
                continue;
            };
            for row in self.rows.iter_mut().filter(|row| at < row.len()) {
                row.remove(at);
            }
            if at < self.right.len() {
                self.right.remove(at);
            }
        }
        self
    }

    /// Has the cells of a column coloured.
    #[must_use]
    pub const fn coloured(mut self, column: usize, paint: Paint) -> Self {
        self.colour = Some((column, paint));
        self
    }

    /// The widths of the columns, where nothing is cut.
    fn whole_widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |i: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(i));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        (0..columns).map(width).collect()
    }

    /// The widths of the columns: the widest ones of text give way.
    fn widths(&self) -> Vec<usize> {
        let mut widths = self.whole_widths();
        let Some(most) = self.width.map(usize::from) else { return widths };
        while length(&widths) > most {
            let is_text = |i: usize| self.right.get(i) != Some(&true);
            let of_text = widths.iter_mut().enumerate().filter(|(i, _)| is_text(*i));
            let Some((_, widest)) = of_text.max_by_key(|(_, width)| **width) else { break };
            if *widest <= NARROWEST {
                break;
            }
            *widest -= 1;
        }
        widths
    }

    /// The text; lines have no blanks at their ends.
    #[must_use]
    pub fn render(&self) -> String {
        let widths = self.widths();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if i > 0 {
                    line.push_str("  ");
                }
                let cell = cut(cell, *width);
                let blanks = " ".repeat(width.saturating_sub(cell.chars().count()));
                let (before, after) = if self.right.get(i) == Some(&true) {
                    (blanks.as_str(), "")
                } else {
                    ("", blanks.as_str())
                };
                line.push_str(before);
                let painted = self.colour.filter(|(column, _)| *column == i);
                match painted.and_then(|(_, paint)| paint(&cell)) {
                    Some(colour) => {
                        let _ = write!(line, "\x1b[{}m{cell}\x1b[0m", colour as u8);
                    }
                    None => line.push_str(&cell),
                }
                line.push_str(after);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Of a line with columns of these widths.
fn length(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)
}

/// The text, or its beginning where it is longer.
#[must_use]
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// A paragraph in lines that fit so many columns, all but the first of them indented by as many.
#[must_use]
pub fn wrapped(text: &str, width: Option<u16>, indent: usize) -> String {
    // Narrower than this is no paragraph any more.
    let Some(width) = width.map(usize::from).filter(|width| *width > indent + 20) else {
        return text.to_owned();
    };
    let blanks = " ".repeat(indent);
    let options = textwrap::Options::new(width).subsequent_indent(&blanks).break_words(false);
    textwrap::fill(text, options.word_splitter(textwrap::WordSplitter::NoHyphenation))
}

/// A number with a unit: K, M, G, T and P are powers of 1000.
#[must_use]
pub fn human(n: f64) -> String {
    const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let (mut n, mut unit) = (n, 0);
    // What would be shown as 1000 of one is shown as 1 of the next.
    while n >= 999.5 && unit + 1 < UNITS.len() {
        n /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && n < 9.95);
    format!("{n:.digits$}{}", UNITS[unit])
}

/// The same of a count.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "shown with three digits")]
pub fn human_count(n: u64) -> String {
    human(n as f64)
}

/// "1 thing", "2 things".
#[must_use]
pub fn count_of(n: u64, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["Name", "N", "Why"], &[false, true]);
        table.row(vec!["é".into(), "10".into(), String::new()]);
        table.row(vec!["abcde".into(), "7".into(), "x".into()]);
        assert_eq!(table.render(), "Name    N  Why\né      10\nabcde   7  x\n");
    }

    #[test]
    fn numbers_have_three_digits_at_the_most() {
        for (n, text) in [
            (0.0, "0"),
            (0.4, "0"),
            (999.4, "999"),
            (999.6, "1.0K"),
            (1049.0, "1.0K"),
            (9960.0, "10K"),
            (123_456.0, "123K"),
            (999_600.0, "1.0M"),
            (7.2e9, "7.2G"),
            (2e18, "2000P"),
        ] {
            assert_eq!(human(n), text, "{n}");
        }
    }

    #[test]
    fn a_table_fits_the_terminal_and_numbers_stay_whole() {
        let mut table = Table::new(&["Name", "N", "Why"], &[false, true]);
        table.row(vec!["a".repeat(30), "1234567".into(), "because".into()]);
        let whole = table.render();
        assert!(whole.lines().all(|line| line.chars().count() <= 48), "{whole}");
        let table = table.fitting(Some(30));
        let text = table.render();
        assert_eq!(text.lines().nth(1), Some("aaaaaaaaaaa…  1234567  because"));
        // Narrower than can be.
        assert!(table.fitting(Some(5)).render().contains("1234567"));
    }

    #[test]
    fn columns_are_left_out_as_far_as_there_is_no_room() {
        let table = |width| {
            let mut table = Table::new(&["Name", "N", "M", "Why"], &[false, true, true]);
            table.row(vec!["name".into(), "1234".into(), "5678".into(), "because".into()]);
            table.fitting(Some(width)).dropping(&["M", "N", "Z"]).render()
        };
        assert_eq!(table(27), "Name     N     M  Why\nname  1234  5678  because\n");
        assert_eq!(table(24), "Name     N  Why\nname  1234  because\n");
        assert_eq!(table(13), "Name  Why\nname  because\n");
    }

    #[test]
    fn paragraphs_break_between_words() {
        let text = "  What: `shunt-run` is a command, of a line.";
        assert_eq!(wrapped(text, None, 4), text);
        assert_eq!(wrapped(text, Some(10), 4), text);
        let expected = "  What: `shunt-run` is a\n    command, of a line.";
        assert_eq!(wrapped(text, Some(26), 4), expected);
    }

    #[test]
    fn colours_do_not_count_as_columns() {
        let mut table = Table::new(&["Mode", "N"], &[false, true]);
        table.row(vec!["tcp".into(), "1".into()]);
        let paint: Paint = |text| (text == "tcp").then_some(Colour::Yellow);
        assert_eq!(table.coloured(0, paint).render(), "Mode  N\n\x1b[33mtcp\x1b[0m   1\n");
    }
}
