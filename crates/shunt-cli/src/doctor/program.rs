//! The program: will the dynamic loader preload a library into it?

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use super::finding::{Finding, Mark};
use super::sanitizers;
use crate::elf::{self, Kind};
use crate::glibc::{self, Version};
use crate::{library, program};

/// Interpreters of interpreters that the kernel follows.
const MAX_SCRIPTS: usize = 4;

/// Finds the program and examines it.
pub fn examine(name: &OsStr) -> Vec<Finding> {
    match program::find(name) {
        Some(path) if program::is_executable(&path) => {
            let mut findings = vec![Finding::good(format!("program: {}", path.display()))];
            findings.extend(examine_file(&path));
            findings
        }
        Some(path) => {
            vec![Finding::obstacle(format!(
                "program: {} is not an executable file; check its mode",
                path.display()
            ))]
        }
        None => vec![Finding::obstacle(format!(
            "program: {} was not found; check its name and PATH",
            name.display()
        ))],
    }
}

/// Examines an executable file.
pub fn examine_file(path: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    follow(path, MAX_SCRIPTS, &mut findings);
    findings
}

fn follow(path: &Path, scripts: usize, findings: &mut Vec<Finding>) {
    let name = path.display();
    let kind = match File::open(path).and_then(|file| elf::inspect(&file)) {
        Ok(kind) => kind,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            findings.push(Finding::warning(format!(
                "{name} may be executed but not read, so it could not be examined"
            )));
            return;
        }
        Err(e) => {
            findings.push(Finding::obstacle(format!("{name} cannot be read: {e}")));
            return;
        }
    };
    if !matches!(kind, Kind::Script(..)) {
        findings.extend(privileges(path));
    }
    match kind {
        Kind::Script(interpreter, argument) => {
            findings.push(Finding::good(format!("{name} is a script for {interpreter}")));
            if scripts == 0 {
                findings.push(Finding::obstacle("its interpreters form too long a chain"));
                return;
            }
            script(&interpreter, argument.as_deref(), scripts - 1, findings);
        }
        Kind::Dynamic(loader) => {
            findings.push(judge_loader(&name, &loader));
            findings.extend(sanitizers::examine(path));
        }
        Kind::Static => findings.push(Finding::obstacle(format!(
            "{name} is statically linked (as many Go programs are), so no library can be preloaded \
             into it; use a dynamically linked build"
        ))),
        Kind::Foreign => findings.push(Finding::obstacle(format!(
            "{name} is for another architecture or word length than the library; use a build for \
             this machine"
        ))),
        Kind::Unknown => findings.push(Finding::warning(format!(
            "{name} is neither a program file nor names its interpreter; a shell would run it"
        ))),
    }
}

/// A script is what its interpreter is; `env` runs what it finds in `PATH`.
fn script(interpreter: &str, argument: Option<&str>, scripts: usize, findings: &mut Vec<Finding>) {
    let interpreter = Path::new(interpreter);
    let real = if interpreter.file_name() == Some(OsStr::new("env")) {
        let mut words = argument.unwrap_or_default().split_whitespace();
        let command = words.find(|w| !w.starts_with('-') && !w.contains('='));
        command.and_then(|c| program::find(OsStr::new(c)))
    } else {
        Some(interpreter.to_path_buf())
    };
    match real {
        Some(real) => follow(&real, scripts, findings),
        None => findings.push(Finding::obstacle(format!(
            "the interpreter that {} is to find is not in PATH",
            interpreter.display()
        ))),
    }
}

fn judge_loader(name: &dyn std::fmt::Display, loader: &str) -> Finding {
    let file = loader.rsplit('/').next().unwrap_or(loader);
    if !Path::new(loader).exists() {
        return Finding::obstacle(format!("{name} needs the loader {loader}, which is not there"));
    }
    if file.starts_with("ld-musl") {
        let text = format!(
            "{name} uses the musl C library, and the library is for glibc; use a glibc build"
        );
        // musl's loader passes over what it does not find, and ends a program with what it cannot use.
        let is_passed_over = library::find().is_ok_and(|path| library::entry(&path) != path);
        return if is_passed_over { Finding::obstacle(text) } else { Finding::harm(text) };
    }
    if file.starts_with("ld-linux") || file.starts_with("ld64") {
        match older_glibc(Path::new(loader)) {
            None => Finding::good(format!("{name} is dynamically linked with glibc")),
            Some((has, needs)) => Finding::harm(format!(
                "{name} is linked with glibc {}.{}, and the library needs {}.{}; use a newer build, or \
                 build Shunt where glibc is as old",
                has.0, has.1, needs.0, needs.1
            )),
        }
    } else {
        Finding::warning(format!("{name} uses the loader {loader}, which Shunt does not know"))
    }
}

/// The version of the glibc that belongs to `loader`, and that which the library needs, when the former is older.
/// Not asked of the loader that runs this very command, which was built with the library.
fn older_glibc(loader: &Path) -> Option<(Version, Version)> {
    let loader = loader.canonicalize().ok()?;
    let own = File::open("/proc/self/exe").and_then(|exe| elf::inspect(&exe)).ok()?;
    if matches!(own, Kind::Dynamic(own) if Path::new(&own).canonicalize().is_ok_and(|own| own == loader))
    {
        return None;
    }
    let has = glibc::offered(&loader.with_file_name("libc.so.6"))?;
    let needs = glibc::needed(&library::find().ok()?)?;
    (has < needs).then_some((has, needs))
}

/// The loader ignores `LD_PRELOAD` in programs that gain privileges.
fn privileges(path: &Path) -> Vec<Finding> {
    let name = path.display();
    let mut findings = Vec::new();
    let Ok(stat) = path.metadata() else { return findings };
    let gains_user = stat.mode() & 0o4000 != 0 && stat.uid() != geteuid().as_raw();
    let gains_group = stat.mode() & 0o2010 == 0o2010 && stat.gid() != getegid().as_raw();
    if gains_user || gains_group {
        let what = if gains_user { "setuid" } else { "setgid" };
        findings.push(Finding {
            mark: Mark::Obstacle,
            text: format!("{name} is {what}, so the loader preloads nothing into it"),
        });
    }
    let mut room = [0_u8; 64];
    let capable = match rustix::fs::getxattr(path, "security.capability", &mut room) {
        Ok(len) => len > 0,
        Err(e) => e == Errno::RANGE,
    };
    if capable && !geteuid().is_root() {
        findings.push(Finding::obstacle(format!(
            "{name} has file capabilities, so the loader preloads nothing into it; `getcap` shows \
             them"
        )));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn worst(findings: &[Finding]) -> Option<Mark> {
        let rank = |m: &Mark| *m as u8;
        findings.iter().map(|f| f.mark).max_by_key(rank)
    }

    #[test]
    fn ordinary_programs() {
        assert_eq!(worst(&examine(OsStr::new("sh"))), Some(Mark::Good));
        assert_eq!(worst(&examine(OsStr::new("no-such-program-here"))), Some(Mark::Obstacle));
        assert_eq!(worst(&examine(OsStr::new("/etc/passwd"))), Some(Mark::Obstacle));
    }

    #[test]
    fn scripts_are_judged_by_their_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("script");
        let judge = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            worst(&examine(path.as_os_str()))
        };
        assert_eq!(judge("#!/bin/sh\n"), Some(Mark::Good));
        assert_eq!(judge("#!/usr/bin/env -S A=1 sh -e\n"), Some(Mark::Good));
        assert_eq!(judge("#!/usr/bin/env no-such-program-here\n"), Some(Mark::Obstacle));
        assert_eq!(judge("#!/no/such/interpreter\n"), Some(Mark::Obstacle));
        assert_eq!(judge(&format!("#!{}\n", path.display())), Some(Mark::Obstacle));
        assert_eq!(judge("echo\n"), Some(Mark::Warning));
    }

    #[test]
    fn other_c_libraries() {
        assert_eq!(judge_loader(&"p", "/no/such/ld-linux.so.2").mark, Mark::Obstacle);
        let dir = tempfile::tempdir().unwrap();
        let loader = dir.path().join("ld-musl-x86_64.so.1");
        std::fs::write(&loader, "").unwrap();
        assert_eq!(judge_loader(&"p", loader.to_str().unwrap()).mark, Mark::Harm);
    }
}
