//! The kernel's SMC-R as a peer, between two virtual machines: the server is a kernel's `AF_SMC`
//! socket, and the client `shunt-smc` over verbs, on a machine without that module. Every byte is
//! compared at both ends. The device is rxe.

use std::time::Duration;

use shunt_functional::mode::Mode;
use shunt_functional::rounds::are_long;
use shunt_functional::sandbox::Sandbox;
use shunt_functional::vm::{Guest, Image, SMC_RUN, Said};

/// For what takes as long as an emulated machine likes.
const PATIENCE: Duration = Duration::from_secs(300);

const AT: &str = "10.77.0.2";

/// State of a socket of the server's that carries bytes by SMC-R.
const CARRIED: &str = "state 1 smc-r reason 0x00000000";

/// All packets of the device are lost, and no others.
const CUT: &str = "/bin/tc qdisc add dev eth0 root handle 1: prio && \
     /bin/tc qdisc add dev eth0 parent 1:3 handle 30: netem loss 100% && \
     /bin/tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3";
const MEND: &str = "/bin/tc qdisc del dev eth0 root";

struct Hosts {
    server: Guest,
    client: Guest,
    _place: Sandbox,
}

impl Hosts {
    fn boot() -> Self {
        let place = Sandbox::new(Mode::Plain);
        let image = Image::with_smc(place.path());
        let [mut server, mut client] = Guest::pair(&place, &image).map(Guest::ready);
        for guest in [&mut server, &mut client] {
            guest.must("rdma link add rxe0 type rxe netdev eth0");
        }
        client.must("mkdir -p /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup");
        server.must("while read module; do insmod /mods/$module || exit 1; done < /mods/later");
        server.must("shunt-smc-peer eid SHUNT");
        Self { server, client, _place: place }
    }

    /// Starts a server.
    fn serve(&mut self, port: u16, more: &str) {
        self.server.must(&format!(
            "shunt-smc-peer serve {port} {more} > /tmp/serve{port} 2>&1 & \
             echo $! > /tmp/serve{port}.pid; until grep -q serving /tmp/serve{port}; do sleep 0.1; done"
        ));
    }

    /// What a client says that must succeed.
    fn connect(&mut self, port: u16, options: &str) -> String {
        let line = format!("shunt-smc-peer connect {AT}:{port} {options}");
        let said = self.client.run(&line, PATIENCE);
        assert!(said.ok, "{}\n{}", said.text, self.logs(port));
        said.text
    }

    /// Starts a client that keeps its connections when all bytes are back, and waits until they
    /// are.
    fn begin(&mut self, port: u16, options: &str) {
        self.client.must("rm -f /tmp/go /tmp/over");
        self.client.must(&format!(
            "(shunt-smc-peer connect {AT}:{port} --hold /tmp/go {options} > /tmp/held 2>&1 & \
             echo $! > /tmp/held.pid; wait $!; echo $? > /tmp/over) &"
        ));
    }

    /// The same, and waits until they are.
    fn hold(&mut self, port: u16, options: &str) {
        self.begin(port, options);
        let until = "until grep -q held /tmp/held || [ -e /tmp/over ]; do sleep 0.2; done; ! [ -e /tmp/over ]";
        let said = self.client.run(until, PATIENCE);
        let held = self.client.must("cat /tmp/held");
        assert!(said.ok && !held.contains("tcp"), "{held}\n{}", self.logs(port));
    }

    /// Has it end; what it has said.
    fn let_go(&mut self) -> String {
        self.client.must("touch /tmp/go");
        let said = self.ended();
        assert!(said.ok, "{}", said.text);
        self.until_gone();
        said.text
    }

    /// Waits until it has ended.
    fn ended(&mut self) -> Said {
        let line =
            "until [ -e /tmp/over ]; do sleep 0.2; done; cat /tmp/held; exit $(cat /tmp/over)";
        self.client.run(line, PATIENCE)
    }

    /// Starts the client's agent, which is told that there are servers with SMC-R at these ports.
    fn start_agent(&mut self, eid: &str, ports: &[u16]) {
        let servers: Vec<_> = ports.iter().map(|port| format!("'{AT}:{port}'")).collect();
        let policy = format!("[smc]\\neid = ['{eid}']\\nserver = [{}]", servers.join(", "));
        self.client.must(&format!("printf \"{policy}\\n\" > /tmp/policy; shunt agent-key --host"));
        self.client.must(
            "(ulimit -l unlimited; RUST_LOG=debug exec shunt agent --host --policy /tmp/policy --rdma rxe0 >> /tmp/agent 2>&1) & \
             echo $! > /tmp/agent.pid; until shunt machines; do sleep 0.1; done",
        );
    }

    fn agent_log(&mut self) -> String {
        self.client.must("cat /tmp/agent")
    }

    /// Runs a client that knows nothing but TCP under Shunt: what it says.
    fn plain(&mut self, port: u16, bytes: u64) -> String {
        let line = format!("shunt run --summary -- shunt-smc-peer plain {AT}:{port} {bytes}");
        let said = self.client.run(&line, PATIENCE);
        assert!(said.ok, "{}\n{}\n{}", said.text, self.agent_log(), self.logs(port));
        said.text
    }

    /// Starts one that keeps its connection when all bytes are sent.
    fn begin_plain(&mut self, port: u16, number: usize, bytes: u64) {
        self.client.must(&format!(
            "rm -f /tmp/over{number}; (shunt run --summary -- shunt-smc-peer plain {AT}:{port} {bytes} \
             --hold /tmp/go > /tmp/plain{number} 2>&1; echo $? > /tmp/over{number}) &"
        ));
    }

    fn until_held(&mut self, port: u16, number: usize) {
        let line = format!(
            "n=0; until grep -q held /tmp/plain{number} || [ -e /tmp/over{number} ] || [ $n = 1000 ]; \
             do sleep 0.1; n=$((n+1)); done; grep -q held /tmp/plain{number}"
        );
        let held = self.client.run(&line, PATIENCE).ok;
        let said = self.client.must(&format!("cat /tmp/plain{number}; shunt list"));
        assert!(held, "{said}\n{}\n{}", self.agent_log(), self.logs(port));
    }

    /// What it says, once it has ended.
    fn end_of_plain(&mut self, number: usize) -> String {
        let line =
            format!("until [ -e /tmp/over{number} ]; do sleep 0.1; done; cat /tmp/plain{number}");
        let said = self.client.run(&line, PATIENCE);
        assert!(said.ok, "{}\n{}", said.text, self.agent_log());
        said.text
    }

    /// How many sockets of the server's are so.
    fn sockets(&mut self, which: &str) -> usize {
        let all = self.server.must("shunt-smc-peer list");
        all.lines().filter(|line| line.starts_with(which)).count()
    }

    /// What a server has said, once it has said that of so many connections.
    fn echoed(&mut self, port: u16, count: usize) -> String {
        let line = format!(
            "until [ $(grep -cE 'echoed|failed' /tmp/serve{port}) -ge {count} ]; do sleep 0.2; done; cat /tmp/serve{port}"
        );
        let said = self.server.run(&line, PATIENCE);
        assert!(said.ok, "{}", said.text);
        said.text
    }

    /// Waits until the server's kernel has no link group any more.
    fn until_gone(&mut self) {
        let line = "until [ $(shunt-smc-peer groups) = 0 ]; do sleep 0.2; done";
        let said = self.server.run(line, PATIENCE);
        assert!(said.ok, "{}", said.text);
    }

    fn groups(&mut self) -> String {
        self.server.must("shunt-smc-peer groups")
    }

    fn logs(&mut self, port: u16) -> String {
        self.server.must(&format!("cat /tmp/serve{port}; shunt-smc-peer list; dmesg | tail -n 20"))
    }
}

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

/// Programs that know nothing of all that, under Shunt: their agent speaks for them, on a host without the module.
#[test]
fn programs_under_shunt_talk_to_a_kernel_by_smc_r() {
    let mut hosts = Hosts::boot();
    (7001..=7005).for_each(|port| hosts.serve(port, if port == 7003 { "--tcp" } else { "" }));
    hosts.start_agent("SHUNT", &[7001, 7003, 7004, 7005, 7010, 7011, 7012, 7013]);
    programs_share_a_link(&mut hosts);
    redis_nginx_and_others(&mut hosts);
    programs_stay_on_tcp_where_the_server_does(&mut hosts);
    a_server_of_programs_is_killed(&mut hosts);
    a_program_is_killed(&mut hosts);
    an_agent_is_killed(&mut hosts);
    programs_stay_on_tcp_in_another_group(&mut hosts);
}

/// All but the first one at once, each of them in both directions, around the server's rings; half-closes.
fn programs_share_a_link(hosts: &mut Hosts) {
    let (count, bytes) = if are_long() { (40, 2_000_000) } else { (6, 400_000) };
    hosts.client.must("rm -f /tmp/go");
    // The first one makes the link.
    hosts.begin_plain(7001, 0, bytes);
    hosts.until_held(7001, 0);
    for number in 1..count {
        hosts.begin_plain(7001, number, bytes);
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
    assert_eq!(servers.matches("smc-r").count(), 8, "{servers}");
}

/// A server that speaks none, and one that nobody has named.
fn programs_stay_on_tcp_where_the_server_does(hosts: &mut Hosts) {
    for port in [7003, 7002] {
        let said = hosts.plain(port, 200_000);
        let is_told = port == 7002 || said.contains("peer-not-shunted");
        assert!(said.contains("200000 bytes back") && is_told, "{said}");
        assert!(said.contains("0 connection ends shunted"), "{said}");
        assert!(hosts.echoed(port, 1).contains("echoed 200000"));
    }
}

/// The kernel closes in its place.
fn a_server_of_programs_is_killed(hosts: &mut Hosts) {
    hosts.client.must("rm -f /tmp/go");
    hosts.begin_plain(7004, 0, 50_000);
    hosts.until_held(7004, 0);
    hosts.server.must("kill -9 $(cat /tmp/serve7004.pid)");
    hosts.client.must("until ! shunt list | grep -q ':7004'; do sleep 0.1; touch /tmp/go; done");
    let said = hosts.end_of_plain(0);
    assert!(!said.contains("bytes back"), "{said}");
}

/// Its agent closes in its place.
fn a_program_is_killed(hosts: &mut Hosts) {
    hosts.client.must("rm -f /tmp/go");
    hosts.begin_plain(7005, 0, 50_000);
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
    hosts.begin_plain(7001, 0, 50_000);
    hosts.until_held(7001, 0);
    hosts.client.must("kill -9 $(cat /tmp/agent.pid)");
    let said = hosts.end_of_plain(0);
    assert!(!said.contains("bytes back"), "{said}");
    hosts.until_gone();
}

fn programs_stay_on_tcp_in_another_group(hosts: &mut Hosts) {
    hosts.start_agent("ELSEWHERE", &[7002]);
    let before = hosts.echoed(7002, 0).matches("echoed").count();
    let said = hosts.plain(7002, 300_000);
    assert!(said.contains("300000 bytes back") && said.contains("peer-not-shunted"), "{said}");
    let echoed = hosts.echoed(7002, before + 1);
    assert!(echoed.contains("echoed 300000") && !echoed.contains("failed"), "{echoed}");
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
