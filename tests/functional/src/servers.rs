//! Servers of the distribution, started inside a sandbox, on loopback, with all their files there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::binaries::program;
use crate::sandbox::{Process, Sandbox};

/// A configuration that keeps every file of nginx inside the sandbox.
fn nginx_configuration(dir: &Path, port: u16, workers: u32, user: Option<&str>) -> String {
    let dir = dir.display();
    let user = user.map(|u| format!("user {u};\n")).unwrap_or_default();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {dir}/temporary-{kind};\n"))
        .collect();
    format!(
        "{user}daemon off;\nworker_processes {workers};\npid {dir}/nginx.pid;\n\
         error_log {dir}/error.log;\nworker_rlimit_nofile 8192;\n\
         events {{ worker_connections 4096; }}\nhttp {{\n  access_log off;\n  sendfile on;\n\
         {temporary}  keepalive_requests 100000000;\n\
         \x20 server {{ listen 127.0.0.1:{port}; root {dir}/www; }}\n}}\n"
    )
}

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
    fs::write(&file, nginx_configuration(dir, port, workers, user)).expect("nginx.conf");
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
    command.args(["-s", "-B", "127.0.0.1", "-p", &port.to_string()]);
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
