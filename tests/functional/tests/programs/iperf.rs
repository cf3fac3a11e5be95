//! iperf3.

use serde_json::Value;
use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Expect, Sandbox};
use shunt_functional::servers;

use crate::{Outcome, compare};

const IPERF: Subject = Subject {
    kind: Kind::Programs,
    name: "iperf3",
    version: Version::Said("iperf3", "--version"),
    done: "one stream, 8 streams, both ways, sendfile, small writes",
    remark: "",
};

/// One run; both ends print JSON. Streams are counted per direction.
fn run(sandbox: &Sandbox, port: &str, args: &[&str]) -> String {
    let mut command = sandbox.command(program("iperf3"));
    command.args(["-c", "127.0.0.1", "-p", port, "-t", "1", "-J"]).args(args);
    let out = sandbox.run(command);
    let json: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out}"));
    let end = &json["end"];
    let streams = end["streams"].as_array().map_or(0, Vec::len);
    let moved = |name: &str| end[name]["bytes"].as_u64().map(|n| n > 1_000_000);
    let sums = ["sum_sent", "sum_received", "sum_sent_bidir_reverse", "sum_received_bidir_reverse"];
    let sums: Vec<_> = sums.iter().map(|name| (*name, moved(name))).collect();
    format!("{args:?}: error {}, streams {streams}, moved {sums:?}", json["error"])
}

fn scenario(sandbox: &Sandbox) -> Outcome {
    let port = free_port();
    let mut server = servers::iperf3(sandbox, port);
    // Each run has its streams and a control connection.
    let runs: [(&[&str], u64); 6] = [
        (&[], 2),
        (&["-R"], 2),
        (&["--bidir"], 3),
        (&["-P", "8"], 9),
        (&["-Z"], 2),
        (&["-l", "1000"], 2),
    ];
    let mut outcome: Outcome = runs
        .into_iter()
        .zip(1..)
        .map(|((args, connections), n)| {
            // For each run it listens anew.
            let listens = |text: &str| text.matches("Server listening").count() >= n;
            server.wait_for_text(|text| listens(text).then_some(()));
            sandbox.expect(Expect::Ends(2 * connections), || run(sandbox, &port.to_string(), args))
        })
        .collect();
    // The kernel alone sends at a rate.
    let before = sandbox.mode.is_shunted().then(|| sandbox.stats());
    server.wait_for_text(|text| {
        (text.matches("Server listening").count() > runs.len()).then_some(())
    });
    let paced = ["--fq-rate", "200M"];
    outcome.push(sandbox.expect(Expect::Ends(2), || run(sandbox, &port.to_string(), &paced)));
    if let Some(before) = before {
        let after = sandbox.stats();
        assert_eq!(after.since(&before).1, 2, "the control connection: {after:?}");
        assert!(after.declined("unsupported") > before.declined("unsupported"), "{after:?}");
    }
    server.assert_running();
    outcome
}

#[test]
fn iperf3() {
    compare(&IPERF, Sandbox::new, scenario);
}
