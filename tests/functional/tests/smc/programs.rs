//! Programs that know nothing of SMC, under Shunt.

use shunt_functional::rounds::are_long;
use shunt_functional::vm::SMC_RUN;

use crate::hosts::{AT, CARRIED, Hosts, PATIENCE};

/// Programs that know nothing of all that, under Shunt: their agent speaks for them, on a host without the module.
#[test]
fn programs_under_shunt_talk_to_a_kernel_by_smc_r() {
    let mut hosts = Hosts::boot();
    (7001..=7005).for_each(|port| hosts.serve(port, if port == 7003 { "--tcp" } else { "" }));
    hosts.serve(7006, "--greets");
    hosts.start_agent("SHUNT", &[7001, 7003, 7004, 7005, 7006, 7010, 7011, 7012, 7013]);
    programs_share_a_link(&mut hosts);
    a_server_speaks_first(&mut hosts, 2);
    redis_nginx_and_others(&mut hosts);
    programs_stay_on_tcp_where_the_server_does(&mut hosts);
    a_server_of_programs_is_killed(&mut hosts);
    a_program_is_killed(&mut hosts);
    an_agent_is_killed(&mut hosts);
    programs_stay_on_tcp_in_another_group(&mut hosts);
    a_server_speaks_first(&mut hosts, 0);
}

/// A server that has no link yet meets many clients: one of them makes the link, and the others wait for it.
#[test]
fn first_contacts_come_at_once() {
    let mut hosts = Hosts::boot();
    hosts.serve(7001, "");
    // A link group that is left over goes sooner.
    hosts.server.must("echo 1 > /proc/sys/net/smc/smcr_testlink_time");
    let rounds = if are_long() { 15 } else { 2 };
    let mut echoed = 0;
    for round in 1..=rounds {
        hosts.start_agent("SHUNT", &[7001]);
        echoed += 12;
        hosts.all_at_once(7001, 12, 20_000, echoed);
        let links = hosts.agent_log().matches("with SMC-R is up").count();
        assert_eq!(links, round, "{}", hosts.agent_log());
        hosts.client.must("kill -9 $(cat /tmp/agent.pid)");
        hosts.until_gone();
    }
    hosts.start_agent_for("SHUNT", "'10.77.0.0/24:*'");
    let (count, bytes) = (40, 20_000);
    hosts.all_at_once(7001, count, bytes, echoed + count);
    let links = hosts.agent_log().matches("with SMC-R is up").count();
    assert_eq!(links, rounds + count.div_ceil(32), "{}", hosts.agent_log());
}

/// All but the first one at once, each of them in both directions, around the server's rings; half-closes.
fn programs_share_a_link(hosts: &mut Hosts) {
    let (count, bytes) = if are_long() { (40, 2_000_000) } else { (6, 400_000) };
    hosts.client.must("rm -f /tmp/go");
    // The first one makes the link.
    hosts.begin_plain(7001, 0, bytes, 1);
    hosts.until_held(7001, 0);
    for number in 1..count {
        hosts.begin_plain(7001, number, bytes, 1);
    }
    for number in 1..count {
        hosts.until_held(7001, number);
    }
    assert_eq!(hosts.sockets(CARRIED), count, "{}", hosts.logs(7001));
    let listed = hosts.client.must("shunt list");
    assert_eq!(listed.matches("shunt-rdma").count(), count, "{listed}");
    hosts.client.must("touch /tmp/go");
    for number in 0..count {
        let said = hosts.end_of_plain(number);
        assert!(said.contains(&format!("{bytes} bytes back")), "{said}");
        assert!(said.contains("1 connection end shunted"), "{said}");
    }
    let echoed = hosts.echoed(7001, count);
    assert!(!echoed.contains("failed"), "{echoed}");
    assert_eq!(hosts.sockets(CARRIED), 0, "{}", hosts.logs(7001));
    let links = hosts.agent_log().matches("with SMC-R is up").count();
    assert_eq!(links, count.div_ceil(32), "{}", hosts.agent_log());
}

/// A program that is told of bytes finds the server's, and none of the agreement's. So many ends are shunted.
fn a_server_speaks_first(hosts: &mut Hosts, shunted: usize) {
    let line = format!("shunt run --summary -- shunt-smc-peer await {AT}:7006");
    let said = hosts.client.run(&line, PATIENCE);
    let is_greeted = said.ok && said.text.contains("greeted by epoll");
    assert!(is_greeted, "{}\n{}\n{}", said.text, hosts.logs(7006), hosts.agent_log());
    let shunted = format!("shunt: {shunted} connection ends");
    assert!(said.text.contains(&shunted), "{}", said.text);
}

/// Servers of the distribution, whose sockets are the kernel's SMC, and their clients.
fn redis_nginx_and_others(hosts: &mut Hosts) {
    let conf = format!(
        "user root; worker_processes 1; error_log stderr; pid /tmp/nginx.pid; events {{}} \
         http {{ access_log off; sendfile on; server {{ listen 0.0.0.0:7011; root {}; }} }}",
        "/tmp/site"
    );
    hosts.server.must(&format!(
        "mkdir -p /tmp/site; head -c 20000 /dev/urandom > /tmp/site/page; echo '{conf}' > /tmp/nginx.conf; export LD_PRELOAD={SMC_RUN}; \
         (redis-server --port 7010 --bind 0.0.0.0 --protected-mode no --save '' > /tmp/redis 2>&1) & \
         (nginx -c /tmp/nginx.conf > /tmp/nginx 2>&1) & \
         (sockperf sr --tcp -i 0.0.0.0 -p 7012 > /tmp/sockperf 2>&1) & \
         (iperf3 -s -p 7013 > /tmp/iperf3 2>&1) & unset LD_PRELOAD; sleep 2"
    ));
    let value = "0123456789".repeat(100);
    for (line, what, ends) in [
        (format!("redis-cli -h {AT} -p 7010 set key {value}"), "OK", 1),
        (format!("redis-cli -h {AT} -p 7010 get key"), &*value, 1),
        (format!("redis-benchmark -h {AT} -p 7010 -c 8 -n 200 -d 3000 -t set,get -q"), "GET: ", 17),
        (format!("wrk -t 1 -c 8 -d 2s --timeout 30s http://{AT}:7011/page"), "requests in", 8),
        (format!("sockperf pp --tcp -i {AT} -p 7012 -t 1 -m 64"), "Summary: Latency", 1),
        (format!("iperf3 -c {AT} -p 7013 -n 4M"), "receiver", 2),
    ] {
        let said = hosts.client.run(&format!("shunt run --summary -- {line}"), PATIENCE).text;
        let is_whole = said.contains(what) && !said.contains("errors");
        let shunted = format!("shunt: {ends} connection end");
        let is_shunted = said.contains(&shunted);
        assert!(is_whole && is_shunted, "{line}: {said}\n{}", hosts.agent_log());
    }
    let servers = hosts.client.must("shunt machines");
    assert_eq!(servers.matches("smc-r").count(), 9, "{servers}");
}

/// A server that speaks none, and one that nobody has named.
fn programs_stay_on_tcp_where_the_server_does(hosts: &mut Hosts) {
    hosts.client.must("rm -f /tmp/go");
    hosts.begin_plain(7003, 0, 50_000, 1);
    hosts.until_held(7003, 0);
    let listed = hosts.client.must("shunt list");
    assert!(listed.contains("smc-unspoken"), "{listed}");
    let explained = hosts.client.must("shunt explain 7003");
    let explained = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    let last = format!("The agent last said of {AT}:7003: the server does not speak SMC.");
    assert!(explained.contains(&last), "{explained}");
    hosts.client.must("touch /tmp/go");
    hosts.end_of_plain(0);
    for port in [7003, 7002] {
        let said = hosts.plain(port, 200_000);
        let is_told = port == 7002 || said.contains("smc-unspoken");
        assert!(said.contains("200000 bytes back") && is_told, "{said}");
        assert!(said.contains("0 connection ends shunted"), "{said}");
        assert!(hosts.echoed(port, 1).contains("echoed 200000"));
    }
}

/// The kernel closes in its place.
fn a_server_of_programs_is_killed(hosts: &mut Hosts) {
    hosts.client.must("rm -f /tmp/go");
    hosts.begin_plain(7004, 0, 50_000, 1);
    hosts.until_held(7004, 0);
    hosts.server.must("kill -9 $(cat /tmp/serve7004.pid)");
    hosts.client.must("until ! shunt list | grep -q ':7004'; do sleep 0.1; touch /tmp/go; done");
    let said = hosts.end_of_plain(0);
    assert!(!said.contains("bytes back"), "{said}");
}

/// Its agent closes in its place.
fn a_program_is_killed(hosts: &mut Hosts) {
    hosts.client.must("rm -f /tmp/go");
    hosts.begin_plain(7005, 0, 50_000, 1);
    hosts.until_held(7005, 0);
    hosts.client.must("kill -9 $(pidof shunt-smc-peer)");
    let echoed = hosts.echoed(7005, 1);
    assert!(echoed.contains("echoed") || echoed.contains("failed"), "{echoed}");
    hosts.end_of_plain(0);
    assert!(hosts.plain(7005, 50_000).contains("1 connection end shunted"));
}

/// There is no way back to TCP: both ends hear of a reset.
fn an_agent_is_killed(hosts: &mut Hosts) {
    hosts.client.must("rm -f /tmp/go");
    hosts.begin_plain(7001, 0, 50_000, 1);
    hosts.until_held(7001, 0);
    hosts.client.must("kill -9 $(cat /tmp/agent.pid)");
    let said = hosts.end_of_plain(0);
    assert!(!said.contains("bytes back"), "{said}");
    hosts.until_gone();
}

fn programs_stay_on_tcp_in_another_group(hosts: &mut Hosts) {
    hosts.start_agent("ELSEWHERE", &[7002, 7006]);
    let before = hosts.echoed(7002, 0).matches("echoed").count();
    let said = hosts.plain(7002, 300_000);
    assert!(said.contains("300000 bytes back") && said.contains("smc-no-group"), "{said}");
    let echoed = hosts.echoed(7002, before + 1);
    assert!(echoed.contains("echoed 300000") && !echoed.contains("failed"), "{echoed}");
}
