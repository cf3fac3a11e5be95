//! Messages of `shunt` itself to people.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use shunt_sys::stdio::{self, Unwritable};
use tracing_subscriber::EnvFilter;

/// Exit status for a command line that makes no sense.
pub const USAGE: u8 = 2;

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

/// True for a terminal, unless `NO_COLOR` is set.
pub fn is_coloured(stream: &impl IsTerminal) -> bool {
    let is_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !is_unwanted
}

/// Columns of the terminal that standard output is; or those that `COLUMNS` names, as for pipes to a pager.
pub fn width() -> Option<u16> {
    let named = || std::env::var("COLUMNS").ok()?.parse().ok();
    let of_terminal = rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| size.ws_col);
    of_terminal.or_else(named).filter(|columns| *columns > 0)
}

/// The same where standard output is a terminal: text for files is never cut.
pub fn terminal_width() -> Option<u16> {
    if io::stdout().is_terminal() { width() } else { None }
}

/// Columns of the terminal that standard error is.
pub fn width_of_complaints() -> Option<u16> {
    if !io::stderr().is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok();
    size.map(|size| size.ws_col).filter(|columns| *columns > 0)
}

/// Writes the log to standard error: with colours on a terminal alone, and not where `NO_COLOR` is set.
pub fn log(filter: EnvFilter) {
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(is_coloured(&io::stderr()));
    log.with_writer(|| stdio::Log).init();
}
