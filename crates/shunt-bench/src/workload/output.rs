//! Figures in what programs print.

use crate::failure::{Failure, Result};

/// The first number in the rest of the line after `label`.
pub(super) fn number_after(text: &str, label: &str) -> Option<f64> {
    let (_, rest) = text.split_once(label)?;
    let line = rest.lines().next()?;
    line.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|w| w.parse().ok())
}

/// That number, or a complaint.
pub(super) fn expect_number(text: &str, label: &str) -> Result<f64> {
    number_after(text, label)
        .ok_or_else(|| Failure::Failed(format!("no figure after {label:?} in: {}", text.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found() {
        assert_eq!(number_after("a: x 1.5 us\n2", "a:"), Some(1.5));
        assert_eq!(number_after("a:\n2", "a:"), None);
        assert_eq!(number_after("b", "a:"), None);
        assert!(expect_number("b", "a:").is_err());
    }
}
