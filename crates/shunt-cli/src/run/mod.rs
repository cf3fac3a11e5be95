//! `shunt run`.
//!
//! Where library, agent or memory are missing, the program runs on TCP. Only `--summary` says so,
//! because otherwise the program's output is to be the program's alone. `shunt run` always reports
//! mistakes in `SHUNT_*` variables: no other part does.

mod child;
mod summary;

use std::env;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::AsRawFd;

use shunt_shm::counters::RunPage;
use shunt_wire::knob;

use crate::cli::Run;
use crate::doctor::{self, sanitizers};
use crate::output::complain;
use crate::profile::Profile;
use crate::{agent, library, program, settings};

/// Exit status where the program is not started, because it would run on kernel TCP.
const NOT_SHUNTED: u8 = 125;

/// Runs the subcommand.
pub fn run(args: &Run) -> u8 {
    let mut obstacles = Vec::new();
    // The library passes over them, and says nothing.
    for mistake in settings::mistakes() {
        complain(&mistake);
    }
    prepare(args, &mut obstacles);
    if let Some(why) = refusal(args, &obstacles) {
        complain(&why);
        return NOT_SHUNTED;
    }
    if args.summary { supervised(args, obstacles) } else { replaced(&args.command) }
}

/// Why the program is not started: `--require`, and it would run on kernel TCP. One that is not found says so itself.
fn refusal(args: &Run, obstacles: &[String]) -> Option<String> {
    let program = program::find(&args.command[0]).filter(|_| args.require)?;
    let why = obstacles.first().cloned().or_else(|| doctor::program_obstacle(&program))?;
    Some(format!("{} is not started, for it would run on kernel TCP: {why}", program.display()))
}

/// Sets the environment of the program, and notes what will keep it from being shunted.
fn prepare(args: &Run, obstacles: &mut Vec<String>) {
    let disabled = env::var_os(knob::DISABLE.env);
    if disabled.is_some_and(|v| knob::is_on(v.as_encoded_bytes())) {
        obstacles.push("Shunt is switched off by SHUNT_DISABLE; unset it".to_owned());
        return;
    }
    let before = env::var_os(library::VARIABLE);
    let path = match library::find() {
        Ok(path) => path,
        Err(why) => {
            obstacles.push(why.to_string());
            return;
        }
    };
    let program = program::find(&args.command[0]);
    // With the library it would not even start.
    if program.as_deref().is_some_and(doctor::is_harmed) {
        if let Some(others) = before.as_deref().and_then(library::without) {
            set(library::VARIABLE, &others);
        }
        return;
    }
    set(library::VARIABLE, &library::preload(&library::entry(&path), before));
    if program.as_deref().is_some_and(sanitizers::needs_options) {
        let mut options = OsString::from(sanitizers::ANY_ORDER);
        // Of two that contradict each other the later one counts: the user's.
        if let Some(given) = env::var_os(sanitizers::VARIABLE) {
            options.push(":");
            options.push(given);
        }
        set(sanitizers::VARIABLE, &options);
    }
    match agent::ensure() {
        Ok(None) => {}
        // The program, and those that it starts, find it without looking.
        Ok(Some(dir)) => set(knob::RUN_DIR.env, &dir.into()),
        Err(why) => obstacles.push(why),
    }
    let id = RandomState::new().build_hasher().finish().max(1);
    set(knob::RUN_ID.env, &id.to_string().into());
    for (name, value) in args.profile.map(Profile::variables).unwrap_or_default() {
        if env::var_os(name).is_none() {
            set(name, &value.into());
        }
    }
    if let Some(spin) = &args.spin {
        set(knob::SPIN.env, &spin.into());
    }
    if let Some(dmb) = args.dmb {
        set(knob::DMB.env, &dmb.name().into());
    }
}

fn set(name: &str, value: &OsString) {
    // SAFETY: this process has one thread.
    unsafe { env::set_var(name, value) }
}

/// Becomes the program: same pid, nothing of ours is left.
fn replaced(command: &[OsString]) -> u8 {
    let error = program::become_program(command);
    let (message, status) = program::failure(&command[0], &error);
    complain(&message);
    status
}

/// Runs the program as a child, for what is to be said afterwards.
fn supervised(args: &Run, mut obstacles: Vec<String>) -> u8 {
    // Kept open here, so that every program of the run can map it; gone with this process.
    let page = match RunPage::create() {
        Ok((page, fd)) => {
            let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
            set(knob::RUN_PAGE.env, &path.into());
            Some((page, fd))
        }
        Err(e) => {
            obstacles.push(format!("shared memory cannot be had: {e}; see `shunt doctor`"));
            None
        }
    };
    if let Some(found) = program::find(&args.command[0]) {
        obstacles.extend(doctor::program_obstacle(&found));
    }
    let status = match child::run(&args.command) {
        Ok(status) => status,
        Err(e) => {
            let (message, status) = program::failure(&args.command[0], &e);
            complain(&message);
            return status;
        }
    };
    summary::print(page.as_ref().map(|(page, _)| page.get()), &obstacles);
    status
}
