//! Connections between hosts by RDMA, over the stub of libibverbs: every byte is checked, also when a link fails or an agent is
//! killed.

use std::net::SocketAddr;

use shunt_functional::generator::records;
use shunt_functional::machines::Lab;
use shunt_functional::record::compare;
use shunt_functional::sandbox::Stats;
use shunt_functional::waiting::settles;

fn stats(lab: &Lab) -> Vec<Stats> {
    lab.machines.iter().map(|machine| machine.sandbox().stats()).collect()
}

/// Waits until so many more connections were made on each host, nearly all of them shunted.
fn all_shunted(lab: &Lab, before: &[Stats], wanted: u64) {
    for (machine, before) in lab.machines.iter().zip(before) {
        settles("connections, nearly all of them shunted", &(wanted, true), || {
            let (ends, shunted) = machine.sandbox().stats().since(before);
            (ends, shunted * 4 >= wanted * 3)
        });
    }
}

fn traffic(n: &'static str, bytes: &'static str, style: &'static str) -> [&'static str; 6] {
    ["-n", n, "-b", bytes, "--style", style]
}

#[test]
fn every_byte_arrives() {
    let lab = Lab::of_hosts();
    for (from, to, style) in [(0, 1, "blocking"), (1, 0, "poll"), (0, 1, "epoll-et")] {
        let before = stats(&lab);
        let traffic = traffic("10", "3000000", style);
        lab.run(from, to, &traffic, &traffic);
        all_shunted(&lab, &before, 10);
    }
}

/// The link fails while bytes are on their way: all of them arrive, over TCP.
#[test]
fn a_link_that_fails_loses_no_byte() {
    let lab = Lab::of_hosts();
    let [one, two] = [&lab.machines[0], &lab.machines[1]];
    let before = stats(&lab);
    let busy = ["-n", "10", "-b", "20000000", "--style", "epoll-et", "--stall", "100"];
    let mut serving = two.serve(&busy);
    let at = SocketAddr::from((two.ip, serving.port));
    one.until_it_knows(at);
    let client = one.connect(at, &busy);
    settles("shunted, nearly all", &true, || {
        serving.process().assert_running();
        one.sandbox().stats().since(&before[0]).1 >= 8
    });
    lab.cut(true);
    let clients = records(client);
    compare(&clients, &serving.finish()).expect("the same bytes");
    lab.cut(false);
    lab.until_linked();
    let again = stats(&lab);
    lab.run(0, 1, &traffic("10", "3000000", "poll"), &traffic("10", "3000000", "poll"));
    all_shunted(&lab, &again, 10);
}

/// `kill -9` of an agent: connections through it are over at once, on either side.
#[test]
fn connections_end_with_an_agent_that_is_killed() {
    for victim in 0..2 {
        let lab = Lab::of_hosts();
        let [one, two] = [&lab.machines[0], &lab.machines[1]];
        let endless = ["-n", "10", "-b", "1000000000000", "--style", "epoll-et"];
        let mut serving = two.serve(&endless);
        let at = SocketAddr::from((two.ip, serving.port));
        one.until_it_knows(at);
        let before = one.sandbox().stats();
        let client = one.connect(at, &endless);
        settles("shunted, nearly all", &true, || {
            serving.process().assert_running();
            one.sandbox().stats().since(&before).1 >= 8
        });
        lab.machines[victim].sandbox().kill_agent();
        let ends = [client.wait(), serving.into_process().wait()];
        for end in &ends {
            assert!(end.stderr.contains("reset") || end.stderr.contains("ended"), "{end}");
        }
    }
}
