//! `shunt enable` and `shunt disable`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shunt_sys::run_dir::OF_HOST;
use shunt_wire::knob;

use super::drop_in::{DropIn, Present};
use super::plan::{self, AGENT, Host, Plan};
use super::unit::Unit;
use super::{manager, status};
use crate::cli::{Disable, Enable};
use crate::output::{complain, print};
use crate::profile::Profile;
use crate::{directory, doctor, library};

/// Runs the subcommand `enable`.
pub fn enable(args: &Enable) -> u8 {
    if args.status {
        return status::run(&args.directory);
    }
    let host = match host() {
        Ok(host) => host,
        Err(why) => {
            complain(&why);
            return 1;
        }
    };
    let variables = args.profile.map(Profile::variables).unwrap_or_default();
    each(&args.units, |unit| {
        let work = Work { host: &host, variables: &variables, directory: &args.directory };
        if args.dry_run { work.show(unit) } else { work.enable(unit, args.restart) }
    })
}

/// Runs the subcommand `disable`.
pub fn disable(args: &Disable) -> u8 {
    let units = if args.all {
        match DropIn::all(&args.directory) {
            Ok(all) if all.is_empty() => return print("no service is enabled\n"),
            Ok(all) => all.into_iter().map(|drop_in| drop_in.unit).collect(),
            Err(e) => {
                complain(&format!("{} cannot be read: {e}", args.directory.display()));
                return 1;
            }
        }
    } else {
        args.units.clone()
    };
    each(&units, |unit| take_away(unit, args))
}

/// Does it to each service, and prints what comes of it; those that fail do not keep it from the others.
fn each(units: &[String], does: impl Fn(&str) -> Result<String, String>) -> u8 {
    let mut status = 0;
    for unit in units {
        match does(unit) {
            Ok(said) => match print(&said) {
                0 => {}
                lost => return lost,
            },
            Err(why) => {
                complain(&format!("{unit}: {why}"));
                status = 1;
            }
        }
    }
    status
}

/// What there is here for services to use.
fn host() -> Result<Host, String> {
    let library = library::find().map_err(|why| why.to_string())?;
    let run_dir = directory::run_dir_of_host().map_err(|why| format!("SHUNT_RUN_DIR: {why}"))?;
    let run_dir = run_dir.path().to_string();
    let said = manager::show(AGENT).map_err(|why| format!("systemctl does not answer: {why}"))?;
    let has_agent_unit = Unit::parse(AGENT, &said).get("LoadState") == "loaded";
    if !(has_agent_unit && run_dir == OF_HOST || Path::new(&run_dir).join("agent.sock").exists()) {
        return Err(format!(
            "there is no agent for the host in {run_dir}, and systemd knows no {AGENT} to start one; install the \
             units, or run `shunt agent --host` as root"
        ));
    }
    Ok(Host { entry: library::entry(&library), library, run_dir, has_agent_unit })
}

/// An instance of a template that there need not be: systemd tells nothing of a template by itself.
const ANY_INSTANCE: &str = "shunt";

/// The name by which systemctl is asked about a service or a template.
fn asked(unit: &str) -> String {
    match unit.strip_suffix("@.service") {
        Some(template) => format!("{template}@{ANY_INSTANCE}.service"),
        None => unit.to_owned(),
    }
}

/// How long a process that systemd has forked may take to become the program.
const BECOMES_PROGRAM: Duration = Duration::from_secs(3);

/// What is to be done to services.
struct Work<'a> {
    host: &'a Host,
    variables: &'a BTreeMap<&'static str, &'static str>,
    directory: &'a Path,
}

impl Work<'_> {
    /// Looks at a service, and plans.
    fn plan(&self, name: &str) -> Result<(DropIn, Present, Plan), String> {
        let said = manager::show(&asked(name))?;
        let unit = Unit::parse(name, &said);
        match unit.get("LoadState") {
            "loaded" => {}
            "not-found" => {
                return Err("there is no such service; `systemctl list-unit-files --type=service` has the names"
                    .to_owned());
            }
            state => return Err(format!("systemd cannot start it ({state})")),
        }
        // An alias leads to it; a template stays one.
        let id = if name.ends_with("@.service") { name } else { unit.name() };
        let drop_in = DropIn::of(self.directory, id);
        let unreadable = |e| format!("{} cannot be read: {e}", drop_in.path().display());
        let present = drop_in.present().map_err(unreadable)?;
        let before = match &present {
            Present::Ours(text) => Some(text.as_str()),
            Present::Nothing => None,
            Present::Foreign => {
                return Err(format!(
                    "{} is there, and not of `shunt enable`; move it away",
                    drop_in.path().display()
                ));
            }
        };
        let mut plan = plan::plan(&unit, self.host, self.variables, before)?;
        if let Some(program) = unit.program() {
            let root = unit.get("RootDirectory").trim_end_matches('/');
            let path = PathBuf::from(format!("{root}{program}"));
            let (obstacle, doubts) = doctor::service_program(&path, unit.is_root());
            if let Some(why) = obstacle {
                return Err(why);
            }
            plan.doubts.extend(doubts);
        }
        Ok((drop_in, present, plan))
    }

    /// What would be written.
    fn show(&self, name: &str) -> Result<String, String> {
        let (drop_in, _, plan) = self.plan(name)?;
        let mut text = format!("# {}\n{}", drop_in.path().display(), plan.text);
        for said in plan.loosened.iter().chain(&plan.doubts) {
            let _ = writeln!(text, "# {said}");
        }
        Ok(text)
    }

    fn enable(&self, name: &str, restart: bool) -> Result<String, String> {
        let (drop_in, present, plan) = self.plan(name)?;
        let unit = drop_in.unit.as_str();
        let is_new = present != Present::Ours(plan.text.clone());
        if is_new {
            let failed = |e| format!("{} cannot be written: {e}", drop_in.path().display());
            drop_in.write(&plan.text).map_err(failed)?;
        }
        let heeded = manager::reload().and_then(|()| self.is_heeded(&drop_in));
        if let Err(why) = heeded {
            // Nothing is left half done.
            let _ = match &present {
                Present::Ours(text) => drop_in.write(text),
                _ => drop_in.remove(),
            };
            let _ = manager::reload();
            return Err(why);
        }
        let mut text = format!("{unit} is enabled ({})\n", drop_in.path().display());
        for said in &plan.loosened {
            let _ = writeln!(text, "  {said}");
        }
        for doubt in &plan.doubts {
            let _ = writeln!(text, "  warning: {doubt}");
        }
        text.push_str(&after(unit, restart, true)?);
        Ok(text)
    }

    /// Another drop-in may win over this one.
    fn is_heeded(&self, drop_in: &DropIn) -> Result<(), String> {
        let said = manager::show(&asked(&drop_in.unit))?;
        let unit = Unit::parse(&drop_in.unit, &said);
        let path = drop_in.path().to_string_lossy();
        if !unit.words("DropInPaths").any(|there| there == path) {
            return Err(format!(
                "systemd does not look for drop-ins in {}; it would not heed it",
                self.directory.display()
            ));
        }
        let preload = unit.variable(library::VARIABLE).unwrap_or_default();
        let is_preloaded =
            preload.split([':', ' ']).any(|entry| Path::new(entry) == self.host.entry);
        let run_dir = unit.variable(knob::RUN_DIR.env).unwrap_or_default();
        if is_preloaded && run_dir == self.host.run_dir {
            return Ok(());
        }
        let name = if is_preloaded { knob::RUN_DIR.env } else { library::VARIABLE };
        let others = unit.words("DropInPaths").filter(|there| *there != path);
        Err(format!(
            "another drop-in sets {name}, and wins ({}); take it out there",
            others.collect::<Vec<_>>().join(", ")
        ))
    }
}

/// What is to be done, or is done, about a process that runs. `has_library`: how it is to be then.
fn after(unit: &str, restart: bool, has_library: bool) -> Result<String, String> {
    if unit.ends_with("@.service") {
        return Ok("  Its instances have to be restarted\n".to_owned());
    }
    let pid = || manager::show(unit).ok().and_then(|said| Unit::parse(unit, &said).main_pid());
    let Some(before) = pid() else {
        let how = if has_library { "with" } else { "without" };
        return Ok(format!("  It does not run; the next start is {how} Shunt\n"));
    };
    if !restart {
        return Ok(format!("  It has to be restarted: systemctl restart {unit}\n"));
    }
    manager::restart(unit).map_err(|why| format!("it cannot be restarted: {why}"))?;
    match pid() {
        None => Err("it was restarted, and does not run; `systemctl status` says why".to_owned()),
        Some(pid) if has_library && lacks_library(pid) => Err(format!(
            "it was restarted, and process {pid} runs without the library; `shunt doctor --pid {pid}` says why"
        )),
        Some(pid) => Ok(format!("  It was restarted: process {pid}, before {before}\n")),
    }
}

/// True for a process without the library. One that systemd has just forked is about to become the program.
fn lacks_library(pid: u32) -> bool {
    let given_up = Instant::now() + BECOMES_PROGRAM;
    while doctor::has_library(pid) == Some(false) {
        if Instant::now() > given_up {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn take_away(name: &str, args: &Disable) -> Result<String, String> {
    // By the name that is given, where systemd does not know the service any more.
    let said = manager::show(&asked(name));
    let id = match &said {
        Ok(said) if !name.ends_with("@.service") => Unit::parse(name, said).name().to_owned(),
        _ => name.to_owned(),
    };
    let drop_in = DropIn::of(&args.directory, &id);
    let path = drop_in.path().display();
    match drop_in.present().map_err(|e| format!("{path} cannot be read: {e}"))? {
        Present::Ours(_) => {}
        Present::Nothing => return Err(format!("it is not enabled: there is no {path}")),
        Present::Foreign => {
            return Err(format!("{path} is not of `shunt enable`, and is left alone"));
        }
    }
    if args.dry_run {
        return Ok(format!("would remove {path}\n"));
    }
    drop_in.remove().map_err(|e| format!("{path} cannot be removed: {e}"))?;
    said.and_then(|_| manager::reload())
        .map_err(|why| format!("{path} is removed; systemd could not be told: {why}"))?;
    Ok(format!("{id} is disabled\n{}", after(&id, args.restart, false)?))
}
