//! `shunt agent --metrics`, and what a dashboard makes of it.

mod common;

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use common::open_metrics::Exposition;
use common::{EXE, Sandbox, any_library, text};
use serde_json::Value;
use shunt_wire::counter::Counter;
use shunt_wire::metric;
use shunt_wire::reason::Reason;

fn scrape(mut stream: impl Read + Write) -> Exposition {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    Exposition::parse(body)
}

/// Where `shunt doctor` says that metrics are.
fn served_at(sandbox: &Sandbox) -> Option<String> {
    let said = text(&sandbox.with_library(&["doctor"]).output().unwrap().stdout);
    let line = said.lines().find_map(|l| l.split_once("metrics: served at "))?;
    Some(line.1.to_owned())
}

fn equals_stats(sandbox: &Sandbox, scraped: &Exposition) {
    let stats = sandbox.output(&["stats", "--json"]);
    let stats: Value = serde_json::from_slice(&stats.stdout).unwrap();
    let same = |name: &str, labels: &[(&str, &str)], there: &Value| {
        assert_eq!(scraped.value(name, labels).to_string(), there.to_string(), "{name}");
    };
    for counter in Counter::ALL {
        same(&counter.metric().to_string(), &[], &stats[counter.name()]);
    }
    for reason in Reason::ALL {
        let there = &stats["declined"][reason.name()];
        same("shunt_connections_declined_total", &[("reason", reason.name())], there);
    }
    same("shunt_programs_live", &[], &stats["programs_live"]);
    same("shunt_programs_ended_total", &[], &stats["programs_ended"]);
}

#[test]
fn the_agent_serves_what_stats_show() {
    let sandbox = Sandbox::new();
    // Totals of an earlier agent, so that there is something to be shown.
    let status = sandbox.output(&["agent", "--detach"]).status;
    assert_eq!(status.code(), Some(0));
    sandbox.end_agent();
    let totals = sandbox.run_dir().join("totals.json");
    let mut book: Value = serde_json::from_str(&fs::read_to_string(&totals).unwrap()).unwrap();
    for (n, counter) in (1..).zip(Counter::ALL) {
        book["all"][counter.name()] = (1000 + n).into();
    }
    fs::write(&totals, book.to_string()).unwrap();

    assert_eq!(sandbox.output(&["agent", "--detach", "--metrics"]).status.code(), Some(0));
    let socket = sandbox.run_dir().join("metrics.sock");
    assert_eq!(served_at(&sandbox), Some(format!("unix:{}", socket.display())));
    let scraped = scrape(UnixStream::connect(&socket).unwrap());
    equals_stats(&sandbox, &scraped);
    sandbox.end_agent();
    assert!(!socket.exists());

    let args = ["agent", "--detach", "--metrics", "127.0.0.1:0"];
    assert_eq!(sandbox.output(&args).status.code(), Some(0));
    let scraped = scrape(TcpStream::connect(served_at(&sandbox).unwrap()).unwrap());
    assert!(scraped.value("shunt_connections_total", &[]) > 1000.0);
    equals_stats(&sandbox, &scraped);
}

#[test]
fn an_address_that_cannot_be_had_is_an_error_on_the_command_line() {
    let sandbox = Sandbox::new();
    let output = sandbox.output(&["agent", "--metrics", "0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("say --metrics-public"), "{output:?}");
    let output = sandbox.output(&["agent", "--metrics", "here"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("127.0.0.1:PORT"), "{output:?}");
    assert_eq!(sandbox.agent(), None);
    // An agent that runs without them does not do.
    assert_eq!(sandbox.output(&["agent", "--detach"]).status.code(), Some(0));
    let output = sandbox.output(&["agent", "--detach", "--metrics"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("running already"), "{output:?}");
}

#[test]
fn an_agent_that_run_starts_takes_the_address_from_the_environment() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.with_library(&["run", "true"]);
    assert_eq!(command.env("SHUNT_METRICS", "unix").output().unwrap().status.code(), Some(0));
    equals_stats(
        &sandbox,
        &scrape(UnixStream::connect(sandbox.run_dir().join("metrics.sock")).unwrap()),
    );
    sandbox.end_agent();
    // A mistake there costs nobody the agent, and is not kept secret.
    for wrong in ["0.0.0.0:0", "nonsense"] {
        let mut command = sandbox.with_library(&["run", "--summary", "true"]);
        let output = command.env("SHUNT_METRICS", wrong).output().unwrap();
        assert!(!text(&output.stderr).contains("not shunted"), "{output:?}");
        let mut doctor = sandbox.with_library(&["doctor"]);
        let said = text(&doctor.env("SHUNT_METRICS", wrong).output().unwrap().stdout);
        assert!(said.contains("warn  metrics: SHUNT_METRICS is"), "{said}");
        sandbox.end_agent();
    }
}

#[test]
fn the_agent_is_not_preloaded() {
    let sandbox = Sandbox::new();
    let (ours, other) = (sandbox.path("libshunt.so"), sandbox.path("other.so"));
    for path in [&ours, &other] {
        fs::copy(any_library(), path).unwrap();
    }
    let mut command = sandbox.command(&["agent", "--detach", "--metrics"]);
    command.env("LD_PRELOAD", format!("{}:{}", ours.display(), other.display()));
    assert_eq!(command.output().unwrap().status.code(), Some(0));
    let maps = fs::read_to_string(format!("/proc/{}/maps", sandbox.agent().unwrap())).unwrap();
    let is_mapped = |path: &Path| maps.contains(path.to_str().unwrap());
    assert!(is_mapped(Path::new(EXE)) && is_mapped(&other) && !is_mapped(&ours));
}

/// The words of `text` that are names of metrics by their beginning.
fn names_in(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("shunt_"))
}

#[test]
fn the_dashboard_names_every_metric_and_no_other() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/grafana/shunt.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let there: HashSet<_> = metric::all().map(|m| m.to_string()).collect();
    let labels: HashSet<_> =
        metric::all().flat_map(|m| m.labels).copied().chain(["job", "instance"]).collect();
    let mut shown = HashSet::new();
    let mut ids = HashSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()));
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            assert!(names_in(expression).next().is_some(), "{expression}");
            // Quantiles are taken from the buckets of a histogram.
            shown.extend(
                names_in(expression).map(|name| name.trim_end_matches("_bucket").to_owned()),
            );
            let by = expression.split("by (").nth(1).and_then(|rest| rest.split(')').next());
            let mut by = by.into_iter().flat_map(|by| by.split(", "));
            assert!(by.all(|label| labels.contains(label) || label == "le"), "{expression}");
            let equal = expression.split(['{', ',']).filter_map(|part| part.split_once('='));
            for (label, _) in equal {
                assert!(labels.contains(label.trim_end_matches('!')), "{expression}");
            }
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let query = variable["query"]["query"].as_str().unwrap_or_default();
        shown.extend(names_in(query).map(str::to_owned));
    }
    assert_eq!(shown, there);
}
