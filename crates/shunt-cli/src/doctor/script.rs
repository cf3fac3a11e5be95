//! Scripts, and programs that stand for another one and start it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Interpreters that have no connections of their own worth speaking of: their programs do.
const SHELLS: [&str; 9] = ["sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "mksh", "fish"];

/// Managers of versions, and how they are asked for the program behind a name.
const MANAGERS: [(&str, &str); 9] = [
    ("pyenv", "pyenv which"),
    ("rbenv", "rbenv which"),
    ("nodenv", "nodenv which"),
    ("goenv", "goenv which"),
    ("jenv", "jenv which"),
    ("asdf", "asdf which"),
    ("mise", "mise which"),
    ("volta", "volta which"),
    ("rustup", "rustup which"),
];

/// So much of a script is read; shims are shorter.
const LONGEST_SHIM: u64 = 64 << 10;

/// What `env` does with the argument of a first line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Env {
    /// It starts this program, which it looks up.
    Starts(String),
    /// It takes the library out of the environment before.
    DropsLibrary,
    /// It names no program.
    Nothing,
}

/// Reads it as env(1) does: the kernel passes one argument, which only `-S` splits.
pub fn env(argument: &str) -> Env {
    const OPERANDS: [&str; 4] = ["-u", "--unset", "-C", "--chdir"];
    let argument = argument.trim();
    let is_split = |word: &str| {
        word.starts_with("--split-string")
            || word.strip_prefix('-').is_some_and(|flags| {
                flags.split_once('S').is_some_and(|(before, _)| {
                    before.chars().all(|flag| matches!(flag, 'i' | 'v' | '0'))
                })
            })
    };
    if !is_split(argument) {
        return match argument {
            "" => Env::Nothing,
            "-i" | "-" | "--ignore-environment" => Env::DropsLibrary,
            program => Env::Starts(program.to_owned()),
        };
    }
    let flags = argument.split_once('S').map_or("", |(flags, _)| flags);
    if flags.starts_with('-') && !flags.starts_with("--") && flags.contains('i') {
        return Env::DropsLibrary;
    }
    let rest = argument
        .strip_prefix("--split-string")
        .map(|rest| rest.trim_start_matches('='))
        .or_else(|| argument.split_once('S').map(|(_, rest)| rest))
        .unwrap_or_default();
    let mut words = rest.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "-i" | "-" | "--ignore-environment" | "-uLD_PRELOAD" | "--unset=LD_PRELOAD" => {
                return Env::DropsLibrary;
            }
            _ if OPERANDS.contains(&word) => {
                let is_unset = matches!(word, "-u" | "--unset");
                if words.next() == Some("LD_PRELOAD") && is_unset {
                    return Env::DropsLibrary;
                }
            }
            _ if word.starts_with("LD_PRELOAD=") => return Env::DropsLibrary,
            _ if word.starts_with('-') || word.contains('=') => {}
            program => return Env::Starts(program.to_owned()),
        }
    }
    Env::Nothing
}

/// True where the programs that the interpreter starts have the connections.
pub fn is_shell(interpreter: &Path) -> bool {
    interpreter.file_name().and_then(OsStr::to_str).is_some_and(|name| SHELLS.contains(&name))
}

/// What is to be said of a shell's script.
pub fn shell_script(path: &Path) -> String {
    let name = path.display();
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST_SHIM).read_to_string(&mut text));
    let runs = |manager: &str| {
        text.lines().filter(|line| line.trim_start().starts_with("exec ")).any(|line| {
            let words = line.split(|c: char| c.is_whitespace() || "\"'/".contains(c));
            words.into_iter().any(|word| word == manager)
        })
    };
    let manager = MANAGERS.iter().find(|(manager, _)| read.is_ok() && runs(manager));
    match manager {
        Some((manager, ask)) => shim(path, manager, ask),
        None => format!(
            "{name} is a shell's script: the connections are those of the programs that it starts; ask \
             about these (`shunt doctor PROGRAM`)"
        ),
    }
}

fn shim(path: &Path, manager: &str, ask: &str) -> String {
    let (name, short) = (path.display(), path.file_name().unwrap_or_default().display());
    format!(
        "{name} is a shim of {manager}, which starts another program; ask about that one: \
         `shunt doctor \"$({ask} {short})\"`"
    )
}

/// The same of a program under another name, which starts another program by that name.
pub fn linked_shim(path: &Path) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let (real, own) = (real.file_name()?.to_str()?, path.file_name()?.to_str()?);
    let is_of = |manager: &str| real == manager || real.strip_suffix("-shim") == Some(manager);
    let (manager, ask) = MANAGERS.iter().find(|(manager, _)| is_of(manager) && own != *manager)?;
    (own != real).then(|| shim(path, manager, ask))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_env_starts() {
        let starts = |program: &str| Env::Starts(program.to_owned());
        assert_eq!(env("python3"), starts("python3"));
        assert_eq!(env("python3 -u"), starts("python3 -u"), "one argument is one name");
        for split in ["-S python3 -u", "-Spython3", "-vS python3", "--split-string=python3 -u"] {
            assert_eq!(env(split), starts("python3"), "{split}");
        }
        assert_eq!(env("-S A=1 -u HOME -C /tmp python3"), starts("python3"));
        for dropped in ["-i", "-iS python3", "-S -i python3", "-S -u LD_PRELOAD python3"] {
            assert_eq!(env(dropped), Env::DropsLibrary, "{dropped}");
        }
        assert_eq!((env(""), env("-S A=1")), (Env::Nothing, Env::Nothing));
    }

    #[test]
    fn shims_name_the_manager_that_knows_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("python3");
        let pyenv = "#!/usr/bin/env bash\nset -e\nexec \"/home/u/.pyenv/libexec/pyenv\" exec \"$program\" \"$@\"\n";
        std::fs::write(&path, pyenv).unwrap();
        let said = shell_script(&path);
        assert!(
            said.contains("shim of pyenv") && said.contains("$(pyenv which python3)"),
            "{said}"
        );
        std::fs::write(&path, "#!/bin/sh\necho pyenv\n").unwrap();
        assert!(shell_script(&path).contains("a shell's script"));

        let manager = dir.path().join("mise");
        std::fs::write(&manager, "").unwrap();
        symlink(&manager, dir.path().join("node")).unwrap();
        let said = linked_shim(&dir.path().join("node")).unwrap();
        assert!(said.contains("$(mise which node)"), "{said}");
        assert_eq!(linked_shim(&manager), None);
        assert_eq!(linked_shim(Path::new("/bin/sh")), None);
    }
}
