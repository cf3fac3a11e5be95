//! The needs of a service whose connections are to be shunted, and those that a drop-in cannot
//! meet.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use shunt_sys::run_dir::OF_HOST;
use shunt_wire::knob;

use super::drop_in::MARK;
use super::unit::{Unit, permits};
use super::{calls, environment_is_cleared};
use crate::library;

/// The unit that starts the agent for the host.
pub const AGENT: &str = "shunt-host.socket";

/// Services that an agent is in: an agent finds none.
const OWN: [&str; 3] = ["shunt-agent.service", "shunt-host.service", "shunt-ivshmem.service"];

/// What there is on this host for a service to use.
#[derive(Clone, Debug)]
pub struct Host {
    /// The library's file.
    pub library: PathBuf,
    /// The same as `LD_PRELOAD` is to name it.
    pub entry: PathBuf,
    /// The directory of the agent for the host.
    pub run_dir: String,
    /// systemd knows [`AGENT`].
    pub has_agent_unit: bool,
}

/// What is written, and what is said of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The drop-in.
    pub text: String,
    /// Settings of the sandbox that it changes, each with the reason.
    pub loosened: Vec<String>,
    /// What may be in the way still.
    pub doubts: Vec<String>,
}

/// Settings of a service, by name, each of which may stand there several times.
type Lines = Vec<(&'static str, String)>;

/// Plans it. `variables`: more of them, for the library. `before`: the drop-in that is there, whose settings systemd tells
/// as the unit's own.
///
/// # Errors
/// Why the service would not be shunted all the same.
pub fn plan(
    unit: &Unit<'_>,
    host: &Host,
    variables: &BTreeMap<&'static str, &'static str>,
    before: Option<&str>,
) -> Result<Plan, String> {
    refuse(unit, host)?;
    let mut lines = environment(unit, host, variables);
    let (sandbox, loosened) = sandbox(unit, host, before)?;
    lines.extend(sandbox);
    let mut text = format!("{MARK}\n");
    if host.has_agent_unit && host.run_dir == OF_HOST {
        let _ = write!(text, "[Unit]\nWants={AGENT}\nAfter={AGENT}\n\n");
    }
    text.push_str("[Service]\n");
    for (name, value) in lines {
        let _ = writeln!(text, "{name}={value}");
    }
    Ok(Plan { text, loosened, doubts: doubts(unit, host) })
}

/// What no drop-in mends.
fn refuse(unit: &Unit<'_>, host: &Host) -> Result<(), String> {
    if OWN.contains(&unit.name()) {
        return Err("it is a part of Shunt, and finds no agent".to_owned());
    }
    if unit.is_started_by_shunt() {
        return Err("`shunt run` starts it already".to_owned());
    }
    if unit.get("DefaultDependencies") == "no" {
        return Err(
            "it starts before sockets are made (DefaultDependencies=no), and with them the agent's"
                .to_owned(),
        );
    }
    let name = unit.program().map(Path::new).and_then(Path::file_name);
    if unit.get("Type") == "oneshot" && name == Some("true".as_ref()) {
        let parts = unit.get("ConsistsOf");
        let stem = unit.name().trim_end_matches(".service");
        return Err(if parts.is_empty() {
            format!(
                "it starts no program of its own; `systemctl list-units '{stem}@*'` may have its parts"
            )
        } else {
            format!("it starts no program of its own; name its parts: {parts}")
        });
    }
    if !unit.get("RootImage").is_empty() {
        return Err(
            "it has an image of its own for a root (RootImage=), into which nothing can be looked"
                .to_owned(),
        );
    }
    let library = host.library.display();
    if !unit.is_root()
        && let Some(closed) = closed_to_others(&host.library)
    {
        return Err(format!(
            "its user cannot read the library {library}, because of the mode of {}: install it elsewhere (`shunt \
             library install /usr/lib/shunt`)",
            closed.display()
        ));
    }
    for (what, path) in
        [("the library", host.library.as_path()), ("the agent", Path::new(&host.run_dir))]
    {
        if let Some(dir) = unit.hidden().into_iter().find(|dir| is_below(path, dir)) {
            return Err(format!(
                "its sandbox hides {dir}, and with it {what} ({}); nothing below it can be given back",
                path.display()
            ));
        }
    }
    for name in [library::VARIABLE, knob::RUN_DIR.env] {
        if unit.words("UnsetEnvironment").any(|unset| unset.split('=').next() == Some(name)) {
            return Err(format!("its UnsetEnvironment= takes {name} away"));
        }
        let wins = |file: &&Path| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let mut values =
                text.lines().filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
            values.any(|value| {
                !value.contains(library::NAME) && value.trim_matches('"') != host.run_dir
            })
        };
        if let Some(file) = unit.environment_files().iter().find(|file| wins(file)) {
            return Err(format!(
                "its EnvironmentFile= {} sets {name}, which wins over a drop-in; take it out there",
                file.display()
            ));
        }
    }
    match environment_is_cleared(unit, &host.entry, &host.run_dir) {
        Some(why) => Err(why),
        None => Ok(()),
    }
}

/// The first part of the path that only some may pass or read.
fn closed_to_others(path: &Path) -> Option<&Path> {
    let needed = |at: &&Path| if *at == path { 0o004 } else { 0o001 };
    let mut parts: Vec<_> = path.ancestors().collect();
    parts.reverse();
    parts.into_iter().find(|at| at.metadata().is_ok_and(|stat| stat.mode() & needed(at) == 0))
}

fn is_below(path: &Path, dir: &str) -> bool {
    !dir.is_empty() && path.starts_with(dir)
}

fn environment(
    unit: &Unit<'_>,
    host: &Host,
    variables: &BTreeMap<&'static str, &'static str>,
) -> Lines {
    // An older library of ours goes; what else is preloaded stays.
    let before = unit.variable(library::VARIABLE);
    let others =
        before.map(|value| library::without(value.as_ref()).unwrap_or_else(|| value.into()));
    let preload = library::preload(&host.entry, others).to_string_lossy().into_owned();
    let own = [(library::VARIABLE, preload), (knob::RUN_DIR.env, host.run_dir.clone())];
    let more = variables.iter().map(|(name, value)| (*name, (*value).to_owned()));
    own.into_iter().chain(more).map(|(n, v)| ("Environment", quoted(&format!("{n}={v}")))).collect()
}

/// A word as systemd reads it: `%` is for specifiers; `$` is not for variables here.
fn quoted(word: &str) -> String {
    let mut text = String::from("\"");
    for c in word.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '%' => text.push_str("%%"),
            _ => text.push(c),
        }
    }
    text.push('"');
    text
}

/// The settings that are added; what is there already, and comes of the drop-in that is there, stays.
fn sandbox(
    unit: &Unit<'_>,
    host: &Host,
    before: Option<&str>,
) -> Result<(Lines, Vec<String>), String> {
    const SETTINGS: [&str; 4] =
        ["RestrictAddressFamilies", "SystemCallFilter", "ExecPaths", "BindReadOnlyPaths"];
    let lines = before.unwrap_or_default().lines().filter_map(|line| line.split_once('='));
    let mut lines: Lines = lines
        .filter_map(|(name, value)| {
            Some((*SETTINGS.iter().find(|s| **s == name)?, value.to_owned()))
        })
        .collect();
    let mut loosened = Vec::new();
    let mut add = |name, value: String, why: &str| {
        loosened.push(format!("{name}={value}: {why}"));
        lines.push((name, value));
    };
    let families = unit.get("RestrictAddressFamilies");
    if !families.is_empty() && !permits(families, "AF_UNIX") {
        add("RestrictAddressFamilies", "AF_UNIX".into(), "the agent is at a UNIX socket");
    }
    let lacking = calls::lacking(unit.get("SystemCallFilter"));
    if !lacking.is_empty() {
        let why = "the library needs them, and SystemCallFilter= does not permit them";
        add("SystemCallFilter", lacking.join(" "), why);
    }
    let directory = host.library.parent().unwrap_or(Path::new("/"));
    let directory = directory.to_str().ok_or("the library's path is no text")?;
    let run_dir = host.run_dir.as_str();
    if is_not_executable(unit, directory) {
        let why = "NoExecPaths= would keep the loader from the library";
        add("ExecPaths", plain(directory)?, why);
    }
    let root = unit.get("RootDirectory");
    let is_elsewhere = !root.is_empty() && root != "/";
    let bound: Vec<_> = unit.words("BindReadOnlyPaths").chain(unit.words("BindPaths")).collect();
    for path in [directory, run_dir] {
        let is_gone = unit.emptied().into_iter().any(|dir| is_below(Path::new(path), dir));
        let is_bound =
            bound.iter().any(|entry| entry.trim_start_matches('-').split(':').next() == Some(path));
        if (is_elsewhere || is_gone) && !is_bound {
            let why = if is_elsewhere {
                "RootDirectory= has it look elsewhere"
            } else {
                "TemporaryFileSystem= hides it"
            };
            add("BindReadOnlyPaths", plain(path)?, why);
        }
    }
    Ok((lines, loosened))
}

/// A path that stands for itself in a list of paths.
fn plain(path: &str) -> Result<String, String> {
    if path.contains(|c: char| c.is_whitespace() || "%:\\\"'".contains(c)) {
        return Err(format!("a unit cannot name the path {path}; use another directory"));
    }
    Ok(path.to_owned())
}

/// True where the longest path of those that matter forbids to execute, and so to map a library.
fn is_not_executable(unit: &Unit<'_>, directory: &str) -> bool {
    let real = |path: &str| {
        let path = Path::new(path.trim_start_matches(['-', '+']));
        path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
    };
    let directory = real(directory);
    let longest = |list| {
        let above = unit.words(list).map(real).filter(|path| directory.starts_with(path));
        above.map(|path| path.components().count()).max().unwrap_or(0)
    };
    longest("NoExecPaths") > longest("ExecPaths")
}

fn doubts(unit: &Unit<'_>, host: &Host) -> Vec<String> {
    let mut doubts = Vec::new();
    if unit.is_on("PrivateNetwork") {
        doubts.push(
            "PrivateNetwork=: it has a network of its own, and connections with itself alone"
                .to_owned(),
        );
    }
    for (property, what) in [("AppArmorProfile", "profile"), ("SELinuxContext", "context")] {
        if !unit.get(property).is_empty() {
            doubts.push(format!(
                "{property}=: the {what} must let it map {} and connect to {}/agent.sock; whether it does is not known",
                host.library.display(),
                host.run_dir
            ));
        }
    }
    if !host.has_agent_unit && host.run_dir == OF_HOST {
        doubts.push(format!(
            "systemd knows no {AGENT}: nothing starts the agent when the host boots"
        ));
    }
    doubts
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
