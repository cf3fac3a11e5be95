//! `shunt doctor`: whether, and why or why not, a program would be shunted.

mod machine;
mod program;
pub mod sanitizers;

use std::fmt::Write;
use std::path::Path;

use crate::cli::Doctor;
use crate::print;

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// As it should be.
    Good,
    /// Not in the way, but worth knowing.
    Warning,
    /// Keeps connections on TCP.
    Obstacle,
    /// So does this; and the program would not start with the library, so it is not given it.
    Harm,
}

/// Something that was found out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    mark: Mark,
    text: String,
}

impl Finding {
    fn good(text: impl Into<String>) -> Self {
        Self { mark: Mark::Good, text: text.into() }
    }

    fn warning(text: impl Into<String>) -> Self {
        Self { mark: Mark::Warning, text: text.into() }
    }

    fn obstacle(text: impl Into<String>) -> Self {
        Self { mark: Mark::Obstacle, text: text.into() }
    }

    fn harm(text: impl Into<String>) -> Self {
        Self { mark: Mark::Harm, text: text.into() }
    }

    fn is_in_the_way(&self) -> bool {
        matches!(self.mark, Mark::Obstacle | Mark::Harm)
    }
}

/// Runs the subcommand. 0: it would be shunted; 1: it would not.
pub fn run(args: &Doctor) -> u8 {
    let mut findings = machine::examine();
    if let Some(name) = &args.program {
        findings.extend(program::examine(name));
    }
    let mut said = String::new();
    for Finding { mark, text } in &findings {
        let mark = match mark {
            Mark::Good => "ok  ",
            Mark::Warning => "warn",
            Mark::Obstacle | Mark::Harm => "FAIL",
        };
        let _ = writeln!(said, "{mark}  {text}");
    }
    let healthy = findings.iter().all(|f| !f.is_in_the_way());
    let subject = match &args.program {
        Some(name) => name.display().to_string(),
        None => "a suitable program".to_owned(),
    };
    let verdict = if healthy {
        "would be shunted, with every peer that runs under Shunt too."
    } else {
        "would run on kernel TCP, for the reasons marked FAIL."
    };
    let _ = writeln!(said, "=> {subject} {verdict}");
    print(&said).max(u8::from(!healthy))
}

/// What about the program itself keeps it from being shunted, if anything does.
#[must_use]
pub fn program_obstacle(path: &Path) -> Option<String> {
    let found = program::examine_file(path).into_iter().find(Finding::is_in_the_way);
    found.map(|f| f.text)
}

/// True when the program would not start with the library.
#[must_use]
pub fn is_harmed(path: &Path) -> bool {
    program::examine_file(path).iter().any(|f| f.mark == Mark::Harm)
}
