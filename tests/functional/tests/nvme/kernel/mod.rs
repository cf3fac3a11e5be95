//! The kernel's host, in a virtual machine that a distribution's kernel runs, and its own tool. Wireshark's dissector looks
//! at what goes over the wire.

mod capture;
mod changes;
mod disk;
mod keys;

use std::path::Path;

use shunt_functional::binaries::built;
use shunt_functional::machines::Lab;
use shunt_functional::sandbox::Process;
use shunt_functional::vm::Guest;

use crate::QUICK;

/// What the kernel needs: its host, its checksums, and a file system.
const MODULES: [&str; 3] = ["crc32c_generic", "nvme_tcp", "ext4"];

/// The name of the guest's host.
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:2f6c9c1e-5d5a-4d29-9b1c-6a3f8a1a2b3c";

/// A target in the lab's first machine, which its guests reach.
fn serve(lab: &Lab, args: &[&str]) -> Process {
    let machine = &lab.machines[0];
    let mut command = machine.inside();
    command.arg(built("shunt")).args(["nvme", "target"]).args(args);
    machine.sandbox().spawn(command)
}

/// The same with a configuration file.
fn serve_file(lab: &Lab, file: &Path) -> Process {
    serve(lab, &["--config", file.to_str().expect("a path")])
}

/// Writes a configuration: what belongs to the subsystem, and its namespaces.
fn configure(file: &Path, listen: &str, hosts: &str, rest: &str) {
    let text = format!(
        "listen = [{listen}]\nthreads = 2\n[[subsystem]]\nnqn = \"{QUICK}\"\nhosts = {hosts}\n{rest}\n"
    );
    std::fs::write(file, text).expect("a file");
}

/// Has a target take its file over.
fn reload(serving: &mut Process) {
    let taken = |text: &str| text.matches("is taken over").count();
    let before = taken(&serving.describe());
    serving.signal(libc::SIGHUP);
    shunt_functional::waiting::settles("the log", &true, || {
        serving.assert_running();
        taken(&serving.describe()) > before
    });
}

/// A connect command of the guest's, to a port.
fn connecting(port: u16, options: &str) -> String {
    let id = HOST.rsplit(':').next().expect("an identifier");
    format!(
        "nvme connect -t tcp -a 10.77.0.1 -s {port} -n {QUICK} --hostnqn={HOST} --hostid={id} --reconnect-delay=1 \
         {options}"
    )
}

/// Connects the guest's kernel.
fn connect(guest: &mut Guest, options: &str) {
    // The target may be about to listen only now.
    let command = connecting(4420, options);
    guest.must(&format!(
        "for n in $(seq 50); do {command} && break; sleep 0.2; done; \
         for n in $(seq 100); do [ -b /dev/nvme0n1 ] && exit; sleep 0.1; done; dmesg | tail; false"
    ));
}

fn disconnect(guest: &mut Guest) {
    guest.must(&format!(
        "nvme disconnect -n {QUICK} && while [ -e /dev/nvme0n1 ]; do sleep 0.1; done"
    ));
}

/// Waits until a condition holds in the guest, a minute at most.
fn until(guest: &mut Guest, condition: &str) {
    guest.must(&format!(
        "for n in $(seq 300); do {condition} && exit; sleep 0.2; done; ls /sys/class/nvme*/; dmesg | tail -n 20; false"
    ));
}
