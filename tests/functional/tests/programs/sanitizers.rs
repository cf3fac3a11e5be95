//! Programs that are built with sanitizers, whose runtimes wrap the calls that Shunt hooks.

use std::path::{Path, PathBuf};
use std::process::Command;

use shunt_functional::binaries::{library, program};
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Finished, Sandbox};

use crate::runtimes::source;
use crate::{Outcome, compare};

const fn subject(name: &'static str, remark: &'static str) -> Subject {
    Subject {
        kind: Kind::Surroundings,
        name,
        version: Version::Packaged("gcc"),
        done: "two threads with a connection between them, started directly and by a shell",
        remark,
    }
}

/// GCC's default: a runtime that is a shared library.
fn build(sandbox: &Sandbox, sanitizer: &str, options: &[&str]) -> PathBuf {
    let binary = sandbox.path().join(format!("threads-{sanitizer}"));
    let mut compile = Command::new(program("gcc"));
    compile.args(["-O1", "-g", "-pthread", &format!("-fsanitize={sanitizer}")]).args(options);
    let compiled = sandbox.run({
        compile.arg(source("threads.c")).arg("-o").arg(&binary);
        compile
    });
    assert!(compiled.stderr.is_empty(), "{compiled}");
    binary
}

/// ThreadSanitizer's shadow has fixed places, of which kernels' randomness takes some.
fn command(sandbox: &Sandbox, args: &[&Path]) -> Command {
    let mut command = sandbox.command(program("setarch"));
    command.arg("-R").args(args);
    command
}

fn fact(finished: &Finished) -> String {
    format!("{}: {} {}", finished.status, finished.stdout, finished.stderr)
}

/// What the program says, started directly and by a shell.
fn both(sandbox: &Sandbox, binary: &Path, expect: Expect) -> Outcome {
    let shell = program("sh");
    let script = format!("'{}'", binary.display());
    let by_shell = [&shell, Path::new("-c"), Path::new(&script)];
    let ways = [&[binary][..], &by_shell];
    let run = |args: &&[&Path]| {
        sandbox.expect(expect, || fact(&sandbox.spawn(command(sandbox, args)).wait()))
    };
    let outcome: Outcome = ways.iter().map(run).collect();
    assert!(outcome[0].contains("shared 500500"), "{outcome:?}");
    outcome
}

#[test]
fn address_sanitizer() {
    compare(&subject("AddressSanitizer", ""), Sandbox::new, |sandbox| {
        both(sandbox, &build(sandbox, "address", &[]), Expect::All(2))
    });
}

#[test]
fn leak_sanitizer() {
    compare(&subject("LeakSanitizer", ""), Sandbox::new, |sandbox| {
        both(sandbox, &build(sandbox, "leak", &[]), Expect::All(2))
    });
}

#[test]
fn undefined_behaviour_sanitizer() {
    compare(&subject("UndefinedBehaviorSanitizer", ""), Sandbox::new, |sandbox| {
        both(sandbox, &build(sandbox, "undefined", &[]), Expect::All(2))
    });
}

#[test]
fn thread_sanitizer() {
    let remark = "stays on TCP: it takes sockets for something that orders threads";
    compare(&subject("ThreadSanitizer", remark), Sandbox::new, |sandbox| {
        both(sandbox, &build(sandbox, "thread", &[]), Expect::Nothing)
    });
}

#[test]
fn what_address_sanitizer_finds_it_finds_in_shunted_calls() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let binary = build(&sandbox, "address", &[]);
        for size in ["8", "5000", "100000"] {
            let mut command = command(&sandbox, &[&binary]);
            let said = sandbox.spawn({
                command.arg(size);
                command
            });
            let said = said.wait();
            assert_eq!(said.status.code(), Some(1), "{said}");
            let found = said.stderr.contains("ERROR: AddressSanitizer: heap-use-after-free");
            assert!(found && !said.stdout.contains("sent"), "{said}");
        }
    }
}

#[test]
fn a_program_with_options_of_its_own_starts_and_keeps_those_of_its_user() {
    let sandbox = Sandbox::new(Mode::Attach);
    let binary = build(&sandbox, "address", &["-DOWN_OPTIONS"]);
    for (given, status) in [(None, 7), (Some("exitcode=9"), 9)] {
        // Not by another program: `shunt run` looks at the one that it is to start.
        let mut command = sandbox.command(&binary);
        command.arg("100").envs(given.map(|options| ("ASAN_OPTIONS", options)));
        let said = sandbox.expect(Expect::Ends(4), || sandbox.spawn(command).wait());
        assert_eq!(said.status.code(), Some(status), "{said}");
        assert!(said.stderr.contains("heap-use-after-free"), "{said}");
    }
}

#[test]
fn a_runtime_that_is_preloaded_for_a_program_without() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let mut command = sandbox.command(program("python3"));
        command.args(["-c", "print('started')"]).env("LD_PRELOAD", library("libasan.so.8"));
        // What python keeps to its end is no leak.
        let said = sandbox.run({
            command.env("ASAN_OPTIONS", "detect_leaks=0");
            command
        });
        assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("started\n", ""));
    }
}

#[test]
fn the_doctor_knows_them() {
    let sandbox = Sandbox::new(Mode::Attach);
    let doctor = |binary: &Path| {
        let mut command = sandbox.plain(sandbox.shunt_path());
        let said = sandbox.spawn({
            command.arg("doctor").arg(binary);
            command
        });
        let said = said.wait();
        (said.status.code(), said.stdout)
    };
    let (code, said) = doctor(&build(&sandbox, "address", &[]));
    assert!(code == Some(0) && said.contains("is built with AddressSanitizer"), "{said}");
    let (code, said) = doctor(&build(&sandbox, "address", &["-DOWN_OPTIONS"]));
    assert!(code == Some(0) && said.contains("verify_asan_link_order=0"), "{said}");
    let (code, said) = doctor(&build(&sandbox, "thread", &[]));
    assert!(code == Some(1) && said.contains("is built with ThreadSanitizer"), "{said}");
    let mut run = sandbox.plain(sandbox.shunt_path());
    run.args(["run", "--summary"]).arg(sandbox.path().join("threads-thread"));
    let said = sandbox.spawn(run).wait().stderr;
    assert!(said.contains("not shunted:") && said.contains("ThreadSanitizer"), "{said}");
}
