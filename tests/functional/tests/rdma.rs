//! Connections between hosts by RDMA over a device of the kernel's, between two virtual machines: every byte is checked, also when the
//! device's packets stay away while they run. The device is rxe, which software emulates on the machines' network cards.

use std::time::Duration;

use serde_json::Value;
use shunt_functional::generator::parse;
use shunt_functional::mode::Mode;
use shunt_functional::record::compare;
use shunt_functional::rounds::are_long;
use shunt_functional::sandbox::Sandbox;
use shunt_functional::vm::{Guest, Image, Said};

/// For what takes as long as an emulated machine likes.
const PATIENCE: Duration = Duration::from_secs(300);

/// Makes the device.
const PLUG: &str = "rdma link add rxe0 type rxe netdev eth0";

/// Makes another one, on a second card of the same wire, which answers for its own address alone.
const SECOND: &str = "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore && \
     ip link add link eth0 name eth1 type macvlan && \
     ip addr add $(ip -4 addr show dev eth0 | sed -n 's|.*inet \\(.*\\)[.]\\([0-9]*\\)/.*|\\1.1\\2|p')/24 dev eth1 && \
     ip link set eth1 up && rdma link add rxe1 type rxe netdev eth1";

/// Takes it away, which waits for all that have it open.
const UNPLUG: &str = "timeout 60 rdma link del rxe0";

/// All packets of the device are lost, and no others.
const CUT: &str = "/bin/tc qdisc add dev eth0 root handle 1: prio && \
     /bin/tc qdisc add dev eth0 parent 1:3 handle 30: netem loss 100% && \
     /bin/tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3";
/// They take 50 ms longer, so that TCP is faster for sure.
const DELAY: &str = "/bin/tc qdisc add dev eth0 root handle 1: prio && \
     /bin/tc qdisc add dev eth0 parent 1:3 handle 30: netem delay 50ms && \
     /bin/tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3";
const MEND: &str = "/bin/tc qdisc del dev eth0 root";

/// Packets that the device has sent.
const PACKETS: &str = "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts";

/// Two hosts.
struct Hosts {
    guests: [Guest; 2],
    /// Devices of agents, and their further arguments.
    devices: &'static str,
    arguments: &'static str,
    /// What each agent is told of the other one.
    peers: [String; 2],
    _place: Sandbox,
}

/// A server that runs, and what its client is to be told.
struct Serving {
    who: usize,
    port: u16,
    traffic: String,
}

impl Hosts {
    /// Hosts that promote connections though the device is slower than TCP.
    fn boot() -> Self {
        Self::boot_with(PLUG, "rxe0", "--rdma-promote always")
    }

    /// The same, with devices that are made so, and so called, and agents with these arguments besides.
    fn boot_with(plug: &str, devices: &'static str, arguments: &'static str) -> Self {
        let place = Sandbox::new(Mode::Plain);
        let image = Image::with_rdma(place.path());
        let mut guests = Guest::pair(&place, &image).map(Guest::ready);
        let keys = guests.each_mut().map(|guest| {
            guest.must(plug);
            guest.must("shunt agent-key")
        });
        let ips = guests.each_ref().map(ip);
        let peers = [1, 0].map(|other: usize| format!("{}={}", ips[other], keys[other]));
        let mut hosts = Self { guests, devices, arguments, peers, _place: place };
        (0..2).for_each(|who| hosts.start_agent(who, ""));
        hosts
    }

    /// Starts an agent, behind what a shell does first.
    fn start_agent(&mut self, who: usize, first: &str) {
        let (peer, devices, arguments) = (&self.peers[who], self.devices, self.arguments);
        self.guests[who].must(&format!(
            "({first} exec shunt agent --rdma {devices} {arguments} --peer {peer} >> /tmp/agent 2>&1) & \
             echo $! > /tmp/agent.pid; until shunt machines; do sleep 0.1; done"
        ));
    }

    /// `kill -9`.
    fn kill_agent(&mut self, who: usize) {
        self.guests[who].must("kill -9 $(cat /tmp/agent.pid)");
    }

    /// Waits until all hosts have a link group with the other one.
    fn until_linked(&mut self) {
        for guest in &mut self.guests {
            let is_linked = "shunt machines --json | grep -q '\"link_groups\": [1-9]'";
            let said = guest.run(&format!("until {is_linked}; do sleep 0.2; done"), PATIENCE);
            assert!(said.ok, "{}", said.text);
        }
    }

    /// What each agent says of its peer.
    fn peers(&mut self) -> [Value; 2] {
        self.guests.each_mut().map(|guest| {
            let status: Value =
                serde_json::from_str(&guest.must("shunt machines --json")).expect("JSON");
            status["peers"][0].clone()
        })
    }

    /// Connections that each agent has had over RDMA.
    fn connections(&mut self) -> [u64; 2] {
        self.peers().map(|peer| peer["connections_total"].as_u64().expect("a number"))
    }

    /// Starts `shunt-gen serve` on a host. The kernel's buffers are small, so that neither end is through with a connection over TCP
    /// while the other one is not, and all of them get to be carried.
    fn serve(&mut self, who: usize, port: u16, traffic: &str) -> Serving {
        let traffic = format!("{traffic} --buffers 4096 --stall 200");
        let at = format!("{}:{port}", ip(&self.guests[who]));
        self.guests[who].must(&format!(
            "rm -f /tmp/status; (shunt run -- shunt-gen serve --listen {at} {traffic} > /tmp/serve 2> /tmp/errors; \
             echo $? > /tmp/status) & until grep -q port /tmp/serve; do sleep 0.1; done"
        ));
        self.until_known(1 - who, &at);
        Serving { who, port, traffic }
    }

    /// Waits until a host's agent knows of a listener on the other one.
    fn until_known(&mut self, who: usize, listener: &str) {
        self.guests[who]
            .must(&format!("until shunt machines --json | grep -q {listener}; do sleep 0.1; done"));
    }

    /// Starts its client.
    fn connect(&mut self, serving: &Serving) {
        let Serving { who, port, traffic } = serving;
        let at = format!("{}:{port}", ip(&self.guests[*who]));
        self.guests[1 - who].must(&format!(
            "rm -f /tmp/over; (shunt run -- shunt-gen connect --to {at} {traffic} > /tmp/connect 2> /tmp/failures; \
             echo $? > /tmp/over) &"
        ));
    }

    /// Waits until client and server are through: what they say.
    fn ended(&mut self, serving: &Serving) -> [Said; 2] {
        let both = [
            (1 - serving.who, "over", "connect", "failures"),
            (serving.who, "status", "serve", "errors"),
        ];
        both.map(|(who, status, out, err)| {
            let line = format!(
                "until [ -e /tmp/{status} ]; do sleep 0.2; done; cat /tmp/{out} /tmp/{err}; exit $(cat /tmp/{status})"
            );
            self.guests[who].run(&line, PATIENCE)
        })
    }

    /// Waits until both are through, and compares every byte.
    fn compare(&mut self, serving: &Serving) {
        let said = self.ended(serving);
        let agents = || said.iter().map(|said| said.text.as_str()).collect::<Vec<_>>().join("\n");
        assert!(said.iter().all(|said| said.ok), "{}\n{}", agents(), self.logs());
        let [clients, servers] = said.map(|said| parse(&said.text));
        compare(&clients, &servers).unwrap_or_else(|e| panic!("{e}\n{}", self.logs()));
    }

    /// Runs a command on both.
    fn must_all(&mut self, line: &str) {
        for guest in &mut self.guests {
            guest.must(line);
        }
    }

    fn logs(&mut self) -> String {
        self.guests.each_mut().map(|guest| guest.must("cat /tmp/agent")).join("\n")
    }
}

fn ip(guest: &Guest) -> String {
    guest.ip.map(|part| part.to_string()).join(".")
}

#[test]
fn every_byte_arrives_over_a_device_and_over_tcp_where_that_fails() {
    let mut hosts = Hosts::boot();
    let transfers =
        [(0, "-n 6 -b 500000 --style blocking"), (1, "-n 6 -b 500000 --style epoll-et")];
    for (port, (who, traffic)) in (7001..).zip(transfers) {
        carried(&mut hosts, 6, |hosts| {
            let serving = hosts.serve(who, port, traffic);
            hosts.connect(&serving);
            hosts.compare(&serving);
        });
    }
    carried(&mut hosts, 4, redis);
    carried(&mut hosts, 4, nginx);
    the_wire_is_cut(&mut hosts);
    the_device_is_removed(&mut hosts);
}

/// Where agents are left to judge, connections stay on TCP while that is faster than the device.
#[test]
fn a_device_that_is_slower_than_tcp_carries_nothing() {
    let mut hosts = Hosts::boot_with(&format!("{PLUG} && {DELAY}"), "rxe0", "");
    hosts.until_linked();
    let judged = "shunt machines --json | grep -q '\"promotion\": \"slower\"'";
    for guest in &mut hosts.guests {
        let said = guest.run(&format!("until {judged}; do sleep 0.2; done"), PATIENCE);
        assert!(said.ok, "{}", said.text);
    }
    for guest in &mut hosts.guests {
        let said = guest.must("shunt machines");
        assert!(said.contains("the link is slower than TCP"), "{said}");
    }
    let serving = hosts.serve(0, 7600, "-n 4 -b 300000 --style epoll-et");
    hosts.connect(&serving);
    hosts.compare(&serving);
    redis(&mut hosts);
    assert_eq!(hosts.connections(), [0, 0], "{}", hosts.logs());
}

/// At length: other things that end, packets that are lost, and many connections.
#[test]
fn what_ends_ends_as_over_tcp_and_the_next_is_carried() {
    if !are_long() {
        return;
    }
    let mut hosts = Hosts::boot();
    carried(&mut hosts, 2, iperf3);
    carried(&mut hosts, 1, sockperf);
    an_agent_ends(&mut hosts);
    an_agent_is_killed(&mut hosts);
    a_program_is_killed(&mut hosts);
    packets_are_lost(&mut hosts);
    there_are_many(&mut hosts);
    packets_are_long(&mut hosts);
    memory_may_not_be_registered(&mut hosts);
}

/// At length: a device is removed under busy connections, and they go on over the other one. On a slow machine that may come too late, and
/// then they are back on TCP, so it is tried more than once: all bytes arrive each time.
#[test]
fn connections_go_on_over_another_device() {
    if !are_long() {
        return;
    }
    let plug = format!("{PLUG} && {SECOND}");
    let mut hosts = Hosts::boot_with(&plug, "rxe0,rxe1", "--rdma-promote always");
    let mut seen = Vec::new();
    for (port, [from, card]) in (7800..).zip([["rxe0", "eth0"], ["rxe1", "eth1"]].repeat(3)) {
        hosts.until_linked();
        let demoted = |hosts: &mut Hosts| {
            let count = "shunt stats --json | grep -m1 connections_demoted | grep -o '[0-9]*'";
            hosts.guests.each_mut().map(|guest| guest.must(count))
        };
        let failovers =
            |hosts: &mut Hosts| hosts.peers().map(|peer| peer["failovers_total"].as_u64());
        let before = (demoted(&mut hosts), failovers(&mut hosts));
        let serving = begin(&mut hosts, port, "-n 4 -b 8000000 --style epoll-et");
        hosts.guests[0].must(&format!("timeout 60 rdma link del {from}"));
        hosts.compare(&serving);
        hosts.guests[0].must(&format!("rdma link add {from} type rxe netdev {card}"));
        let after = (demoted(&mut hosts), failovers(&mut hosts));
        if before.0 == after.0 && (0..2).all(|who| before.1[who] < after.1[who]) {
            return;
        }
        seen.push((before, after));
    }
    panic!("connections went back to TCP: {seen:?}\n{}", hosts.logs());
}

/// Most of so many connections are carried by the device.
fn carried(hosts: &mut Hosts, wanted: u64, connections: impl FnOnce(&mut Hosts)) {
    hosts.until_linked();
    let packets = |hosts: &mut Hosts| {
        hosts.guests.each_mut().map(|guest| guest.must(PACKETS).parse::<u64>().expect("a number"))
    };
    let before = (hosts.connections(), packets(hosts));
    connections(hosts);
    let after = (hosts.connections(), packets(hosts));
    for at in 0..2 {
        let carried = after.0[at] - before.0[at];
        assert!(carried * 2 > wanted, "{before:?}, {after:?}\n{}", hosts.logs());
        assert!(after.1[at] >= before.1[at] + carried, "{before:?}, {after:?}\n{}", hosts.logs());
    }
}

/// A server that is not changed, and what it says.
fn redis(hosts: &mut Hosts) {
    let at = format!("{}:7100", ip(&hosts.guests[0]));
    hosts.guests[0].must(
        "(shunt run -- redis-server --port 7100 --bind 0.0.0.0 --protected-mode no --save '' > /tmp/redis 2>&1) &",
    );
    hosts.until_known(1, ":7100");
    let client = &mut hosts.guests[1];
    let (host, port) = at.split_once(':').expect("an address");
    let value = "0123456789".repeat(20);
    client.must(&format!("shunt run -- redis-cli -h {host} -p {port} set key {value}"));
    let said = client.must(&format!("shunt run -- redis-cli -h {host} -p {port} get key"));
    assert_eq!(said, value);
    let line = format!(
        "shunt run -- redis-benchmark -h {host} -p {port} -c 4 -n 200 -d 2000 -t set,get -q"
    );
    let said = client.run(&line, PATIENCE);
    assert!(said.ok && said.text.contains("GET: ") && !said.text.contains("rror"), "{}", said.text);
}

/// A server with workers, and a client with an epoll instance.
fn nginx(hosts: &mut Hosts) {
    let conf = "user root; worker_processes 2; error_log stderr; pid /tmp/nginx.pid; events {} \
         http { access_log off; server { listen 10.77.0.2:7500; location / { return 200 hello; } } }";
    hosts.guests[0].must(&format!(
        "echo '{conf}' > /tmp/nginx.conf; (shunt run -- nginx -c /tmp/nginx.conf > /tmp/nginx 2>&1) &"
    ));
    hosts.until_known(1, "10.77.0.2:7500");
    let line = "shunt run -- wrk -t 1 -c 4 -d 3s --timeout 30s http://10.77.0.2:7500/";
    let said = hosts.guests[1].run(line, PATIENCE);
    let is_whole = said.text.contains("requests in") && !said.text.contains("errors");
    assert!(said.ok && is_whole, "{}", said.text);
    hosts.guests[0].must("kill $(cat /tmp/nginx.pid)");
}

/// One connection says what is to be sent, the other one carries it.
fn iperf3(hosts: &mut Hosts) {
    hosts.guests[0].must("(shunt run -- iperf3 -s -1 -p 7510 > /tmp/iperf3 2>&1) &");
    hosts.until_known(1, ":7510");
    let line = "shunt run -- iperf3 -c 10.77.0.2 -p 7510 -n 8M";
    let said = hosts.guests[1].run(line, PATIENCE);
    assert!(said.ok && said.text.contains("receiver"), "{}", said.text);
}

fn sockperf(hosts: &mut Hosts) {
    hosts.guests[0].must("(shunt run -- sockperf sr --tcp -p 7520 > /tmp/sockperf 2>&1) &");
    hosts.until_known(1, ":7520");
    let line = "shunt run -- sockperf pp --tcp -i 10.77.0.2 -p 7520 -t 2 -m 64";
    let said = hosts.guests[1].run(line, PATIENCE);
    assert!(said.ok && said.text.contains("avg-latency"), "{}", said.text);
    hosts.guests[0].must("kill $(pidof sockperf)");
}

/// Connections that are busy, and carried, while something happens: all of their bytes arrive, and the agents say why it is not by the device.
/// New ones are carried once that is over.
fn busy_while(hosts: &mut Hosts, port: u16, happens: fn(&mut Hosts), is_over: fn(&mut Hosts)) {
    hosts.until_linked();
    let serving = begin(hosts, port, "-n 4 -b 8000000 --style epoll-et");
    happens(hosts);
    hosts.compare(&serving);
    let reasons = hosts.peers().map(|peer| peer["link_group_reason"].clone());
    assert!(reasons.iter().any(Value::is_string), "{reasons:?}");
    is_over(hosts);
    carried(hosts, 2, |hosts| {
        let serving = hosts.serve(1, port + 1, "-n 2 -b 200000 --style poll");
        hosts.connect(&serving);
        hosts.compare(&serving);
    });
}

/// Starts four connections, and waits until nearly all are carried.
fn begin(hosts: &mut Hosts, port: u16, traffic: &str) -> Serving {
    let wanted = hosts.connections()[0] + 3;
    let serving = hosts.serve(0, port, traffic);
    hosts.connect(&serving);
    let total = format!("total\": ({wanted}|{})", wanted + 1);
    hosts.guests[0].must(&format!(
        "until shunt machines --json | grep connections_total | grep -qE '{total}'; do sleep 0.1; done"
    ));
    serving
}

fn the_wire_is_cut(hosts: &mut Hosts) {
    busy_while(hosts, 7200, |hosts| hosts.must_all(CUT), |hosts| hosts.must_all(MEND));
}

/// The kernel takes a device away only when nobody has it open any more: the agent lets it go.
fn the_device_is_removed(hosts: &mut Hosts) {
    let unplug = |hosts: &mut Hosts| {
        hosts.guests[0].must(UNPLUG);
        let log = hosts.guests[0].must("cat /tmp/agent");
        assert!(log.contains("the RDMA device is removed (rxe0)"), "{log}");
    };
    busy_while(hosts, 7300, unplug, |hosts| {
        hosts.guests[0].must(PLUG);
    });
}

/// Connections that go on for ever.
const ENDLESS: &str = "-n 4 -b 1000000000000 --style epoll-et";

/// New connections are carried.
fn next_are_carried(hosts: &mut Hosts, port: u16, traffic: &str, wanted: u64) {
    carried(hosts, wanted, |hosts| {
        let serving = hosts.serve(1, port, traffic);
        hosts.connect(&serving);
        hosts.compare(&serving);
    });
}

const FEW: &str = "-n 2 -b 200000 --style poll";

/// One of the ways in which TCP tells that the peer is gone.
fn is_told_of_the_end(said: &Said) -> bool {
    ["reset", "ended", "Broken pipe"].iter().any(|way| said.text.contains(way))
}

/// As for an update: its connections go back to TCP first, and its successor carries new ones.
fn an_agent_ends(hosts: &mut Hosts) {
    let ends = |hosts: &mut Hosts| {
        hosts.guests[1].must(
            "kill $(cat /tmp/agent.pid); until [ ! -e /run/shunt/agent.sock ]; do sleep 0.1; done",
        );
        hosts.start_agent(1, "");
    };
    busy_while(hosts, 7390, ends, |_| ());
}

/// Its connections are reset at both ends, since nobody says where they stood.
fn an_agent_is_killed(hosts: &mut Hosts) {
    for (who, port) in [(0, 7400), (1, 7410)] {
        hosts.until_linked();
        let serving = begin(hosts, port, ENDLESS);
        hosts.kill_agent(who);
        for said in hosts.ended(&serving) {
            assert!(!said.ok && is_told_of_the_end(&said), "{}", said.text);
        }
        hosts.start_agent(who, "");
        next_are_carried(hosts, port + 1, FEW, 2);
    }
}

/// Its peer sees the end, or a reset, as the kernel tells it.
fn a_program_is_killed(hosts: &mut Hosts) {
    for (who, port) in [(0, 7420), (1, 7430)] {
        hosts.until_linked();
        let serving = begin(hosts, port, ENDLESS);
        hosts.guests[who].must("kill -9 $(pidof shunt-gen)");
        let [client, server] = hosts.ended(&serving);
        let other = if who == serving.who { client } else { server };
        assert!(!other.ok && is_told_of_the_end(&other), "{}", other.text);
        next_are_carried(hosts, port + 1, FEW, 2);
    }
}

/// One packet in a hundred, of the device's and of TCP's.
fn packets_are_lost(hosts: &mut Hosts) {
    hosts.until_linked();
    hosts.must_all("/bin/tc qdisc add dev eth0 root netem loss 1%");
    let serving = hosts.serve(0, 7440, "-n 4 -b 300000 --style poll");
    hosts.connect(&serving);
    hosts.compare(&serving);
    hosts.must_all(MEND);
    next_are_carried(hosts, 7441, FEW, 2);
}

/// The device takes the longest packets that there are, of 4096 bytes, from a network card that takes 9000.
fn packets_are_long(hosts: &mut Hosts) {
    let packets = |hosts: &mut Hosts, port| {
        let count =
            |hosts: &mut Hosts| hosts.guests[1].must(PACKETS).parse::<u64>().expect("a number");
        hosts.until_linked();
        let before = count(hosts);
        next_are_carried(hosts, port, "-n 2 -b 2000000 --style poll", 2);
        count(hosts) - before
    };
    let short = packets(hosts, 7470);
    for guest in &mut hosts.guests {
        guest.must(&format!("{UNPLUG} && ip link set eth0 mtu 9000 && {PLUG}"));
    }
    let long = packets(hosts, 7471);
    assert!(long < short, "{long} packets, and {short} of 1024 bytes");
}

/// Far more than memory may be registered for: the others stay on TCP.
fn there_are_many(hosts: &mut Hosts) {
    next_are_carried(hosts, 7450, "-n 300 -b 20000 --style epoll-et", 15);
}

/// Not even for a link group: all stay on TCP, and both agents say why.
fn memory_may_not_be_registered(hosts: &mut Hosts) {
    hosts.kill_agent(1);
    hosts.start_agent(1, "ulimit -l 32;");
    let whys = ["the peer refuses: it may not register more memory", "raise RLIMIT_MEMLOCK"];
    for (guest, why) in hosts.guests.iter_mut().zip(whys) {
        guest.must(&format!("until shunt machines --json | grep -q '{why}'; do sleep 0.2; done"));
    }
    let before = hosts.connections();
    let serving = hosts.serve(0, 7460, FEW);
    hosts.connect(&serving);
    hosts.compare(&serving);
    assert_eq!(hosts.connections(), before);
}
