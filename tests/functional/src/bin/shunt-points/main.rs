//! Programs for a library with points (`make points`): what two processes do while one of them panics, is held, is
//! interrupted or killed at a point.

mod bereaved;
mod ends;
mod hand_overs;
mod late_proposals;
mod panics;
mod room;
mod signals;
mod steps;
mod waits;
mod watch;
mod wire;

use std::io;
use std::process::ExitCode;

use ends::{Kind, Way};
use panics::Event;

/// What is to be done, by the arguments; true when it went as it should.
fn run(args: &[&str]) -> io::Result<bool> {
    // An end that is gone is told by the calls.
    // SAFETY: SIG_IGN is no function of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let way = |to: &str| match to {
        "listen" => panics::listening(),
        _ => to.parse().map(Way::Connect).map_err(io::Error::other),
    };
    let kinds = |names: &[&str]| -> Vec<Kind> {
        let is_wanted = |kind: &Kind| names.is_empty() || names.contains(&&*format!("{kind:?}"));
        Kind::ALL.into_iter().filter(is_wanted).collect()
    };
    let is_full = std::env::var_os("SHUNT_TEST_FULL").is_some();
    match args {
        [what @ ("panics" | "signals"), "tested", to, names @ ..] => {
            let event = if *what == "signals" { Event::Signal } else { Event::Panic };
            panics::tested(&way(to)?, &kinds(names), event, is_full)
        }
        ["panics" | "signals", "other", to] => panics::other(&way(to)?).map(|()| true),
        ["bereaved"] => bereaved::all(),
        ["room"] => room::all(),
        ["late-proposals"] => late_proposals::all(),
        ["waits"] => waits::all(),
        ["hand-overs"] => hand_overs::all(),
        ["identity"] => steps::identity(),
        ["forks"] => steps::forks(),
        ["threads"] => steps::identities_of_threads(),
        _ => Err(io::Error::other("no such thing")),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}
