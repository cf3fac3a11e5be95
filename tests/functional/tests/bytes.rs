//! Every byte of many connections is checked: random sizes, random mixes of the calls that move
//! bytes, both directions at once, every way of waiting.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use shunt_functional::binaries::built;
use shunt_functional::generator::run_pair;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Sandbox, traces_are_allowed};

const STYLES: [&str; 9] = [
    "blocking",
    "poll",
    "ppoll",
    "select",
    "pselect",
    "epoll-lt",
    "epoll-et",
    "epoll-counted",
    "epoll-oneshot",
];

/// The start of the random choices: always the same, unless `SHUNT_TEST_SEED` says otherwise.
fn seed() -> String {
    std::env::var("SHUNT_TEST_SEED").unwrap_or_else(|_| "1".into())
}

/// One run between two processes.
struct Run<'a> {
    listen: &'a str,
    to: &'a str,
    connections: u64,
    bytes: u64,
    server: &'a [&'a str],
    client: &'a [&'a str],
}

/// Runs in which all connections must have been shunted once: a client may be stopped between its
/// connect and its post for so long that the connection is over by then.
const TRIES: u32 = 30;
/// Until the ends of programs that have ended are counted, as a rule.
const SOON: Duration = Duration::from_secs(3);
/// The part of them that must be shunted each time.
const EACH_TIME: Expect = Expect::Percent(40);

impl<'a> Run<'a> {
    /// `connections` connections over IPv4, all of which must be shunted, with `bytes` each way.
    fn new(connections: u64, bytes: u64, server: &'a [&'a str], client: &'a [&'a str]) -> Self {
        let (listen, to) = ("127.0.0.1:0", "127.0.0.1:0");
        Self { listen, to, connections, bytes, server, client }
    }

    /// Runs it until all its connections were shunted; the bytes that went over in the last run.
    fn go(&self, sandbox: &Sandbox) -> u64 {
        if !sandbox.mode.is_shunted() {
            return self.once(sandbox);
        }
        for _ in 1..TRIES {
            let before = sandbox.stats();
            let bytes = sandbox.expect(EACH_TIME, || self.once(sandbox));
            if sandbox.settles(Expect::All(2 * self.connections), &before, SOON) {
                return bytes;
            }
        }
        sandbox.expect(Expect::All(2 * self.connections), || self.once(sandbox))
    }

    fn once(&self, sandbox: &Sandbox) -> u64 {
        let (n, b) = (self.connections.to_string(), self.bytes.to_string());
        let seed = seed();
        let mut common = vec!["-n", &n, "-b", &b, "--seed", &seed];
        if !sandbox.mode.is_shunted() {
            common.push("--any-order");
        }
        let join = |own: &[&'a str]| [&common[..], own].concat();
        let to: SocketAddr = self.to.parse().expect("an address");
        run_pair(sandbox, self.listen, to, &join(self.server), &join(self.client))
    }
}

/// Runs in every mode, in one sandbox per mode.
fn in_all_modes(runs: &[Run<'_>]) {
    in_modes(Mode::enabled(), runs);
}

fn in_modes(modes: impl IntoIterator<Item = Mode>, runs: &[Run<'_>]) {
    for mode in modes {
        let sandbox = Sandbox::new(mode);
        let bytes: u64 = runs.iter().map(|run| run.go(&sandbox)).sum();
        println!("{mode}: {} runs, {} MB", runs.len(), bytes / 1_000_000);
    }
}

#[test]
fn every_way_of_waiting() {
    let args: Vec<[&str; 4]> =
        STYLES.iter().map(|style| ["--style", style, "--threads", "2"]).collect();
    let runs: Vec<Run<'_>> = args.iter().map(|a| Run::new(32, 4 << 20, a, a)).collect();
    in_all_modes(&runs);
}

#[test]
fn ends_that_wait_in_different_ways() {
    let server: Vec<[&str; 2]> = STYLES.iter().map(|style| ["--style", style]).collect();
    let client: Vec<[&str; 2]> =
        STYLES.iter().cycle().skip(3).take(STYLES.len()).map(|style| ["--style", style]).collect();
    let runs: Vec<Run<'_>> =
        server.iter().zip(&client).map(|(s, c)| Run::new(16, 2 << 20, s, c)).collect();
    in_all_modes(&runs);
}

#[test]
fn one_connection_with_a_lot() {
    in_all_modes(&[
        Run::new(1, 512 << 20, &[], &[]),
        Run::new(1, 256 << 20, &["--style", "epoll-et"], &["--style", "poll"]),
    ]);
}

#[test]
fn a_thousand_connections() {
    let et = ["--style", "epoll-et", "--threads", "3"];
    let lt = ["--style", "epoll-lt", "--threads", "2", "--nonblocking-connect"];
    in_all_modes(&[Run::new(1000, 256 << 10, &et, &lt)]);
}

#[test]
fn small_calls() {
    let small = ["--max-call", "64"];
    let small_et = ["--max-call", "64", "--style", "epoll-et"];
    in_all_modes(&[
        Run::new(8, 256 << 10, &small, &small),
        Run::new(8, 256 << 10, &small_et, &small_et),
        // One end in small calls, the other in large ones.
        Run::new(8, 1 << 20, &small, &[]),
        Run::new(8, 1 << 20, &[], &small_et),
    ]);
}

/// A sender is stopped all the time: whoever waits for room is woken each time.
#[test]
fn small_buffers() {
    for size in ["1", "6000"] {
        let args: Vec<[&str; 6]> = STYLES
            .iter()
            .map(|style| ["--style", style, "--buffers", size, "--stall", "60"])
            .collect();
        let others = args.iter().cycle().skip(3);
        let runs: Vec<Run<'_>> =
            args.iter().zip(others).map(|(s, c)| Run::new(4, 512 << 10, s, c)).collect();
        // Kernel TCP stops for seconds when such a buffer overflows, also below the first bytes of a
        // connection that is then shunted.
        in_modes(Mode::enabled().into_iter().filter(|mode| mode.is_shunted()), &runs);
    }
}

/// Rings are given back whenever somebody finds one empty.
#[test]
fn rings_that_are_given_back_all_the_time() {
    let styles = ["blocking", "poll", "epoll-lt", "epoll-et"];
    let args: Vec<[&str; 4]> =
        styles.iter().map(|style| ["--style", style, "--threads", "2"]).collect();
    let runs: Vec<Run<'_>> = args.iter().map(|a| Run::new(16, 4 << 20, a, a)).collect();
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode).with_env("SHUNT_IDLE", "0");
        let bytes: u64 = runs.iter().map(|run| run.go(&sandbox)).sum();
        println!("{mode}: {} MB", bytes / 1_000_000);
    }
}

#[test]
fn pauses() {
    let slow = ["--pause", "3000", "--style", "epoll-lt"];
    let slow_blocking = ["--pause", "3000"];
    in_all_modes(&[
        Run::new(8, 4 << 20, &slow, &["--style", "epoll-et"]),
        Run::new(8, 4 << 20, &slow_blocking, &slow),
        Run::new(8, 4 << 20, &[], &slow_blocking),
    ]);
}

#[test]
fn descriptors_that_are_duplicated() {
    let blocking = ["--dup"];
    let poll = ["--dup", "--style", "poll"];
    let et = ["--dup", "--style", "epoll-et"];
    in_all_modes(&[
        Run::new(16, 2 << 20, &blocking, &et),
        Run::new(16, 2 << 20, &et, &poll),
        Run::new(16, 2 << 20, &poll, &blocking),
    ]);
}

#[test]
fn one_direction_only() {
    let none = ["-b", "0"];
    // A client's label tells the server which connection it is.
    let label_et = ["-b", "8", "--style", "epoll-et"];
    in_all_modes(&[
        Run { server: &none, ..Run::new(4, 32 << 20, &[], &[]) },
        Run { client: &label_et, ..Run::new(4, 32 << 20, &[], &[]) },
    ]);
}

#[test]
fn each_call_alone() {
    let sends = [
        "write", "writev", "send", "sendto", "sendmsg", "sendmmsg", "sendfile", "splice",
        "pwritev2",
    ];
    let receives = [
        "read",
        "readv",
        "recv",
        "recvfrom",
        "recvmsg",
        "recvmmsg",
        "recv-waitall",
        "splice",
        "preadv2",
    ];
    let args: Vec<[&str; 4]> = sends
        .iter()
        .zip(&receives)
        .map(|(send, receive)| ["--send-calls", send, "--recv-calls", receive])
        .collect();
    let runs: Vec<Run<'_>> = args.iter().map(|a| Run::new(4, 8 << 20, a, a)).collect();
    in_all_modes(&runs);
}

#[test]
fn servers_of_many_processes() {
    for spread in ["prefork", "reuseport", "fork"] {
        let blocking = ["--spread", spread];
        let et = ["--spread", spread, "--style", "epoll-et"];
        let poll = ["--spread", spread, "--style", "poll"];
        in_all_modes(&[
            Run::new(24, 1 << 20, &blocking, &["--style", "epoll-lt"]),
            Run::new(24, 1 << 20, &et, &[]),
            Run::new(24, 1 << 20, &poll, &["--style", "select"]),
        ]);
    }
}

#[test]
fn ipv6_and_dual_stack() {
    let lt = ["--style", "epoll-lt"];
    in_all_modes(&[
        Run { listen: "[::1]:0", to: "[::1]:0", ..Run::new(8, 1 << 20, &[], &lt) },
        Run { listen: "[::]:0", to: "[::1]:0", ..Run::new(8, 1 << 20, &lt, &[]) },
        Run { listen: "[::]:0", to: "127.0.0.1:0", ..Run::new(8, 1 << 20, &lt, &lt) },
        Run { listen: "[::]:0", to: "[::ffff:127.0.0.1]:0", ..Run::new(8, 1 << 20, &[], &[]) },
    ]);
}

#[test]
fn other_local_addresses() {
    in_all_modes(&[
        Run { listen: "127.0.0.2:0", to: "127.0.0.2:0", ..Run::new(8, 1 << 20, &[], &[]) },
        Run { listen: "0.0.0.0:0", to: "127.9.8.7:0", ..Run::new(8, 1 << 20, &[], &[]) },
    ]);
}

/// From registered memory, which is filled with other bytes as soon as it may be.
#[test]
fn without_copies() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        for (n, style) in STYLES.iter().enumerate() {
            let calls = if n % 2 == 0 { "send-zerocopy" } else { "send-found" };
            let args = ["--style", style, "--send-calls", calls, "--max-call", "300000"];
            let bytes = Run::new(4, 20_000_000, &args, &args).go(&sandbox);
            assert_eq!(bytes, 2 * 4 * 20_000_000);
        }
        if mode == Mode::Attach {
            let stats = sandbox.stats();
            assert!(stats.get("bytes_granted") > 0, "nothing was granted");
        }
    }
}

/// The same, where the receiver looks at the bytes in place, and often for longer than the sender waits.
#[test]
fn without_copies_at_either_end() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode).with_env("SHUNT_GRANT_TIMEOUT", "1");
        for style in STYLES {
            let mut args = vec!["--style", style, "--send-calls", "send-zerocopy"];
            args.extend([
                "--recv-calls",
                "recv-borrow,recv",
                "--max-call",
                "300000",
                "--pause",
                "3000",
            ]);
            let bytes = Run::new(4, 10_000_000, &args, &args).go(&sandbox);
            assert_eq!(bytes, 2 * 4 * 10_000_000);
        }
        if mode == Mode::Attach {
            let stats = sandbox.stats();
            assert!(stats.get("bytes_granted") > 0, "nothing was granted");
            assert!(stats.get("grants_taken_back") > 0, "nothing was taken back");
        }
    }
}

/// What nobody has read is copied when its time is over, or the memory or the connection goes.
#[test]
fn grants_are_taken_back() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let run = |group| {
            let mut command = sandbox.command(built("shunt-probe"));
            command.arg(group).env("SHUNT_GRANT_TIMEOUT", "300");
            let out = sandbox.run(command).success();
            assert!(out.stderr.is_empty() && !out.stdout.contains("false"), "{out}");
            out
        };
        // On fresh and on warm connections.
        for (group, ends) in [("granted-by-a-relative", 1), ("granted", 4)] {
            let taken_back = || match mode {
                Mode::Attach => sandbox.stats().get("grants_taken_back"),
                _ => 0,
            };
            let before = taken_back();
            let out = run(group);
            let times = taken_back() - before;
            assert!(mode != Mode::Attach || times >= 2 * ends, "{times} times: {out}");
        }
        run("granted-to-a-relative");
        let out = run("borrowed");
        let stale = out.stdout.matches("Stale").count();
        assert!(stale >= if mode == Mode::Attach { 8 } else { 0 }, "{out}");
    }
}

/// From private memory, which is filled with other bytes as soon as it may be: pinned from little on, or where it pays; and
/// with receivers that come too late.
#[test]
fn private_memory_is_pinned() {
    for mode in Mode::enabled() {
        for (pin, timeout, pause) in
            [("4096", "1000", "0"), ("4096", "1", "3000"), ("auto", "1000", "0")]
        {
            let sandbox = Sandbox::new(mode)
                .with_env("SHUNT_PIN", pin)
                .with_env("SHUNT_GRANT_TIMEOUT", timeout);
            for (n, style) in STYLES.iter().enumerate() {
                let mut args = vec!["--style", style, "--send-calls", "send-private"];
                args.extend(["--max-call", "300000", "--pause", pause]);
                match n % 3 {
                    0 => args.extend(["--recv-calls", "recv-borrow,recv"]),
                    1 => args.extend(["--recv-calls", "splice,peek"]),
                    _ => {}
                }
                let bytes = Run::new(4, 10_000_000, &args, &args).go(&sandbox);
                assert_eq!(bytes, 2 * 4 * 10_000_000);
            }
            if mode == Mode::Attach && traces_are_allowed() {
                let stats = sandbox.stats();
                assert!(stats.get("bytes_pinned") > 0, "nothing was pinned");
                let late = stats.get("grants_taken_back");
                assert!(late > 0 || timeout != "1", "nothing was taken back");
            }
        }
    }
}

/// Whatever becomes of its sender, and in whichever way it is received.
#[test]
fn what_is_pinned_is_received() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode).with_env("SHUNT_PIN", "65536");
        for group in ["pinned", "pinned-ways", "pinned-unlent", "pinned-relatives", "pinned-shared"]
        {
            assert_granted(&sandbox, group, ("bytes_pinned", true));
        }
    }
    if traces_are_allowed() {
        let sandbox = Sandbox::new(Mode::Attach).with_env("SHUNT_PIN", "65536");
        assert_granted(&sandbox, "pinned-elsewhere", ("bytes_pinned", true));
    }
    let sandbox = Sandbox::new(Mode::Attach).with_env("SHUNT_PIN", "never");
    let mut command = sandbox.command(built("shunt-probe"));
    command.arg("pinned-ways").env("SHUNT_GRANT_TIMEOUT", "300");
    let out = sandbox.run(command).success();
    assert_eq!(sandbox.stats().get("bytes_pinned"), 0, "{out}");
}

/// More memory than a receiver maps at a time.
#[test]
fn what_finds_no_place_is_copied() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode).with_env("SHUNT_PIN", "65536");
        for counter in ["bytes_granted", "bytes_pinned"] {
            assert_granted(&sandbox, "crowded", (counter, true));
        }
    }
}

/// What `SHUNT_QUIET` is for.
#[test]
fn who_does_not_want_to_hear_of_a_completion_does_not() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let mut command = sandbox.command(built("shunt-probe"));
        command.arg("quiet");
        let out = sandbox.run(command).success();
        assert!(out.stderr.is_empty() && !out.stdout.contains("false"), "{out}");
        if mode == Mode::Attach {
            // Warm and fresh.
            let granted = sandbox.stats().get("bytes_granted");
            assert!(granted >= 2 * 100 * (64 << 10), "{granted} bytes were granted");
        }
    }
}

/// Memfds that the program maps by itself: what the peer can map for good is granted, from wherever it is mapped, and
/// what was sent is received though the mapping goes.
#[test]
fn memory_is_found() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        for group in ["found", "found-small", "found-inherited", "found-by-a-child", "unsealed"] {
            assert_granted(&sandbox, group, ("bytes_granted", group != "unsealed"));
        }
    }
}

/// The same of huge pages, of which the machine must have some.
#[test]
fn memory_is_found_in_huge_pages() {
    let pages = match HugePages::reserve(4) {
        Ok(pages) => pages,
        Err(e) => return eprintln!("left out: no huge pages can be reserved here: {e}"),
    };
    for mode in Mode::enabled() {
        assert_granted(&Sandbox::new(mode), "found-huge", ("bytes_granted", true));
    }
    drop(pages);
}

/// Runs a group of the probe's; something is counted there, if that says so and the machine lets it be.
fn assert_granted(sandbox: &Sandbox, group: &str, (counter, is_granted): (&str, bool)) {
    let mode = sandbox.mode;
    let granted = || match mode {
        Mode::Attach => sandbox.stats().get(counter),
        _ => 0,
    };
    let before = granted();
    let mut command = sandbox.command(built("shunt-probe"));
    command.arg(group).env("SHUNT_GRANT_TIMEOUT", "300");
    let out = sandbox.run(command).success();
    assert!(out.stderr.is_empty(), "{out}");
    let copies = mode != Mode::Attach || !traces_are_allowed();
    let wrong = out.stdout.lines().filter(|line| line.ends_with(": false"));
    let wrong = wrong.filter(|line| !(copies && line.contains("and not copied")));
    // Kernel TCP sends what the memory holds when its turn comes, where a program does not wait for the completion.
    let wrong = wrong.filter(|line| mode != Mode::Plain || !line.contains("those that were sent"));
    assert_eq!(wrong.count(), 0, "{out}");
    assert_eq!(granted() > before, !copies && is_granted, "{group}: {out}");
}

/// Huge pages that the machine has more than before, as long as this is there.
struct HugePages {
    before: u64,
}

impl HugePages {
    const COUNT: &str = "/proc/sys/vm/nr_hugepages";

    fn count() -> io::Result<u64> {
        std::fs::read_to_string(Self::COUNT)?.trim().parse().map_err(io::Error::other)
    }

    fn reserve(more: u64) -> io::Result<Self> {
        let pages = Self { before: Self::count()? };
        std::fs::write(Self::COUNT, (pages.before + more).to_string())?;
        if Self::count()? < pages.before + more {
            return Err(io::Error::other("memory is too fragmented"));
        }
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::COUNT, self.before.to_string());
    }
}
