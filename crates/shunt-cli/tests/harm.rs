//! Programs that would not start with the library run without it.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::{Sandbox, any_library, text};

const PT_INTERP: u32 = 3;

/// The loader of this very test.
fn system_loader() -> PathBuf {
    let bytes = fs::read("/proc/self/exe").unwrap();
    let (at, len) = interpreter(&bytes);
    let path = &bytes[number(&bytes, at + 8)..][..len - 1];
    PathBuf::from(String::from_utf8(path.to_vec()).unwrap())
}

/// 64 bits at a place.
fn number(bytes: &[u8], at: usize) -> usize {
    usize::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Where the program header of the interpreter is, and how long its path.
fn interpreter(bytes: &[u8]) -> (usize, usize) {
    let (table, count) = (number(bytes, 32), u16::from_le_bytes([bytes[56], bytes[57]]));
    let mut headers = (0..usize::from(count)).map(|i| table + i * 56);
    let is_it = |at: &usize| bytes[*at..at + 4] == PT_INTERP.to_le_bytes();
    let at = headers.find(is_it).unwrap();
    (at, number(bytes, at + 32))
}

/// `env` with another loader.
fn env_with_loader(sandbox: &Sandbox, name: &str, loader: &Path) -> PathBuf {
    let mut bytes = fs::read("/usr/bin/env").unwrap();
    let (at, _) = interpreter(&bytes);
    let end = bytes.len();
    bytes.extend(loader.to_str().unwrap().bytes().chain([0]));
    let len = bytes.len() - end;
    bytes[at + 8..at + 16].copy_from_slice(&end.to_le_bytes());
    bytes[at + 32..at + 40].copy_from_slice(&len.to_le_bytes());
    bytes[at + 40..at + 48].copy_from_slice(&len.to_le_bytes());
    let path = sandbox.path(name);
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

/// Runs it, also where the library is preloaded already, and gives its environment and what is said of it.
fn run(sandbox: &Sandbox, program: &Path) -> (Vec<String>, String) {
    let args = ["run", "--summary", program.to_str().unwrap()];
    let output = sandbox.with_library(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    (text(&output.stdout).lines().map(str::to_owned).collect(), text(&output.stderr))
}

fn is_preloaded(environment: &[String]) -> bool {
    environment.iter().any(|line| line.starts_with("LD_PRELOAD=/"))
}

#[test]
fn musl_programs() {
    let sandbox = Sandbox::new();
    let loader = sandbox.path("ld-musl-x86_64.so.1");
    symlink(system_loader(), &loader).unwrap();
    let program = env_with_loader(&sandbox, "musl", &loader);
    let (environment, said) = run(&sandbox, &program);
    assert!(!is_preloaded(&environment), "{environment:?}");
    assert!(said.contains("not shunted:") && said.contains("musl"), "{said}");
    // Also as what interprets a script.
    let script = sandbox.path("script");
    fs::write(&script, format!("#!{}\n", program.display())).unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let doctor = sandbox.with_library(&["doctor", script.to_str().unwrap()]).output().unwrap();
    assert_eq!(doctor.status.code(), Some(1));
    assert!(text(&doctor.stdout).contains("FAIL"), "{doctor:?}");
    // Nothing is wrong with the same program and its own loader.
    let program = env_with_loader(&sandbox, "glibc", &system_loader());
    assert!(is_preloaded(&run(&sandbox, &program).0));
}

#[test]
fn programs_with_an_older_glibc() {
    let sandbox = Sandbox::new();
    let old = sandbox.path("old");
    fs::create_dir(&old).unwrap();
    let loader = old.join("ld-linux-x86-64.so.2");
    fs::copy(system_loader(), &loader).unwrap();
    let program = env_with_loader(&sandbox, "program", &loader);
    // A loader whose C library is not known is taken as it is.
    assert!(is_preloaded(&run(&sandbox, &program).0));

    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut files = maps.lines().filter_map(|l| l.split_whitespace().nth(5));
    let mut libc = fs::read(files.find(|f| f.ends_with("/libc.so.6")).unwrap()).unwrap();
    fs::write(old.join("libc.so.6"), &libc).unwrap();
    assert!(is_preloaded(&run(&sandbox, &program).0));

    // 2.1x, 2.2x and so on become 2.0x: older than any library needs.
    let mark = b"GLIBC_2.";
    for at in 0..libc.len() - mark.len() - 2 {
        if libc[at..].starts_with(mark) && libc[at + mark.len() + 1].is_ascii_digit() {
            libc[at + mark.len()] = b'0';
        }
    }
    fs::write(old.join("libc.so.6"), &libc).unwrap();
    let (environment, said) = run(&sandbox, &program);
    assert!(!is_preloaded(&environment), "{environment:?}");
    assert!(said.contains("is linked with glibc 2.9") && said.contains("needs"), "{said}");
}

#[test]
fn where_it_is_preloaded_already_it_is_taken_out_again() {
    let sandbox = Sandbox::new();
    let loader = sandbox.path("ld-musl-x86_64.so.1");
    symlink(system_loader(), &loader).unwrap();
    let program = env_with_loader(&sandbox, "musl", &loader);
    let (ours, other) = (sandbox.path("libshunt.so"), sandbox.path("other.so"));
    for path in [&ours, &other] {
        fs::copy(any_library(), path).unwrap();
    }
    let mut command = sandbox.command(&["run", program.to_str().unwrap()]);
    command.env("SHUNT_LIB", &ours);
    command.env("LD_PRELOAD", format!("{}:{}", ours.display(), other.display()));
    let said = text(&command.output().unwrap().stdout);
    assert!(said.contains(&format!("LD_PRELOAD={}\n", other.display())), "{said}");
}
