//! A systemd service: what its environment gives, and what its sandbox takes away.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use shunt_sys::run_dir::{Env, OF_HOST, RunDir};
use shunt_wire::knob;

use super::finding::Finding;
use super::{process, program};
use crate::{library, settings};

/// What systemctl is asked for.
const PROPERTIES: [&str; 18] = [
    "LoadState",
    "ExecStart",
    "MainPID",
    "User",
    "DynamicUser",
    "Environment",
    "EnvironmentFiles",
    "UnsetEnvironment",
    "PrivateTmp",
    "PrivateNetwork",
    "PrivateUsers",
    "ProtectHome",
    "RootDirectory",
    "RootImage",
    "InaccessiblePaths",
    "RestrictAddressFamilies",
    "SystemCallFilter",
    "TemporaryFileSystem",
];

/// System calls without which the library leaves everything on TCP.
const NEEDED: [&str; 7] =
    ["socket", "connect", "sendmsg", "recvmsg", "memfd_create", "eventfd2", "futex"];

/// Examines it.
pub fn examine(name: &str) -> Vec<Finding> {
    let mut command = Command::new("systemctl");
    command.args(["show", "--no-pager", "--property", &PROPERTIES.join(",")]);
    // A service is meant where the name does not say otherwise, as systemctl has it.
    command.args(["--", name]).stdin(Stdio::null()).env("LC_ALL", "C");
    let said = match command.output() {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).into_owned()
        }
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.lines().next().unwrap_or("it failed");
            let text = format!("systemctl tells nothing of {name}: {why}");
            return vec![Finding::unknown(text).of("unit")];
        }
        Err(e) => {
            let text =
                format!("systemctl cannot be asked about {name}: {e}; is this a systemd system?");
            return vec![Finding::unknown(text).of("unit")];
        }
    };
    let unit = Unit::parse(name, &said);
    let mut findings = unit.judge();
    if findings.iter().any(|f| f.mark == super::Mark::Missing) {
        return findings;
    }
    match unit.number("MainPID") {
        // What runs tells more than what would be started.
        Some(pid) if pid != 0 => findings.extend(process::examine(pid)),
        _ => findings
            .extend(unit.program().map_or_else(Vec::new, |p| program::examine(OsStr::new(p)))),
    }
    findings
}

/// What systemctl has told of a service.
struct Unit<'a> {
    name: &'a str,
    properties: BTreeMap<&'a str, &'a str>,
}

impl<'a> Unit<'a> {
    fn parse(name: &'a str, said: &'a str) -> Self {
        let properties = said.lines().filter_map(|line| line.split_once('=')).collect();
        Self { name, properties }
    }

    fn get(&self, property: &str) -> &'a str {
        self.properties.get(property).copied().unwrap_or_default()
    }

    fn is_on(&self, property: &str) -> bool {
        !matches!(self.get(property), "" | "no" | "false")
    }

    fn number(&self, property: &str) -> Option<u32> {
        self.get(property).parse().ok()
    }

    /// `{ path=/usr/sbin/nginx ; argv[]=... ; ... }`
    fn program(&self) -> Option<&'a str> {
        let (_, rest) = self.get("ExecStart").split_once("path=")?;
        Some(rest.split(" ;").next().unwrap_or(rest).trim())
    }

    /// The variables that the unit sets; systemctl quotes those with blanks.
    fn variables(&self) -> Vec<(&'a str, &'a str)> {
        let words = self.get("Environment").split(' ');
        let unquoted = words.map(|word| word.trim_matches('"'));
        unquoted.filter_map(|word| word.split_once('=')).collect()
    }

    fn variable(&self, name: &str) -> Option<&'a str> {
        let all = self.variables();
        all.into_iter().rev().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    fn is_root(&self) -> bool {
        matches!(self.get("User"), "" | "root" | "0") && !self.is_on("DynamicUser")
    }

    fn judge(&self) -> Vec<Finding> {
        let name = self.name;
        match self.get("LoadState") {
            "loaded" => {}
            state => {
                let text = format!(
                    "unit: {name} cannot be started ({state}); `systemctl list-unit-files --type=service` has \
                     the names"
                );
                return vec![Finding::missing(text).of("unit")];
            }
        }
        let mut findings = vec![Finding::good(format!("unit: {name}"))];
        findings.push(self.library());
        findings.extend(self.settings());
        findings.extend(self.agent());
        findings.extend(self.sandbox());
        findings.into_iter().map(|f| f.of("unit")).collect()
    }

    /// Lines of a drop-in that mend something.
    fn drop_in(&self, lines: &str) -> String {
        format!("put `{lines}` below [Service] (`systemctl edit {}`)", self.name)
    }

    fn library(&self) -> Finding {
        let preloaded = self.variable(library::VARIABLE);
        if preloaded.is_some_and(|value| library::without(OsStr::new(value)).is_some()) {
            return Finding::good("its LD_PRELOAD names the library");
        }
        let starts = self.program().map(Path::new).and_then(Path::file_name);
        if starts == Some(OsStr::new("shunt")) && self.get("ExecStart").contains(" run ") {
            return Finding::good("it is started by `shunt run`");
        }
        let found = library::find().map(|path| library::entry(&path));
        let path = found.unwrap_or_else(|_| "/usr/lib/shunt/$LIB/libshunt.so".into());
        let line = self.drop_in(&format!("Environment=LD_PRELOAD={}", path.display()));
        if self.get("EnvironmentFiles").is_empty() {
            Finding::obstacle(format!("its environment does not name the library: {line}"))
        } else {
            Finding::unknown(format!(
                "its Environment= does not name the library, unless one of its EnvironmentFiles= does: {line}"
            ))
        }
    }

    fn settings(&self) -> Vec<Finding> {
        let all = self.variables();
        let mistakes =
            all.iter().filter_map(|(n, v)| settings::mistake(n.as_bytes(), v.as_bytes()));
        let mut findings: Vec<_> = mistakes.map(Finding::warning).collect();
        if self.variable(knob::DISABLE.env).is_some_and(|value| knob::is_on(value.as_bytes())) {
            findings.push(Finding::obstacle("SHUNT_DISABLE is set in its Environment=; unset it"));
        }
        findings
    }

    /// The agent that it would find.
    fn agent(&self) -> Option<Finding> {
        let env = Env {
            run_dir: self.variable(knob::RUN_DIR.env).map(str::as_bytes),
            xdg_runtime_dir: self.variable("XDG_RUNTIME_DIR").map(str::as_bytes),
        };
        // The number of another user matters only to a directory in /tmp.
        let user = if self.is_root() { 0 } else { u32::MAX };
        let dir = RunDir::locate(env, user).ok()?.path().to_string();
        let host = self.drop_in(&format!("Environment={}={OF_HOST}", knob::RUN_DIR.env));
        let start = "and `systemctl enable --now shunt-host.socket`";
        let is_in_tmp = dir.starts_with("/tmp/") || dir.starts_with("/var/tmp/");
        Some(if is_in_tmp && self.is_on("PrivateTmp") {
            Finding::obstacle(format!(
                "PrivateTmp= gives it a /tmp of its own, in which it finds no agent: {host}, {start}"
            ))
        } else if is_in_tmp {
            Finding::unknown(format!(
                "it runs as another user and would look for that user's agent in /tmp, which nothing starts for a \
                 service: {host}, {start}"
            ))
        } else if !Path::new(&dir).join("agent.sock").exists() {
            let what = if dir == OF_HOST { "shunt-host.socket" } else { "shunt-agent.socket" };
            Finding::obstacle(format!(
                "it looks for its agent in {dir}, and there is none: `systemctl enable --now {what}`"
            ))
        } else {
            Finding::good(format!("it finds its agent in {dir}"))
        })
    }

    fn sandbox(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let families = self.get("RestrictAddressFamilies");
        if !families.is_empty() && !permits(families, "AF_UNIX") {
            findings.push(Finding::obstacle(format!(
                "RestrictAddressFamilies={families} keeps it from the agent: {}",
                self.drop_in("RestrictAddressFamilies=AF_UNIX")
            )));
        }
        let filter = self.get("SystemCallFilter");
        let lacking: Vec<_> = NEEDED
            .into_iter()
            .filter(|call| !filter.is_empty() && !permits(filter, call))
            .collect();
        if !lacking.is_empty() {
            let calls = lacking.join(" ");
            findings.push(Finding::obstacle(format!(
                "SystemCallFilter= forbids what shared memory needs ({calls}): {}",
                self.drop_in(&format!("SystemCallFilter={calls}"))
            )));
        }
        for property in ["RootDirectory", "RootImage"] {
            let root = self.get(property);
            if !root.is_empty() && root != "/" {
                findings.push(Finding::unknown(format!(
                    "{property}={root}: library and agent's directory must be in there, too; {}",
                    self.drop_in(&format!("BindReadOnlyPaths=/usr/lib/shunt {OF_HOST}"))
                )));
            }
        }
        let hidden = self.get("InaccessiblePaths").split(' ').chain(
            self.get("TemporaryFileSystem").split(' ').map(|t| t.split(':').next().unwrap_or(t)),
        );
        let library = library::find().map(|path| path.display().to_string()).unwrap_or_default();
        let is_below = |path: &str, dir: &str| {
            !dir.is_empty() && Path::new(path).starts_with(dir.trim_start_matches(['-', '+']))
        };
        let homes = ["/home", "/root", "/run/user"];
        let homes = if self.is_on("ProtectHome") && self.get("ProtectHome") != "read-only" {
            &homes[..]
        } else {
            &[]
        };
        for dir in hidden.chain(homes.iter().copied()).filter(|dir| is_below(&library, dir)) {
            findings.push(Finding::obstacle(format!(
                "its sandbox hides {dir}, and with it the library {library}: install it elsewhere (`shunt library \
                 install /usr/lib/shunt`)"
            )));
        }
        if self.is_on("PrivateUsers") {
            findings.push(Finding::unknown(format!(
                "PrivateUsers=: it trusts the agent of the host only where it cannot write to {OF_HOST} \
                 (ProtectSystem=strict)"
            )));
        }
        if self.is_on("PrivateNetwork") {
            findings.push(Finding::warning(
                "PrivateNetwork=: it has a network of its own, and connections with itself alone",
            ));
        }
        findings
    }
}

/// A list as systemctl prints it: what is permitted or, behind `~`, what is not.
fn permits(list: &str, what: &str) -> bool {
    match list.strip_prefix('~') {
        Some(forbidden) => !forbidden.split(' ').any(|word| word == what),
        // A call may stand there with the error that it gives.
        None => list.split(' ').any(|word| word == what),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    fn judge(said: &str) -> Vec<Finding> {
        Unit::parse("x.service", said).judge()
    }

    fn has(findings: &[Finding], mark: Mark, text: &str) -> bool {
        findings.iter().any(|f| f.mark == mark && f.text.contains(text))
    }

    #[test]
    fn what_keeps_a_service_from_the_agent() {
        let said = "LoadState=loaded\nUser=www-data\nPrivateTmp=yes\nPrivateUsers=no\n\
                    ExecStart={ path=/usr/sbin/nginx ; argv[]=/usr/sbin/nginx -g daemon off; ; pid=0 }\n\
                    RestrictAddressFamilies=AF_INET AF_INET6\nSystemCallFilter=read write socket connect\n";
        let found = judge(said);
        assert!(has(&found, Mark::Obstacle, "does not name the library"), "{found:?}");
        assert!(has(&found, Mark::Obstacle, "PrivateTmp="), "{found:?}");
        assert!(has(&found, Mark::Obstacle, "RestrictAddressFamilies=AF_UNIX"), "{found:?}");
        assert!(has(&found, Mark::Obstacle, "memfd_create eventfd2 futex"), "{found:?}");
        assert!(!has(&found, Mark::Unknown, "PrivateUsers"), "{found:?}");
        assert_eq!(Unit::parse("x", said).program(), Some("/usr/sbin/nginx"));
    }

    #[test]
    fn a_service_that_is_given_everything() {
        let said = "LoadState=loaded\nUser=www-data\nPrivateTmp=yes\n\
                    Environment=LD_PRELOAD=/l/libshunt.so SHUNT_RUN_DIR=/no/such SHUNT_SPIN=nevr\n\
                    RestrictAddressFamilies=~AF_PACKET\nSystemCallFilter=~ptrace bpf\n";
        let found = judge(said);
        assert!(has(&found, Mark::Good, "LD_PRELOAD names the library"), "{found:?}");
        assert!(has(&found, Mark::Obstacle, "in /no/such, and there is none"), "{found:?}");
        assert!(has(&found, Mark::Warning, "SHUNT_SPIN=nevr"), "{found:?}");
        let obstacles = found.iter().filter(|f| f.is_in_the_way()).count();
        assert_eq!(obstacles, 1, "{found:?}");
    }

    #[test]
    fn units_that_are_none() {
        assert_eq!(judge("LoadState=not-found\n")[0].mark, Mark::Missing);
        assert_eq!(judge("")[0].mark, Mark::Missing);
    }
}
