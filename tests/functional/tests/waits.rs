//! How long calls of real programs wait, as the tools tell it. Bounds are those that hold on any machine, however slow.

use serde_json::Value;
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Process, Sandbox};

/// Answers each message, which is a number of milliseconds: as soon as the client sleeps, and so much later. `how` receives.
fn server(how: &str) -> String {
    format!(
        "import socket, selectors, sys, time
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
waits = selectors.{how}()
waits.register(connection, selectors.EVENT_READ)
def state():
    return open(f'/proc/{{client}}/stat').read().rsplit(') ')[1][0]
client = 0
while True:
    if '{how}' != 'SelectSelector': waits.select()
    asked = connection.recv(1000).split()
    if not asked: break
    client, delay = int(asked[0]), int(asked[1])
    while delay and state() != 'S': time.sleep(0.001)
    time.sleep(delay / 1000)
    connection.send(b'yes')
"
    )
}

/// Asks, and tells how long it has waited for answers, in nanoseconds. It goes on at each signal.
const CLIENT: &str = "import os, signal, socket, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
client = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
def ask(delay):
    client.send(f'{os.getpid()} {delay}'.encode())
    began = time.monotonic_ns()
    client.recv(1000)
    return time.monotonic_ns() - began
for _ in range(20): ask(0)
print('ready', flush=True)
signal.sigwait([signal.SIGUSR1])
print('waited', sum(ask(50) for _ in range(10)), flush=True)
signal.sigwait([signal.SIGUSR1])
";

const DELAY: u64 = 50_000_000;

fn shunt(sandbox: &Sandbox, args: &[&str]) -> String {
    let mut command = sandbox.plain(sandbox.shunt_path());
    command.args(args);
    sandbox.run(command).stdout
}

fn json(sandbox: &Sandbox, args: &[&str]) -> Value {
    serde_json::from_str(&shunt(sandbox, args)).expect("JSON")
}

/// Waits of the end that a process has.
fn waits_of(sandbox: &Sandbox, process: &Process) -> Value {
    let listing = json(sandbox, &["list", "--json"]);
    let ends = listing["connections"].as_array().expect("connections");
    let end = ends.iter().find(|end| end["pid"] == process.pid());
    end.unwrap_or_else(|| panic!("{listing:#}"))["waits"].clone()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// A field of all whole waits.
fn whole(waits: &Value, field: &str) -> u64 {
    ["spun", "gave_way", "slept"].iter().map(|part| number(&waits[part][field])).sum()
}

/// Counts are those of the buckets, sums lie within them, and a wake-up is a part of a wait.
fn is_sound(waits: &Value) {
    for part in ["spun", "gave_way", "slept", "wake_up"] {
        let of = &waits[part];
        let buckets = of["buckets"].as_object().expect("buckets");
        let counts: u64 = buckets.values().map(number).sum();
        assert_eq!(number(&of["count"]), counts, "{part}: {waits:#}");
        let most = buckets.iter().map(|(end, n)| {
            u128::from(end.parse::<u64>().unwrap_or(u64::MAX)) * u128::from(number(n))
        });
        assert!(u128::from(number(&of["sum_ns"])) <= most.sum(), "{part}: {waits:#}");
        if counts > 0 {
            let [p50, p99, p999] = ["p50_ns", "p99_ns", "p999_ns"].map(|name| number(&of[name]));
            assert!(p50 <= p99 && p99 <= p999, "{part}: {waits:#}");
        }
    }
    let (slept, wake_up) = (&waits["slept"], &waits["wake_up"]);
    assert!(number(&wake_up["count"]) <= number(&slept["count"]), "{waits:#}");
    assert!(number(&wake_up["sum_ns"]) <= number(&slept["sum_ns"]), "{waits:#}");
}

struct Pair {
    server: Process,
    client: Process,
    sandbox: Sandbox,
}

impl Pair {
    fn start(mode: Mode, how: &str) -> Self {
        let sandbox = Sandbox::new(mode);
        let mut command = sandbox.command("python3");
        command.args(["-c", &server(how)]);
        let mut server = sandbox.spawn(command);
        let port: u16 = server.wait_for_line(|line| line.parse().ok());
        let mut command = sandbox.command("python3");
        command.args(["-c", CLIENT, &port.to_string()]);
        let mut client = sandbox.spawn(command);
        client.wait_for_line(|line| (line == "ready").then_some(()));
        Self { sandbox, server, client }
    }

    /// Both programs end.
    fn end(self) -> Sandbox {
        self.client.signal(libc::SIGUSR1);
        drop(self.client.wait().success());
        drop(self.server.wait().success());
        self.sandbox
    }

    /// Ten answers, each of which takes [`DELAY`]: how long the client has measured for all of them.
    fn ask(&mut self) -> u64 {
        self.client.signal(libc::SIGUSR1);
        self.client.wait_for_line(|line| line.strip_prefix("waited ")?.parse().ok())
    }
}

#[test]
fn a_client_waits_as_long_as_its_server_takes() {
    for mode in Mode::enabled_shunted() {
        let mut pair = Pair::start(mode, "SelectSelector");
        let before = waits_of(&pair.sandbox, &pair.client);
        let measured = pair.ask();
        let after = waits_of(&pair.sandbox, &pair.client);
        for waits in [&before, &after] {
            is_sound(waits);
        }
        let added = |field| number(&after["slept"][field]) - number(&before["slept"][field]);
        // Naps in which nothing came do not make several waits of one.
        assert_eq!(added("count"), 10, "{before:#} {after:#}");
        let waited = added("sum_ns");
        assert!((10 * DELAY..=measured).contains(&waited), "{waited} of {measured}");
        // Ten of at most thirty waits took so long, whatever the others did.
        assert!(number(&after["slept"]["p99_ns"]) >= DELAY * 7 / 8, "{after:#}");
        let wide = shunt(&pair.sandbox, &["list", "--wide"]);
        assert!(wide.contains("Wake p99"), "{wide}");
        // The program's are those of its connections, and stay when it has ended.
        let stats = json(&pair.sandbox, &["stats", "--json"]);
        let of_both =
            whole(&after, "count") + whole(&waits_of(&pair.sandbox, &pair.server), "count");
        is_sound(&stats["waits"]);
        assert!(whole(&stats["waits"], "count") >= of_both, "{stats:#}");
        assert_eq!(stats["waits_by_program"]["python3"], stats["waits"]);
        let sandbox = pair.end();
        let ended = json(&sandbox, &["stats", "--json"]);
        assert!(whole(&ended["waits"], "sum_ns") >= whole(&stats["waits"], "sum_ns"), "{ended:#}");
        assert_eq!(ended["waits_by_program"]["python3"], ended["waits"]);
        let named = json(&sandbox, &["stats", "--program", "python3", "--json"]);
        for what in ["waits", "connections_shunted", "bytes_sent", "programs_ended"] {
            assert_eq!(named[what], ended[what], "{what}");
        }
        assert!(shunt(&sandbox, &["stats"]).contains("Waits of"));
    }
}

/// epoll waits for whatever comes: what it has waited for is not one connection's.
#[test]
fn what_waits_for_several_counts_for_the_program() {
    for mode in Mode::enabled_shunted() {
        for (how, is_alone) in [("EpollSelector", false), ("PollSelector", true)] {
            let mut pair = Pair::start(mode, how);
            pair.ask();
            let of_server = waits_of(&pair.sandbox, &pair.server);
            let of_client = waits_of(&pair.sandbox, &pair.client);
            let stats = json(&pair.sandbox, &["stats", "--json"]);
            is_sound(&stats["waits"]);
            let all = whole(&stats["waits"], "count");
            if is_alone {
                is_sound(&of_server);
                assert!(whole(&of_server, "count") > 0, "{how}: {of_server:#}");
            } else {
                assert_eq!(of_server, Value::Null, "{how}");
                assert!(all > whole(&of_client, "count"), "{how}: {stats:#}");
            }
            pair.end();
        }
    }
}

/// Echoes what comes, on as many connections as come.
const ECHO: &str = "import select, socket
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
epoll, connections = select.epoll(), {}
epoll.register(listener, select.EPOLLIN)
while True:
    for fd, _ in epoll.poll():
        if fd == listener.fileno():
            connection = listener.accept()[0]
            connections[connection.fileno()] = connection
            epoll.register(connection, select.EPOLLIN)
        else:
            got = connections[fd].recv(1000)
            if got: connections[fd].send(got)
            else: epoll.unregister(fd)
";

/// An epoll instance for each of four connections, all made before the first of these is: two watch their socket before it is
/// connected, two afterwards.
const INSTANCES: &str = "import select, signal, socket, sys
instances = [select.epoll() for _ in range(4)]
sockets = [socket.socket() for _ in instances]
for number, (epoll, client) in enumerate(zip(instances, sockets)):
    if number < 2:
        client.setblocking(False)
        epoll.register(client, select.EPOLLIN | select.EPOLLOUT)
    client.connect_ex(('127.0.0.1', int(sys.argv[1])))
    if number < 2:
        while not any(events & select.EPOLLOUT for _, events in epoll.poll()): pass
        epoll.modify(client, select.EPOLLIN)
    else:
        epoll.register(client, select.EPOLLIN)
    for _ in range(20):
        client.send(b'ask')
        while epoll.poll():
            if client.recv(1000): break
print('ready', flush=True)
signal.pause()
";

/// A message wakes the one whom it is for: epoll instances share no vector while there are enough of them, whatever a program
/// does first.
#[test]
fn each_instance_has_a_vector_of_its_own() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let mut server = sandbox.python(&[ECHO]);
        let port: u16 = server.wait_for_line(|line| line.parse().ok());
        let mut client = sandbox.python(&[INSTANCES, &port.to_string()]);
        client.wait_for_line(|line| (line == "ready").then_some(()));
        let listing = json(&sandbox, &["list", "--json"]);
        let ends = listing["connections"].as_array().expect("connections").iter();
        let own = ends.filter(|end| end["pid"] == client.pid());
        let mut vectors: Vec<u64> = own.map(|end| number(&end["vector"])).collect();
        vectors.sort_unstable();
        vectors.dedup();
        assert!(vectors.len() == 4 && vectors[0] > 0, "{mode}: {vectors:?}\n{listing:#}");
    }
}
