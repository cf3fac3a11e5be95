//! Programs that find libc's functions past the hooks: by handles of libc, by what comes next, in
//! libraries that bind to libc first or have one of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use shunt_functional::binaries::program;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Sandbox};

/// Functions are found when they are first called.
const LAZY: &str = "-Wl,-z,lazy";

fn build(sandbox: &Sandbox, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/sources");
    let output = sandbox.path().join(name);
    let mut compile = Command::new(program("gcc"));
    compile.args(["-O1", "-Wall", "-o"]).arg(&output).arg(sources.join(source)).args(options);
    let compiled = sandbox.run(compile);
    assert!(compiled.stderr.is_empty(), "{compiled}");
    output
}

/// What becomes of the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stays {
    Shunted,
    /// It goes back to TCP.
    Tcp,
}

/// Runs the program in each mode, and compares what it says.
fn compare(way: &str, stays: Stays, of_program: &[&str], of_library: &[&str]) {
    let mut plain = None;
    for mode in [Mode::Plain].into_iter().chain(Mode::enabled()) {
        let sandbox = Sandbox::new(mode);
        let shared = [&["-shared", "-fPIC"], of_library].concat();
        let library = build(&sandbox, "libloaded.so", "loaded.c", &shared);
        let directory = format!("-Wl,-rpath,{}", sandbox.path().display());
        let of_program: Vec<&str> = of_program
            .iter()
            .map(|option| match *option {
                "libloaded.so" => library.to_str().unwrap_or_default(),
                option => option,
            })
            .chain([directory.as_str()])
            .collect();
        let binary = build(&sandbox, "loader", "loader.c", &of_program);
        let mut command = sandbox.command(binary);
        command.arg(way).arg(library);
        let said = sandbox.expect(Expect::All(2), || sandbox.run(command));
        assert!(said.stderr.is_empty() && said.status.success(), "{way} in mode {mode}: {said}");
        if mode.is_shunted() {
            let demoted = sandbox.stats().get("connections_demoted");
            assert_eq!(demoted > 0, stays == Stays::Tcp, "{way} in mode {mode}: {demoted}");
        }
        let mut lines: Vec<_> = said.stdout.lines().map(str::to_owned).collect();
        // Two programs write.
        lines.sort_unstable();
        assert!(lines.iter().any(|line| line == "the other end got 5: there"), "{lines:?}");
        assert_eq!(plain.get_or_insert_with(|| lines.clone()), &lines, "{way} in mode {mode}");
    }
}

#[test]
fn a_library_that_is_loaded_later_uses_the_hooks() {
    compare("linked", Stays::Shunted, &[], &[]);
}

#[test]
fn functions_that_are_looked_up_by_a_handle_of_libc_are_the_hooks() {
    compare("handle", Stays::Shunted, &[], &[]);
}

#[test]
fn so_are_those_of_a_version() {
    compare("version", Stays::Shunted, &[], &[]);
    compare("version next", Stays::Shunted, &[], &[]);
    compare("version default", Stays::Shunted, &[], &[]);
}

#[test]
fn so_are_those_that_come_next_and_those_of_all() {
    compare("next", Stays::Shunted, &[], &[]);
    compare("default", Stays::Shunted, &[], &[]);
}

#[test]
fn a_program_with_such_a_function_of_its_own_finds_libcs_behind_it() {
    compare("handle", Stays::Shunted, &["-DWRAPS", "-rdynamic"], &[]);
    compare("default", Stays::Shunted, &["-DWRAPS", "-rdynamic"], &[]);
}

#[test]
fn a_library_that_wraps_such_a_function_finds_libcs_and_others_have_tcp() {
    // Also by its wrapper's call, which the hook goes on to as long as the connection is TCP.
    let program = ["-Wl,--no-as-needed", "libloaded.so"];
    compare("default", Stays::Shunted, &program, &["-DWRAPS"]);
    compare("handle", Stays::Tcp, &program, &["-DWRAPS"]);
}

/// PHP loads its extensions so.
#[test]
fn a_library_that_binds_to_libc_first_uses_the_hooks_all_the_same() {
    // Its functions are found at their first call; all at the start, and their places can only be read then; by addresses
    // in a table of its own.
    compare("deep", Stays::Shunted, &[], &[LAZY]);
    compare("deep", Stays::Shunted, &[], &["-Wl,-z,now,-z,relro"]);
    compare("deep", Stays::Shunted, &[], &["-DTABLE", "-Wl,-z,now,-z,relro"]);
    compare("deep", Stays::Shunted, &[], &["-DTABLE", LAZY]);
    // And by functions that it looks up itself.
    compare("deep", Stays::Shunted, &[], &["-DLOOKS", LAZY]);
}

/// Its own functions come before the program's, as it asks for.
#[test]
fn such_a_library_has_its_own_functions() {
    compare("deep", Stays::Shunted, &[], &["-DWRAPS", LAZY]);
    compare("deep", Stays::Shunted, &["-DWRAPS", "-rdynamic"], &[LAZY]);
}

/// The loader looks for it where the caller says, so nobody else can have it loaded.
#[test]
fn one_that_is_found_by_its_name_alone_has_connections_over_tcp() {
    compare("deep by name", Stays::Tcp, &[], &[]);
}

#[test]
fn a_library_with_a_libc_of_its_own_has_connections_over_tcp() {
    compare("namespace", Stays::Tcp, &[], &[]);
}

/// The functions that load libraries are hooks, too, wherever they are found.
#[test]
fn so_has_one_that_is_loaded_by_a_function_that_was_looked_up() {
    compare("deep found", Stays::Shunted, &[], &[LAZY]);
    compare("namespace found", Stays::Tcp, &[], &[]);
}

#[test]
fn so_has_one_that_is_loaded_into_a_namespace_that_is_there() {
    compare("namespace again", Stays::Tcp, &[], &[]);
}
