//! A systemd service: the variables that its environment gives, and the rights that its sandbox
//! takes away.

use std::ffi::OsStr;
use std::path::Path;

use shunt_sys::run_dir::{Env, OF_HOST, RunDir};
use shunt_wire::knob;

use super::finding::Finding;
use super::{process, program};
use crate::systemd::{self, Unit, permits};
use crate::{library, settings};

/// Examines it.
pub fn examine(name: &str) -> Vec<Finding> {
    let said = match systemd::show(name) {
        Ok(said) => said,
        Err(why) => {
            let text = format!("systemctl tells nothing of {name}: {why}");
            return vec![Finding::unknown(text).of("unit")];
        }
    };
    let unit = Judge(Unit::parse(name, &said));
    let mut findings = unit.judge();
    if findings.iter().any(|f| f.mark == super::Mark::Missing) {
        return findings;
    }
    match unit.0.main_pid() {
        // What runs tells more than what would be started.
        Some(pid) => findings.extend(process::examine(pid)),
        _ => findings
            .extend(unit.0.program().map_or_else(Vec::new, |p| program::examine(OsStr::new(p)))),
    }
    findings
}

/// What to think of what systemctl has told.
struct Judge<'a>(Unit<'a>);

impl Judge<'_> {
    fn judge(&self) -> Vec<Finding> {
        let name = self.0.name();
        match self.0.get("LoadState") {
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
        format!("put `{lines}` below [Service] (`systemctl edit {}`)", self.0.name())
    }

    fn library(&self) -> Finding {
        let preloaded = self.0.variable(library::VARIABLE);
        let cleared = systemd::environment_is_cleared(&self.0, Path::new(library::NAME), OF_HOST);
        if cleared.is_none()
            && preloaded.is_some_and(|value| library::without(OsStr::new(&value)).is_some())
        {
            return Finding::good("its LD_PRELOAD names the library");
        }
        if self.0.is_started_by_shunt() {
            return Finding::good("it is started by `shunt run`");
        }
        let found = library::find().map(|path| library::entry(&path));
        let path = found.unwrap_or_else(|_| "/usr/lib/shunt/$LIB/libshunt.so".into());
        if let Some(why) = systemd::environment_is_cleared(&self.0, &path, OF_HOST) {
            return Finding::obstacle(why);
        }
        let line =
            format!("`shunt enable {}` gives it the library, and the host's agent", self.0.name());
        if self.0.environment_files().is_empty() {
            Finding::obstacle(format!("its environment does not name the library; {line}"))
        } else {
            Finding::unknown(format!(
                "its Environment= does not name the library, unless one of its EnvironmentFiles= does; {line}"
            ))
        }
    }

    fn settings(&self) -> Vec<Finding> {
        let all = self.0.variables();
        let mistakes =
            all.iter().filter_map(|(n, v)| settings::mistake(n.as_bytes(), v.as_bytes()));
        let mut findings: Vec<_> = mistakes.map(Finding::warning).collect();
        if self.0.variable(knob::DISABLE.env).is_some_and(|value| knob::is_on(value.as_bytes())) {
            findings.push(Finding::obstacle("SHUNT_DISABLE is set in its Environment=; unset it"));
        }
        findings
    }

    /// The agent that it would find.
    fn agent(&self) -> Option<Finding> {
        let (given, xdg) = (self.0.variable(knob::RUN_DIR.env), self.0.variable("XDG_RUNTIME_DIR"));
        let env = Env {
            run_dir: given.as_ref().map(String::as_bytes),
            xdg_runtime_dir: xdg.as_ref().map(String::as_bytes),
        };
        // The number of another user matters only to a directory in /tmp.
        let user = if self.0.is_root() { 0 } else { u32::MAX };
        let dir = RunDir::locate(env, user).ok()?.path().to_string();
        let host = self.drop_in(&format!("Environment={}={OF_HOST}", knob::RUN_DIR.env));
        let start = "and `systemctl enable --now shunt-host.socket`";
        let is_in_tmp = dir.starts_with("/tmp/") || dir.starts_with("/var/tmp/");
        Some(if is_in_tmp && self.0.is_on("PrivateTmp") {
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
        let families = self.0.get("RestrictAddressFamilies");
        if !families.is_empty() && !permits(families, "AF_UNIX") {
            findings.push(Finding::obstacle(format!(
                "RestrictAddressFamilies={families} keeps it from the agent: {}",
                self.drop_in("RestrictAddressFamilies=AF_UNIX")
            )));
        }
        let lacking = systemd::lacking(self.0.get("SystemCallFilter"));
        if !lacking.is_empty() {
            let calls = lacking.join(" ");
            findings.push(Finding::obstacle(format!(
                "SystemCallFilter= forbids what shared memory needs ({calls}): {}",
                self.drop_in(&format!("SystemCallFilter={calls}"))
            )));
        }
        for property in ["RootDirectory", "RootImage"] {
            let root = self.0.get(property);
            if !root.is_empty() && root != "/" {
                findings.push(Finding::unknown(format!(
                    "{property}={root}: library and agent's directory must be in there, too; {}",
                    self.drop_in(&format!("BindReadOnlyPaths=/usr/lib/shunt {OF_HOST}"))
                )));
            }
        }
        let library = library::find().unwrap_or_default();
        let hidden = self.0.hidden().into_iter().chain(self.0.emptied());
        for dir in hidden.filter(|dir| !dir.is_empty() && library.starts_with(dir)) {
            findings.push(Finding::obstacle(format!(
                "its sandbox hides {dir}, and with it the library {}: install it elsewhere (`shunt library \
                 install /usr/lib/shunt`)",
                library.display()
            )));
        }
        if self.0.is_on("PrivateNetwork") {
            findings.push(Finding::warning(
                "PrivateNetwork=: it has a network of its own, and connections with itself alone",
            ));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    fn judge(said: &str) -> Vec<Finding> {
        Judge(Unit::parse("x.service", said)).judge()
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
        assert!(has(&found, Mark::Obstacle, "eventfd2"), "{found:?}");
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
