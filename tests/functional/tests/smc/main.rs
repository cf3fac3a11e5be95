//! The kernel's SMC-R as a peer, between two virtual machines: the server is a kernel's `AF_SMC`
//! socket, and the client `shunt-smc` over verbs, on a machine without that module. Every byte is
//! compared at both ends. The device is rxe.

mod hosts;
mod programs;
mod speed;

use shunt_functional::rounds::are_long;

use hosts::{AT, CARRIED, Hosts, PATIENCE};

/// All packets of the device are lost, and no others.
const CUT: &str = "/bin/tc qdisc add dev eth0 root handle 1: prio && \
     /bin/tc qdisc add dev eth0 parent 1:3 handle 30: netem loss 100% && \
     /bin/tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3";
const MEND: &str = "/bin/tc qdisc del dev eth0 root";

#[test]
fn a_kernels_server_is_reached_by_smc_r_and_by_tcp_where_it_declines() {
    let mut hosts = Hosts::boot();
    assert!(!hosts.client.run("grep -q '^smc ' /proc/modules", PATIENCE).ok);
    connections_share_a_link(&mut hosts);
    quiet_ends_ask_each_other(&mut hosts);
    another_group_stays_on_tcp(&mut hosts);
    a_server_without_smc_gets_no_word_of_it(&mut hosts);
    urgent_bytes_are_told(&mut hosts);
    a_client_aborts(&mut hosts);
    a_server_is_killed(&mut hosts);
    a_client_is_killed(&mut hosts);
    if are_long() {
        a_link_fails(&mut hosts);
        a_link_group_is_left_over(&mut hosts);
    }
}

/// Several times around rings, in both directions at once; a half-close, and the end.
fn connections_share_a_link(hosts: &mut Hosts) {
    hosts.serve(7001, "");
    // With two links the server offers another one.
    let few = [(2, 0, 500_000, 4), (1, 2, 200_000, 4)];
    let many = are_long().then_some((2, 0, 50_000, 60));
    for (links, ring, bytes, count) in few.into_iter().chain(many) {
        let before = hosts.echoed(7001, 0).matches("echoed").count();
        let options = format!("-n {count} -b {bytes} --links {links} --ring {ring}");
        hosts.hold(7001, &format!("--eid SHUNT {options}"));
        assert_eq!(hosts.sockets(CARRIED), count, "{}", hosts.logs(7001));
        assert_eq!(hosts.groups(), "1");
        let said = hosts.let_go();
        for number in 1..=count {
            let first = if number == 1 { ", with a first contact" } else { "" };
            let line = format!("{number}: smc-r, {bytes} bytes back{first}");
            assert!(said.lines().any(|said| said == line), "{said}");
        }
        assert!(said.contains("left"), "{said}");
        let echoed = hosts.echoed(7001, before + count);
        assert!(!echoed.contains("failed"), "{echoed}");
        let whole = format!("echoed {bytes}");
        assert_eq!(echoed.lines().filter(|line| *line == whole).count(), count, "{echoed}");
        assert_eq!(hosts.sockets(CARRIED), 0, "{}", hosts.logs(7001));
    }
}

/// TEST LINK by either end.
fn quiet_ends_ask_each_other(hosts: &mut Hosts) {
    hosts.server.must("echo 1 > /proc/sys/net/smc/smcr_testlink_time");
    hosts.hold(7001, "--eid SHUNT -n 2 -b 50000");
    hosts.client.must("until grep -q 'answered the server' /tmp/held; do sleep 0.2; done");
    hosts.let_go();
    hosts.server.must("echo 30 > /proc/sys/net/smc/smcr_testlink_time");
    hosts.hold(7001, "--eid SHUNT -n 2 -b 50000 --quiet 1");
    hosts.client.must("until grep -q 'the server answers' /tmp/held; do sleep 0.2; done");
    let said = hosts.let_go();
    assert!(!said.contains("answered the server"), "{said}");
}

/// The kernel declines: both ends go on over TCP from the program's first byte on.
fn another_group_stays_on_tcp(hosts: &mut Hosts) {
    hosts.serve(7002, "");
    let said = hosts.connect(7002, "--eid ELSEWHERE -b 300000");
    assert!(said.contains("tcp, as the server says no device, or no EID in common"), "{said}");
    assert!(said.contains("300000 bytes back over tcp"), "{said}");
    let echoed = hosts.echoed(7002, 1);
    assert!(echoed.contains("echoed 300000") && !echoed.contains("failed"), "{echoed}");
}

/// Neither a server of TCP's, nor a client that does not mark its SYN.
fn a_server_without_smc_gets_no_word_of_it(hosts: &mut Hosts) {
    hosts.serve(7003, "--tcp");
    let said = hosts.connect(7003, "--eid SHUNT -b 100000");
    assert!(said.contains("tcp, as the server's answer is None"), "{said}");
    hosts.client.must(&format!("shunt-smc-peer plain {AT}:7002 100000"));
    for (port, count) in [(7003, 1), (7002, 2)] {
        let echoed = hosts.echoed(port, count);
        assert!(echoed.contains("echoed 100000") && !echoed.contains("failed"), "{echoed}");
    }
}

/// Behind the stream, in each direction.
fn urgent_bytes_are_told(hosts: &mut Hosts) {
    hosts.serve(7005, "--urgent");
    let said = hosts.connect(7005, "--eid SHUNT -b 50000 --urgent");
    assert!(said.contains("1: urgent at 50000"), "{said}");
    assert!(said.contains("50000 bytes back, with a first contact"), "{said}");
    let echoed = hosts.echoed(7005, 1);
    assert!(echoed.contains("urgent [33]") && echoed.contains("echoed 50000"), "{echoed}");
}

/// The server's call fails. Linux' readers see an end where the connection was aborted, and its
/// writers that the pipe is broken (`smc_rx.c`: `smc_rx_recvmsg` looks at what was shut down before
/// it looks at errors).
fn a_client_aborts(hosts: &mut Hosts) {
    hosts.serve(7004, "");
    hosts.hold(7004, "--eid SHUNT -n 2 -b 50000 --abort");
    hosts.let_go();
    let echoed = hosts.echoed(7004, 2);
    let failed = echoed.lines().filter(|line| line.starts_with("failed: ")).count();
    assert!(failed == 2 && !echoed.contains("echoed"), "{echoed}");
}

/// The kernel closes in its place, and the client hears it.
fn a_server_is_killed(hosts: &mut Hosts) {
    hosts.hold(7004, "--eid SHUNT -b 50000");
    hosts.server.must("kill -9 $(cat /tmp/serve7004.pid)");
    let said = hosts.ended();
    assert!(!said.ok && said.text.contains("the server ended with []"), "{}", said.text);
    assert!(said.text.contains("is_closed: true"), "{}", said.text);
    hosts.until_gone();
}

/// The server's kernel keeps the dead client's link group until it asks in vain. A new client gets
/// another one then.
fn a_client_is_killed(hosts: &mut Hosts) {
    hosts.server.must("echo 1 > /proc/sys/net/smc/smcr_testlink_time");
    hosts.hold(7001, "--eid SHUNT -b 50000");
    assert_eq!(hosts.groups(), "1");
    hosts.client.must("kill -9 $(cat /tmp/held.pid)");
    hosts.until_gone();
    hosts.server.must("echo 30 > /proc/sys/net/smc/smcr_testlink_time");
    let said = hosts.connect(7001, "--eid SHUNT -b 50000");
    assert!(said.contains("50000 bytes back, with a first contact"), "{said}");
}

/// Until then it waits in vain for an answer on that link, and declines: the bytes go over TCP.
fn a_link_group_is_left_over(hosts: &mut Hosts) {
    hosts.hold(7001, "--eid SHUNT -b 50000");
    assert_eq!(hosts.groups(), "1");
    hosts.client.must("kill -9 $(cat /tmp/held.pid)");
    let said = hosts.connect(7001, "--eid SHUNT -b 50000");
    assert!(said.contains("tcp, as the server says memory cannot be registered"), "{said}");
    assert!(said.contains("50000 bytes back over tcp"), "{said}");
    hosts.until_gone();
    let said = hosts.connect(7001, "--eid SHUNT -b 50000");
    assert!(said.contains("50000 bytes back, with a first contact"), "{said}");
}

/// All packets of the devices are lost in mid-stream. There is no way back to TCP: both ends hear it.
fn a_link_fails(hosts: &mut Hosts) {
    hosts.serve(7006, "");
    hosts.begin(7006, "--eid SHUNT -n 2 -b 1000000000 --quiet 2");
    hosts.server.must(&format!(
        "until [ $(shunt-smc-peer list | grep -c '{CARRIED}') = 2 ]; do sleep 0.2; done"
    ));
    for guest in [&mut hosts.server, &mut hosts.client] {
        guest.must(CUT);
    }
    let said = hosts.ended();
    // The device gives up, or the client does: whichever is first.
    let is_told = ["the queue pair failed", "the server does not answer"];
    assert!(!said.ok && is_told.iter().any(|why| said.text.contains(why)), "{}", said.text);
    let echoed = hosts.echoed(7006, 2);
    assert_eq!(echoed.lines().filter(|line| line.starts_with("failed: ")).count(), 2, "{echoed}");
    hosts.until_gone();
    for guest in [&mut hosts.server, &mut hosts.client] {
        guest.must(MEND);
    }
    let said = hosts.connect(7001, "--eid SHUNT -b 50000");
    assert!(said.contains("50000 bytes back, with a first contact"), "{said}");
}
