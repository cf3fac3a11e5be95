//! What lies at the edges: one end without Shunt, late and early ends, agents that die, listeners
//! that are shared, other users.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::thread;
use std::time::Duration;

use shunt_functional::binaries::{built, program};
use shunt_functional::generator::{Server, records, run_pair, served, start_client};
use shunt_functional::mode::Mode;
use shunt_functional::net::free_port;
use shunt_functional::record::{Record, compare};
use shunt_functional::sandbox::{Expect, Process, Sandbox, is_root};

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn connect(sandbox: &Sandbox, port: u16, args: &[&str]) -> Process {
    let mut command = sandbox.preloaded(built("shunt-gen"));
    command.args(["connect", "--to", &loopback(port).to_string()]).args(args);
    sandbox.spawn(command)
}

fn in_all_modes(body: impl Fn(&Sandbox)) {
    for mode in Mode::enabled() {
        body(&Sandbox::new(mode));
    }
}

/// One end alone runs under Shunt: everything stays on TCP, and nobody notices.
fn one_end(server_shunted: bool, client_shunted: bool) {
    in_all_modes(|sandbox| {
        let args = ["-n", "10", "-b", "1000000"];
        sandbox.expect(Expect::Nothing, || {
            let server = Server::start(sandbox, server_shunted, &args);
            let to = loopback(server.port);
            let clients = records(start_client(sandbox, client_shunted, to, &args));
            compare(&clients, &server.finish()).expect("the same bytes");
        });
    });
}

#[test]
fn a_client_without_shunt() {
    one_end(true, false);
}

#[test]
fn a_server_without_shunt() {
    one_end(false, true);
}

#[test]
fn a_group_of_which_one_listener_is_without_shunt() {
    in_all_modes(|sandbox| {
        let port = free_port();
        let listen = loopback(port).to_string();
        // More than will come: these servers end when they are told to.
        let args = ["--listen", &listen, "--spread", "reuseport", "--workers", "2", "-n", "1000"];
        let args = [&args[..], &["-b", "200000"]].concat();
        let mut servers = [true, false].map(|shunted| Server::start(sandbox, shunted, &args));
        let clients = sandbox.expect(Expect::Ends(10), || {
            records(start_client(sandbox, true, loopback(port), &["-n", "100", "-b", "200000"]))
        });
        let served = served(&mut servers, clients.len());
        for server in &mut servers {
            server.process().terminate(libc::SIGTERM);
        }
        compare(&clients, &served).expect("the same bytes");
    });
}

/// Everything has been sent, and the client is gone, when the server accepts.
#[test]
fn clients_that_leave_before_they_are_accepted() {
    in_all_modes(|sandbox| {
        for (server_style, client_style) in
            [("blocking", "blocking"), ("epoll-et", "blocking"), ("blocking", "epoll-lt")]
        {
            let server = ["-n", "30", "-b", "0", "--accept-late", "700", "--style", server_style];
            let client = ["-n", "30", "-b", "60000", "--leave", "--style", client_style];
            let bytes = run_pair(sandbox, "127.0.0.1:0", loopback(0), &server, &client);
            assert_eq!(bytes, 30 * 60_000);
        }
        if sandbox.mode.is_shunted() {
            let stats = sandbox.stats();
            let sent = ["bytes_sent", "messages_sent"].map(|name| stats.get(name));
            assert!(sent[0] > 0 || sent[1] == 0, "what went over TCP counts: {sent:?}");
        }
    });
}

#[test]
fn a_server_that_accepts_late() {
    in_all_modes(|sandbox| {
        for style in ["blocking", "epoll-lt"] {
            let server = ["-n", "30", "-b", "1000000", "--accept-late", "700", "--style", style];
            let client = ["-n", "30", "-b", "1000000", "--style", style];
            sandbox.expect(Expect::Ends(44), || {
                run_pair(sandbox, "127.0.0.1:0", loopback(0), &server, &client)
            });
        }
    });
}

/// Of ends that are made all at the same time. A machine on which clients stand still between their connect and
/// their proposal leaves the others on TCP.
const MANY: Expect = Expect::Percent(20);

#[test]
fn five_hundred_clients_at_once() {
    in_all_modes(|sandbox| {
        let args = ["-n", "500", "-b", "20000", "--style", "epoll-et"];
        let client = [&args[..], &["--nonblocking-connect"]].concat();
        sandbox.expect(MANY, || run_pair(sandbox, "127.0.0.1:0", loopback(0), &args, &client));
        // A thread for each, which all connect at the same time.
        let client = ["-n", "500", "-b", "20000"];
        sandbox.expect(MANY, || run_pair(sandbox, "127.0.0.1:0", loopback(0), &args, &client));
    });
}

#[test]
fn many_client_processes() {
    in_all_modes(|sandbox| {
        let server = Server::start(
            sandbox,
            true,
            &["-n", "80", "-b", "100000", "--style", "epoll-lt", "--threads", "2"],
        );
        let clients = sandbox.expect(MANY, || {
            let running: Vec<Process> = (0..40)
                .map(|n| {
                    // The seed makes the labels of each process its own.
                    let seed = (n + 1).to_string();
                    let args = ["-n", "2", "-b", "100000", "--seed", &seed];
                    start_client(sandbox, true, loopback(server.port), &args)
                })
                .collect();
            running.into_iter().flat_map(records).collect::<Vec<_>>()
        });
        compare(&clients, &server.finish()).expect("the same bytes");
    });
}

/// The agent dies: what is established goes on, what is new is TCP; it comes back: what is new is
/// shunted again.
#[test]
fn an_agent_that_dies_and_comes_back() {
    in_all_modes(|sandbox| {
        let server = Server::start(
            sandbox,
            true,
            &["-n", "31", "-b", "20000000", "--style", "epoll-lt", "--pause", "2000"],
        );
        let port = server.port;
        let args = |seed: &'static str| {
            ["-n", "10", "-b", "20000000", "--style", "epoll-et", "--pause", "2000", "--seed", seed]
        };
        let mut established =
            sandbox.expect(Expect::Ends(20), || connect(sandbox, port, &args("1")));
        // It has most of its bytes to send and to receive still when the agent is gone.
        established.signal(libc::SIGSTOP);
        established.assert_running();
        sandbox.kill_agent();
        established.signal(libc::SIGCONT);
        let without = records(connect(sandbox, port, &args("2")));
        let mut clients = records(established);
        clients.extend(without);
        let after = || records(connect(sandbox, port, &args("3")));
        if sandbox.mode.is_shunted() {
            sandbox.start_agent();
        }
        // Each end finds the new agent when it next connects or accepts: the first connections after
        // the agent is back may still be TCP.
        thread::sleep(Duration::from_millis(500));
        clients.extend(records(connect(sandbox, port, &["-n", "1", "-b", "1000", "--seed", "4"])));
        thread::sleep(Duration::from_millis(200));
        clients.extend(sandbox.expect(Expect::Ends(16), after));
        compare(&clients, &server.finish()).expect("the same bytes");
    });
}

/// Without any agent everything runs on TCP.
#[test]
fn no_agent_at_all() {
    in_all_modes(|sandbox| {
        sandbox.kill_agent();
        let mut command = sandbox.preloaded(built("shunt-gen"));
        command.args(["serve", "-n", "10", "-b", "1000000"]);
        let mut server = sandbox.spawn(command);
        let port = server.wait_for_line(|line| {
            serde_json::from_str::<serde_json::Value>(line).ok()?["port"].as_u64()
        });
        let port = u16::try_from(port).expect("a port");
        let clients = records(connect(sandbox, port, &["-n", "10", "-b", "1000000"]));
        compare(&clients, &records(server)).expect("the same bytes");
    });
}

/// `shunt run` starts an agent when there is none, and several at once start only one.
#[test]
fn an_agent_on_demand() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        sandbox.kill_agent();
        let running: Vec<Process> =
            (0..8).map(|_| sandbox.spawn(sandbox.command(program("true")))).collect();
        for process in running {
            let _done = process.wait().success();
        }
        let args = ["-n", "4", "-b", "1000000"];
        sandbox.expect(Expect::Ends(4), || {
            run_pair(&sandbox, "127.0.0.1:0", loopback(0), &args, &args)
        });
        assert_eq!(sandbox.end_strays("shunt", 1), 1, "agents");
    }
}

/// Runs a group of `shunt-probe`; the transcript of one that stops early says so.
fn probe(sandbox: &Sandbox, group: &str, env: &[(&str, &str)], expect: Expect) {
    let mut command = sandbox.command(built("shunt-probe"));
    command.arg(group).envs(env.iter().copied());
    let out = sandbox.expect(expect, || sandbox.run(command));
    assert!(out.stderr.is_empty() && !out.stdout.contains("false"), "{out}");
}

/// A server listens, becomes a daemon, and only then has clients: each of them is shunted.
#[test]
fn a_server_that_becomes_a_daemon() {
    in_all_modes(|sandbox| probe(sandbox, "daemon", &[], Expect::All(16)));
}

/// A server that closes its listener and leaves it to a child: the child's connections are shunted, whenever it first accepts.
#[test]
fn a_listener_that_is_left_to_a_child() {
    in_all_modes(|sandbox| probe(sandbox, "heirs", &[], Expect::All(16)));
}

/// A program opens one listener after the other: the last is as good as the first.
#[test]
fn listeners_that_follow_each_other() {
    in_all_modes(|sandbox| probe(sandbox, "listeners", &[], Expect::All(600)));
}

/// Servers are killed while their clients go on: what they held is of use to others.
#[test]
fn children_that_are_killed_leave_nothing_behind() {
    in_all_modes(|sandbox| {
        // More link groups than a client may have, if one slot in four was free again. Their children would leave short ones on TCP.
        let env = [("SHUNT_CONNS_PER_LG", "4"), ("SHUNT_SHORT_LIVED", "all")];
        probe(sandbox, "orphans", &env, Expect::Percent(97));
    });
}

/// Another user's client has no part in this user's agent: it connects over TCP.
#[test]
fn a_client_of_another_user() {
    if !is_root() {
        println!("only root can start a client of another user");
        return;
    }
    in_all_modes(|sandbox| {
        let other = Sandbox::for_user(sandbox.mode, "nobody");
        let args = ["-n", "10", "-b", "1000000"];
        let server = Server::start(sandbox, true, &args);
        let to = loopback(server.port).to_string();
        let generator = other.readable_copy(&built("shunt-gen"));
        // Its own agent, and then, against all rules, the server's.
        let run_dirs = [(other.run_dir(), "5", "1"), (sandbox.run_dir(), "5", "2")];
        let clients: Vec<Record> = run_dirs
            .iter()
            .flat_map(|(run_dir, n, seed)| {
                let mut command = other.command(&generator);
                command.env("SHUNT_RUN_DIR", run_dir);
                command.args(["connect", "--to", &to, "-n", n, "-b", "1000000", "--seed", seed]);
                records(other.spawn(command))
            })
            .collect();
        compare(&clients, &server.finish()).expect("the same bytes");
        sandbox.expect(Expect::Nothing, || ());
    });
}

/// Descriptors run out: connections that can be had at all are TCP at worst.
#[test]
fn few_descriptors() {
    in_all_modes(|sandbox| {
        let args = ["-n", "20", "-b", "200000", "--style", "epoll-lt"];
        let server = Server::start(sandbox, true, &args);
        let to = loopback(server.port).to_string();
        let mut command = sandbox.command(built("shunt-gen"));
        command.args(["connect", "--to", &to]).args(args);
        // SAFETY: the closure makes one system call and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                // 20 connections, three standard descriptors, an epoll instance, and little more.
                let limit = libc::rlimit { rlim_cur: 28, rlim_max: 28 };
                match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let clients = records(sandbox.spawn(command));
        compare(&clients, &server.finish()).expect("the same bytes");
    });
}

/// Of connections on which the program asks for times of sending the kernel has all bytes, and it can be seen why. Times of
/// receiving alone are no reason.
#[test]
fn times_of_sending() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let run = |group| {
            let mut command = sandbox.command(built("shunt-probe"));
            command.arg(group);
            let _done = sandbox.run(command).success();
        };
        sandbox.expect(Expect::All(8), || run("times-received"));
        let before = sandbox.stats();
        assert_eq!((before.declined("unsupported"), before.get("connections_demoted")), (0, 0));
        run("times");
        let after = sandbox.stats();
        // Clients that have asked before they connect, and what is accepted by listeners that have.
        assert!(after.declined("unsupported") >= 4, "{:?}", after.reasons());
        // Both ends of those that were shunted when their program asked for a socket's times, and for a message's.
        assert!(after.get("connections_demoted") >= 6, "{:?}", after.reasons());
    }
}
