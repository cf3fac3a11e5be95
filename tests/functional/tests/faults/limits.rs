//! Memory and descriptors that run out while programs run: connections that can be had at all are TCP at
//! worst, and are shunted again when there is room.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use shunt_functional::binaries::{built, program};
use shunt_functional::generator::{Server, events, records, run_pair, served, start_client};
use shunt_functional::memory_group::MemoryGroup;
use shunt_functional::mode::Mode;
use shunt_functional::record::{Record, compare};
use shunt_functional::sandbox::{Expect, Sandbox, is_root};
use shunt_functional::sys;
use shunt_functional::waiting::settles;

use crate::kills::{Delays, await_losses};

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// A client of a server that goes on: its connections, as both ends tell of them.
fn client(sandbox: &Sandbox, server: &mut [Server; 1], seed: &str, before: usize) -> Vec<Record> {
    let to = at(server[0].port);
    let args = ["-n", "8", "-b", "300000", "--style", "epoll-lt", "--seed", seed];
    let clients = records(start_client(sandbox, true, to, &args));
    let all = served(server, before + clients.len());
    let told: Vec<_> = all.into_iter().skip(before).collect();
    compare(&clients, &told).unwrap_or_else(|e| panic!("{e} [{}]", sandbox.mode));
    clients
}

const SERVER: [&str; 6] = ["-n", "1000", "-b", "300000", "--style", "epoll-lt"];

/// A limit of a process that runs is reached, and lifted. Which connections are shunted in between is left
/// open; that their bytes come is not.
fn reached(resource: sys::Resource, of_agent: bool, room: impl Fn(i32) -> u64) {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let mut server = [Server::start(&sandbox, true, &SERVER)];
        let pid = if of_agent {
            sandbox.agent_pid().expect("an agent")
        } else {
            server[0].process().pid()
        };
        let mut done = 0;
        let mut step = |seed: &str, expect: Option<Expect>| {
            let mut run = || client(&sandbox, &mut server, seed, done).len();
            done += match expect {
                Some(expect) => sandbox.expect(expect, &mut run),
                None => run(),
            };
        };
        step("1", Some(Expect::Ends(8)));
        let old = sys::limit(pid, resource, None).expect("a limit");
        sys::limit(pid, resource, Some(room(pid))).expect("a new limit");
        for seed in ["2", "3", "4"] {
            step(seed, None);
        }
        sys::limit(pid, resource, Some(old)).expect("the old limit");
        // Who lost the agent on the way finds it again when it connects or accepts a while later.
        let lifted = Instant::now();
        loop {
            let before = sandbox.stats();
            step("5", None);
            if sandbox.settles(Expect::Ends(1), &before, Duration::from_millis(200)) {
                break;
            }
            assert!(lifted.elapsed() < Duration::from_secs(10), "nothing is shunted any more");
        }
        step("6", Some(Expect::Ends(8)));
    }
}

/// Virtual memory in bytes.
fn size(pid: i32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).expect("a process");
    let pages: u64 = statm.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    pages * 4096
}

/// The number above the highest descriptor that a program has, without those that lie high up.
fn descriptors(pid: i32) -> u64 {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("a process");
    let numbers = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u64>().ok());
    numbers.filter(|fd| *fd < 200).max().map_or(0, |fd| fd + 1)
}

#[test]
fn a_server_has_no_more_address_space() {
    // Room for its own buffers, not for a link group.
    reached(sys::Resource::AddressSpace, false, |pid| size(pid) + (32 << 20));
}

#[test]
fn a_server_has_no_more_descriptors() {
    // Its connections, what one call of the generator opens (a pipe, or a file to send), and not much more.
    reached(sys::Resource::Descriptors, false, |pid| descriptors(pid) + 8 + 3);
}

#[test]
fn an_agent_has_no_more_address_space() {
    reached(sys::Resource::AddressSpace, true, |pid| size(pid) + (1 << 20));
}

#[test]
fn an_agent_has_no_more_descriptors() {
    // Less than it has already: it can't even take a new client.
    reached(sys::Resource::Descriptors, true, |pid| descriptors(pid) / 2);
}

/// No file may be large: the memory is not the program's to make.
#[test]
fn small_files_only() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        sandbox.expect(Expect::Ends(16), || {
            let calls = ["--send-calls", "write,sendmsg,send", "--max-call", "16384"];
            let args = [&["-n", "8", "-b", "3000000", "--style", "poll"][..], &calls].concat();
            let server = Server::start(&sandbox, true, &args);
            let mut command = sandbox.command(built("shunt-gen"));
            command.args(["connect", "--to", &at(server.port).to_string()]).args(&args);
            limited(&mut command, libc::RLIMIT_FSIZE, 65_536);
            let clients = records(sandbox.spawn(command));
            compare(&clients, &server.finish()).expect("the same bytes");
        });
    }
}

/// A program that begins with little address space: it runs, shunted or not.
#[test]
fn little_address_space_from_the_start() {
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        for megabytes in [24, 48, 96, 192, 384] {
            let args = ["-n", "4", "-b", "300000", "--style", "epoll-et"];
            let server = Server::start(&sandbox, true, &args);
            let mut command = sandbox.command(built("shunt-gen"));
            command.args(["connect", "--to", &at(server.port).to_string()]).args(args);
            limited(&mut command, libc::RLIMIT_AS, megabytes << 20);
            let clients = records(sandbox.spawn(command));
            compare(&clients, &server.finish()).unwrap_or_else(|e| panic!("{megabytes}: {e}"));
        }
    }
}

/// Link groups take as many addresses as their connections need: with four gigabytes a program has many.
#[test]
fn in_four_gigabytes_of_addresses_programs_are_shunted() {
    const LISTENERS: usize = 12;
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        let args = ["-n", "20", "-b", "300000", "--style", "epoll-et"];
        let servers: Vec<Server> =
            (0..LISTENERS).map(|_| Server::start(&sandbox, true, &args)).collect();
        // All of them, and the program's own.
        sandbox.expect(Expect::Ends(2 * 20 * LISTENERS as u64), || {
            let mut command = sandbox.command(built("shunt-gen"));
            command.arg("connect");
            for server in &servers {
                command.args(["--to", &at(server.port).to_string()]);
            }
            let connections = (20 * LISTENERS).to_string();
            command.args(["-n", &connections, "-b", "300000", "--style", "epoll-et"]);
            limited(&mut command, libc::RLIMIT_AS, 4 << 30);
            let clients = records(sandbox.spawn(command));
            let served: Vec<Record> = servers.into_iter().flat_map(Server::finish).collect();
            compare(&clients, &served).expect("the same bytes");
        });
    }
}

fn limited(command: &mut Command, resource: libc::__rlimit_resource_t, most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(resource, &raw const limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// Nothing of Shunt's lies in /dev/shm: that it is full is no news.
#[test]
fn a_full_dev_shm() {
    if !is_root() {
        println!("left out: only root can mount");
        return;
    }
    for mode in Mode::enabled_shunted() {
        let sandbox = Sandbox::new(mode);
        sandbox.kill_agent();
        // Everything, the agent too, runs where it is full.
        let script = "mount -t tmpfs -o size=64k none /dev/shm && \
                      ! head -c 1M /dev/zero 2>/dev/null >/dev/shm/full && exec \"$@\"";
        let full = || {
            let mut command = sandbox.plain(program("unshare"));
            command.args(["-m", "sh", "-c", script, "sh"]);
            command
        };
        sandbox.start_agent_by(full(), &[]);
        // Where a server is slow to begin a client may be done before.
        sandbox.expect(Expect::Percent(50), || {
            let args = ["-n", "8", "-b", "1000000", "--style", "epoll-lt"];
            let under = |role: &[&str]| {
                let run = sandbox.command(built("shunt-gen"));
                let mut command = full();
                command.arg(run.get_program()).args(run.get_args()).args(role).args(args);
                sandbox.spawn(command)
            };
            let server = Server::of(under(&["serve"]));
            let to = at(server.port).to_string();
            let clients = records(under(&["connect", "--to", &to]));
            compare(&clients, &server.finish()).expect("the same bytes");
        });
    }
}

/// A client in a container has little memory, of which the rings take no more than their part, though nobody reads.
#[test]
fn a_container_has_no_more_memory() {
    for mode in Mode::enabled() {
        let Some(group) = MemoryGroup::new(48 << 20) else {
            println!("left out: no control group with a limit of memory can be made here");
            return;
        };
        let sandbox = Sandbox::new(mode);
        let endless = ["--survive", "-b", "1000000000000", "--style", "epoll-lt", "-n"];
        let mut server = Server::start(&sandbox, true, &[&endless[..], &["1000"]].concat());
        let mut command = sandbox.command(built("shunt-gen"));
        command.args(["connect", "--to", &at(server.port).to_string()]).args(endless).arg("600");
        // Its own buffers are to be the smaller part.
        command.args(["--max-call", "4096"]);
        let mut client = sandbox.spawn(group.enter(&command));
        settles("connections that are begun", &600, || events(server.process()).0);
        // They fill what they may, as nobody reads any more.
        let server_pid = server.process().pid();
        sys::kill(server_pid, libc::SIGSTOP).expect("it runs");
        std::thread::sleep(Duration::from_secs(2));
        sys::kill(server_pid, libc::SIGCONT).expect("it is stopped");
        // More than fits the kernel's buffers, so that none is over before its acceptor has had the processor.
        let others = ["-n", "8", "-b", "12000000", "--style", "epoll-lt"];
        let pair = || run_pair(&sandbox, "127.0.0.1:0", at(0), &others, &others);
        sandbox.expect(Expect::Ends(16), pair);
        // The rings leave room; but senders go on over TCP where rings stay full, and what the kernel's own
        // buffers come to is its business.
        let survived = client.is_running();
        client.kill();
        await_losses(&mut server, sys::monotonic(), &mut Delays::default());
        println!(
            "{mode}: {} connections, survived: {survived}, the limit was reached {} times",
            events(server.process()).0,
            group.times_reached()
        );
        sandbox.expect(Expect::Ends(16), pair);
        server.process().kill();
        drop(client);
    }
}
