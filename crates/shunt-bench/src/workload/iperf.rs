//! iperf3.

use serde_json::Value;

use super::row::{Better, Family, Outcome, Row};
use crate::contender::Contender;
use crate::failure::{Context, Failure, Result};
use crate::rig::{Budget, Session, program};

static FAMILY: Family = Family {
    title: "iperf3",
    meaning: "iperf3 with its defaults (sends of 128 KiB, select), one server thread and one client \
              thread whatever the number of streams. The figure is what the server received.",
};

/// Rate in Gb/s and bytes, from `iperf3 -J`.
fn parse(text: &str) -> Result<(f64, f64)> {
    let json: Value = serde_json::from_str(text).context("iperf3 -J")?;
    let sum = &json["end"]["sum_received"];
    match (sum["bits_per_second"].as_f64(), sum["bytes"].as_f64()) {
        (Some(rate), Some(bytes)) => Ok((rate / 1e9, bytes)),
        _ => Err(Failure::failed(format!("iperf3 says: {}", json["error"]))),
    }
}

fn run(session: &Session<'_>, budget: Budget, streams: u32) -> Result<Outcome> {
    let iperf3 = program("iperf3", "iperf3")?;
    let at = session.endpoint()?;
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    let mut command = session.command(&iperf3);
    command.args(["-s", "-B", &ip, "-p", &port]);
    let _server = session.serve(command, &at)?;
    let (finished, cost) = session.metered(|| {
        let mut command = session.command(&iperf3);
        command.args(["-c", &ip, "-p", &port, "-J", "-P", &streams.to_string()]);
        command.args(["-t", &budget.whole_seconds().to_string()]);
        session.run(command, budget.patience())
    })?;
    let (value, bytes) = parse(&finished.stdout)?;
    Ok(Outcome { value, bytes, cost, ..Outcome::default() })
}

/// 1 and 8 streams.
pub fn rows() -> Vec<Row> {
    let row = |streams: u32, title: &str| {
        let drive = move |session: &Session<'_>, budget: Budget| run(session, budget, streams);
        Row::new(format!("iperf3.{streams}"), &FAMILY, title, drive)
            .unit("Gb/s", Better::Higher)
            .contenders(&Contender::BULK)
            .per_gigabyte()
            // Megabytes in gigabits.
            .bound("ring", |rate| rate * 8.0 / 1000.0)
    };
    vec![row(1, "iperf3, 1 stream"), row(8, "iperf3, 8 streams")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_iperf3_prints() {
        let text = r#"{"end": {"sum_sent": {"bytes": 9, "bits_per_second": 1.0},
            "sum_received": {"bytes": 1796734976, "bits_per_second": 14272927392.5}}}"#;
        assert_eq!(parse(text).unwrap(), (14.2729273925, 1_796_734_976.0));
        let failure = parse(r#"{"error": "unable to connect"}"#).unwrap_err();
        assert!(failure.why().contains("unable to connect"));
        assert!(parse("").is_err());
    }
}
