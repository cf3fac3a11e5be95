//! What `shunt` itself says to people.

use std::fmt::Display;
use std::io::{self, Write};

use shunt_sys::stdio::{self, Unwritable};

/// Prints what was asked for. The exit status is 1 where that fails, and standard error says why.
pub fn print(text: &str) -> u8 {
    said(stdio::print(text))
}

/// The exit status after something was printed; where that failed, standard error says why.
pub fn said(printed: Result<(), Unwritable>) -> u8 {
    match printed {
        Ok(()) => 0,
        Err(e) => {
            complain(&e);
            1
        }
    }
}

/// Says what went wrong, on standard error.
pub fn complain(what: &dyn Display) {
    let _ = writeln!(io::stderr(), "shunt: {what}");
}
