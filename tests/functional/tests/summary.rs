//! `shunt run --summary` where programs start others as another user: its counts are not theirs, which it says.

use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Sandbox, is_root};

/// What the summary of a program says.
fn summary(sandbox: &Sandbox, program: &[&str]) -> String {
    let mut command = sandbox.plain(sandbox.shunt_path());
    command.args(["run", "--summary", "--"]).args(program);
    sandbox.spawn(command).wait().stderr
}

const OTHER: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

#[test]
fn programs_of_another_user_are_not_counted() {
    if !is_root() {
        println!("left out: only root can become another user");
        return;
    }
    let sandbox = Sandbox::new(Mode::Attach);
    let said = |program: &[&str], says: &str| {
        let said = summary(&sandbox, program);
        let found = said.lines().find(|line| line.contains("started as another user"));
        let found = found.map_or("", |line| line.split(" started").next().unwrap_or(line));
        assert_eq!(found, says, "{program:?}: {said}");
    };
    said(&[&OTHER[..], &["true"]].concat(), "shunt: 1 program");
    // In a child; the same from there on is one's own user's.
    let script =
        "setpriv --reuid=65534 sh -c '/bin/true; exec true'; setpriv --reuid=65534 true; true";
    said(&["sh", "-c", script], "shunt: 2 programs");
    let python = "import subprocess; subprocess.run(['true'], user=65534)";
    said(&["python3", "-c", python], "shunt: 1 program");
    // Nothing was started, or as the same user.
    said(&[&OTHER[..], &["no-such-program-here"]].concat(), "");
    said(&["sh", "-c", "sh -c true; exec true"], "");
    said(&["python3", "-c", "import os; os.setuid(65534)"], "");
}
