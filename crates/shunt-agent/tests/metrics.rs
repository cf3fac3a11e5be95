//! Metrics as a monitoring system scrapes them, and scrapers that are up to no good.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::open_metrics::{Exposition, Labels};
use common::{Agent, Client, PATIENCE, new_eventfd, run_dir};
use shunt_agent::metrics::{Address, BadAddress};
use shunt_agent::socket::{Access, Claim};
use shunt_agent::{Config, Limits, Metrics, ServeError, Server};
use shunt_shm::arena::{Arena, Mode};
use shunt_shm::holders::Member;
use shunt_shm::memfd;
use shunt_shm::sync::Ordering;
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{Exported, Request};
use shunt_wire::counter::Counter;
use shunt_wire::metric::{self, Kind, Metric};
use shunt_wire::reason::Reason;
use shunt_wire::waits::Part;

const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";

/// An agent with metrics at `address`.
fn exposing(address: &str, adjust: impl FnOnce(&mut Limits)) -> Agent {
    let metrics = Metrics { address: address.parse().unwrap(), public: false, required: true };
    Agent::with(|config| {
        config.metrics = Some(metrics);
        adjust(&mut config.limits);
    })
}

/// A connection to where the agent says that its metrics are.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn scraper(agent: &Agent) -> Box<dyn Stream> {
    let address = agent.status()["metrics"].as_str().unwrap().to_owned();
    match address.strip_prefix("unix:") {
        Some(path) => {
            let stream = UnixStream::connect(path).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            Box::new(stream)
        }
        None => {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            Box::new(stream)
        }
    }
}

/// Status line with fields, and body.
fn ask(mut stream: impl Read + Write, request: &[u8]) -> (String, String) {
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn scrape(agent: &Agent) -> Exposition {
    let (head, body) = ask(scraper(agent), SCRAPE.as_bytes());
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
    Exposition::parse(&body)
}

/// A program that has counted, every counter to another number, and has connections of all modes.
fn busy(agent: &Agent) -> Client {
    let (client, bell) = (agent.client(), new_eventfd());
    let hello = Request::Hello { version: PROTOCOL_VERSION, program: "busy", run: 3 };
    let (_, fds) = client.call(&hello, &[bell.as_fd()]);
    let arena = Arena::map(&fds[1]).unwrap();
    for (n, counter) in (1..).zip(Counter::ALL) {
        arena.counters().of(1).add(*counter, 1000 + n);
    }
    for (n, reason) in (1..).zip(Reason::ALL) {
        (0..n).for_each(|_| arena.counters().of(2).decline(*reason));
        (0..2 * n).for_each(|_| arena.counters().of(3).leave_unregistered(*reason));
    }
    let mut hint = 0;
    for (mode, reason) in [
        (Mode::Attach, None),
        (Mode::Attach, None),
        (Mode::Copy, None),
        (Mode::Tcp, None),
        (Mode::Tcp, Some(Reason::Remote)),
    ] {
        let record = arena.allocate(Member::UNNAMED, &mut hint).unwrap();
        record.id.mode.store(mode as u32, Ordering::Relaxed);
        record.id.reason.store(reason.map_or(0, |r| r as u32), Ordering::Relaxed);
        record.tx.bytes.store(7, Ordering::Relaxed);
        arena.count_wait(record, Part::Slept, 3_000);
    }
    arena.count_wait_for_several(1, Part::Slept, 1 << 40);
    arena.count_wait_for_several(10, Part::WakeUp, 300);
    client
}

#[test]
fn a_scrape_is_sound_and_says_what_stats_say() {
    for address in ["unix", "127.0.0.1:0", "[::1]:0"] {
        let agent = exposing(address, |_| {});
        let program = busy(&agent);
        let server = agent.library();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let (listener, _) = server.listen(&socket);
        let (_, _, memory) = program.connect(listener);
        let registered = memfd::create_published("test", 1 << 16).unwrap().1;
        program.call(&Request::Export { what: Exported::Asked }, &[registered.as_fd()]);
        rustix::io::pwrite(&memory, b"x", 0).unwrap();

        let scraped = scrape(&agent);
        let stats = agent.tool().report(&Request::Stats { run: 0 });
        let number = |v: &serde_json::Value| v.as_f64().unwrap();
        let same = |name: &str, labels: &[(&str, &str)], there: &serde_json::Value| {
            assert!(
                scraped.value(name, labels).total_cmp(&number(there)).is_eq(),
                "{name} {labels:?} {there}"
            );
        };
        for counter in Counter::ALL {
            same(&counter.metric().to_string(), &[], &stats[counter.name()]);
            assert!(number(&stats[counter.name()]) > 1000.0);
        }
        for reason in Reason::ALL {
            let declined = metric::DECLINED.to_string();
            same(&declined, &[("reason", reason.name())], &stats["declined"][reason.name()]);
            let (unregistered, there) =
                (metric::UNREGISTERED.to_string(), &stats["listeners_unregistered"][reason.name()]);
            same(&unregistered, &[("reason", reason.name())], there);
            // Later ones are about connections alone.
            assert_eq!(
                number(there) > 1.0,
                *reason as u32 <= Reason::Bypassed as u32,
                "{reason:?}"
            );
        }
        same("shunt_programs_live", &[], &stats["programs_live"]);
        same("shunt_programs_ended_total", &[], &stats["programs_ended"]);
        for (labels, n) in [
            (&[("mode", "shunt-attach")][..], 2),
            (&[("mode", "shunt-copy")], 1),
            (&[("mode", "tcp"), ("reason", "none")], 1),
            (&[("mode", "tcp"), ("reason", "remote")], 1),
            (&[("mode", "tcp"), ("reason", "pending")], 0),
        ] {
            same("shunt_open_connections", labels, &n.into());
        }
        // Each end counts once, and none of the samples looks like the sum of others.
        let open: Vec<_> = scraped.samples().filter(|s| s.0 == "shunt_open_connections").collect();
        let sum: f64 = open.iter().map(|(.., value)| *value).sum();
        assert!(sum.total_cmp(&5.0).is_eq(), "{open:?}");
        for (_, labels, _) in open {
            assert_eq!(labels["mode"] == "tcp", labels.contains_key("reason"), "{labels:?}");
        }
        same("shunt_link_groups", &[], &1.into());
        same("shunt_listeners", &[], &1.into());
        same("shunt_build_info", &[("version", env!("CARGO_PKG_VERSION"))], &1.into());
        let page = 4096.0;
        assert!(scraped.value("shunt_link_group_memory_bytes", &[]) >= page);
        assert!(scraped.value("shunt_registered_memory_bytes", &[]) < page, "nothing is in use");
        assert!(scraped.value("shunt_agent_resident_memory_bytes", &[]) >= page);
    }
}

#[test]
fn waits_are_told_by_program_and_by_what_ended_them() {
    let agent = exposing("unix", |_| {});
    let program = busy(&agent);
    let of = |scraped: &Exposition, name: &str, ended_by: &str, le: Option<&str>| {
        let mut labels = vec![("program", name)];
        labels.extend((!ended_by.is_empty()).then_some(("ended_by", ended_by)));
        labels.extend(le.map(|le| ("le", le)));
        let stem = if ended_by.is_empty() { "shunt_wake_up_seconds" } else { "shunt_wait_seconds" };
        let sample = if le.is_some() { "bucket" } else { "count" };
        scraped.value(&format!("{stem}_{sample}"), &labels)
    };
    let is = |scraped: &Exposition, n: [f64; 4]| {
        let slept = |le| of(scraped, "busy", "slept", le);
        let ends = [Some("0.000002048"), Some("0.000004096"), Some("8.589934592"), None];
        assert_eq!(ends.map(slept), n);
    };
    let scraped = scrape(&agent);
    is(&scraped, [0.0, 5.0, 5.0, 6.0]);
    assert!((of(&scraped, "busy", "", Some("5.12e-7")) - 1.0).abs() < 0.1);
    let sum =
        scraped.value("shunt_wait_seconds_sum", &[("program", "busy"), ("ended_by", "slept")]);
    assert!((sum - 1_099.511_642_776).abs() < 1e-6, "{sum}");
    assert!(of(&scraped, "other", "spun", None).abs() < 0.1, "it is there, and empty");
    let spun = |(_, labels, _): &&(_, Labels, _)| {
        labels.get("ended_by").is_some_and(|by| by == "spun") && labels["program"] == "busy"
    };
    assert_eq!(scraped.samples().find(spun), None);
    // The same where the program has ended.
    drop(program);
    while agent.status()["endpoints"] != 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    is(&scrape(&agent), [0.0, 5.0, 5.0, 6.0]);
    let stats = agent.tool().report(&Request::Stats { run: 0 });
    assert_eq!(stats["waits"]["slept"]["buckets"]["inf"], 1);
    assert_eq!(stats["waits_by_program"]["busy"], stats["waits"]);
    assert_eq!(stats["programs"]["busy"]["programs_ended"], 1);
    let other_run = agent.tool().report(&Request::Stats { run: 4 });
    assert_eq!(other_run["waits"]["slept"]["sum_ns"], 0);
    let of_run = agent.tool().report(&Request::Stats { run: 3 });
    assert_eq!(of_run["waits"], stats["waits"]);
}

#[test]
fn what_is_exposed_is_what_the_list_has() {
    let agent = exposing("unix", |_| {});
    let scraped = scrape(&agent);
    let mut names: Vec<_> = scraped.samples().map(|(name, ..)| name.clone()).collect();
    names.sort();
    names.dedup();
    let samples = |m: Metric| match m.kind {
        Kind::Histogram => vec![format!("{m}_bucket"), format!("{m}_count"), format!("{m}_sum")],
        _ => vec![m.to_string()],
    };
    let mut listed: Vec<_> = metric::all().flat_map(samples).collect();
    listed.sort();
    assert_eq!(names, listed);
    for metric in metric::all() {
        let name = metric.to_string();
        let stem = name.trim_end_matches("_total").trim_end_matches("_info");
        let family = &scraped.families[stem];
        assert_eq!(family.help, metric.help.trim());
        assert_eq!(family.kind, metric.kind.name());
        assert_eq!(family.unit.as_deref(), metric.unit.map(metric::Unit::name));
        let labels = family.samples.iter().flat_map(|(_, labels, _)| labels.keys());
        let is_listed = |l: &String| metric.labels.contains(&l.as_str()) || l == "le";
        assert!(labels.into_iter().all(is_listed), "{name}");
    }
}

#[test]
fn anything_else_is_refused() {
    let agent = exposing("127.0.0.1:0", |_| {});
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(40_000));
    let garbage = vec![0xff; 4096];
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
        (b"PUT /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"rubbish\r\n\r\n", "400"),
        (&garbage, "431"),
        (long.as_bytes(), "431"),
    ] {
        let (head, _) = ask(scraper(&agent), request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }
    let (head, body) = ask(scraper(&agent), b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head}");
    scrape(&agent);
}

/// A library's request is answered.
fn is_served(agent: &Agent) {
    let missing = Request::Connect { listener: 12345 };
    assert_eq!(agent.library().refused(&missing, &[]), Reason::PeerNotShunted);
}

#[test]
fn who_is_slow_is_dropped_and_nobody_waits_for_it() {
    let agent = exposing("unix", |l| l.scrape = Duration::from_secs(2));
    let mut half = scraper(&agent);
    half.write_all(&SCRAPE.as_bytes()[..10]).unwrap();
    let mut silent = scraper(&agent);
    // One that does not read, and one that is answered and does not go.
    let mut deaf = scraper(&agent);
    deaf.write_all(SCRAPE.as_bytes()).unwrap();
    is_served(&agent);
    scrape(&agent);
    // Their connections end, without an answer for those who have not asked.
    for stream in [&mut half, &mut silent] {
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
    }
    let mut answer = String::new();
    deaf.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("# EOF\n"));
    is_served(&agent);
}

#[test]
fn many_scrapers_take_no_librarys_place() {
    let agent = exposing("127.0.0.1:0", |l| {
        (l.scrapers, l.clients, l.scrape) = (4, 8, Duration::from_secs(600));
    });
    let mut idle: Vec<_> = (0..4).map(|_| scraper(&agent)).collect();
    // The first ones are let in; those after them are turned away while these stay.
    for _ in 0..40 {
        let mut surplus = scraper(&agent);
        assert!(!matches!(surplus.read(&mut [0; 16]), Ok(1..)), "it was not turned away");
        is_served(&agent);
    }
    let answer = ask(idle.pop().unwrap(), SCRAPE.as_bytes()).1;
    Exposition::parse(&answer);
}

#[test]
fn scrapers_that_leave_give_their_place_back() {
    let agent = exposing("unix", |l| l.scrapers = 1);
    for request in ["", "GET ", SCRAPE] {
        let mut stream = scraper(&agent);
        let _ = stream.write_all(request.as_bytes());
        drop(stream);
        let deadline = std::time::Instant::now() + PATIENCE;
        // The agent may not have heard yet that the one before has left.
        loop {
            let mut stream = scraper(&agent);
            let mut answer = String::new();
            let _ = stream.write_all(SCRAPE.as_bytes());
            let _ = stream.read_to_string(&mut answer);
            if answer.ends_with("# EOF\n") {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "no place is given back");
        }
    }
}

#[test]
fn a_loop_of_scrapes_is_slowed_down() {
    // Enough for one report, and next to no more.
    let agent = exposing("unix", |l| (l.burst, l.rate) = (30, 1));
    scrape(&agent);
    let (head, _) = ask(scraper(&agent), SCRAPE.as_bytes());
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: 1"), "{head}");
    is_served(&agent);
}

#[test]
fn scrapers_do_not_keep_an_idle_agent() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("run");
    let address = Address::RunDir;
    let metrics = Some(Metrics { address, public: false, required: true });
    let agent = Agent::at(&path, |c| {
        (c.idle_exit, c.metrics) = (Some(Duration::from_millis(500)), metrics);
    });
    let _scraper = scraper(&agent);
    let deadline = std::time::Instant::now() + PATIENCE;
    while !agent.ended() {
        assert!(std::time::Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!path.join("metrics.sock").exists());
}

/// What becomes of an agent in `path` with these metrics, which is ended at once if it starts.
fn tried(path: &Path, address: &str, public: bool, required: bool) -> Result<(), ServeError> {
    let dir = run_dir(path);
    let address = address.parse().unwrap();
    let config =
        Config { metrics: Some(Metrics { address, public, required }), ..Config::new(dir) };
    let claim = Claim::take(dir, Access::User, Duration::ZERO)?;
    Server::new(config, claim, new_eventfd()).map(drop)
}

#[test]
fn only_this_host_unless_told_otherwise() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("run");
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
        let why = tried(&path, address, false, true).unwrap_err().to_string();
        assert!(why.contains("--metrics-public"), "{why}");
    }
    tried(&path, "0.0.0.0:0", true, true).unwrap();
    tried(&path, "127.0.0.2:0", false, true).unwrap();
    tried(&path, "[::ffff:127.0.0.1]:0", false, true).unwrap();
    // An agent that programs need starts without.
    tried(&path, "0.0.0.0:0", false, false).unwrap();
}

#[test]
fn nothing_of_others_is_removed() {
    let temp = tempfile::tempdir().unwrap();
    let run = temp.path().join("run");
    let file = temp.path().join("file");
    let unix = |path: &PathBuf| format!("unix:{}", path.display());
    std::fs::write(&file, "mine").unwrap();
    let why = tried(&run, &unix(&file), false, true).unwrap_err().to_string();
    assert!(why.contains("is no socket"), "{why}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");

    let socket = temp.path().join("socket");
    let live = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let why = tried(&run, &unix(&socket), false, true).unwrap_err().to_string();
    assert!(why.contains("another process listens"), "{why}");
    drop(live);
    // Nobody listens there any more, as soon as no other test is making a process.
    let started = std::time::Instant::now();
    while let Err(why) = tried(&run, &unix(&socket), false, true) {
        assert!(started.elapsed() < PATIENCE, "{why}");
    }
    assert!(!socket.exists());

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let why = tried(&run, &address, false, true).unwrap_err().to_string();
    assert!(why.contains("another process listens"), "{why}");
    let deep = format!("unix:/{}", "x".repeat(200));
    let why = tried(&run, &deep, false, true).unwrap_err().to_string();
    assert!(why.contains("too long"), "{why}");
}

#[test]
fn the_socket_is_the_users_alone() {
    let agent = exposing("unix", |_| {});
    let address = agent.status()["metrics"].as_str().unwrap().to_owned();
    let mode = std::fs::metadata(&address["unix:".len()..]).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(Agent::start().status()["metrics"], serde_json::Value::Null);
}

#[test]
fn addresses() {
    let parsed = |text: &str| text.parse::<Address>();
    assert_eq!(parsed("unix"), Ok(Address::RunDir));
    assert_eq!(parsed("unix:/a b"), Ok(Address::Unix("/a b".into())));
    let addr: SocketAddr = "[::1]:9".parse().unwrap();
    assert_eq!(parsed("[::1]:9"), Ok(Address::Tcp(addr)));
    for bad in ["", "unix:", "unix:a", "/a", "localhost:80", "80", "127.0.0.1", "1.2.3.4:99999"] {
        assert_eq!(parsed(bad), Err(BadAddress), "{bad}");
    }
    for good in ["unix", "unix:/a", "127.0.0.1:80", "[::1]:80"] {
        assert_eq!(parsed(good).unwrap().to_string(), good);
    }
}
