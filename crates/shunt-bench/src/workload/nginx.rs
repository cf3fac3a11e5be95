//! nginx and wrk.

use std::fs;
use std::path::Path;

use super::output::{expect_number, number_after};
use super::row::{Better, Family, Outcome, Row};
use crate::failure::{Context, Failure, Result};
use crate::rig::{Budget, Session, program};
use crate::stats::Quantile;

static FAMILY: Family = Family {
    title: "nginx and wrk",
    meaning: "nginx serves a file from its cache of open files by sendfile, wrk asks for it over \
              keep-alive connections, each with one request at a time; as many wrk threads as nginx \
              workers. The figure is whole answers per second. Much of the time is nginx's and wrk's \
              own, which no transport can take away.",
};

static CLOSE: Family = Family {
    title: "nginx and wrk, a connection per request",
    meaning: "wrk asks for a page of 612 B with `Connection: close`, 50 at a time. Making and ending the \
              kernel's connection is most of the work, and Shunt adds its own to it.",
};

static VECTORS: Family = Family {
    title: "Completion vectors",
    meaning: "nginx with 2 workers and wrk with 2 threads, where each process has 1 or 2 completion \
              vectors (SHUNT_VECTORS). With one vector all completions of wrk's two threads come \
              through the same queue. Other contenders run the same load without that setting.",
};

const SIZES: [(usize, &str, &str); 2] = [(612, "612", "612 B"), (1_000_000, "1M", "1 MB")];
const CONNECTIONS: [u32; 6] = [1, 50, 100, 200, 400, 800];

/// A configuration for a server at `at`, an address and a port, that keeps every file in `dir`. `user`: runs the workers, when root starts nginx.
#[must_use]
pub fn configuration(
    dir: &Path,
    at: impl std::fmt::Display,
    workers: u32,
    user: Option<&str>,
) -> String {
    let dir = dir.display();
    let user = user.map(|name| format!("user {name};\n")).unwrap_or_default();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {dir}/temporary-{kind};\n"))
        .collect();
    format!(
        "{user}daemon off;\nworker_processes {workers};\npid {dir}/nginx.pid;\n\
         error_log {dir}/error.log;\nworker_rlimit_nofile 8192;\n\
         events {{ worker_connections 4096; }}\nhttp {{\n  access_log off;\n  sendfile on;\n\
         \x20 open_file_cache max=100;\n{temporary}  keepalive_requests 100000000;\n\
         \x20 server {{ listen {at}; root {dir}/www; }}\n}}\n"
    )
}

/// Requests, seconds' rate, and distribution, as wrk prints them.
fn parse(text: &str) -> Result<(f64, f64, Vec<Quantile>)> {
    if let Some(line) = text.lines().find(|l| l.contains("Non-2xx") || l.contains("Socket errors"))
    {
        return Err(Failure::failed(format!("wrk: {}", line.trim())));
    }
    let rate = expect_number(text, "Requests/sec:")?;
    let requests = text.lines().find(|line| line.contains(" requests in "));
    let requests = requests.and_then(|line| number_after(line, "")).unwrap_or(f64::NAN);
    let points = [("50%", 0.5), ("75%", 0.75), ("90%", 0.9), ("99%", 0.99)];
    let points = points.iter().filter_map(|(label, q)| {
        let line = text.lines().find(|line| line.trim_start().starts_with(label))?;
        Some(Quantile { q: *q, us: duration_us(line.split_whitespace().nth(1)?)? })
    });
    Ok((rate, requests, points.collect()))
}

/// `466.00us`, `1.25ms` or `2.00s` in microseconds.
fn duration_us(text: &str) -> Option<f64> {
    let number = text.trim_end_matches(char::is_alphabetic);
    let scale = match &text[number.len()..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|n| n * scale)
}

/// What is asked of whom.
#[derive(Clone, Copy)]
struct Load {
    /// Bytes of the page.
    size: usize,
    workers: u32,
    connections: u32,
    /// Each connection carries one request.
    close: bool,
}

fn run(session: &Session<'_>, budget: Budget, load: Load) -> Result<Outcome> {
    let Load { size, workers, connections, close } = load;
    let (nginx, wrk) = (program("nginx", "nginx")?, program("wrk", "wrk")?);
    let at = session.endpoint()?;
    let dir = session.rig().new_path("nginx");
    fs::create_dir_all(dir.join("www")).context("nginx's directory")?;
    fs::write(dir.join("www/page"), vec![b'x'; size]).context("a page")?;
    let file = dir.join("nginx.conf");
    let root = rustix::process::geteuid().is_root().then_some("root");
    fs::write(&file, configuration(&dir, &at, workers, root)).context("nginx.conf")?;
    let mut command = session.command(nginx);
    command.arg("-p").arg(&dir).arg("-e").arg(dir.join("error.log")).arg("-c").arg(&file);
    let server = session.serve(command, &at)?;
    let (finished, cost) = session.metered(|| {
        let mut command = session.command(wrk);
        let threads = workers.min(connections);
        command.args([format!("-t{threads}"), format!("-c{connections}")]);
        command.args([format!("-d{}", budget.whole_seconds()), "--latency".into()]);
        if close {
            command.args(["-H", "Connection: close"]);
        }
        command.arg(format!("http://{at}/page"));
        session.run(command, budget.patience())
    })?;
    drop(server);
    let (value, requests, latency) = parse(&finished.stdout)?;
    // What it served is of no use any more.
    let _kept = fs::remove_dir_all(&dir);
    Ok(Outcome { value, operations: requests, bytes: requests * size as f64, latency, cost })
}

/// Sizes, connections, workers; vectors.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for workers in [1, 2] {
        for (size, short, long) in SIZES {
            for connections in CONNECTIONS {
                let load = Load { size, workers, connections, close: false };
                let drive = move |session: &Session<'_>, budget: Budget| run(session, budget, load);
                let s = |n: u32| if n == 1 { "" } else { "s" };
                let title = format!(
                    "nginx + wrk, {long}, {connections} connection{}, {workers} worker{}",
                    s(connections),
                    s(workers)
                );
                let id = format!("nginx.{short}.w{workers}.c{connections}");
                let curve = format!("nginx, {long}, {workers} worker{}", s(workers));
                rows.push(
                    Row::new(id, &FAMILY, title, drive)
                        .unit("req/s", Better::Higher)
                        .quick(size == 612 && workers == 1 && connections == 50)
                        .point(&curve, "connections", connections.into()),
                );
            }
        }
    }
    for workers in [1, 2] {
        let load = Load { size: 612, workers, connections: 50, close: true };
        let drive = move |session: &Session<'_>, budget: Budget| run(session, budget, load);
        let s = if workers == 1 { "" } else { "s" };
        let title = format!("nginx + wrk, 612 B, a connection per request, {workers} worker{s}");
        rows.push(
            Row::new(format!("nginx.close.w{workers}"), &CLOSE, title, drive)
                .unit("req/s", Better::Higher),
        );
    }
    for vectors in ["1", "2"] {
        let load = Load { size: 612, workers: 2, connections: 100, close: false };
        let drive = move |session: &Session<'_>, budget: Budget| {
            session.set("SHUNT_VECTORS", vectors);
            run(session, budget, load)
        };
        let s = if vectors == "1" { "" } else { "s" };
        let title = format!("nginx (2 workers) + wrk (2 threads), 612 B, {vectors} vector{s}");
        rows.push(Row::new(format!("vectors.{vectors}"), &VECTORS, title, drive));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
Running 1s test @ http://127.0.0.1:23459/x
  2 threads and 20 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.34ms    2.86ms  29.45ms   92.82%
    Req/Sec    17.82k     6.55k   26.70k    70.00%
  Latency Distribution
     50%  466.00us
     75%  682.00us
     90%    2.90ms
     99%   16.25ms
  35482 requests in 1.00s, 10.42MB read
Requests/sec:  35306.46
Transfer/sec:     10.37MB
";

    #[test]
    fn what_wrk_prints() {
        let (rate, requests, latency) = parse(OUTPUT).unwrap();
        assert_eq!((rate, requests), (35306.46, 35482.0));
        let points: Vec<_> = latency.iter().map(|p| (p.q, p.us)).collect();
        assert_eq!(points, [(0.5, 466.0), (0.75, 682.0), (0.9, 2900.0), (0.99, 16250.0)]);
        let bad = format!("{OUTPUT}  Non-2xx or 3xx responses: 3\n");
        assert!(parse(&bad).unwrap_err().why().contains("responses: 3"));
        assert!(parse("").is_err());
    }
}
