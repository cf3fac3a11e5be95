//! OpenSSH: sshd, ssh and scp, with a configuration and keys of their own.

use std::fs::{self, File};
use std::path::PathBuf;

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::net::free_port;
use shunt_functional::sandbox::{Expect, Process, Sandbox, is_root};

use crate::{Outcome, compare, content};

const SSH: Subject = Subject {
    kind: Kind::Programs,
    name: "OpenSSH",
    version: Version::Packaged("openssh-server"),
    done: "commands with and without a terminal, scp both ways, a forwarded port",
    remark: "sshd executes itself anew for each connection, or forbids its child system calls: its \
        ends go on over TCP; the two ends of a forwarded connection are shunted",
};

const LEN: usize = 5 << 20;

struct Ssh<'a> {
    sandbox: &'a Sandbox,
    port: u16,
}

impl Ssh<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.sandbox.path().join(name)
    }

    fn key(&self, name: &str) {
        let mut command = self.sandbox.plain(program("ssh-keygen"));
        command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(self.file(name));
        let _done = self.sandbox.run(command);
    }

    fn serve(&self, args: &[&str]) -> Process {
        let mut command = self.sandbox.command(program("sshd"));
        command.args(["-D", "-e"]).args(args).arg("-f").arg(self.file("sshd.conf"));
        self.sandbox.serve(command, self.port)
    }

    fn client(&self, name: &str) -> std::process::Command {
        let mut command = self.sandbox.command(program(name));
        command.args(["-q", "-F", "none", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"]);
        command.args(["-o", "StrictHostKeyChecking=no", "-o"]);
        command.arg(format!("UserKnownHostsFile={}", self.file("known").display()));
        command.arg("-i").arg(self.file("user"));
        command.args([if name == "scp" { "-P" } else { "-p" }, &self.port.to_string()]);
        command
    }
}

fn scenario(sandbox: &Sandbox, args: &[&str]) -> Outcome {
    let ssh = Ssh { sandbox, port: free_port() };
    ["host", "user"].iter().for_each(|name| ssh.key(name));
    let bytes = content(LEN);
    fs::write(ssh.file("sent"), &bytes).expect("sent");
    let configuration = format!(
        "Port {}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
         StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n\
         Subsystem sftp internal-sftp\n",
        ssh.port,
        ssh.file("host").display(),
        ssh.file("user.pub").display()
    );
    fs::write(ssh.file("sshd.conf"), configuration).expect("sshd.conf");
    let mut server = ssh.serve(args);

    let mut outcome = Outcome::new();
    let mut command = ssh.client("ssh");
    command.args(["127.0.0.1", "echo out; head -c 1000000 /dev/zero | md5sum; exit 7"]);
    let done = sandbox.spawn(command).wait();
    outcome.push(format!("{:?} {}", done.status.code(), done.stdout));

    let mut command = ssh.client("ssh");
    command.args(["127.0.0.1", "cat"]).stdin(File::open(ssh.file("sent")).expect("sent"));
    let log = ssh.file("came.out");
    let _done = sandbox.start(command, &log).wait().success();
    outcome.push(format!("cat: right {}", fs::read(&log).expect("came") == bytes));

    let mut command = ssh.client("ssh");
    command.args(["-tt", "127.0.0.1", "tty >/dev/null && echo a terminal; exit 3"]);
    let done = sandbox.spawn(command).wait();
    outcome.push(format!("{:?} {}", done.status.code(), done.stdout));

    let remote = |name: &str| format!("127.0.0.1:{}", ssh.file(name).display());
    let local = |name: &str| ssh.file(name).display().to_string();
    for (from, to) in [(local("sent"), remote("there")), (remote("there"), local("back"))] {
        let mut command = ssh.client("scp");
        command.args([from, to]);
        let _done = sandbox.run(command);
    }
    outcome.push(format!("scp: right {}", fs::read(ssh.file("back")).expect("back") == bytes));
    outcome.push(sandbox.expect(Expect::Ends(2), || forwarded(&ssh)));
    server.assert_running();
    outcome
}

/// ssh through a port that another ssh forwards to sshd.
fn forwarded(ssh: &Ssh<'_>) -> String {
    let port = free_port();
    let mut command = ssh.client("ssh");
    command.args(["-N", "-L", &format!("127.0.0.1:{port}:127.0.0.1:{}", ssh.port), "127.0.0.1"]);
    let mut tunnel = ssh.sandbox.serve(command, port);
    let mut command = Ssh { sandbox: ssh.sandbox, port }.client("ssh");
    command.args(["127.0.0.1", "echo through"]);
    let text = ssh.sandbox.run(command).stdout;
    tunnel.assert_running();
    text
}

/// Debian's sshd wants this directory, which its service makes.
fn can_run() -> bool {
    let can = is_root() && fs::create_dir_all("/run/sshd").is_ok();
    if !can {
        println!("only root can run sshd");
    }
    can
}

/// sshd executes itself anew for each connection.
#[test]
fn sshd_that_executes_itself() {
    if can_run() {
        compare(&SSH, Sandbox::new, |sandbox| scenario(sandbox, &[]));
    }
}

/// sshd forks: the child that speaks with a user who is not known yet lives under a strict filter of
/// system calls.
#[test]
fn sshd_that_forks() {
    if can_run() {
        compare(&SSH, Sandbox::new, |sandbox| scenario(sandbox, &["-r"]));
    }
}
