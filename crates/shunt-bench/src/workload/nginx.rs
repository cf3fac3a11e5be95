//! nginx and wrk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::output::{expect_number, number_after};
use super::programs;
use super::row::{Better, Family, Outcome, Row};
use crate::contender::Contender;
use crate::failure::{Context, Failure, Result};
use crate::rig::endpoint::Endpoint;
use crate::rig::{Budget, Session, program};
use crate::stats::Quantile;

static FAMILY: Family = Family {
    title: "nginx and wrk",
    meaning: "nginx, tuned, serves a file from its cache of open files by sendfile, wrk asks for it over \
              keep-alive connections, each with one request at a time; as many wrk threads as nginx \
              workers. The figure is whole answers per second. Much of the time is nginx's and wrk's \
              own, which no transport can take away.",
};

static CLOSE: Family = Family {
    title: "nginx and wrk, a connection per request",
    meaning: "wrk asks for a page of 612 B with `Connection: close`, 50 at a time. Making and ending the \
              kernel's connection is most of the work, and Shunt adds its own to it.",
};

static STOCK: Family = Family {
    title: "nginx as it comes, and wrk",
    meaning: "The same with the configuration that nginx's authors ship: it opens the file for each \
              request, writes a line to the access log, and ends a connection after 1,000 requests. The \
              tuned rows beside these, `nginx.612.w1`, keep files open, log nothing, and keep \
              connections.",
};

static VECTORS: Family = Family {
    title: "Completion vectors",
    meaning: "nginx with 2 workers and wrk with 2 threads, where each process has 1 or 2 completion \
              vectors (SHUNT_VECTORS). With one vector all completions of wrk's two threads come \
              through the same queue. Other contenders run the same load without that setting.",
};

/// From so many bytes of a page on its bytes cost most.
const BULK: usize = 65_536;

const SIZES: [(usize, &str, &str); 2] = [(612, "612", "612 B"), (1_000_000, "1M", "1 MB")];
/// Beside each row of the stock configuration is one of the tuned.
const CONNECTIONS: [u32; 8] = [1, 8, 32, 50, 100, 200, 400, 800];

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
    let temporary = temporary_paths(&dir);
    format!(
        "{user}daemon off;\nworker_processes {workers};\npid {dir}/nginx.pid;\n\
         error_log {dir}/error.log;\nworker_rlimit_nofile 8192;\n\
         events {{ worker_connections 4096; }}\nhttp {{\n  access_log off;\n  sendfile on;\n\
         \x20 open_file_cache max=100;\n{temporary}  keepalive_requests 100000000;\n\
         \x20 server {{ listen {at}; root {dir}/www; }}\n}}\n"
    )
}

/// nginx's own configuration, as its authors ship it, for a server at `at` with its files in `dir`:
/// an access log, the default limits, and no cache of open files. `user` as above.
#[must_use]
pub fn stock_configuration(dir: &Path, at: impl std::fmt::Display, user: Option<&str>) -> String {
    let dir = dir.display();
    let user = user.map(|name| format!("user {name};\n")).unwrap_or_default();
    let temporary = temporary_paths(&dir);
    format!(
        "{user}daemon off;\nworker_processes 1;\npid {dir}/nginx.pid;\n\
         error_log {dir}/error.log;\nevents {{ worker_connections 1024; }}\nhttp {{\n\
         \x20 default_type application/octet-stream;\n  access_log {dir}/access.log;\n\
         \x20 sendfile on;\n  keepalive_timeout 65;\n{temporary}\
         \x20 server {{ listen {at}; location / {{ root {dir}/www; index index.html; }} }}\n}}\n"
    )
}

/// Where a server may put bodies for the time being.
fn temporary_paths(dir: &impl std::fmt::Display) -> String {
    ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {dir}/temporary-{kind};\n"))
        .collect()
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
    /// nginx has the configuration that its authors ship.
    stock: bool,
}

/// A server with a page of this size, and its directory.
pub(super) fn server(
    session: &Session<'_>,
    size: usize,
    configuration: impl FnOnce(&Path, Option<&str>) -> String,
) -> Result<(Command, PathBuf)> {
    let nginx = program("nginx", "nginx")?;
    let dir = session.rig().new_path("nginx");
    fs::create_dir_all(dir.join("www")).context("nginx's directory")?;
    fs::write(dir.join("www/page"), vec![b'x'; size]).context("a page")?;
    let file = dir.join("nginx.conf");
    let root = rustix::process::geteuid().is_root().then_some("root");
    fs::write(&file, configuration(&dir, root)).context("nginx.conf")?;
    let mut command = session.command(nginx);
    command.arg("-p").arg(&dir).arg("-e").arg(dir.join("error.log")).arg("-c").arg(&file);
    Ok((command, dir))
}

/// What wrk sees of the page of so many bytes at `at`.
pub(super) fn wrk(
    session: &Session<'_>,
    budget: Budget,
    at: &Endpoint,
    size: usize,
    (threads, connections): (u32, u32),
    close: bool,
) -> Result<Outcome> {
    let wrk = program("wrk", "wrk")?;
    let (finished, cost) = session.metered(|| {
        let mut command = session.command(wrk);
        let threads = threads.min(connections);
        command.args([format!("-t{threads}"), format!("-c{connections}")]);
        command.args([format!("-d{}", budget.whole_seconds()), "--latency".into()]);
        if close {
            command.args(["-H", "Connection: close"]);
        }
        command.arg(format!("http://{at}/page"));
        session.run(command, budget.patience())
    })?;
    let (value, requests, latency) = parse(&finished.stdout)?;
    Ok(Outcome { value, operations: requests, bytes: requests * size as f64, latency, cost })
}

fn run(session: &Session<'_>, budget: Budget, load: Load) -> Result<Outcome> {
    let Load { size, workers, connections, close, stock } = load;
    let at = session.endpoint()?;
    let (command, dir) = server(session, size, |dir, user| {
        if stock {
            stock_configuration(dir, &at, user)
        } else {
            configuration(dir, &at, workers, user)
        }
    })?;
    let server = session.serve(command, &at)?;
    let outcome = wrk(session, budget, &at, size, (workers, connections), close)?;
    drop(server);
    // What it served is of no use any more.
    let _kept = fs::remove_dir_all(&dir);
    Ok(outcome)
}

/// Sizes, connections, workers; vectors.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for workers in [1, 2] {
        for (size, short, long) in SIZES {
            for connections in CONNECTIONS {
                let load = Load { size, workers, connections, close: false, stock: false };
                let drive = move |session: &Session<'_>, budget: Budget| run(session, budget, load);
                let s = |n: u32| if n == 1 { "" } else { "s" };
                let title = format!(
                    "nginx (tuned) + wrk, {long}, {connections} connection{}, {workers} worker{}",
                    s(connections),
                    s(workers)
                );
                let id = format!("nginx.{short}.w{workers}.c{connections}");
                let curve = format!("nginx, {long}, {workers} worker{}", s(workers));
                let contenders: &[_] =
                    if size < BULK { &Contender::USUAL } else { &Contender::BULK };
                rows.push(
                    Row::new(id, &FAMILY, title, drive)
                        .unit("req/s", Better::Higher)
                        .contenders(contenders)
                        .quick(size == 612 && workers == 1 && connections == 50)
                        .point(&curve, "connections", connections.into()),
                );
            }
        }
    }
    for connections in programs::CONNECTIONS {
        let load = Load { size: 612, workers: 1, connections, close: false, stock: true };
        let drive = move |session: &Session<'_>, budget: Budget| run(session, budget, load);
        let s = if connections == 1 { "" } else { "s" };
        let title = format!("nginx (as it comes) + wrk, 612 B, {connections} connection{s}");
        let curve = "nginx as it comes, 612 B, 1 worker";
        rows.push(
            Row::new(format!("nginx.stock.w1.c{connections}"), &STOCK, title, drive)
                .unit("req/s", Better::Higher)
                .contenders(&programs::CONTENDERS)
                .point(curve, "connections", connections.into()),
        );
    }
    for workers in [1, 2] {
        let load = Load { size: 612, workers, connections: 50, close: true, stock: false };
        let drive = move |session: &Session<'_>, budget: Budget| run(session, budget, load);
        let s = if workers == 1 { "" } else { "s" };
        let title =
            format!("nginx (tuned) + wrk, 612 B, a connection per request, {workers} worker{s}");
        rows.push(
            Row::new(format!("nginx.close.w{workers}"), &CLOSE, title, drive)
                .unit("req/s", Better::Higher),
        );
    }
    for vectors in ["1", "2"] {
        let load = Load { size: 612, workers: 2, connections: 100, close: false, stock: false };
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
