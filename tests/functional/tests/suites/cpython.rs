//! CPython's own tests of its network modules.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use shunt_functional::compat::{Kind, Subject, Version};
use shunt_functional::sandbox::Sandbox;

use crate::{Verdict, Verdicts, compare, in_full};

/// The interpreter whose tests the distribution packages; another one may come first in PATH.
const PYTHON: &str = "/usr/bin/python3.11";
const TESTS: &str = "/usr/lib/python3.11/test/test_socket.py";

/// A module of tests, whether it is in the short form, and how many connection ends it must shunt at
/// least: some of what these modules test has to do with sockets of other kinds only.
const MODULES: [(&str, bool, u64); 19] = [
    ("test_select", false, 0),
    ("test_poll", false, 0),
    ("test_epoll", true, 4),
    ("test_selectors", false, 0),
    ("test_socketserver", true, 10),
    ("test_poplib", false, 100),
    ("test_smtplib", true, 80),
    ("test_ftplib", true, 300),
    ("test_urllib2_localnet", true, 60),
    ("test_xmlrpc", false, 80),
    ("test_socket", false, 40),
    ("test_ssl", false, 200),
    ("test_httplib", true, 80),
    ("test_telnetlib", true, 0),
    ("test_imaplib", false, 150),
    ("test_asyncio", false, 400),
    ("test_multiprocessing_fork", false, 80),
    ("test_multiprocessing_spawn", false, 80),
    ("test_multiprocessing_forkserver", false, 80),
];

/// Longest run of one module; the slowest take two minutes on an idle machine.
const PATIENCE: Duration = Duration::from_secs(1200);

/// Reads the report of regrtest and prints `[name, verdict]` pairs.
const REPORT: &str = "
import json, sys, xml.etree.ElementTree as tree
def verdict(case):
    if case.find('failure') is not None or case.find('error') is not None: return 'failed'
    return 'skipped' if case.find('skipped') is not None else 'passed'
print(json.dumps([[c.get('name'), verdict(c)] for c in tree.parse(sys.argv[1]).iter('testcase')]))
";

fn run(sandbox: &Sandbox, module: &str) -> Verdicts {
    let report = sandbox.path().join("report.xml");
    let mut command = sandbox.command(PYTHON);
    // -u network: some modules are not run at all without, though they stay on this host.
    command.args(["-m", "test", "-v", "-u", "network", "--junit-xml"]).arg(&report);
    command.arg("--tempdir").arg(sandbox.path());
    // They hang over kernel TCP where the machine has a VSOCK device but no host that answers.
    command.args(["-i", "*VSOCK*", "-i", "*Vsock*", "-i", "*vsock*"]).arg(module);
    command.env("LC_ALL", "C.UTF-8");
    let done = sandbox.spawn(command).wait_at_most(PATIENCE);
    // A module in which a test fails is no success; one without a report did not come to its end.
    assert!(report.exists(), "{done}");
    verdicts(sandbox, &report)
}

fn verdicts(sandbox: &Sandbox, report: &Path) -> Verdicts {
    let mut command = sandbox.plain(PYTHON);
    command.args(["-c", REPORT]).arg(report);
    let out = sandbox.run(command);
    let pairs: Vec<(String, String)> = serde_json::from_str::<Value>(&out.stdout)
        .and_then(serde_json::from_value)
        .unwrap_or_else(|e| panic!("{e}: {out}"));
    let verdict = |word: &str| match word {
        "passed" => Verdict::Passed,
        "skipped" => Verdict::Skipped,
        _ => Verdict::Failed,
    };
    pairs.into_iter().map(|(name, word)| (name, verdict(&word))).collect()
}

#[test]
fn cpython() {
    assert!(Path::new(TESTS).exists(), "libpython3.11-testsuite is missing: `make deps-test`");
    for (module, short, ends) in MODULES {
        if short || in_full() {
            let subject = Subject {
                kind: Kind::Suites,
                name: "CPython",
                version: Version::Said(PYTHON, "--version"),
                done: module,
                remark: if module == "test_socket" { "Without VSOCK" } else { "" },
            };
            compare(&subject, ends, Sandbox::new, |sandbox| run(sandbox, module));
        }
    }
}
