//! Machines that share memory, or reach each other by RDMA, without virtual ones: network namespaces with a link between them,
//! each with an agent that is a peer of one ivshmem server, or of the other agents.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::binaries::{built, program};
use crate::generator::{Server, records};
use crate::mode::Mode;
use crate::record::compare;
use crate::relay::{RELAYED, Relay};
use crate::sandbox::{Process, Sandbox, is_root};
use crate::waiting::settles;

/// Two machines, their link and their server.
pub struct Lab {
    place: Sandbox,
    /// Ends both namespaces.
    holder: Process,
    server: Option<Process>,
    /// Between the agents of two hosts.
    relay: Option<Relay>,
    /// The machines, of which the first one is at 10.77.0.1 and so on.
    pub machines: Vec<Machine>,
}

/// How a machine's agent meets others.
enum Meets {
    /// By the memory of the server at this socket.
    Server(PathBuf),
    /// By these arguments, with the stub of libibverbs in this directory.
    Agents(Vec<String>, PathBuf),
}

/// A machine.
pub struct Machine {
    sandbox: Sandbox,
    /// A process in its network.
    pid: i32,
    meets: Meets,
    /// Its address.
    pub ip: [u8; 4],
}

/// Namespaces of which each has a link to a bridge in the first one, and waits until it is told to end.
const NETWORK: &str = r#"set -e
count=$1
all=
trap 'kill $all; exit 0' TERM
ip link set lo up
ip link add shunt0 type bridge
ip addr add 10.77.0.1/24 dev shunt0
ip link set shunt0 up
echo machine $$
n=2
while [ $n -le $count ]; do
    unshare --net sleep infinity &
    pid=$!
    all="$all $pid"
    until [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do :; done
    ip link add "shunt$n" type veth peer name eth0 netns "$pid"
    ip link set "shunt$n" master shunt0 up
    nsenter --net --target "$pid" sh -c "ip link set lo up; ip addr add 10.77.0.$n/24 dev eth0; ip link set eth0 up"
    echo machine $pid
    n=$((n + 1))
done
sleep infinity &
all="$all $!"
echo ready
wait
"#;

impl Lab {
    /// So many machines that share so much memory (as `shunt ivshmem-server --size` takes it).
    ///
    /// # Panics
    /// When they can't be made.
    #[must_use]
    pub fn new(count: usize, size: &str) -> Self {
        let (mut lab, pids) = Self::of(count);
        lab.start_server(&["--size", size, "--vectors", "4"]);
        let socket = lab.socket();
        for (pid, n) in pids.into_iter().zip(1_u8..) {
            lab.add(pid, n, Meets::Server(socket.clone()));
        }
        lab.until_all_see(lab.machines.len());
        lab
    }

    /// Two hosts whose devices are those of the stub of libibverbs.
    ///
    /// # Panics
    /// When they can't be made.
    #[must_use]
    pub fn of_hosts() -> Self {
        Self::hosts(false, true, "stub0")
    }

    /// The same, whose devices have a second port, which is used when the first one is down.
    ///
    /// # Panics
    /// When they can't be made.
    #[must_use]
    pub fn of_hosts_with_two_ports() -> Self {
        Self::hosts(false, true, "stub0,stub0/2")
    }

    /// The same, over a wire that is far slower than TCP, where agents judge whether connections gain.
    ///
    /// # Panics
    /// When they can't be made.
    #[must_use]
    pub fn of_hosts_with_a_slow_wire() -> Self {
        Self::hosts(false, false, "stub0")
    }

    /// The same, with a [`Relay`] between their agents.
    ///
    /// # Panics
    /// When they can't be made.
    #[must_use]
    pub fn of_hosts_by_relay() -> Self {
        Self::hosts(true, true, "stub0")
    }

    fn hosts(has_relay: bool, promotes_always: bool, device: &str) -> Self {
        let (mut lab, pids) = Self::of(2);
        lab.relay = has_relay.then(|| Relay::start(&lab.place, inside(&lab.place, pids[0])));
        let wire = lab.place.path().join("wire");
        fs::create_dir(&wire).expect("a directory");
        if !promotes_always {
            lab.set_slow(true);
        }
        let source =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/shunt-verbs/tests/stub/stub.c");
        let library = wire.join("libibverbs.so.1");
        let mut compiler = Command::new(program("cc"));
        compiler.args(["-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-o"]).arg(library).arg(source);
        let compiled = compiler.output().expect("cc runs");
        assert!(compiled.status.success(), "the header of libibverbs-dev is needed: {compiled:?}");
        let keys: Vec<_> = (1..=2).map(|n| lab.key(n)).collect();
        for (pid, n) in pids.into_iter().zip(1_u8..) {
            let (own, other) = (usize::from(n) - 1, usize::from(2 - n));
            let file = lab.place.path().join(format!("key{n}"));
            let mut arguments = vec![
                "--rdma".to_owned(),
                device.to_owned(),
                "--rdma-listen".to_owned(),
                format!("10.77.0.{n}:7609"),
                "--rdma-key".to_owned(),
                file.display().to_string(),
                "--peer".to_owned(),
                match has_relay {
                    true => format!("10.77.0.1:{}={}", RELAYED + u16::from(3 - n), keys[other]),
                    false => format!("10.77.0.{}={}", 3 - n, keys[other]),
                },
            ];
            assert_ne!(keys[own], keys[other]);
            if promotes_always {
                arguments.extend(["--rdma-promote", "always"].map(str::to_owned));
            }
            lab.add(pid, n, Meets::Agents(arguments, wire.clone()));
        }
        lab.until_linked();
        lab
    }

    /// Makes a key for an agent; the public part of it.
    fn key(&self, n: usize) -> String {
        let mut command = self.place.plain(built("shunt"));
        command.arg("agent-key").arg("--file").arg(self.place.path().join(format!("key{n}")));
        let output = command.output().expect("shunt runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("a key").trim().to_owned()
    }

    /// Waits until each host that has an agent has a link group with the other one.
    pub fn until_linked(&self) {
        for machine in &self.machines {
            settles("link groups", &true, || {
                machine.status()["peers"][0]["link_groups"].as_u64().is_some_and(|n| n > 0)
            });
        }
    }

    /// What lies between the agents.
    ///
    /// # Panics
    /// When they reach each other without.
    #[must_use]
    pub const fn relay(&self) -> &Relay {
        self.relay.as_ref().expect("a relay")
    }

    /// The file by whose presence nothing arrives by RDMA.
    #[must_use]
    pub fn cut_file(&self) -> PathBuf {
        self.place.path().join("wire/cut")
    }

    /// Nothing arrives by RDMA, or all does again.
    ///
    /// # Panics
    /// When there is no wire.
    pub fn cut(&self, is_cut: bool) {
        let cut = self.cut_file();
        if is_cut { fs::write(cut, "") } else { fs::remove_file(cut) }.expect("a wire");
    }

    /// One request by RDMA does not arrive, and its queue pair fails.
    ///
    /// # Panics
    /// When there is no wire.
    pub fn fail_once(&self) {
        fs::write(self.place.path().join("wire/fail"), "").expect("a wire");
    }

    /// Each request by RDMA takes a while, or none does any more.
    ///
    /// # Panics
    /// When there is no wire.
    pub fn set_slow(&self, is_slow: bool) {
        let slow = self.place.path().join("wire/slow");
        if is_slow { fs::write(slow, "") } else { fs::remove_file(slow) }.expect("a wire");
    }

    /// The port of a machine's device goes down, or comes up again.
    ///
    /// # Panics
    /// When there is no wire.
    pub fn set_port_down(&self, machine: usize, is_down: bool) {
        let place = self.device(machine);
        let down = place.with_extension("down");
        if is_down { fs::write(down, "") } else { fs::remove_file(down) }.expect("a wire");
        let says = UnixDatagram::unbound().expect("a socket");
        says.send_to(b"!", place).expect("a device");
    }

    /// A machine's device is removed, or comes again.
    ///
    /// # Panics
    /// When there is no wire.
    pub fn set_device_removed(&self, machine: usize, is_removed: bool) {
        let place = self.device(machine);
        let removed = place.with_extension("removed");
        let (from, to) = if is_removed { (place, removed) } else { (removed, place) };
        fs::rename(from, to).expect("a wire");
    }

    /// The file that stands for a machine's device.
    fn device(&self, machine: usize) -> PathBuf {
        let pid = self.machines[machine].sandbox.agent_pid().expect("an agent");
        self.place.path().join(format!("wire/{}", pid & 0xffff))
    }

    fn add(&mut self, pid: i32, n: u8, meets: Meets) {
        let sandbox = Sandbox::new(Mode::Attach);
        sandbox.kill_agent();
        let machine = Machine { sandbox, pid, meets, ip: [10, 77, 0, n] };
        machine.start_agent();
        self.machines.push(machine);
    }

    /// So many networks, each with a process in it.
    fn of(count: usize) -> (Self, Vec<i32>) {
        let place = Sandbox::new(Mode::Plain);
        let mut command = place.plain(program("unshare"));
        if !is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--net", "sh", "-c", NETWORK, "sh", &count.to_string()]);
        let mut holder = place.spawn(command);
        holder.wait_for_line(|line| (line == "ready").then_some(()));
        let pids = holder.whole_lines();
        let pids = pids.lines().filter_map(|line| line.strip_prefix("machine ")?.parse().ok());
        let pids: Vec<i32> = pids.collect();
        (Self { place, holder, server: None, relay: None, machines: Vec::new() }, pids)
    }

    /// Starts the server.
    pub fn start_server(&mut self, args: &[&str]) {
        let socket = self.place.path().join("ivshmem.sock");
        let mut command = self.place.plain(built("shunt"));
        command.arg("ivshmem-server").args(args).arg("--socket").arg(&socket);
        let server = self.place.spawn(command);
        settles("the server", &true, || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        self.server = Some(server);
    }

    /// A directory of the lab's own.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// The server's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.place.path().join("ivshmem.sock")
    }

    /// Runs a script in the first machine's network.
    ///
    /// # Panics
    /// When it fails.
    pub fn inside(&self, script: &str) {
        let mut command = self.machines[0].inside();
        let output = command.args(["sh", "-c", script]).output().expect("sh runs");
        assert!(output.status.success(), "{script}: {output:?}");
    }

    /// The server, to be ended.
    pub fn server(&mut self) -> &mut Process {
        self.server.as_mut().expect("a server")
    }

    /// Waits until each machine that has an agent knows of so many.
    pub fn until_all_see(&self, count: usize) {
        for machine in &self.machines {
            settles("machines that are known", &count, || {
                machine.status()["members"].as_array().map_or(0, Vec::len)
            });
        }
    }

    /// Runs connections from one machine to another, both in Shunt, and compares every byte.
    ///
    /// # Panics
    /// On any difference.
    pub fn run(&self, from: usize, to: usize, server: &[&str], client: &[&str]) {
        let (from, to) = (&self.machines[from], &self.machines[to]);
        let serving = to.serve(server);
        let at = SocketAddr::from((to.ip, serving.port));
        from.until_it_knows(at);
        let clients = records(from.connect(at, client));
        compare(&clients, &serving.finish())
            .unwrap_or_else(|e| panic!("{e}\nserver {server:?}\nclient {client:?}"));
    }
}

/// The beginning of a command line in the network of a process.
fn inside(sandbox: &Sandbox, pid: i32) -> Command {
    let mut command = sandbox.plain(program("nsenter"));
    if !is_root() {
        command.args(["--user", "--preserve-credentials"]);
    }
    command.args(["--net", "--target", &pid.to_string(), "--"]);
    command
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.machines.clear();
        self.relay = None;
        if let Some(server) = &mut self.server {
            server.terminate(libc::SIGTERM);
        }
        self.holder.terminate(libc::SIGTERM);
    }
}

impl Machine {
    /// The beginning of a command line in this machine's network.
    #[must_use]
    pub fn inside(&self) -> Command {
        inside(&self.sandbox, self.pid)
    }

    /// Starts its agent.
    pub fn start_agent(&self) {
        match &self.meets {
            Meets::Server(socket) => {
                let mut command = self.inside();
                command.arg("env").arg(format!("SHUNT_IVSHMEM={}", socket.display()));
                self.sandbox.start_agent_by(command, &[]);
            }
            Meets::Agents(arguments, wire) => self.start_agent_with(wire, arguments),
        }
    }

    /// Starts an agent for the host there, whose peer stands in this policy, which is written. It is read anew at SIGHUP.
    ///
    /// # Panics
    /// When there is none after a few seconds, or the machine has no peer.
    pub fn start_host_agent(&self, policy: &Path) {
        let Meets::Agents(arguments, wire) = &self.meets else { panic!("it has no peer") };
        let at = arguments.iter().position(|word| word == "--peer").expect("a peer");
        let (host, key) = arguments[at + 1].split_once('=').expect("a key");
        let text = format!("[[rdma.peer]]\nhost = \"{host}\"\nkey = \"{key}\"\n");
        fs::write(policy, text).expect("a file");
        let mut arguments = arguments.clone();
        let policy = policy.display().to_string();
        arguments.splice(at..at + 2, ["--host".to_owned(), "--policy".to_owned(), policy]);
        self.start_agent_with(wire, &arguments);
    }

    fn start_agent_with(&self, wire: &Path, arguments: &[String]) {
        let mut command = self.inside();
        let wire = wire.display();
        command
            .arg("env")
            .arg(format!("LD_LIBRARY_PATH={wire}"))
            .arg(format!("SHUNT_TEST_WIRE={wire}"));
        self.sandbox.start_agent_by(command, arguments);
    }

    /// Its place, with its agent.
    pub const fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// A program of this machine, under Shunt.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.inside();
        command.arg(self.sandbox.shunt_path()).args(["run", "--"]).arg(program);
        command
    }

    /// What its agent says of the machines with which it shares memory.
    #[must_use]
    pub fn status(&self) -> Value {
        let mut command = self.sandbox.plain(self.sandbox.shunt_path());
        let output = command.args(["machines", "--json"]).output().expect("shunt runs");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Starts `shunt-gen serve` at its address.
    #[must_use]
    pub fn serve(&self, args: &[&str]) -> Server {
        let mut command = self.command(built("shunt-gen"));
        command.args(["serve", "--listen", &SocketAddr::from((self.ip, 0)).to_string()]).args(args);
        Server::of(self.sandbox.spawn(command))
    }

    /// Starts `shunt-gen connect`.
    #[must_use]
    pub fn connect(&self, to: SocketAddr, args: &[&str]) -> Process {
        let mut command = self.command(built("shunt-gen"));
        command.args(["connect", "--to", &to.to_string()]).args(args);
        self.sandbox.spawn(command)
    }

    /// Waits until its agent has heard that another machine listens there.
    pub fn until_it_knows(&self, listener: SocketAddr) {
        let listener = Value::from(listener.to_string());
        settles("the listener is known", &true, || {
            let reachable = &self.status()["reachable"];
            reachable.as_array().is_some_and(|all| all.contains(&listener))
        });
    }
}
