//! Python's web server and curl.

use std::fs;

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Expect, Sandbox};

use crate::{Outcome, compare, content};

const PYTHON: Subject = Subject {
    kind: Kind::Programs,
    name: "Python http.server, curl",
    version: Version::Said("python3", "--version"),
    done: "files up to 20 MB, one that is missing",
    remark: "",
};

const SIZES: [usize; 4] = [0, 1, 10_000, 20 << 20];

fn scenario(sandbox: &Sandbox) -> Outcome {
    let www = sandbox.path().join("www");
    fs::create_dir(&www).expect("www");
    for size in SIZES {
        fs::write(www.join(size.to_string()), content(size)).expect("a file");
    }
    let port = free_port();
    let mut command = sandbox.command(program("python3"));
    command
        .args(["-u", "-m", "http.server", "--bind", "127.0.0.1", &port.to_string(), "-d"])
        .arg(&www);
    let mut server = sandbox.serve(command, port);
    let mut outcome: Outcome = SIZES
        .iter()
        .map(|&size| {
            let out = sandbox.path().join(format!("got-{size}"));
            let mut command = sandbox.command(program("curl"));
            command.args(["-sS", "--fail", "-w", "%{http_code} %{size_download}", "-o"]).arg(&out);
            command.arg(format!("http://127.0.0.1:{port}/{size}"));
            let done = sandbox.expect(Expect::Ends(2), || sandbox.run(command));
            let right = fs::read(&out).unwrap_or_default() == content(size);
            format!("{size}: {}, right {right}", done.stdout)
        })
        .collect();
    let mut command = sandbox.command(program("curl"));
    command.args(["-s", "-o", "/dev/null", "-w", "%{http_code}"]);
    command.arg(format!("http://127.0.0.1:{port}/nothing"));
    outcome.push(sandbox.run(command).stdout);
    server.assert_running();
    outcome
}

#[test]
fn python_and_curl() {
    compare(&PYTHON, Sandbox::new, scenario);
}
