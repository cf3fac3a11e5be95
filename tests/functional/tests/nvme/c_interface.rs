//! Programs in C, by `shunt_nvme.h` and `libshunt_nvme.so`.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use shunt_functional::binaries::{built, program};
use shunt_functional::mode::Mode;
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Expect, Sandbox};
use shunt_functional::waiting::settles;

use crate::{Target, configure};

/// Ends of an Admin Queue and of three I/O queues, one of which is gone when the others come.
const ENDS: u64 = 8;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A program, built as users do: against an installation's names.
fn build(sandbox: &Sandbox, source: &Path, flags: &[&str]) -> PathBuf {
    let lib = sandbox.path().join("lib");
    if std::fs::create_dir(&lib).is_ok() {
        let built = built("libshunt_nvme_c.so");
        symlink(&built, lib.join("libshunt_nvme.so.0")).unwrap();
        symlink("libshunt_nvme.so.0", lib.join("libshunt_nvme.so")).unwrap();
    }
    let binary = lib.join(source.file_stem().unwrap());
    let mut compile = Command::new(program("cc"));
    compile.args(["-g", "-std=gnu17", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(flags);
    compile.arg("-I").arg(repository().join("dist/include")).arg(source).arg("-o").arg(&binary);
    compile.arg("-L").arg(&lib).arg("-lshunt_nvme").arg(format!("-Wl,-rpath,{}", lib.display()));
    let compiled = sandbox.run(compile);
    assert!(compiled.stderr.is_empty(), "{compiled}");
    binary
}

#[test]
fn the_example_reads_what_it_has_written() {
    for mode in Mode::enabled() {
        for store in [&["--memory", "16MiB"][..], &["--file", "disk", "--size", "16MiB"]] {
            let sandbox = Sandbox::new(mode);
            let binary = build(&sandbox, &repository().join("dist/examples/disk.c"), &[]);
            let target = Target::quick(&sandbox, store);
            let before = mode.is_shunted().then(|| sandbox.stats());
            let said = sandbox.expect(Expect::All(ENDS), || {
                let mut command = sandbox.command(&binary);
                command.arg(format!("127.0.0.1:{}", target.port));
                sandbox.run(command)
            });
            assert_eq!((&*said.stdout, &*said.stderr), ("all there\n", ""), "{mode}");
            target.end();
            // What is written from memory of `shunt_alloc` goes without a copy.
            if let Some(before) = before
                && mode == Mode::Attach
            {
                let granted = sandbox.stats().get("bytes_granted") - before.get("bytes_granted");
                let written = 2 * 40 * 16 * (64 << 10);
                assert!(granted > written / 2, "{granted} of {written} bytes granted");
            }
        }
    }
}

/// Also: no access to memory that is not there, and nothing that is left behind.
#[test]
fn the_example_is_clean_under_address_sanitizer() {
    let sandbox = Sandbox::new(Mode::Plain);
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let binary = build(&sandbox, &repository().join("dist/examples/disk.c"), &flags);
    let target = Target::quick(&sandbox, &["--memory", "16MiB"]);
    let mut command = sandbox.command(&binary);
    command.arg(format!("127.0.0.1:{}", target.port));
    let said = sandbox.run(command);
    assert_eq!((&*said.stdout, &*said.stderr), ("all there\n", ""));
    target.end();
}

#[test]
fn mistakes_ends_and_threads_are_as_the_header_says() {
    for flags in [&[][..], &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]] {
        let sandbox = Sandbox::new(Mode::Plain);
        let source = repository().join("tests/functional/tests/nvme/c/mistakes.c");
        let binary = build(&sandbox, &source, flags);
        let mut target = Target::quick(&sandbox, &["--memory", "1MiB"]);
        let (reader, mut input) = std::io::pipe().unwrap();
        let mut command = sandbox.command(&binary);
        command.arg(format!("127.0.0.1:{}", target.port));
        command.arg(format!("127.0.0.1:{}", free_port()));
        command.stdin(reader);
        let mut process = sandbox.spawn(command);
        let says = |text| move |line: &str| (line == text).then_some(());
        process.wait_for_line(says("stop"));
        target.process.signal(libc::SIGSTOP);
        let status = format!("/proc/{}/status", target.process.pid());
        let is_stopped = || std::fs::read_to_string(&status).unwrap().contains("State:\tT");
        settles("the target's stop", &true, is_stopped);
        input.write_all(b"1").unwrap();
        process.wait_for_line(says("go on"));
        target.process.signal(libc::SIGCONT);
        process.wait_for_line(says("kill"));
        target.process.kill();
        input.write_all(b"2").unwrap();
        let finished = process.wait().success();
        assert!(finished.stdout.ends_with("all as it should be\n"), "{finished}");
        assert_eq!(finished.stderr, "");
    }
}

/// A host that is not allowed, and one that cannot prove who it is.
#[test]
fn refusals_have_numbers() {
    const KEY: &str = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";
    let sandbox = Sandbox::new(Mode::Plain);
    let binary = build(&sandbox, &repository().join("dist/examples/disk.c"), &[]);
    let subsystem = |hosts: &str| {
        format!(
            "[[subsystem]]\nnqn = \"nqn.2024-01.org.shunt:target\"\nhosts = {hosts}\n\
             [[subsystem.namespace]]\nstore = \"memory\"\nsize = \"1MiB\"\n"
        )
    };
    let none = subsystem("[{ nqn = \"nqn.2024-01.org.shunt:other\" }]");
    let target = Target::configured(&sandbox, &none);
    let run = |why: &str| {
        let mut command = sandbox.command(&binary);
        command.arg(format!("127.0.0.1:{}", target.port));
        let finished = sandbox.spawn(command).wait();
        assert!(finished.stderr.contains(why) && finished.stdout.is_empty(), "{finished}");
    };
    run("must list this host's name (Permission denied)");
    let name = std::fs::read_to_string("/etc/nvme/hostnqn").map(|text| text.trim().to_owned());
    // A machine without a name has another one each time.
    if let Ok(name) = name {
        let key = subsystem(&format!("[{{ nqn = \"{name}\", key = \"{KEY}\" }}]"));
        configure(&sandbox, target.port, &key);
        target.process.signal(libc::SIGHUP);
        settles("the key", &1, || target.count(&sandbox, "reloads"));
        run("give the key (Required key not available)");
    }
    target.end();
}

/// The library exports what the header declares, and nothing else.
#[test]
fn nothing_but_the_header_is_exported() {
    let header = std::fs::read_to_string(repository().join("dist/include/shunt_nvme.h")).unwrap();
    let declared = header.lines().filter_map(|line| {
        let line = line.strip_prefix("int ").or_else(|| line.strip_prefix("uint64_t "))?;
        Some(line.split_once('(')?.0.to_owned())
    });
    let mut list = Command::new(program("objdump"));
    let listed = list.arg("-Tp").arg(built("libshunt_nvme_c.so")).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    assert!(text.contains("SONAME               libshunt_nvme.so.0"), "{text}");
    let exported = text.lines().filter(|line| line.contains(" .text"));
    let exported = exported.filter_map(|line| line.split_whitespace().last()).map(str::to_owned);
    assert_eq!(exported.collect::<BTreeSet<_>>(), declared.collect::<BTreeSet<_>>());
}
