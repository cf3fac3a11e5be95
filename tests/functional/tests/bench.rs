//! `shunt bench` runs, and what it writes is whole. Nothing is said about the figures: the machine
//! that tests run on is a noisy one.

use std::ffi::OsString;
use std::fs;
use std::process::{Command, Stdio};

use shunt_bench::contender::Contender;
use shunt_bench::limits;
use shunt_bench::report::{Report, SCHEMA, Status, VERSION};
use shunt_functional::binaries;
use shunt_functional::sandbox::is_root;

/// A row of each kind, in the order in which they run: an own pair, programs of the distribution,
/// memory, networks of their own.
const ROWS: [&str; 5] =
    ["ipc.100", "nginx.612.w1.c50", "redis.get.p1", "memory", "bridge.nginx.close.w1"];

#[test]
fn a_quick_run_writes_whole_reports() {
    let dir = tempfile::tempdir().expect("a directory");
    let (json, html) = (dir.path().join("bench.json"), dir.path().join("bench.html"));
    let bench = Command::new(binaries::built("shunt"))
        .args(["bench", "--quick", "--rounds", "1", "--seconds", "0.1"])
        .args(["--contenders", "unix,sockmap,attach", "--only", &ROWS.join(",")])
        .arg("--json")
        .arg(&json)
        .arg("--html")
        .arg(&html)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("shunt bench starts");
    let pid = bench.id();
    let output = bench.wait_with_output().expect("shunt bench runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}\n{complained}", output.status);

    let text = fs::read_to_string(json).expect("the JSON is there");
    let report: Report = serde_json::from_str(&text).expect("the JSON has the schema");
    assert_eq!((report.schema.as_str(), report.version), (SCHEMA, VERSION));
    assert!(report.quick && report.rounds == 1 && !report.machine.kernel.is_empty());
    let limits: Vec<_> = report.limits.iter().map(|limit| limit.id.as_str()).collect();
    assert_eq!(limits, limits::NAMES);
    assert!(!report.targets.is_empty());

    let rows: Vec<_> = report.rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(rows, ROWS);
    for row in &report.rows {
        let contenders: Vec<_> = row.results.iter().map(|result| result.contender).collect();
        let expected = [Contender::Tcp, Contender::Unix, Contender::Sockmap, Contender::Attach];
        assert_eq!(contenders, expected, "{}", row.id);
        for result in &row.results {
            let what = (&row.id, result.contender, &result.why);
            match result.status {
                Status::Measured => assert_eq!(result.samples.len(), 1, "{what:?}"),
                Status::Skipped => assert!(result.why.is_some(), "{what:?}"),
                Status::Failed => panic!("{what:?}"),
            }
        }
        let attach = row.result(Contender::Attach).expect("Shunt ran");
        if row.id.starts_with("bridge.") && !is_root() {
            assert!(attach.why.as_ref().is_some_and(|why| why.contains("only root")), "{attach:?}");
            continue;
        }
        assert_eq!(attach.status, Status::Measured, "{}", row.id);
        assert!(attach.ends_shunted.is_some_and(|ends| ends > 0), "{}", row.id);
    }

    // All networks are gone.
    let left = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names: Vec<_> = left.map(|entry| entry.file_name()).collect();
    let own = |name: &OsString| name.to_string_lossy().starts_with(&format!("shunt-bench-{pid}-"));
    assert!(!names.iter().any(own), "{names:?}");

    let html = fs::read_to_string(html).expect("the HTML is there");
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
    assert!(report.rows.iter().all(|row| html.contains(&row.id)));
    assert!(!html.contains("http:") && !html.contains("<script"), "it needs nothing else");
}
