//! Servers of the distribution, started inside a sandbox, on loopback, with all their files there.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use shunt_bench::workload::nginx::configuration;

use crate::binaries::program;
use crate::sandbox::{Process, Sandbox};

/// nginx with the given files (name, bytes); `user` runs the workers when root starts it.
///
/// # Panics
/// When it does not start.
pub fn nginx(
    sandbox: &Sandbox,
    port: u16,
    workers: u32,
    user: Option<&str>,
    files: &[(&str, &[u8])],
) -> Process {
    let dir = sandbox.path();
    // The workers' user must reach the files.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("chmod");
    let www = dir.join("www");
    fs::create_dir_all(&www).expect("www");
    for (name, bytes) in files {
        fs::write(www.join(name), bytes).expect("a file to serve");
    }
    let file = dir.join("nginx.conf");
    let at = format!("127.0.0.1:{port}");
    fs::write(&file, configuration(dir, at, workers, user)).expect("nginx.conf");
    let mut command = sandbox.command(program("nginx"));
    command.arg("-p").arg(dir).arg("-e").arg(dir.join("error.log")).arg("-c").arg(&file);
    sandbox.serve(command, port)
}

/// redis, in memory only.
pub fn redis(sandbox: &Sandbox, port: u16) -> Process {
    let mut command = sandbox.command(program("redis-server"));
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--save", "", "--appendonly", "no"]);
    sandbox.serve(command, port)
}

/// iperf3.
pub fn iperf3(sandbox: &Sandbox, port: u16) -> Process {
    let mut command = sandbox.command(program("iperf3"));
    command.args(["-s", "-B", "127.0.0.1", "-p", &port.to_string(), "--forceflush"]);
    sandbox.serve(command, port)
}

/// sockperf over TCP. With `other`, it listens there too, and waits for both ports by `wait`
/// (sockperf's -F); without, it blocks in recvfrom.
///
/// # Panics
/// When it does not start.
pub fn sockperf(sandbox: &Sandbox, port: u16, wait: Option<(&str, u16)>) -> Process {
    let mut command = sandbox.command(program("sockperf"));
    command.arg("server");
    if let Some((wait, other)) = wait {
        // sockperf waits for several sockets only when they come from a file.
        let feed = sandbox.path().join("feed");
        fs::write(&feed, format!("T:127.0.0.1:{port}\nT:127.0.0.1:{other}\n")).expect("feed");
        command.arg("-f").arg(feed).args(["-F", wait]);
    } else {
        command.args(["--tcp", "-i", "127.0.0.1", "-p", &port.to_string()]);
    }
    sandbox.serve(command, port)
}
