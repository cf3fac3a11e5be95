//! Text for people: tables and numbers.

/// A table with aligned columns.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: &'static [bool],
}

impl Table {
    /// With this heading.
    #[must_use]
    pub fn new(heading: &[&str], right: &'static [bool]) -> Self {
        let mut table = Self::without_heading(right);
        table.row(heading.iter().map(|h| (*h).to_owned()).collect());
        table
    }

    /// Without heading. `right[i]`: column `i` holds numbers.
    #[must_use]
    pub const fn without_heading(right: &'static [bool]) -> Self {
        Self { rows: Vec::new(), right }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The text; lines have no blanks at their ends.
    #[must_use]
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |i: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(i));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if i > 0 {
                    line.push_str("  ");
                }
                let blanks = " ".repeat(width.saturating_sub(cell.chars().count()));
                let (before, after) = if self.right.get(i) == Some(&true) {
                    (blanks.as_str(), "")
                } else {
                    ("", blanks.as_str())
                };
                line.extend([before, cell, after]);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
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
}
