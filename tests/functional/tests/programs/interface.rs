//! A program that knows of Shunt, by its header and nothing else.

use std::path::{Path, PathBuf};
use std::process::Command;

use shunt_functional::binaries::program;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Sandbox};

/// One of the examples, built with the header.
fn build(sandbox: &Sandbox, name: &str) -> PathBuf {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    let (header, source) = (dist.join("include"), dist.join("examples").join(name));
    let binary = sandbox.path().join(name);
    let mut compile = Command::new(program("cc"));
    compile.args(["-std=gnu17", "-Wall", "-Wextra", "-Werror", "-I"]).arg(&header);
    compile.arg(source.with_extension("c")).arg("-o").arg(&binary);
    let compiled = sandbox.run(compile);
    assert!(compiled.stderr.is_empty(), "{compiled}");
    binary
}

/// What the program says when it runs, and when it does so with the library switched off.
fn said(sandbox: &Sandbox, binary: &Path) -> [String; 2] {
    let out = sandbox.expect(Expect::All(2), || sandbox.run(sandbox.command(binary)));
    let mut command = sandbox.command(binary);
    command.env("SHUNT_DISABLE", "1");
    [out.stdout, sandbox.run(command).stdout]
}

#[test]
fn sends_from_registered_memory() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let binary = build(&sandbox, "sends");
        assert_eq!(said(&sandbox, &binary), ["all sent\n", "all sent\n"]);
        if mode == Mode::Attach {
            let stats = sandbox.stats();
            let told = stats.get("tx_zerocopy_success");
            assert!(told > 20 && stats.get("bytes_granted") > 20 << 18, "{told} without a copy");
        }
    }
}

#[test]
fn looks_at_bytes_where_they_are() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let binary = build(&sandbox, "borrows");
        let how = if mode == Mode::Plain { "copied\n" } else { "in place\n" };
        assert_eq!(said(&sandbox, &binary), [how, "copied\n"]);
        if mode == Mode::Attach {
            let granted = sandbox.stats().get("bytes_granted");
            // Headers are not, nor what comes before the peer has mapped the memory.
            let bodies = 200 * (128 << 10);
            assert!((bodies / 2..=bodies).contains(&granted), "{granted} of {bodies}");
        }
    }
}
