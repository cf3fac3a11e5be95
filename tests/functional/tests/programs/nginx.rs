//! nginx under wrk and ab.

use std::fs;

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Expect, Sandbox, is_root};
use shunt_functional::servers;

use crate::{Outcome, compare, content, field};

const NGINX: Subject = Subject {
    kind: Kind::Programs,
    name: "nginx, wrk, ab, curl",
    version: Version::Said("nginx", "-v"),
    done: "1 worker; 612 B and 1 MB, kept alive and a connection per request",
    remark: "",
};

const SMALL: usize = 612;
const LARGE: usize = 1 << 20;

fn fetch(sandbox: &Sandbox, url: &str, len: usize) -> String {
    let out = sandbox.path().join("fetched");
    let mut command = sandbox.command(program("curl"));
    command.args(["-sS", "--fail", "-o"]).arg(&out).arg(url);
    let _done = sandbox.run(command);
    format!("curl {len}: right {}", fs::read(&out).expect("fetched") == content(len))
}

fn wrk(sandbox: &Sandbox, url: &str, connections: u64, header: Option<&str>) -> String {
    let mut command = sandbox.command(program("wrk"));
    command.args(["-d1", "-t2", "-c", &connections.to_string()]);
    command.args(header.iter().flat_map(|h| ["-H", h]));
    command.arg(url);
    let text = sandbox.run(command).stdout;
    let errors = field(&text, "Socket errors:");
    let bad = field(&text, "Non-2xx or 3xx responses:");
    let answered = field(&text, "Requests/sec:").and_then(|n| n.parse().ok()).unwrap_or(0.0) > 1.0;
    format!("wrk {header:?}: answered {answered}, errors {errors:?}, bad answers {bad:?}")
}

fn ab(sandbox: &Sandbox, url: &str, requests: u32, keep_alive: bool) -> String {
    let mut command = sandbox.command(program("ab"));
    command.args(["-q", "-n", &requests.to_string(), "-c", "20"]);
    command.args(keep_alive.then_some("-k"));
    command.arg(url);
    let text = sandbox.run(command).stdout;
    let facts = [
        "Document Length:",
        "Complete requests:",
        "Failed requests:",
        "Non-2xx responses:",
        "HTML transferred:",
    ];
    let facts: Vec<_> = facts.iter().map(|f| format!("{f} {:?}", field(&text, f))).collect();
    format!("ab keep-alive {keep_alive}: {}", facts.join(", "))
}

fn scenario(sandbox: &Sandbox, workers: u32, user: Option<&str>) -> Outcome {
    let port = free_port();
    let files = [("small", &content(SMALL)[..]), ("large", &content(LARGE))];
    let mut server = servers::nginx(sandbox, port, workers, user, &files);
    let url = |name: &str| format!("http://127.0.0.1:{port}/{name}");
    let close = Some("Connection: close");
    let (small, large) = (url("small"), url("large"));
    let mut outcome = vec![
        sandbox.expect(Expect::Ends(2), || fetch(sandbox, &small, SMALL)),
        sandbox.expect(Expect::Ends(2), || fetch(sandbox, &large, LARGE)),
        sandbox.expect(Expect::Ends(100), || wrk(sandbox, &small, 50, None)),
        sandbox.expect(Expect::Percent(50), || wrk(sandbox, &small, 50, close)),
        sandbox.expect(Expect::Ends(40), || wrk(sandbox, &large, 20, None)),
        sandbox.expect(Expect::Ends(40), || ab(sandbox, &small, 5000, true)),
        sandbox.expect(Expect::Percent(50), || ab(sandbox, &small, 2000, false)),
        sandbox.expect(Expect::Ends(40), || ab(sandbox, &large, 500, true)),
        sandbox.expect(Expect::Percent(50), || ab(sandbox, &large, 300, false)),
    ];
    server.assert_running();
    // QUIT is nginx's orderly end: workers finish what they are at.
    server.terminate(libc::SIGQUIT);
    let log = fs::read_to_string(sandbox.path().join("error.log")).unwrap_or_default();
    let complaints: Vec<&str> = log
        .lines()
        .filter(|l| ["[alert]", "[crit]", "[emerg]"].iter().any(|w| l.contains(w)))
        .collect();
    outcome.push(format!("complaints {complaints:?}"));
    outcome
}

#[test]
fn one_worker() {
    compare(&NGINX, Sandbox::new, |sandbox| scenario(sandbox, 1, is_root().then_some("root")));
}

#[test]
fn two_workers() {
    let subject = Subject { done: "the same with 2 workers", ..NGINX };
    compare(&subject, Sandbox::new, |sandbox| scenario(sandbox, 2, is_root().then_some("root")));
}

/// Started by root, nginx gives its workers another user.
#[test]
fn workers_of_another_user() {
    let subject = Subject { done: "the same with 2 workers of another user", ..NGINX };
    compare(&subject, Sandbox::new, |sandbox| scenario(sandbox, 2, None));
}
