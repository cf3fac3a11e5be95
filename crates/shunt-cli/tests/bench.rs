//! `shunt bench` over kernel TCP alone, which needs no library: that rows run, with all programs
//! that are installed, and leave nothing. Figures are not looked at.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use shunt_bench::contender::Contender;
use shunt_bench::report::{Report, Status};

/// Far more than a run takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs these rows; the report, and the page.
fn bench(rows: &[&str]) -> (Report, String) {
    let dir = tempfile::tempdir().expect("a directory");
    // PostgreSQL's user goes through it.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).expect("chmod");
    let temporary = dir.path().join("temporary");
    fs::create_dir(&temporary).expect("a directory");
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o711)).expect("chmod");
    let [json, html, output] = ["json", "html", "output"].map(|name| dir.path().join(name));
    let said = fs::File::create(&output).expect("a file");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_shunt"))
        .args(["bench", "--quick", "--seconds", "0.1", "--contenders", "tcp"])
        .args(["--only", &rows.join(",")])
        .arg("--json")
        .arg(&json)
        .arg("--html")
        .arg(&html)
        .env("TMPDIR", &temporary)
        .stdin(Stdio::null())
        .stdout(said.try_clone().expect("a file"))
        .stderr(said)
        .spawn()
        .expect("shunt bench starts");
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = bench.try_wait().expect("a status") {
            break status;
        }
        if Instant::now() > until {
            let _ended = bench.kill();
            panic!("the bench hangs");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let said = fs::read_to_string(output).expect("what it said");
    assert!(status.success(), "{said}");
    assert_eq!(fs::read_dir(&temporary).expect("a directory").count(), 0, "files are left");
    let until = Instant::now() + PATIENCE;
    while let Some(left) = program_in(&temporary) {
        assert!(Instant::now() < until, "{left} is left");
        std::thread::sleep(Duration::from_millis(20));
    }
    let report = fs::read_to_string(json).expect("the JSON");
    let report = serde_json::from_str(&report).expect("the JSON has the schema");
    (report, fs::read_to_string(html).expect("the HTML"))
}

/// A program that works in this directory, or did before that was removed.
fn program_in(dir: &Path) -> Option<String> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let mut places = entries.filter_map(|entry| {
        let path = entry.path();
        Some((path.clone(), fs::read_link(path.join("cwd")).ok()?))
    });
    let (path, _) = places.find(|(_, cwd)| cwd.starts_with(dir))?;
    Some(fs::read_to_string(path.join("cmdline")).unwrap_or_default())
}

/// The rows, of which none has failed, and how each went.
fn statuses(report: &Report) -> Vec<(&str, Status)> {
    let of = report.rows.iter().map(|row| {
        let result = row.result(Contender::Tcp).expect("kernel TCP ran");
        assert_eq!(row.results.len(), 1, "{}", row.id);
        assert_ne!(result.status, Status::Failed, "{}: {:?}", row.id, result.why);
        (row.id.as_str(), result.status)
    });
    of.collect()
}

#[test]
fn programs_of_the_distribution_run_where_they_are_installed() {
    let rows = [
        "nginx.612.w1.c8",
        "nginx.stock.w1.c8",
        "redis.get.c8",
        "postgres.simple.c8",
        "postgres.prepared.c8",
        "haproxy.c8",
        "node.c8",
        "java.threads.c8",
        "java.nio.c8",
        "python.threads.c8",
        "memcached.c8",
    ];
    let (report, _) = bench(&rows.map(|row| format!("={row}")).each_ref().map(String::as_str));
    let statuses = statuses(&report);
    assert_eq!(statuses.iter().map(|(id, _)| *id).collect::<Vec<_>>(), rows);
    for row in &report.rows {
        let result = row.result(Contender::Tcp).expect("kernel TCP ran");
        if result.status == Status::Skipped {
            let why = result.why.as_deref().unwrap_or_default();
            assert!(why.contains("is not installed") || why.contains("no user"), "{why}");
        } else {
            assert!(result.cpu.is_some_and(|cpu| cpu > 0.0), "{}", row.id);
        }
    }
}

#[test]
fn cells_of_each_kind_run() {
    let rows = ["shapes.poll.2", "shapes.thread-recv.2.1c", "shapes.process.1.5us"];
    let (report, html) = bench(&rows.map(|row| format!("={row}")).each_ref().map(String::as_str));
    let mut names: Vec<_> = statuses(&report).into_iter().map(|(id, _)| id).collect();
    names.sort_unstable();
    assert_eq!(names, ["shapes.poll.2", "shapes.process.1.5us", "shapes.thread-recv.2.1c"]);
    for row in &report.rows {
        let result = row.result(Contender::Tcp).expect("kernel TCP ran");
        let cell = row.cell.expect("its place");
        if cell.cores == 1 {
            assert_eq!(result.status, Status::Measured, "{}", row.id);
        }
        assert!(html.contains(&row.id));
    }
    // There is nothing to compare.
    assert!(!html.contains("class=\"heat\""));
}
