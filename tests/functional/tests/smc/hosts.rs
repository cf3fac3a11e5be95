//! The two machines, and what runs on them.

use std::time::Duration;

use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;
use shunt_functional::vm::{Guest, Image, Said};

/// For what takes as long as an emulated machine likes.
pub const PATIENCE: Duration = Duration::from_secs(300);

pub const AT: &str = "10.77.0.2";

/// State of a socket of the server's that carries bytes by SMC-R.
pub const CARRIED: &str = "state 1 smc-r reason 0x00000000";

/// Two machines.
pub struct Hosts {
    pub server: Guest,
    pub client: Guest,
    _place: Sandbox,
}

impl Hosts {
    pub fn boot() -> Self {
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
    pub fn serve(&mut self, port: u16, more: &str) {
        self.server.must(&format!(
            "shunt-smc-peer serve {port} {more} > /tmp/serve{port} 2>&1 & \
             echo $! > /tmp/serve{port}.pid; until grep -q serving /tmp/serve{port}; do sleep 0.1; done"
        ));
    }

    /// What a client says that must succeed.
    pub fn connect(&mut self, port: u16, options: &str) -> String {
        let line = format!("shunt-smc-peer connect {AT}:{port} {options}");
        let said = self.client.run(&line, PATIENCE);
        assert!(said.ok, "{}\n{}", said.text, self.logs(port));
        said.text
    }

    /// Starts a client that keeps its connections when all bytes are back, and waits until they
    /// are.
    pub fn begin(&mut self, port: u16, options: &str) {
        self.client.must("rm -f /tmp/go /tmp/over");
        self.client.must(&format!(
            "(shunt-smc-peer connect {AT}:{port} --hold /tmp/go {options} > /tmp/held 2>&1 & \
             echo $! > /tmp/held.pid; wait $!; echo $? > /tmp/over) &"
        ));
    }

    /// The same, and waits until they are.
    pub fn hold(&mut self, port: u16, options: &str) {
        self.begin(port, options);
        let until = "until grep -q held /tmp/held || [ -e /tmp/over ]; do sleep 0.2; done; ! [ -e /tmp/over ]";
        let said = self.client.run(until, PATIENCE);
        let held = self.client.must("cat /tmp/held");
        assert!(said.ok && !held.contains("tcp"), "{held}\n{}", self.logs(port));
    }

    /// Has it end; what it has said.
    pub fn let_go(&mut self) -> String {
        self.client.must("touch /tmp/go");
        let said = self.ended();
        assert!(said.ok, "{}", said.text);
        self.until_gone();
        said.text
    }

    /// Waits until it has ended.
    pub fn ended(&mut self) -> Said {
        let line =
            "until [ -e /tmp/over ]; do sleep 0.2; done; cat /tmp/held; exit $(cat /tmp/over)";
        self.client.run(line, PATIENCE)
    }

    /// Starts the client's agent, which is told that there are servers with SMC-R at these ports.
    pub fn start_agent(&mut self, eid: &str, ports: &[u16]) {
        let servers: Vec<_> = ports.iter().map(|port| format!("'{AT}:{port}'")).collect();
        self.start_agent_for(eid, &servers.join(", "));
    }

    /// The same, of servers as the policy names them.
    pub fn start_agent_for(&mut self, eid: &str, servers: &str) {
        let policy = format!("[smc]\\neid = ['{eid}']\\nserver = [{servers}]");
        self.client.must(&format!("printf \"{policy}\\n\" > /tmp/policy; shunt agent-key --host"));
        self.client.must(
            "(ulimit -l unlimited; RUST_LOG=debug exec shunt agent --host --policy /tmp/policy --rdma rxe0 >> /tmp/agent 2>&1) & \
             echo $! > /tmp/agent.pid; until shunt machines; do sleep 0.1; done",
        );
    }

    pub fn agent_log(&mut self) -> String {
        self.client.must("cat /tmp/agent")
    }

    /// Runs a client that knows nothing but TCP under Shunt: what it says.
    pub fn plain(&mut self, port: u16, bytes: u64) -> String {
        let line = format!("shunt run --summary -- shunt-smc-peer plain {AT}:{port} {bytes}");
        let said = self.client.run(&line, PATIENCE);
        assert!(said.ok, "{}\n{}\n{}", said.text, self.agent_log(), self.logs(port));
        said.text
    }

    /// Starts one that keeps its connections when all bytes are sent.
    pub fn begin_plain(&mut self, port: u16, number: usize, bytes: u64, count: usize) {
        self.client.must(&format!(
            "rm -f /tmp/over{number}; (shunt run --summary -- shunt-smc-peer plain {AT}:{port} {bytes} \
             -n {count} --hold /tmp/go > /tmp/plain{number} 2>&1; echo $? > /tmp/over{number}) &"
        ));
    }

    /// Makes so many connections of one program's at once, keeps them until the bytes of all are sent, and compares them. The
    /// server has said of `echoed` connections by then that they are over.
    pub fn all_at_once(&mut self, port: u16, count: usize, bytes: u64, echoed: usize) {
        self.client.must("rm -f /tmp/go");
        self.begin_plain(port, 0, bytes, count);
        self.until_held(port, 0);
        let carried = self.sockets(CARRIED);
        assert_eq!(carried, count, "{}\n{}", self.agent_log(), self.logs(port));
        self.client.must("touch /tmp/go");
        let said = self.end_of_plain(0);
        assert_eq!(said.matches(&format!("{bytes} bytes back")).count(), count, "{said}");
        let echoed = self.echoed(port, echoed);
        assert!(!echoed.contains("failed"), "{echoed}");
    }

    pub fn until_held(&mut self, port: u16, number: usize) {
        let line = format!(
            "n=0; until grep -q held /tmp/plain{number} || [ -e /tmp/over{number} ] || [ $n = 1000 ]; \
             do sleep 0.1; n=$((n+1)); done; grep -q held /tmp/plain{number}"
        );
        let held = self.client.run(&line, PATIENCE).ok;
        let said = self.client.must(&format!("cat /tmp/plain{number}; shunt list"));
        assert!(held, "{said}\n{}\n{}", self.agent_log(), self.logs(port));
    }

    /// What it says, once it has ended.
    pub fn end_of_plain(&mut self, number: usize) -> String {
        let line =
            format!("until [ -e /tmp/over{number} ]; do sleep 0.1; done; cat /tmp/plain{number}");
        let said = self.client.run(&line, PATIENCE);
        assert!(said.ok, "{}\n{}", said.text, self.agent_log());
        said.text
    }

    /// How many sockets of the server's are so.
    pub fn sockets(&mut self, which: &str) -> usize {
        let all = self.server.must("shunt-smc-peer list");
        all.lines().filter(|line| line.starts_with(which)).count()
    }

    /// What a server has said, once it has said that of so many connections.
    pub fn echoed(&mut self, port: u16, count: usize) -> String {
        let line = format!(
            "until [ $(grep -cE 'echoed|failed' /tmp/serve{port}) -ge {count} ]; do sleep 0.2; done; cat /tmp/serve{port}"
        );
        let said = self.server.run(&line, PATIENCE);
        assert!(said.ok, "{}", said.text);
        said.text
    }

    /// Waits until the server's kernel has no link group any more.
    pub fn until_gone(&mut self) {
        let line = "until [ $(shunt-smc-peer groups) = 0 ]; do sleep 0.2; done";
        let said = self.server.run(line, PATIENCE);
        assert!(said.ok, "{}", said.text);
    }

    pub fn groups(&mut self) -> String {
        self.server.must("shunt-smc-peer groups")
    }

    pub fn logs(&mut self, port: u16) -> String {
        self.server.must(&format!("cat /tmp/serve{port}; shunt-smc-peer list; dmesg | tail -n 20"))
    }
}
