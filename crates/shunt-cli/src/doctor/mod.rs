//! `shunt doctor`: whether, and why or why not, a program would be shunted.

mod connection;
mod finding;
mod go;
mod machine;
mod process;
mod program;
mod report;
pub mod sanitizers;
mod script;
mod unit;

use std::path::Path;

use crate::cli::Doctor;
use crate::output::{complain, print, terminal_width};
use finding::{Finding, Mark};
use report::{Report, Subject};

pub use connection::probe;
pub use process::{AgentOf, HOST_FOR_ALL, has_library};

/// Runs the subcommand. 0: it would be shunted; 1: it would not, or the report is lost; 3: that cannot be told.
pub fn run(args: &Doctor) -> u8 {
    let report = examine(args);
    let text = if args.json {
        match report.json() {
            Ok(text) => text,
            Err(e) => {
                complain(&e);
                return 1;
            }
        }
    } else {
        report.text(terminal_width())
    };
    match print(&text) {
        0 => report.verdict().status(),
        lost => lost,
    }
}

fn examine(args: &Doctor) -> Report {
    let mut findings = machine::examine();
    let subject = if let Some(pid) = args.pid {
        // This environment is not that of the process.
        findings = machine::examine_system();
        findings.extend(process::examine(pid));
        Subject::Process(process::name(pid))
    } else if let Some(unit) = &args.unit {
        findings = machine::examine_system();
        findings.extend(unit::examine(unit));
        Subject::Unit(unit.clone())
    } else if let Some(to) = &args.connect {
        findings.extend(connection::examine(to));
        Subject::Connection(format!("a connection to {to}"))
    } else if let Some(name) = &args.program {
        findings.extend(program::examine(name));
        Subject::Program(name.display().to_string())
    } else {
        Subject::Machine
    };
    Report::new(subject, findings)
}

/// What about the program itself keeps it from being shunted, if anything does.
#[must_use]
pub fn program_obstacle(path: &Path) -> Option<String> {
    let found = program::examine_file(path).into_iter().find(Finding::is_in_the_way);
    found.map(|f| f.text)
}

/// What keeps the program of a service from being shunted, if anything does; and what cannot be told of it.
#[must_use]
pub fn service_program(path: &Path, is_root: bool) -> (Option<String>, Vec<String>) {
    let found = program::examine_file(path);
    let mut obstacle = found.iter().find(|f| f.is_in_the_way()).map(|f| f.text.clone());
    if obstacle.is_none() && !is_root && program::gives_privileges(path) {
        obstacle = Some(format!(
            "{} gives its user privileges (setuid, setgid, or file capabilities), so the loader preloads nothing \
             into it; a service manager can give them instead (AmbientCapabilities=)",
            path.display()
        ));
    }
    let unknown = found.into_iter().filter(|f| f.mark == Mark::Unknown).map(|f| f.text);
    (obstacle, unknown.collect())
}

/// True when the program would not start with the library.
#[must_use]
pub fn is_harmed(path: &Path) -> bool {
    program::examine_file(path).iter().any(|f| f.mark == Mark::Harm)
}
