//! The bench's own request/response pair and its stream.

use super::row::{Better, Family, Outcome, Row};
use crate::contender::Contender;
use crate::failure::Result;
use crate::load::Seen;
use crate::rig::meter::Cost;
use crate::rig::{Budget, Session};
use crate::stats::median_distribution;

static IPC: Family = Family {
    title: "Request and response",
    meaning: "One client, one server, one connection, blocking calls: the client sends a message and \
              waits for one of the same size. A message counts once it was answered; the rate is the \
              inverse of the round trip. This is what a remote procedure call costs.",
};

static PAIRS: Family = Family {
    title: "Several pairs at once",
    meaning: "As many clients as servers on two cores, each pair with a connection of its own, requests \
              of 100 B. With more programs than cores, a waiting program that spins takes the processor \
              from the one that is to answer. The figure is the sum over all pairs.",
};

static RARE: Family = Family {
    title: "Rare messages",
    meaning: "1,000 requests of 100 B in a second, the client asleep in between. The figure is the \
              round trip; what matters beside it is the processor time per request, because spinning \
              between such messages would be waste.",
};

static STREAM: Family = Family {
    title: "Stream",
    meaning: "One connection, one direction, sends of 64,000 B as fast as they go, blocking calls. What \
              counts is what has arrived. The limit is two copies, one into shared memory and one out, \
              each on a core of its own.",
};

/// The message sizes of the sweep.
const SIZES: [usize; 12] =
    [1, 14, 100, 256, 1024, 4096, 16_384, 64_000, 131_072, 262_144, 524_288, 1_048_576];

/// A run of the original benchmark has so many rounds; slower contenders are stopped by time.
const ROUNDS: u64 = 1_000_000;

/// Requests in a second that are rare.
const RARE_RATE: u32 = 1000;

/// Processors that several pairs share, on any machine.
pub(super) const PAIRS_CORES: u32 = 2;

/// Sends of the stream.
const STREAM_SIZE: usize = 64_000;
/// What clients of the bench's own saw, as a row's outcome; the figure is the sum of their rates.
pub(super) fn outcome(seen: &[Seen], cost: Cost) -> Outcome {
    let distributions: Vec<_> = seen.iter().map(|s| s.latency.as_slice()).collect();
    Outcome {
        value: seen.iter().map(Seen::rate).sum(),
        operations: seen.iter().map(|s| s.operations as f64).sum(),
        bytes: seen.iter().map(|s| s.bytes as f64).sum(),
        latency: median_distribution(&distributions),
        cost,
    }
}

/// So many servers of the bench's own, each with a client.
fn ping(session: &Session<'_>, budget: Budget, pairs: usize, args: &[String]) -> Result<Outcome> {
    let size = args.iter().position(|a| a == "--size").and_then(|at| args.get(at + 1));
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        let at = session.endpoint()?;
        let mut command = session.load("serve");
        command.args(["--at", &at.to_string()]);
        command.args(size.iter().flat_map(|size| ["--size", size.as_str()]));
        let to = at.to_string();
        servers.push((command, at));
        let mut command = session.load("ping");
        command.args(["--to", &to, "--seconds", &budget.seconds.to_string()]);
        command.args(args);
        clients.push(command);
    }
    let _servers = session.serve_all(servers)?;
    let (seen, cost) = session.drive(clients, budget)?;
    Ok(outcome(&seen, cost))
}

fn strings<const N: usize>(args: [&str; N]) -> Vec<String> {
    args.iter().map(|a| (*a).to_owned()).collect()
}

pub(super) fn size_of_text(size: usize) -> String {
    match size {
        s if s % (1 << 20) == 0 => format!("{} MiB", s >> 20),
        s if s % 1024 == 0 => format!("{} KiB", s / 1024),
        64_000 => "64,000 B".into(),
        s => format!("{s} B"),
    }
}

/// Request and response, of all sizes; rare ones; several pairs.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for size in SIZES {
        let drive = move |session: &Session<'_>, budget: Budget| {
            let (text, rounds) = (size.to_string(), ROUNDS.to_string());
            ping(session, budget, 1, &strings(["--size", &text, "--rounds", &rounds]))
        };
        let title = format!("request/response, {}", size_of_text(size));
        let row = Row::new(format!("ipc.{size}"), &IPC, title, drive).unit("msg/s", Better::Higher);
        let row = row.unix().quick(size == 100);
        // Larger messages are bounded by their copies too.
        let row = if size <= 100 { row.bound("cache-line", |us| 1e6 / us) } else { row };
        rows.push(row.point("Request/response by size", "bytes", size as f64));
    }
    for pairs in [1, 2, 4, 8, 16, 32, 64] {
        let drive = move |session: &Session<'_>, budget: Budget| {
            session.share_cores(PAIRS_CORES);
            ping(session, budget, pairs, &strings(["--size", "100"]))
        };
        let s = if pairs == 1 { "" } else { "s" };
        let title = format!("{pairs} ping-pong pair{s} on {PAIRS_CORES} cores, 100 B");
        let row = Row::new(format!("pairs.{pairs}"), &PAIRS, title, drive);
        let row = row.unit("msg/s", Better::Higher).unix().quick(pairs == 4);
        rows.push(row.point("Request/response by pairs of processes", "pairs", pairs as f64));
    }
    rows.push(
        Row::new("rare", &RARE, "1,000 requests/s, 100 B, round trip", |session, budget| {
            let rate = RARE_RATE.to_string();
            let mut outcome = ping(session, budget, 1, &strings(["--per-second", &rate]))?;
            let half = outcome.latency.iter().find(|point| point.q == 0.5);
            outcome.value = half.map_or(f64::NAN, |point| point.us);
            Ok(outcome)
        })
        .unit("µs", Better::Lower)
        .bound("futex", |us| us)
        .unix()
        .quick(true),
    );
    rows
}

/// So many streams of sends of this size, each between two programs of its own, with the arguments of both ends.
pub(super) fn streams(
    session: &Session<'_>,
    budget: Budget,
    (pairs, size): (usize, usize),
    (args, sink): (&[&str], &[&str]),
) -> Result<Outcome> {
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        let at = session.endpoint()?;
        let mut command = session.load("sink");
        command.args(["--at", &at.to_string()]);
        command.args(sink);
        let to = at.to_string();
        servers.push((command, at));
        let mut command = session.load("stream");
        command.args(["--to", &to, "--seconds", &budget.seconds.to_string()]);
        command.args(["--size", &size.to_string()]);
        command.args(args);
        clients.push(command);
    }
    let _servers = session.serve_all(servers)?;
    let (seen, cost) = session.drive(clients, budget)?;
    let sent = outcome(&seen, cost);
    // Operations are whole sends; the figure is in megabytes.
    Ok(Outcome { value: sent.value * size as f64 / 1e6, ..sent })
}

/// The stream.
pub fn stream_rows() -> Vec<Row> {
    let drive = |session: &Session<'_>, budget: Budget| {
        streams(session, budget, (1, STREAM_SIZE), (&[], &[]))
    };
    vec![
        Row::new("stream.64000", &STREAM, "stream, sends of 64,000 B", drive)
            .unit("MB/s", Better::Higher)
            .contenders(&Contender::BULK)
            .per_gigabyte()
            .bound("ring", |rate| rate)
            .unix()
            .quick(true),
    ]
}
