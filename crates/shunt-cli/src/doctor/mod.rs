//! `shunt doctor`: whether, and why or why not, a program would be shunted.

mod finding;
mod machine;
mod program;
pub mod sanitizers;

use std::fmt::Write;
use std::path::Path;

use crate::cli::Doctor;
use crate::output::print;
use finding::{Finding, Mark};

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
