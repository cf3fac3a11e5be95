//! A program: whether the dynamic loader will preload a library into it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use super::finding::Finding;
use super::script::{self, Env};
use super::{go, sanitizers};
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
            vec![Finding::missing(format!(
                "program: {} is not an executable file; check its mode",
                path.display()
            ))]
        }
        None => vec![Finding::missing(format!(
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
            findings.push(Finding::unknown(format!(
                "{name} may be executed but not read, so it could not be examined; ask as a user who may \
                 read it"
            )));
            return;
        }
        Err(e) => {
            findings.push(Finding::missing(format!("{name} cannot be read: {e}")));
            return;
        }
    };
    // The manager's own program is not the one that has the connections.
    if let Some(said) = script::linked_shim(path) {
        findings.push(Finding::unknown(said));
        return;
    }
    if !matches!(kind, Kind::Script(..)) {
        findings.extend(privileges(path));
    }
    match kind {
        Kind::Script(interpreter, argument) => {
            findings.push(Finding::good(format!("{name} is a script for {interpreter}")));
            if scripts == 0 {
                findings.push(Finding::missing("its interpreters form too long a chain"));
                return;
            }
            let shell = interpret(&interpreter, argument.as_deref(), scripts - 1, findings);
            if shell && !findings.iter().any(Finding::is_in_the_way) {
                findings.push(Finding::unknown(script::shell_script(path)));
            }
        }
        Kind::Dynamic(loader) => {
            findings.push(judge_loader(&name, &loader));
            if go::is_in(path) {
                findings.push(Finding::obstacle(format!(
                    "{name} holds Go code, which makes its system calls by itself instead of through the C \
                     library, so its connections stay on TCP, however it is linked; its peers are not \
                     disturbed"
                )));
            }
            findings.extend(sanitizers::examine(path));
        }
        Kind::Static if go::is_in(path) => findings.push(Finding::obstacle(format!(
            "{name} is a Go program, statically linked, and makes its system calls by itself: its connections \
             stay on TCP, and a dynamically linked build would not change that"
        ))),
        Kind::Static => findings.push(Finding::obstacle(format!(
            "{name} is statically linked, so no library can be preloaded into it; use a dynamically \
             linked build"
        ))),
        Kind::Foreign => findings.push(Finding::obstacle(format!(
            "{name} is for another architecture or word length than the library; use a build for \
             this machine"
        ))),
        Kind::Unknown => findings.push(Finding::unknown(format!(
            "{name} is neither a program file nor names its interpreter; if a shell runs it, ask about the \
             programs that it starts"
        ))),
    }
}

/// A script is what its interpreter is; `env` runs what it finds in `PATH`. Says whether that is a shell.
fn interpret(
    interpreter: &str,
    argument: Option<&str>,
    scripts: usize,
    findings: &mut Vec<Finding>,
) -> bool {
    let interpreter = Path::new(interpreter);
    if !interpreter.exists() {
        findings.push(Finding::missing(format!(
            "the interpreter {} is not there; install it, or correct the script's first line",
            interpreter.display()
        )));
        return false;
    }
    if interpreter.file_name() != Some(OsStr::new("env")) {
        follow(interpreter, scripts, findings);
        return script::is_shell(interpreter);
    }
    let command = match script::env(argument.unwrap_or_default()) {
        Env::Starts(command) => command,
        Env::DropsLibrary => {
            findings.push(Finding::obstacle(
                "its first line has env take LD_PRELOAD out of the environment, and the library with it; \
                 leave out what clears it (-i, -u LD_PRELOAD)",
            ));
            return false;
        }
        Env::Nothing => {
            findings.push(Finding::missing("its first line names no program for env to start"));
            return false;
        }
    };
    let Some(real) = program::find(OsStr::new(&command)) else {
        let advice = if command.contains(' ') {
            "a first line is one argument, which `env -S` splits"
        } else {
            "install it, or correct PATH"
        };
        findings.push(Finding::missing(format!(
            "env is to find the interpreter {command:?}, which is not in PATH; {advice}"
        )));
        return false;
    };
    follow(&real, scripts, findings);
    script::is_shell(&real)
}

fn judge_loader(name: &dyn std::fmt::Display, loader: &str) -> Finding {
    let file = loader.rsplit('/').next().unwrap_or(loader);
    if !Path::new(loader).exists() {
        return Finding::missing(format!(
            "{name} needs the loader {loader}, which is not there; install the C library that it is built for"
        ));
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
        Finding::unknown(format!(
            "{name} uses the loader {loader}, which Shunt does not know; `shunt run --summary` tells what \
             becomes of its connections"
        ))
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
        findings.push(Finding::obstacle(format!(
            "{name} is {what}, so the loader preloads nothing into it; where it starts another program (su, sudo), \
             have it start `shunt run PROGRAM`; else start it as its owner, or a copy that has not got that bit"
        )));
    }
    if is_capable(path) && !geteuid().is_root() {
        findings.push(Finding::obstacle(format!(
            "{name} has file capabilities, so the loader preloads nothing into it; `getcap` shows \
             them, and a service manager can give them instead (AmbientCapabilities=)"
        )));
    }
    findings
}

fn is_capable(path: &Path) -> bool {
    let mut room = [0_u8; 64];
    match rustix::fs::getxattr(path, "security.capability", &mut room) {
        Ok(len) => len > 0,
        Err(e) => e == Errno::RANGE,
    }
}

/// True where the loader ignores `LD_PRELOAD` for users without privileges.
pub fn gives_privileges(path: &Path) -> bool {
    path.metadata().is_ok_and(|stat| stat.mode() & 0o6000 != 0) || is_capable(path)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::super::go::tests::program_with_section;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn worst(findings: &[Finding]) -> Option<Mark> {
        findings.iter().map(|f| f.mark).max()
    }

    #[test]
    fn ordinary_programs() {
        assert_eq!(worst(&examine(OsStr::new("sh"))), Some(Mark::Good));
        assert_eq!(worst(&examine(OsStr::new("no-such-program-here"))), Some(Mark::Missing));
        assert_eq!(worst(&examine(OsStr::new("/etc/passwd"))), Some(Mark::Missing));
    }

    #[test]
    fn go_is_no_however_it_is_linked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dynamic");
        std::fs::write(&path, program_with_section(".go.buildinfo")).unwrap();
        let found = examine_file(&path);
        assert_eq!(worst(&found), Some(Mark::Obstacle), "{found:?}");
        assert!(found.iter().any(|f| f.text.contains("holds Go code")), "{found:?}");
        std::fs::write(&path, program_with_section(".comment")).unwrap();
        assert_eq!(worst(&examine_file(&path)), Some(Mark::Good));
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
        let own = std::env::current_exe().unwrap();
        assert_eq!(judge(&format!("#!{}\n", own.display())), Some(Mark::Good));
        assert_eq!(judge("#!/usr/bin/env -S A=1 env -i\n"), Some(Mark::Good), "env is the program");
        assert_eq!(judge("#!/usr/bin/env -S -i python3\n"), Some(Mark::Obstacle));
        // A shell's connections are those of its programs.
        assert_eq!(judge("#!/bin/sh\n"), Some(Mark::Unknown));
        assert_eq!(judge("#!/usr/bin/env -S A=1 sh -e\n"), Some(Mark::Unknown));
        assert_eq!(judge("#!/usr/bin/env sh -e\n"), Some(Mark::Missing), "env looks for \"sh -e\"");
        assert_eq!(judge("#!/usr/bin/env no-such-program-here\n"), Some(Mark::Missing));
        assert_eq!(judge("#!/no/such/interpreter\n"), Some(Mark::Missing));
        assert_eq!(judge(&format!("#!{}\n", path.display())), Some(Mark::Missing));
        assert_eq!(judge("echo\n"), Some(Mark::Unknown));
    }

    #[test]
    fn other_c_libraries() {
        assert_eq!(judge_loader(&"p", "/no/such/ld-linux.so.2").mark, Mark::Missing);
        let dir = tempfile::tempdir().unwrap();
        let loader = dir.path().join("ld-musl-x86_64.so.1");
        std::fs::write(&loader, "").unwrap();
        assert_eq!(judge_loader(&"p", loader.to_str().unwrap()).mark, Mark::Harm);
    }
}
