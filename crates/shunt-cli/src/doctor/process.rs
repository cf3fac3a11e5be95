//! A running process: its library, the agent that it finds, and its connections.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::listing::explained;
use rustix::process::geteuid;
use serde_json::Value;
use shunt_sys::run_dir::{Env, RunDir, Unusable};
use shunt_wire::agent::Request;
use shunt_wire::knob;

use super::finding::Finding;
use super::program;
use crate::directory::{Directory, run_dir};
use crate::table::count_of;
use crate::{library, settings};

/// The process, as people know it.
pub fn name(pid: u32) -> String {
    match fs::read_to_string(of(pid, "comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim_end()),
        Err(_) => format!("process {pid}"),
    }
}

fn of(pid: u32, what: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(what)
}

/// Examines it.
pub fn examine(pid: u32) -> Vec<Finding> {
    if !Path::new("/proc").join(pid.to_string()).exists() {
        let text = format!("no process has the number {pid} here; `pgrep -l NAME` finds it");
        return vec![Finding::missing(text).of("process")];
    }
    let maps = match fs::read_to_string(of(pid, "maps")) {
        Ok(maps) => maps,
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            let text = format!(
                "process {pid} may not be looked at by you; ask as root, or as the user that it runs as"
            );
            return vec![Finding::unknown(text).of("process")];
        }
        Err(e) => return vec![Finding::missing(format!("process {pid}: {e}")).of("process")],
    };
    let environment = fs::read(of(pid, "environ")).unwrap_or_default();
    let variables = variables(&environment);
    let mut findings = the_program(pid);
    findings.push(the_library(&maps, &variables));
    let has_library = findings.iter().all(|f| !f.is_in_the_way());
    findings.extend(settings_of(&variables));
    if has_library {
        findings.extend(agent(pid, &variables));
        findings.extend(connections(pid));
    }
    findings
}

type Variables<'a> = BTreeMap<&'a [u8], &'a [u8]>;

fn variables(environment: &[u8]) -> Variables<'_> {
    let pairs = environment.split(|byte| *byte == 0).filter_map(|variable| {
        let equals = variable.iter().position(|byte| *byte == b'=')?;
        Some((&variable[..equals], &variable[equals + 1..]))
    });
    pairs.collect()
}

/// What keeps its program from being shunted, whoever starts it.
fn the_program(pid: u32) -> Vec<Finding> {
    let link = of(pid, "exe");
    let path = fs::read_link(&link).ok().filter(|path| path.exists()).unwrap_or(link);
    let found = program::examine_file(&path);
    found.into_iter().map(|f| f.of("program")).collect()
}

/// Whether a process runs with the library; `None`: that cannot be seen.
pub fn has_library(pid: u32) -> Option<bool> {
    let maps = fs::read_to_string(of(pid, "maps")).ok()?;
    let mut files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    Some(files.any(|file| Path::new(file).file_name() == Some(library::NAME.as_ref())))
}

fn the_library(maps: &str, variables: &Variables<'_>) -> Finding {
    let mut files =
        maps.lines().filter_map(|line| line.split_whitespace().nth(5).map(|f| (line, f)));
    let found = files.find(|(_, file)| Path::new(file).file_name() == Some(library::NAME.as_ref()));
    let finding = match found {
        Some((line, file)) if line.ends_with("(deleted)") => Finding::warning(format!(
            "it runs with a library that has been replaced since ({file}), and goes on with that; a restart gives \
             it the new one"
        )),
        Some((_, file)) => Finding::good(format!("it has the library {file}")),
        None if is_preloaded(variables) => Finding::obstacle(
            "it was started with the library in LD_PRELOAD, and the loader left it out: the program gained \
             privileges, the file is not there as the process sees it, or it is for another C library",
        ),
        None => Finding::obstacle(
            "it was started without the library, which comes in only when a program starts; restart it under \
             `shunt run`, or with the library in LD_PRELOAD",
        ),
    };
    finding.of("library")
}

fn is_preloaded(variables: &Variables<'_>) -> bool {
    let value = variables.get(library::VARIABLE.as_bytes());
    value.is_some_and(|value| library::without(std::ffi::OsStr::from_bytes(value)).is_some())
}

fn settings_of(variables: &Variables<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if variables.get(knob::DISABLE.env.as_bytes()).is_some_and(|value| knob::is_on(value)) {
        findings.push(Finding::obstacle(
            "SHUNT_DISABLE was set when it started; unset it, and restart the program",
        ));
    }
    let mistakes = variables.iter().filter_map(|(name, value)| settings::mistake(name, value));
    findings.extend(mistakes.map(Finding::warning));
    findings.into_iter().map(|f| f.of("environment")).collect()
}

/// The cure where programs of several users are to be shunted with each other.
pub const HOST_FOR_ALL: &str = "An agent for the host serves all users: `shunt agent --host` as root, and both programs with \
                                SHUNT_RUN_DIR=/run/shunt.";

/// Where a process looks for its agent.
pub struct AgentOf {
    /// The directory.
    pub directory: String,
    /// There is an agent's socket, as the process sees the file systems.
    pub is_there: bool,
    /// It is the one that this command asks.
    pub is_asked: bool,
    /// The user of the process, where the directory is that user's own, and this command runs as another one.
    pub of_user: Option<u32>,
}

impl AgentOf {
    /// That of a process with these variables; `None`: that cannot be seen.
    fn with(pid: u32, variables: &Variables<'_>) -> Option<Result<Self, Unusable>> {
        let user = fs::metadata(of(pid, "")).ok()?.uid();
        let get = |name: &str| variables.get(name.as_bytes()).copied();
        let env = Env { run_dir: get(knob::RUN_DIR.env), xdg_runtime_dir: get("XDG_RUNTIME_DIR") };
        let is_told = env.run_dir.or(env.xdg_runtime_dir).is_some_and(|dir| !dir.is_empty());
        let of_user = Some(user).filter(|user| !is_told && *user != geteuid().as_raw());
        Some(RunDir::locate(env, user).map(|dir| {
            let directory = dir.path().to_string();
            let seen = of(pid, "root").join(directory.trim_start_matches('/')).join("agent.sock");
            let is_asked = run_dir().is_ok_and(|here| here.path().to_string() == directory);
            Self { directory, is_there: seen.exists(), is_asked, of_user }
        }))
    }

    /// That of a process; `None`: that cannot be seen, or it has an impossible one.
    pub fn process(pid: u32) -> Option<Self> {
        Self::with(pid, &variables(&fs::read(of(pid, "environ")).ok()?))?.ok()
    }
}

/// The agent's directory, as the process finds it; and whether that is the one that this command asks.
fn agent(pid: u32, variables: &Variables<'_>) -> Option<Finding> {
    let AgentOf { directory: its, is_there, is_asked, of_user } =
        match AgentOf::with(pid, variables)? {
            Ok(agent) => agent,
            Err(why) => {
                let text =
                    format!("its SHUNT_RUN_DIR cannot be used: {why}; correct it and restart");
                return Some(Finding::obstacle(text).of("agent"));
            }
        };
    let finding = if let Some(user) = of_user.filter(|_| !is_there) {
        Finding::warning(format!(
            "it runs as another user (uid {user}), who has no agent (it would be in {its}); if it has become that user after \
             its start, it speaks to the agent of before. {HOST_FOR_ALL}"
        ))
    } else if !is_there {
        Finding::obstacle(format!(
            "it looks for its agent in {its}, and sees none there (a service with PrivateTmp= has a /tmp of its \
             own): start one for {its}, or set {} for the program",
            knob::RUN_DIR.env
        ))
    } else if is_asked {
        Finding::good(format!("it finds its agent in {its}"))
    } else {
        Finding::warning(format!(
            "its agent is the one in {its}, and this command asks another one: `{}={its} shunt list` shows its \
             connections",
            knob::RUN_DIR.env
        ))
    };
    Some(finding.of("agent"))
}

/// How its connections go, as far as the agent of this environment knows.
fn connections(pid: u32) -> Vec<Finding> {
    let Ok(report) = Directory::open().and_then(|agent| agent.report(&Request::List)) else {
        return Vec::new();
    };
    ways(&report, pid).into_iter().map(|f| f.of("connections")).collect()
}

fn ways(report: &Value, pid: u32) -> Vec<Finding> {
    let of = |list: &str| {
        let all = report[list].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().filter(|end| end["pid"] == pid).cloned().collect::<Vec<_>>()
    };
    let mut findings = Vec::new();
    let (mut shunted, mut tcp) = (0, BTreeMap::<String, u64>::new());
    for end in of("connections") {
        match (end["mode"].as_str(), end["reason"].as_str()) {
            (Some("tcp"), reason) => *tcp.entry(reason.unwrap_or("-").to_owned()).or_default() += 1,
            _ => shunted += 1,
        }
    }
    if shunted > 0 {
        findings.push(Finding::good(format!("{} shunted now", count_of(shunted, "connection"))));
    }
    for (reason, n) in tcp {
        findings.push(Finding::warning(format!(
            "{} on TCP now: {reason}: {}",
            count_of(n, "connection"),
            explained(&reason)
        )));
    }
    for listener in of("listeners_unregistered") {
        let reason = listener["reason"].as_str().unwrap_or("-");
        findings.push(Finding::warning(format!(
            "clients do not find its listener {}: {reason}: {}",
            listener["address"].as_str().unwrap_or("-"),
            explained(reason)
        )));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;
    use serde_json::json;

    #[test]
    fn a_process_without_the_library_is_told_what_to_do() {
        let maps = "7f00-7f01 r-xp 0 00:00 1 /usr/lib/libc.so.6\n";
        let environment = b"A=1\0LD_PRELOAD=/l/libshunt.so\0";
        let found = the_library(maps, &variables(environment));
        assert!(found.text.contains("the loader left it out"), "{found:?}");
        let found = the_library(maps, &variables(b"A=1"));
        assert!(found.mark == Mark::Obstacle && found.text.contains("shunt run"), "{found:?}");
        let with = format!("{maps}7f02-7f03 r-xp 0 00:00 2 /l/libshunt.so\n");
        assert_eq!(the_library(&with, &variables(b"")).mark, Mark::Good);
        let replaced = format!("{maps}7f02-7f03 r-xp 0 00:00 2 /l/libshunt.so (deleted)\n");
        assert_eq!(the_library(&replaced, &variables(b"")).mark, Mark::Warning);
    }

    #[test]
    fn its_settings_are_judged() {
        let found = settings_of(&variables(b"SHUNT_DISABLE=1\0SHUNT_SPIN=nevr\0SHUNT_PIN=never"));
        let marks: Vec<_> = found.iter().map(|f| f.mark).collect();
        assert_eq!(marks, [Mark::Obstacle, Mark::Warning], "{found:?}");
    }

    #[test]
    fn its_connections_are_counted_by_reason() {
        let report = json!({
            "connections": [
                { "pid": 7, "mode": "shunt-attach", "reason": null },
                { "pid": 7, "mode": "tcp", "reason": "remote" },
                { "pid": 7, "mode": "tcp", "reason": "remote" },
                { "pid": 8, "mode": "tcp", "reason": "no-agent" } ],
            "listeners_unregistered": [
                { "pid": 7, "address": "127.0.0.1:80", "reason": "no-agent" } ] });
        let said: Vec<_> = ways(&report, 7).into_iter().map(|f| f.text).collect();
        assert_eq!(said[0], "1 connection shunted now");
        assert!(said[1].starts_with("2 connections on TCP now: remote: The other end"), "{said:?}");
        assert!(said[2].contains("127.0.0.1:80: no-agent: "), "{said:?}");
        assert_eq!(said.len(), 3);
    }
}
