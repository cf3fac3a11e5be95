//! A trial connection, for `shunt doctor --connect`.
//!
//! A process of its own makes the connection, with the library preloaded as in any program under
//! Shunt. It sends nothing. The agent reports how its end goes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use shunt_wire::agent::Request;
use shunt_wire::knob;

use super::finding::Finding;
use crate::directory::Directory;
use crate::listing::explained;
use crate::output::print;
use crate::{agent, library};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long its peer may take to accept it.
const ACCEPT: Duration = Duration::from_secs(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// What a peer that has not accepted yet leaves a connection with.
const PENDING: &str = "pending";

/// Tries a connection.
pub fn examine(to: &str) -> Vec<Finding> {
    let found = try_it(to).unwrap_or_else(|finding| finding);
    vec![found.of("connection")]
}

fn try_it(to: &str) -> Result<Finding, Finding> {
    let failed = |what: &dyn std::fmt::Display| {
        Finding::unknown(format!("the connection could not be tried: {what}"))
    };
    let path = library::find().map_err(|why| failed(&why))?;
    let exe = std::env::current_exe().map_err(|e| failed(&e))?;
    let mut command = Command::new(exe);
    let before = std::env::var_os(library::VARIABLE);
    command.args(["probe", to]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.env(library::VARIABLE, library::preload(&library::entry(&path), before));
    if let Some(dir) = agent::ensure().map_err(|why| failed(&why))? {
        command.env(knob::RUN_DIR.env, dir);
    }
    let mut child = Probing(command.spawn().map_err(|e| failed(&e))?);
    let mut line = String::new();
    let output = child.0.stdout.take().ok_or_else(|| failed(&"no pipe"))?;
    BufReader::new(output).read_line(&mut line).map_err(|e| failed(&e))?;
    match line.trim_end().split_once(' ') {
        Some(("connected", local)) => Ok(watch(child.0.id(), local, to)),
        Some(("failed", why)) => Err(Finding::missing(format!(
            "no connection to {to}: {why}; a peer that does not take connections is none, shunted or not: start it, \
             or correct the address"
        ))),
        _ => Err(failed(&"the program that was to make it has ended; see `shunt doctor`")),
    }
}

/// Ends when it is dropped: at the end of its standard input.
struct Probing(Child);

impl Drop for Probing {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Looks at the connection until it is clear how it goes.
fn watch(pid: u32, local: &str, to: &str) -> Finding {
    let until = Instant::now() + ACCEPT;
    loop {
        let report = match Directory::open().and_then(|agent| agent.report(&Request::List)) {
            Ok(report) => report,
            Err(e) => return Finding::obstacle(format!("connected to {to} on TCP: {e}")),
        };
        let end = end_of(&report, pid, local);
        let is_settled = end.as_ref().is_some_and(|end| {
            end["mode"] != "tcp" || !matches!(end["reason"].as_str(), None | Some(PENDING))
        });
        if is_settled || Instant::now() >= until {
            return judge(end.as_ref(), to);
        }
        std::thread::sleep(PAUSE);
    }
}

fn end_of(report: &Value, pid: u32, local: &str) -> Option<Value> {
    let ends = report["connections"].as_array()?;
    ends.iter().find(|end| end["pid"] == pid && end["local"] == local).cloned()
}

fn judge(end: Option<&Value>, to: &str) -> Finding {
    let Some(end) = end else {
        return Finding::unknown(format!(
            "connected to {to}, and the agent knows nothing of it: the library did not come into the program that \
             connected"
        ));
    };
    let peer = match (end["peer_program"].as_str(), &end["peer_pid"]) {
        (Some(program), pid) => format!(" with {program} (pid {pid})"),
        _ => String::new(),
    };
    match (end["mode"].as_str(), end["reason"].as_str()) {
        (Some("tcp"), None | Some(PENDING)) if !peer.is_empty() => Finding::unknown(format!(
            "connected to {to}{peer}, which runs under Shunt, has accepted the connection, and has not looked at it \
             since: it moves to shared memory when the program uses it"
        )),
        (Some("tcp"), None | Some(PENDING)) => Finding::unknown(format!(
            "connected to {to}, and within {} s nothing has accepted the connection; what listens there is busy, or \
             does not run under Shunt",
            ACCEPT.as_secs()
        )),
        (Some("tcp"), Some(reason)) => {
            let why = explained(reason);
            Finding::obstacle(format!("connected to {to}{peer}, on kernel TCP: {reason}: {why}"))
        }
        (mode, _) => {
            let mode = mode.unwrap_or_default();
            Finding::good(format!("connected to {to}{peer}, through shared memory: {mode}"))
        }
    }
}

/// The program that connects: says so, and stays until its standard input ends.
pub fn probe(to: &str) -> u8 {
    match connect(to) {
        Ok(stream) => {
            let local = stream.local_addr().map_or_else(|e| e.to_string(), |addr| addr.to_string());
            let said = print(&format!("connected {local}\n"));
            let _ = stream.set_nonblocking(true);
            let (sender, ended) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let _ = std::io::stdin().read(&mut [0]);
                let _ = sender.send(());
            });
            // Each look at the socket lets the library go on with the handshake.
            while ended.recv_timeout(PAUSE).is_err() {
                let _ = stream.peek(&mut [0]);
            }
            said
        }
        Err(why) => {
            let _ = print(&format!("failed {why}\n"));
            let _ = std::io::stdout().flush();
            1
        }
    }
}

fn connect(to: &str) -> Result<TcpStream, String> {
    let addresses = to.to_socket_addrs().map_err(|e| e.to_string())?;
    let mut why = "the name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(e) => why = e.to_string(),
        }
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;
    use serde_json::json;

    #[test]
    fn what_became_of_it() {
        let of = |end: Value| judge(Some(&end), "h:1");
        let shunted = of(
            json!({ "mode": "shunt-attach", "reason": null, "peer_program": "nginx", "peer_pid": 7 }),
        );
        assert_eq!(shunted.mark, Mark::Good);
        assert!(shunted.text.contains("with nginx (pid 7)"), "{shunted:?}");
        let tcp = of(json!({ "mode": "tcp", "reason": "peer-not-shunted" }));
        assert_eq!(tcp.mark, Mark::Obstacle);
        assert!(tcp.text.contains("Start the server under Shunt too"), "{tcp:?}");
        let pending = of(json!({ "mode": "tcp", "reason": "pending" }));
        assert!(pending.mark == Mark::Unknown && pending.text.contains("nothing has accepted"));
        let unused = of(
            json!({ "mode": "tcp", "reason": "pending", "peer_program": "nginx", "peer_pid": 7 }),
        );
        assert!(unused.mark == Mark::Unknown && unused.text.contains("has accepted"), "{unused:?}");
        assert_eq!(judge(None, "h:1").mark, Mark::Unknown);
    }
}
