//! redis and redis-benchmark.

use super::programs;
use super::row::{Better, Family, Outcome, Row};
use crate::failure::{Failure, Result};
use crate::rig::endpoint::Endpoint;
use crate::rig::{Budget, Session, program};
use crate::stats::{Quantile, whole};

static FAMILY: Family = Family {
    title: "redis",
    meaning: "redis-benchmark with 50 connections, values of 3 B; with -P 16 each connection sends 16 \
              requests at a time. Both programs have one thread. With -P 16 most of the time is redis's \
              own, and shows how fast it could be without any transport.",
};

static CONNECTIONS: Family = Family {
    title: "redis, by connections",
    meaning: "redis-benchmark, GET of values of 3 B, one request at a time over each connection.",
};

const CLIENTS: u32 = 50;

/// Requests of the run by which the next is sized, for each that is sent at once.
const TRIAL: u64 = 10_000;

/// Rate and distribution, as `redis-benchmark --csv` prints them for one test.
fn parse(text: &str) -> Result<(f64, Vec<Quantile>)> {
    let mut lines = text.lines().filter(|line| line.starts_with('"'));
    let fields = |line: &str| -> Vec<String> {
        line.split(',').map(|field| field.trim_matches('"').to_owned()).collect()
    };
    let (Some(names), Some(values)) = (lines.next().map(fields), lines.next().map(fields)) else {
        return Err(Failure::failed(format!("redis-benchmark says: {}", text.trim())));
    };
    let get = |name: &str| {
        let at = names.iter().position(|n| n == name)?;
        values.get(at)?.parse::<f64>().ok()
    };
    let rate = get("rps").ok_or_else(|| Failure::failed("redis-benchmark gives no rate"))?;
    let points = [
        ("min_latency_ms", 0.0),
        ("p50_latency_ms", 0.5),
        ("p95_latency_ms", 0.95),
        ("p99_latency_ms", 0.99),
        ("max_latency_ms", 1.0),
    ];
    let points =
        points.iter().filter_map(|(name, q)| Some(Quantile { q: *q, us: get(name)? * 1e3 }));
    Ok((rate, points.collect()))
}

fn run(
    session: &Session<'_>,
    budget: Budget,
    test: &str,
    (clients, pipeline): (u32, u64),
) -> Result<Outcome> {
    let server = program("redis-server", "redis-server")?;
    let client = program("redis-benchmark", "redis-tools")?;
    let at = session.endpoint()?;
    let mut command = session.command(server);
    command.args(["--save", "", "--appendonly", "no", "--port", &at.port().to_string()]);
    if let Endpoint::Unix(path) = &at {
        command.arg("--unixsocket").arg(path);
    } else {
        command.args(["--bind", &at.ip().to_string(), "--protected-mode", "no"]);
    }
    let _server = session.serve(command, &at)?;
    let load = |requests: u64| {
        let mut command = session.command(&client);
        if let Endpoint::Unix(path) = &at {
            command.arg("-s").arg(path);
        } else {
            command.args(["-h", &at.ip().to_string(), "-p", &at.port().to_string()]);
        }
        command.args(["-c", &clients.to_string(), "-P", &pipeline.to_string()]);
        command.args(["-n", &requests.to_string()]);
        command.args(["-t", test, "--csv"]);
        parse(&session.run(command, budget.patience())?.stdout)
    };
    let name = format!("redis.{test}.p{pipeline}.c{clients}");
    let rate = session.known_rate(&name, || Ok(load(TRIAL * pipeline)?.0))?;
    let requests = whole(rate * budget.seconds).max(TRIAL);
    let ((value, latency), cost) = session.metered(|| load(requests))?;
    let operations = requests as f64;
    Ok(Outcome { value, operations, bytes: operations * 3.0, latency, cost })
}

/// GET and SET, one and sixteen at a time.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for pipeline in [1, 16] {
        for test in ["get", "set"] {
            let load = (CLIENTS, pipeline);
            let drive =
                move |session: &Session<'_>, budget: Budget| run(session, budget, test, load);
            let title = format!("redis {}, 50 connections, -P {pipeline}", test.to_uppercase());
            let row = Row::new(format!("redis.{test}.p{pipeline}"), &FAMILY, title, drive);
            rows.push(
                row.unit("req/s", Better::Higher).unix().quick(test == "get" && pipeline == 1),
            );
        }
    }
    for connections in programs::CONNECTIONS {
        let drive = move |session: &Session<'_>, budget: Budget| {
            run(session, budget, "get", (connections, 1))
        };
        let s = if connections == 1 { "" } else { "s" };
        let title = format!("redis GET, {connections} connection{s}");
        rows.push(
            Row::new(format!("redis.get.c{connections}"), &CONNECTIONS, title, drive)
                .unit("req/s", Better::Higher)
                .unix()
                .contenders(&programs::CONTENDERS)
                .point("redis GET", "connections", connections.into()),
        );
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_benchmark_prints() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
                    \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"GET\",\"46189.38\",\"0.700\",\"0.128\",\"0.639\",\"1.087\",\"2.767\",\"6.007\"\n";
        let (rate, latency) = parse(text).unwrap();
        assert_eq!(rate, 46189.38);
        assert_eq!(latency.len(), 5);
        assert_eq!(latency[1], Quantile { q: 0.5, us: 639.0 });
        assert!(parse("Could not connect").is_err());
    }
}
