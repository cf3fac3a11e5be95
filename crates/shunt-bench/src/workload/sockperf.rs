//! sockperf.

use super::output::{expect_number, number_after};
use super::row::{Better, Family, Outcome, Row};
use crate::contender::Contender;
use crate::failure::Result;
use crate::rig::{Budget, Session, program};
use crate::stats::Quantile;

static PING_PONG: Family = Family {
    title: "sockperf ping-pong",
    meaning: "sockperf, TCP, 14 B, blocking, one connection. The figure is the one-way latency, half of \
              the mean round trip. The physical limit is half of the time in which a cache line goes \
              from one core to the other and back.",
};

static THROUGHPUT: Family = Family {
    title: "sockperf throughput",
    meaning: "sockperf, TCP, sends of 64,000 B in one direction, one connection. The figure is what \
              the sender could hand over.",
};

/// sockperf paces itself to what is asked for. (Its own "max" means 600,000, and more is an error.)
const RATE: &str = "3000000";

/// sockperf sends for so long before it measures, within the time it is given.
const WARM_UP: u64 = 1;

fn run(session: &Session<'_>, budget: Budget, args: &[&str]) -> Result<(String, Outcome)> {
    let sockperf = program("sockperf", "sockperf")?;
    let at = session.endpoint()?;
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    let place = ["--tcp", "-i", &ip, "-p", &port];
    let mut command = session.command(&sockperf);
    command.arg("server").args(place);
    let _server = session.serve(command, &at)?;
    let (finished, cost) = session.metered(|| {
        let mut command = session.command(&sockperf);
        let seconds = (budget.whole_seconds() + WARM_UP).to_string();
        command.args(args).args(place).args(["-t", &seconds, "--mps", RATE]);
        session.run(command, budget.patience())
    })?;
    Ok((finished.stdout, Outcome { cost, ..Outcome::default() }))
}

/// The figures of `sockperf ping-pong`: latency, messages (there and back), distribution.
fn ping_pong(text: &str) -> Result<(f64, f64, Vec<Quantile>)> {
    let latency = expect_number(text, "Summary: Latency is")?;
    let messages = expect_number(text, "SentMessages=")?;
    let at = |label: &str, q| number_after(text, label).map(|us| Quantile { q, us });
    let mut points: Vec<_> = at("<MIN> observation =", 0.0).into_iter().collect();
    for (label, q) in [
        ("percentile 25.000 =", 0.25),
        ("percentile 50.000 =", 0.5),
        ("percentile 75.000 =", 0.75),
        ("percentile 90.000 =", 0.9),
        ("percentile 99.000 =", 0.99),
        ("percentile 99.900 =", 0.999),
        ("percentile 99.990 =", 0.9999),
        ("<MAX> observation =", 1.0),
    ] {
        points.extend(at(label, q));
    }
    Ok((latency, messages, points))
}

/// The figures of `sockperf throughput`: MB/s, messages.
fn throughput(text: &str) -> Result<(f64, f64)> {
    // sockperf's MBps are MiB.
    let rate = expect_number(text, "BandWidth is")? * 1.048_576;
    Ok((rate, expect_number(text, "Total of")?))
}

/// Ping-pong and throughput.
pub fn rows() -> Vec<Row> {
    let ping = |session: &Session<'_>, budget: Budget| {
        let (text, outcome) = run(session, budget, &["ping-pong", "-m", "14"])?;
        let (value, messages, latency) = ping_pong(&text)?;
        Ok(Outcome { value, operations: messages, bytes: messages * 28.0, latency, ..outcome })
    };
    let stream = |session: &Session<'_>, budget: Budget| {
        let (text, outcome) = run(session, budget, &["throughput", "-m", "64000"])?;
        let (value, messages) = throughput(&text)?;
        Ok(Outcome { value, operations: messages, bytes: messages * 64_000.0, ..outcome })
    };
    vec![
        Row::new("sockperf.ping-pong", &PING_PONG, "sockperf ping-pong, 14 B, one way", ping)
            .unit("µs", Better::Lower)
            .bound("cache-line", |us| us / 2.0)
            .quick(true),
        Row::new("sockperf.throughput", &THROUGHPUT, "sockperf throughput, 64,000 B", stream)
            .unit("MB/s", Better::Higher)
            .contenders(&Contender::BULK)
            .per_gigabyte()
            .bound("ring", |rate| rate),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: &str = "\
sockperf: Starting test...
sockperf: [Total Run] RunTime=1.002 sec; Warm up time=400 msec; SentMessages=63647; ReceivedMessages=63646
sockperf: ========= Printing statistics for Server No: 0
sockperf: [Valid Duration] RunTime=0.549 sec; SentMessages=36088; ReceivedMessages=36088
sockperf: \u{1b}[2;35m====> avg-latency=7.553 (std-dev=46.972)\u{1b}[0m
sockperf: Summary: Latency is 7.553 usec
sockperf: \u{1b}[2;35mTotal 36088 observations\u{1b}[0m; each percentile contains 360.88 observations
sockperf: ---> <MAX> observation = 7390.292
sockperf: ---> percentile 99.900 =   33.997
sockperf: ---> percentile 50.000 =    6.729
sockperf: ---> <MIN> observation =    3.983
";

    #[test]
    fn what_ping_pong_prints() {
        let (latency, messages, points) = ping_pong(PING).unwrap();
        assert_eq!((latency, messages), (7.553, 63647.0));
        let points: Vec<_> = points.iter().map(|p| (p.q, p.us)).collect();
        assert_eq!(points, [(0.0, 3.983), (0.5, 6.729), (0.999, 33.997), (1.0, 7390.292)]);
        assert!(ping_pong("sockperf: ERROR").is_err());
    }

    #[test]
    fn what_throughput_prints() {
        let text = "sockperf: Total of 36754 messages sent in 1.001 sec\n\n\
                    sockperf: Summary: BandWidth is 1000.000 MBps (8000.000 Mbps)\n";
        assert_eq!(throughput(text).unwrap(), (1048.576, 36754.0));
    }
}
