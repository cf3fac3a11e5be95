//! Connections between hosts by RDMA over a device of the kernel's, between two virtual machines: every byte is checked, also when the
//! device's packets stay away while they run. The device is rxe, which software emulates on the machines' network cards.

use std::time::Duration;

use serde_json::Value;
use shunt_functional::generator::parse;
use shunt_functional::mode::Mode;
use shunt_functional::record::compare;
use shunt_functional::sandbox::Sandbox;
use shunt_functional::vm::{Guest, Image};

/// For what takes as long as an emulated machine likes.
const PATIENCE: Duration = Duration::from_secs(300);

/// Makes the device.
const PLUG: &str = "rdma link add rxe0 type rxe netdev eth0";

/// Takes it away, which waits for all that have it open.
const UNPLUG: &str = "timeout 60 rdma link del rxe0";

/// All packets of the device are lost, and no others.
const CUT: &str = "/bin/tc qdisc add dev eth0 root handle 1: prio && \
     /bin/tc qdisc add dev eth0 parent 1:3 handle 30: netem loss 100% && \
     /bin/tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3";
const MEND: &str = "/bin/tc qdisc del dev eth0 root";

/// Packets that the device has sent.
const PACKETS: &str = "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts";

/// Two hosts.
struct Hosts {
    guests: [Guest; 2],
    _place: Sandbox,
}

/// A server that runs, and what its client is to be told.
struct Serving {
    who: usize,
    port: u16,
    traffic: String,
}

impl Hosts {
    fn boot() -> Self {
        let place = Sandbox::new(Mode::Plain);
        let image = Image::with_rdma(place.path());
        let mut guests = Guest::pair(&place, &image).map(Guest::ready);
        let keys = guests.each_mut().map(|guest| {
            guest.must(PLUG);
            guest.must("shunt agent-key")
        });
        let ips = guests.each_ref().map(ip);
        for (at, guest) in guests.iter_mut().enumerate() {
            let (ip, key) = (&ips[1 - at], &keys[1 - at]);
            guest.must(&format!(
                "(shunt agent --rdma rxe0 --peer {ip}={key} > /tmp/agent 2>&1) & until shunt machines; do sleep 0.1; done"
            ));
        }
        Self { guests, _place: place }
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

    /// Waits until both are through, and compares every byte.
    fn compare(&mut self, serving: &Serving) {
        let both = [
            (1 - serving.who, "over", "connect", "failures"),
            (serving.who, "status", "serve", "errors"),
        ];
        let said = both.map(|(who, status, out, err)| {
            let line = format!(
                "until [ -e /tmp/{status} ]; do sleep 0.2; done; cat /tmp/{out} /tmp/{err}; exit $(cat /tmp/{status})"
            );
            self.guests[who].run(&line, PATIENCE)
        });
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
    the_wire_is_cut(&mut hosts);
    the_device_is_removed(&mut hosts);
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
    hosts.until_known(1, "10.77.0.2:7100");
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

/// Connections that are busy, and carried, while something happens: all of their bytes arrive, and the agents say why it is not by the device.
/// New ones are carried once that is over.
fn busy_while(hosts: &mut Hosts, port: u16, happens: fn(&mut Hosts), is_over: fn(&mut Hosts)) {
    hosts.until_linked();
    let wanted = hosts.connections()[0] + 3;
    let serving = hosts.serve(0, port, "-n 4 -b 8000000 --style epoll-et");
    hosts.connect(&serving);
    let total = format!("total\": ({wanted}|{})", wanted + 1);
    hosts.guests[0].must(&format!(
        "until shunt machines --json | grep connections_total | grep -qE '{total}'; do sleep 0.1; done"
    ));
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
