//! Networks of a test's own: network namespaces with addresses, bridges between them, and routes. All of it goes with
//! the value; needs root.
//!
//! A network `10.77.0` has the IPv6 addresses of `fd10:77:0::/64`, too, where the machine has IPv6.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::binaries::program;
use crate::waiting::settles;

/// Namespaces of which one, the host, has a bridge for each network and passes packets between them.
pub struct Network {
    prefix: String,
    namespaces: Vec<String>,
}

impl Network {
    /// With a host alone.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut network =
            Self { prefix: format!("shunt{}-{n}-", std::process::id()), namespaces: Vec::new() };
        network.add_namespace("host");
        network.in_host(&["sysctl", "-q", "-w", "net.ipv4.ip_forward=1"]);
        if has_ipv6() {
            network.in_host(&["sysctl", "-q", "-w", "net.ipv6.conf.all.forwarding=1"]);
        }
        network
    }

    fn add_namespace(&mut self, name: &str) {
        let namespace = self.namespace(name);
        run(Command::new(program("ip")).args(["netns", "add", &namespace]));
        self.namespaces.push(namespace);
        self.inside(name, &["ip", "link", "set", "lo", "up"]);
    }

    /// The name that `ip netns` knows the namespace by.
    #[must_use]
    pub fn namespace(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Runs a program in a namespace.
    ///
    /// # Panics
    /// When it fails.
    pub fn inside(&self, name: &str, command: &[&str]) {
        run(&mut self.command(name, command));
    }

    fn in_host(&self, command: &[&str]) {
        self.inside("host", command);
    }

    /// A command line that runs in a namespace.
    #[must_use]
    pub fn command(&self, name: &str, command: &[&str]) -> Command {
        let mut ip = Command::new(program("ip"));
        ip.args(["netns", "exec", &self.namespace(name)]).args(command);
        ip
    }

    /// Waits until somebody listens at a port in a namespace.
    ///
    /// # Panics
    /// When nobody does for a long time.
    pub fn until_listening(&self, name: &str, port: u16) {
        let mark = format!(":{port:04X} 00000000:0000 0A ");
        settles("somebody listens", &true, || {
            let table = self.command(name, &["cat", "/proc/net/tcp"]).output();
            table.is_ok_and(|table| String::from_utf8_lossy(&table.stdout).contains(&mark))
        });
    }

    /// A bridge of the host, with the address `net`.254.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn add_bridge(&self, bridge: &str, net: &str) {
        self.in_host(&["ip", "link", "add", bridge, "type", "bridge"]);
        self.in_host(&["ip", "addr", "add", &format!("{net}.254/24"), "dev", bridge]);
        self.add_ipv6("host", bridge, net, 254);
        self.in_host(&["ip", "link", "set", bridge, "up"]);
    }

    /// A namespace with the address `net`.`host` at a bridge, which is also its way to everywhere else.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn add(&mut self, name: &str, bridge: &str, net: &str, host: u8) {
        self.add_namespace(name);
        let (end, other) = (format!("v-{name}"), self.namespace(name));
        let pair =
            ["ip", "link", "add", &end, "type", "veth", "peer", "name", "eth0", "netns", &other];
        self.in_host(&pair);
        self.in_host(&["ip", "link", "set", &end, "master", bridge, "up"]);
        self.inside(name, &["ip", "addr", "add", &format!("{net}.{host}/24"), "dev", "eth0"]);
        self.add_ipv6(name, "eth0", net, host);
        self.inside(name, &["ip", "link", "set", "eth0", "up"]);
        self.inside(name, &["ip", "route", "add", "default", "via", &format!("{net}.254")]);
        if has_ipv6() {
            self.inside(name, &["ip", "route", "add", "default", "via", &ipv6(net, 254)]);
        }
    }

    fn add_ipv6(&self, name: &str, device: &str, net: &str, host: u8) {
        if has_ipv6() {
            // To be used at once: nobody else has it.
            let address = format!("{}/64", ipv6(net, host));
            self.inside(name, &["ip", "addr", "add", &address, "dev", device, "nodad"]);
        }
    }
}

/// True where networks have IPv6 addresses.
#[must_use]
pub fn has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

/// The address of a host in the network.
fn ipv6(net: &str, host: u8) -> String {
    format!("fd{}::{host}", net.replace('.', ":"))
}

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            // What is in it goes with its last process.
            let _gone = Command::new(program("ip")).args(["netns", "del", namespace]).status();
        }
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
}
