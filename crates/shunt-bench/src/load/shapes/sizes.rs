//! How long messages are.

use clap::Args;

/// Bytes of messages.
#[derive(Args, Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of a request.
    #[arg(long, default_value_t = 100, value_parser = size)]
    pub(super) request: usize,
    /// Bytes of an answer.
    #[arg(long, default_value_t = 100, value_parser = size)]
    pub(super) response: usize,
}

/// More may not fit into a connection at once.
const MOST: usize = 16_384;

/// Each message begins with a number.
pub(super) const NUMBER: usize = size_of::<u64>();

fn size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size) if (NUMBER..=MOST).contains(&size) => Ok(size),
        _ => Err(format!("it must be a number of bytes, {NUMBER} to {MOST}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_hold_a_number() {
        assert_eq!(size("8"), Ok(8));
        assert!(size("7").is_err() && size("x").is_err());
    }
}
