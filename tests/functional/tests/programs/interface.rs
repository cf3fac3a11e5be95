//! A program that knows of Shunt, by its header and nothing else.

use std::path::Path;
use std::process::Command;

use shunt_functional::binaries::program;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Sandbox};

use crate::runtimes::source;

#[test]
fn sends_from_registered_memory() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/include");
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let binary = sandbox.path().join("sends");
        let mut compile = Command::new(program("cc"));
        compile.args(["-std=gnu17", "-Wall", "-Wextra", "-Werror", "-I"]).arg(&header);
        compile.arg(source("sends.c")).arg("-o").arg(&binary);
        let compiled = sandbox.run(compile);
        assert!(compiled.stderr.is_empty(), "{compiled}");
        let out = sandbox.expect(Expect::All(2), || sandbox.run(sandbox.command(&binary)));
        assert_eq!(out.stdout, "all sent\n", "{out}");
        if mode == Mode::Attach {
            let stats = sandbox.stats();
            let told = stats.get("tx_zerocopy_success");
            assert!(told > 20 && stats.get("bytes_granted") > 20 << 18, "{told} without a copy");
        }
        // Preloaded and switched off.
        let mut command = sandbox.command(&binary);
        command.env("SHUNT_DISABLE", "1");
        assert_eq!(sandbox.run(command).stdout, "all sent\n");
    }
}
