//! stress-ng's stressors of sockets and of readiness, which verify what they do.

use shunt_functional::binaries::program;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::sandbox::Sandbox;

use crate::{Verdict, Verdicts, compare, in_full};

/// What is run, and how many connection ends must be shunted: sockfd and poll use no TCP.
const STRESSORS: [(&str, &[&str], u64); 8] = [
    ("sock", &["--sock", "2"], 50),
    ("sock, IPv6", &["--sock", "1", "--sock-domain", "ipv6"], 50),
    ("sock, random calls", &["--sock", "1", "--sock-opts", "random"], 50),
    ("sock, MSG_ZEROCOPY", &["--sock", "1", "--sock-zerocopy"], 50),
    ("sockmany", &["--sockmany", "1"], 100),
    ("sockfd", &["--sockfd", "1"], 0),
    ("epoll", &["--epoll", "2", "--epoll-domain", "ipv4"], 50),
    ("poll", &["--poll", "1"], 0),
];

fn run(sandbox: &Sandbox, args: &[&str]) -> Verdicts {
    let mut command = sandbox.command(program("stress-ng"));
    let seconds = if in_full() { "20" } else { "1" };
    command.args(args).args(["--verify", "--log-brief", "-t", seconds]);
    let out = sandbox.spawn(command).wait();
    let passed = out.status.success() && !format!("{out}").contains("fail:");
    let verdict = if passed { Verdict::Passed } else { Verdict::Failed };
    println!("{out}");
    [(args.join(" "), verdict)].into()
}

#[test]
fn stress_ng() {
    for (done, args, ends) in STRESSORS {
        let subject = Subject {
            kind: Kind::Suites,
            name: "stress-ng --verify",
            version: Version::Packaged("stress-ng"),
            done,
            remark: if ends == 0 { "No TCP" } else { "" },
        };
        compare(&subject, ends, Sandbox::new, |sandbox| run(sandbox, args));
    }
}
