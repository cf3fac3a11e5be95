//! The NVMe/TCP target with a small host, over kernel TCP and under Shunt.

mod aborted;
mod c_interface;
mod changed;
mod configured;
mod disk;
mod disks;
mod ends;
mod guest;
mod hostile;
mod initiator;
mod kernel;
mod keys;
mod monitor;
mod nbd;
mod nvmet;
mod proxy;
mod served;
mod tools;
mod vfio;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use shunt_functional::binaries::built;
use shunt_functional::net::free_port;
use shunt_functional::nvme::Way;
use shunt_functional::sandbox::{Finished, Process, Sandbox};

/// The subsystem of a target without a configuration file.
pub const QUICK: &str = "nqn.2024-01.org.shunt:target";

/// A target, and where it listens.
pub struct Target {
    /// It runs.
    pub process: Process,
    /// Of 127.0.0.1.
    pub port: u16,
}

impl Target {
    /// One with such a store.
    pub fn quick(sandbox: &Sandbox, store: &[&str]) -> Self {
        Self::at(sandbox, free_port(), store)
    }

    /// One with such a store where another one was.
    pub fn at(sandbox: &Sandbox, port: u16, store: &[&str]) -> Self {
        let mut command = target(sandbox);
        command.args(["--listen", &format!("127.0.0.1:{port}")]).args(store);
        Self { process: sandbox.serve(command, port), port }
    }

    /// One that has 1 MiB for the data of all commands, of up to 64 KiB each, and a file of this size.
    pub fn short_of_memory(sandbox: &Sandbox, size: &str) -> Self {
        let text = r#"
[limits]
transfer = "64KiB"
in-flight = "1MiB"
[[subsystem]]
nqn = "nqn.2024-01.org.shunt:target"
hosts = "any"
[[subsystem.namespace]]
store = "file"
path = "disk"
create = true
"#;
        Self::configured(sandbox, &format!("{text}size = \"{size}\"\n"))
    }

    /// One with such a configuration, but for the address at which it listens.
    pub fn configured(sandbox: &Sandbox, text: &str) -> Self {
        let port = free_port();
        let file = configure(sandbox, port, text);
        let mut command = target(sandbox);
        command.arg("--config").arg(file);
        command.arg(format!("--metrics=unix:{}", metrics(sandbox).display()));
        command.arg("--control").arg(control_socket(sandbox));
        Self { process: sandbox.serve(command, port), port }
    }

    /// The way to it, for a host in this process.
    pub fn way(&self) -> Way {
        Way {
            to: SocketAddr::from(([127, 0, 0, 1], self.port)),
            nqn: QUICK.to_owned(),
            host: "nqn.2024-01.org.shunt:test-host".to_owned(),
            digests: (false, false),
            depth: 32,
        }
    }

    /// A host of it.
    pub fn host(&self, sandbox: &Sandbox, args: &[&str]) -> Command {
        let mut command = sandbox.command(built("shunt-nvme-io"));
        command.args(["--to", &format!("127.0.0.1:{}", self.port)]).args(args);
        command
    }

    /// A counter of one that was configured.
    pub fn count(&self, sandbox: &Sandbox, name: &str) -> u64 {
        scraped(&metrics(sandbox), &format!("shunt_nvme_{name}_total"))
    }

    /// Runs a host to its good end; the lines that it prints.
    pub fn run(&self, sandbox: &Sandbox, args: &[&str]) -> Vec<Value> {
        lines(&sandbox.run(self.host(sandbox, args)))
    }

    /// Ends it as people do.
    pub fn end(self) -> Finished {
        self.process.signal(libc::SIGTERM);
        self.process.wait().success()
    }
}

/// `shunt nvme target` in the sandbox's mode.
pub fn target(sandbox: &Sandbox) -> Command {
    let mut command = sandbox.command(built("shunt"));
    command.args(["nvme", "target"]);
    command
}

/// Where it is commanded.
pub fn control_socket(sandbox: &Sandbox) -> PathBuf {
    sandbox.path().join("control.sock")
}

/// Where its metrics are.
fn metrics(sandbox: &Sandbox) -> PathBuf {
    sandbox.path().join("metrics.sock")
}

/// A value of the metrics that are served at a socket.
pub fn scraped(at: &Path, name: &str) -> u64 {
    let mut socket = UnixStream::connect(at).unwrap();
    socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    let line = format!("{name} ");
    let value = text.lines().find_map(|l| l.strip_prefix(&line));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
}

/// Writes a configuration file.
pub fn configure(sandbox: &Sandbox, port: u16, text: &str) -> PathBuf {
    let file = sandbox.path().join("nvme.toml");
    let text = format!("listen = [\"127.0.0.1:{port}\"]\nthreads = 2\n{text}");
    std::fs::write(&file, text).unwrap();
    file
}

/// A configuration of a disk of this size, in a file.
pub fn sized(size: &str) -> String {
    format!(
        "[[subsystem]]\nnqn = \"{QUICK}\"\nhosts = \"any\"\n[[subsystem.namespace]]\nstore = \"file\"\n\
         path = \"disk.img\"\ncreate = true\nblock-size = 512\nsize = \"{size}\"\n"
    )
}

/// What a program has printed.
pub fn lines(finished: &Finished) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {finished}"));
    finished.stdout.lines().map(parse).collect()
}
