//! Connections between machines that share memory: every byte is checked, also when one of them, its agent or the
//! server is killed.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use shunt_functional::generator::records;
use shunt_functional::machines::Lab;
use shunt_functional::record::compare;
use shunt_functional::rounds::rounds;
use shunt_functional::sandbox::Stats;
use shunt_functional::waiting::settles;

/// Stats of each machine.
fn stats(lab: &Lab) -> Vec<Stats> {
    lab.machines.iter().map(|machine| machine.sandbox().stats()).collect()
}

/// Waits until so many more connections were made on each machine. Nearly all of them are shunted: on a machine with
/// much other work one may be over before its other end has come to it.
fn all_shunted(lab: &Lab, before: &[Stats], wanted: &[u64]) {
    for ((machine, before), wanted) in lab.machines.iter().zip(before).zip(wanted) {
        settles("connections, nearly all of them shunted", &(*wanted, true), || {
            let (ends, shunted) = machine.sandbox().stats().since(before);
            (ends, shunted * 4 >= wanted * 3)
        });
    }
}

fn traffic(n: &'static str, style: &'static str) -> [&'static str; 6] {
    ["-n", n, "-b", "300000", "--style", style]
}

#[test]
fn every_byte_arrives_whatever_the_way_of_waiting() {
    let lab = Lab::new(2, "256M");
    for style in ["blocking", "poll", "select", "epoll-lt", "epoll-et", "epoll-oneshot"] {
        let before = stats(&lab);
        lab.run(0, 1, &traffic("20", style), &traffic("20", style));
        all_shunted(&lab, &before, &[20, 20]);
    }
    // Workers of one listener, and children that take connections over.
    for spread in ["prefork", "fork"] {
        let mut serving = traffic("20", "blocking").to_vec();
        serving.extend(["--spread", spread]);
        let before = stats(&lab);
        lab.run(1, 0, &serving, &traffic("20", "poll"));
        all_shunted(&lab, &before, &[20, 20]);
    }
}

#[test]
fn three_hundred_connections_at_once_each_way() {
    let lab = Lab::new(2, "256M");
    for (from, to) in [(0, 1), (1, 0)] {
        let before = stats(&lab);
        lab.run(from, to, &traffic("300", "epoll-et"), &traffic("300", "epoll-lt"));
        all_shunted(&lab, &before, &[300, 300]);
    }
    // All of it comes back: twenty link groups of either direction were more than half of what there is.
    for machine in &lab.machines {
        settles("link groups", &0, || machine.status()["link_groups"].as_u64().unwrap_or(99));
    }
    assert_eq!(lab.machines[0].status()["extents_used"], 2, "the homes");
}

#[test]
fn a_third_machine_talks_to_both() {
    let lab = Lab::new(3, "256M");
    for (from, to) in [(2, 0), (1, 2), (0, 1)] {
        lab.run(from, to, &traffic("30", "poll"), &traffic("30", "epoll-et"));
    }
    let none: Vec<u64> = vec![60, 60, 60];
    for (machine, wanted) in lab.machines.iter().zip(none) {
        settles("shunted", &wanted, || machine.sandbox().stats().get("connections_shunted"));
    }
}

/// There is not memory for all: the rest is TCP, and nothing is lost.
#[test]
fn when_the_memory_is_full_connections_are_tcp() {
    let lab = Lab::new(2, "32M");
    // Three extents, of which each machine lives in one.
    lab.run(0, 1, &traffic("60", "epoll-et"), &traffic("60", "epoll-et"));
    for machine in &lab.machines {
        settles("connections", &(60, 15), || {
            let stats = machine.sandbox().stats();
            (stats.get("connections"), stats.get("connections_shunted"))
        });
    }
    let reasons = lab.machines[0].sandbox().stats().reasons();
    assert_eq!(reasons.get("no-resources"), Some(&45), "{reasons:?}");
}

/// `kill -9` of an agent: what went through the memory that it watched over is over, on either side; the memory is used
/// again, and with a new agent all is as before.
#[test]
fn an_agent_is_killed_under_load() {
    let lab = Lab::new(2, "256M");
    let [one, two] = [&lab.machines[0], &lab.machines[1]];
    for victim in [one, two] {
        let endless = ["-n", "40", "-b", "1000000000000", "--style", "epoll-et"];
        let mut serving = two.serve(&endless);
        let at = SocketAddr::from((two.ip, serving.port));
        one.until_it_knows(at);
        let before = one.sandbox().stats();
        let client = one.connect(at, &endless);
        settles("shunted", &40, || {
            serving.process().assert_running();
            one.sandbox().stats().since(&before).1
        });
        thread::sleep(Duration::from_millis(200));
        victim.sandbox().kill_agent();
        // Neither side hangs: each is told that its connections are over.
        let ends = [client.wait(), serving.into_process().wait()];
        for end in &ends {
            assert!(end.stderr.contains("reset") || end.stderr.contains("ended"), "{end}");
        }
        victim.start_agent();
        lab.until_all_see(2);
        lab.run(0, 1, &traffic("30", "poll"), &traffic("30", "poll"));
        for machine in &lab.machines {
            settles("link groups", &0, || machine.status()["link_groups"].as_u64().unwrap_or(99));
        }
        assert_eq!(one.status()["extents_used"], 2, "the homes");
    }
}

/// Without its server what is connected goes on, and new connections between the same machines are made. When it is
/// started anew its memory is joined, by listeners that were there before, too; what was connected goes on where it is.
#[test]
fn the_server_is_killed_under_load_and_started_anew() {
    let mut lab = Lab::new(2, "256M");
    let busy = ["-n", "20", "-b", "50000000", "--style", "epoll-et", "--stall", "100"];
    for _ in rounds(1, 10) {
        let before = stats(&lab);
        let [serving, later] =
            [&busy[..], &traffic("30", "epoll-et")].map(|t| lab.machines[1].serve(t));
        let [at, later_at] =
            [serving.port, later.port].map(|port| SocketAddr::from((lab.machines[1].ip, port)));
        lab.machines[0].until_it_knows(at);
        let client = lab.machines[0].connect(at, &busy);
        all_shunted(&lab, &before, &[20, 20]);
        lab.server().kill();
        // So that the load outlasts what comes now, however quick the machine is.
        client.signal(libc::SIGSTOP);
        lab.run(1, 0, &traffic("30", "poll"), &traffic("30", "poll"));
        all_shunted(&lab, &before, &[50, 50]);

        lab.start_server(&["--size", "256M", "--vectors", "4"]);
        for machine in &lab.machines {
            settles(
                "machines in the new memory, and memories that are left",
                &(Some(2), 1),
                || {
                    let status = machine.status();
                    let deaf = status["server_gone"].as_bool().unwrap_or(true);
                    let members = status["members"].as_array().map(Vec::len).filter(|_| !deaf);
                    (members, status["earlier_memories"].as_u64().unwrap_or(0))
                },
            );
        }
        // Of listeners that were there before its server hears when it accepts: the first of those connections may
        // stay on TCP.
        lab.machines[0].until_it_knows(later_at);
        let clients = records(lab.machines[0].connect(later_at, &traffic("30", "poll")));
        compare(&clients, &later.finish()).expect("the same bytes");
        all_shunted(&lab, &before, &[80, 80]);
        lab.run(1, 0, &traffic("30", "blocking"), &traffic("30", "select"));
        all_shunted(&lab, &before, &[110, 110]);

        client.signal(libc::SIGCONT);
        compare(&records(client), &serving.finish()).expect("the same bytes");
        for machine in &lab.machines {
            settles("link groups, and memories that are left", &(0, 0), || {
                let status = machine.status();
                let number = |name: &str| status[name].as_u64().unwrap_or(99);
                (number("link_groups"), number("earlier_memories"))
            });
        }
    }
}

/// Agents that start before their server, who are told of it and do not require it, join when it comes.
#[test]
fn the_server_is_there_after_the_agents() {
    let mut lab = Lab::new(2, "256M");
    lab.server().kill();
    for machine in &lab.machines {
        machine.sandbox().kill_agent();
        machine.start_agent();
        assert!(machine.status().is_null(), "nothing is shared: {}", machine.status());
    }
    lab.start_server(&["--size", "256M", "--vectors", "4"]);
    lab.until_all_see(2);
    let before = stats(&lab);
    lab.run(0, 1, &traffic("30", "poll"), &traffic("30", "poll"));
    all_shunted(&lab, &before, &[30, 30]);
}
