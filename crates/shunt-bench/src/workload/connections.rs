//! Connections that come and go, and connections that stay open.

use super::ipc::outcome;
use super::row::{Better, Family, Outcome, Row};
use crate::failure::Result;
use crate::rig::{Budget, Session};

static RATE: Family = Family {
    title: "Connection rate",
    meaning: "connect, one request of 100 B, its answer, close; one after the other. Shunt keeps the \
              kernel's connection and adds its own to it, so this is where it can lose: set-up is \
              paid for one request.",
};

static OPEN: Family = Family {
    title: "Open connections",
    meaning: "One epoll server and one epoll client with so many open connections, of which 1, 10 or \
              all send requests of 100 B, one at a time each. What a wake-up costs must follow from \
              the number of those that are ready, not from the number of those that are open.",
};

/// A closed connection's port is taken for a minute. All contenders share them.
const MOST_CONNECTIONS: &str = "12000";

const OPEN_STEPS: [usize; 7] = [1, 10, 100, 500, 1000, 5000, 10_000];

fn run(session: &Session<'_>, budget: Budget, client: &str, args: &[&str]) -> Result<Outcome> {
    let at = session.endpoint()?;
    let mut command = session.load("serve-many");
    command.args(["--at", &at.to_string()]);
    let _server = session.serve(command, &at)?;
    let mut command = session.load(client);
    command.args(["--to", &at.to_string(), "--seconds", &budget.seconds.to_string()]);
    command.args(args);
    let (seen, cost) = session.drive(vec![command], budget)?;
    Ok(outcome(&seen, cost))
}

/// Connection rate; open and active connections.
pub fn rows() -> Vec<Row> {
    let rate = |session: &Session<'_>, budget: Budget| {
        run(session, budget, "reconnect", &["--most", MOST_CONNECTIONS])
    };
    let title = "connect + request + close, 100 B";
    let mut rows = vec![
        Row::new("connect", &RATE, title, rate).unit("conn/s", Better::Higher).unix().quick(true),
    ];
    for (name, active) in [("1", 1), ("10", 10), ("all", usize::MAX)] {
        for open in OPEN_STEPS.into_iter().filter(|open| active == usize::MAX || *open >= active) {
            let count = active.min(open);
            let drive = move |session: &Session<'_>, budget: Budget| {
                let (open, active) = (open.to_string(), count.to_string());
                run(session, budget, "many", &["--open", &open, "--active", &active])
            };
            let title = format!("{open} open, {name} active, 100 B");
            rows.push(
                Row::new(format!("open.{open}.{name}"), &OPEN, title, drive)
                    .unit("msg/s", Better::Higher)
                    .unix()
                    .quick(open == 1000 && name == "10")
                    .point(&format!("Open connections, {name} active"), "connections", open as f64),
            );
        }
    }
    rows
}
