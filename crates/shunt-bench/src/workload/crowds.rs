//! What a message costs beside many others: client processes that are busy, too, and threads that are idle.

use super::ipc::outcome;
use super::row::{Better, Family, Outcome, Row};
use crate::failure::Result;
use crate::load::shapes::Shape;
use crate::rig::{Budget, Session};

static CLIENTS: Family = Family {
    title: "Client processes",
    meaning: "One epoll server and so many client processes with a connection each, which all send requests of \
              100 B, one at a time, by blocking calls. Each process is a peer of its own, with memory and \
              doorbells of its own. The figure is the sum over all clients.",
};

static IDLE: Family = Family {
    title: "Idle threads",
    meaning: "A server with so many connections and a thread for each, of which one connection is used: requests \
              of 100 B, one at a time. What a message costs must not depend on the number of threads that sleep.",
};

/// Client processes.
const PROCESSES: [usize; 3] = [20, 200, 2000];

/// Clients that say something now and then.
const QUIET: usize = 1000;

/// Servers whose threads sleep.
const SLEEPERS: [Shape; 3] = [Shape::ThreadRecv, Shape::ThreadPoll, Shape::EpollThread];

/// Their threads.
const THREADS: [u32; 2] = [1, 400];

/// So many clients that are busy, and so many that send a request a second.
fn clients(session: &Session<'_>, budget: Budget, busy: usize, quiet: usize) -> Result<Outcome> {
    let at = session.endpoint()?;
    let mut command = session.load("serve-many");
    command.args(["--at", &at.to_string()]);
    let _server = session.serve(command, &at)?;
    let (to, seconds) = (at.to_string(), budget.seconds.to_string());
    let client = |n| {
        let mut command = session.load("ping");
        command.args(["--to", &to, "--seconds", &seconds]);
        if n >= busy {
            command.args(["--per-second", "1"]);
        }
        command
    };
    let (seen, cost) = session.drive((0..busy + quiet).map(client).collect(), budget)?;
    // The rate is that of all, to which the quiet ones add little; the times are those of the busy ones.
    let Outcome { latency, .. } = outcome(&seen[..busy.min(seen.len())], cost);
    Ok(Outcome { latency, ..outcome(&seen, cost) })
}

fn idle(session: &Session<'_>, budget: Budget, shape: Shape, threads: u32) -> Result<Outcome> {
    let (at, count) = (session.endpoint()?, threads.to_string());
    let mut command = session.load("serve-shape");
    command.args(["--at", &at.to_string(), "--shape", shape.name(), "--threads", &count]);
    let _server = session.serve(command, &at)?;
    let mut command = session.load("many");
    command.args(["--to", &at.to_string(), "--seconds", &budget.seconds.to_string()]);
    command.args(["--open", &count, "--active", "1"]);
    let (seen, cost) = session.drive(vec![command], budget)?;
    Ok(outcome(&seen, cost))
}

/// Many client processes; one busy connection beside idle threads.
pub fn rows() -> Vec<Row> {
    let busy = PROCESSES.map(|count| {
        let drive = move |session: &Session<'_>, budget: Budget| clients(session, budget, count, 0);
        let title = format!("{count} client processes, 100 B");
        Row::new(format!("clients.{count}"), &CLIENTS, title, drive)
            .unit("msg/s", Better::Higher)
            .point("Client processes", "processes", count as f64)
    });
    let asleep = SLEEPERS.into_iter().flat_map(|shape| THREADS.map(|threads| (shape, threads)));
    let asleep = asleep.map(|(shape, threads)| {
        let drive =
            move |session: &Session<'_>, budget: Budget| idle(session, budget, shape, threads);
        let title = match threads {
            1 => format!("one connection; {}", shape.title()),
            _ => format!("one of {threads} connections is used; {}", shape.title()),
        };
        Row::new(format!("idle.{shape}.{threads}"), &IDLE, title, drive)
            .unit("msg/s", Better::Higher)
    });
    let quiet = Row::new(
        format!("clients.quiet.{QUIET}"),
        &CLIENTS,
        format!("one busy client beside {QUIET} with a request a second, 100 B"),
        |session: &Session<'_>, budget: Budget| clients(session, budget, 1, QUIET),
    );
    busy.into_iter().chain([quiet.unit("msg/s", Better::Higher)]).chain(asleep).collect()
}
