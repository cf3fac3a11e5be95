//! The kernel's target, in a virtual machine that a distribution's kernel runs, and the host of this project.

use std::process::Command;

use serde_json::{Value, json};
use shunt_functional::binaries::built;
use shunt_functional::machines::Lab;
use shunt_functional::sandbox::Finished;
use shunt_functional::vm::{Device, Guest, Image, Kernel};

use crate::{QUICK, lines};

/// The target, what it needs, and a disk of memory for it.
const MODULES: [&str; 3] = ["crc32c_generic", "nvmet_tcp", "brd"];
const ADDRESSES: [&str; 2] = ["10.77.0.2:4420", "10.77.0.2:4421"];

/// A subsystem with two ports, each with an ANA state of its own.
fn serve(guest: &mut Guest) {
    guest.must(&format!(
        "set -e; mount -t configfs none /sys/kernel/config 2>/dev/null || true; \
         cd /sys/kernel/config/nvmet; mkdir subsystems/{QUICK}; cd subsystems/{QUICK}; \
         echo 1 > attr_allow_any_host; mkdir namespaces/1; echo -n /dev/ram0 > namespaces/1/device_path; \
         echo 1 > namespaces/1/enable; cd ../..; \
         for n in 0 1; do mkdir ports/$n; echo tcp > ports/$n/addr_trtype; echo ipv4 > ports/$n/addr_adrfam; \
         echo 10.77.0.2 > ports/$n/addr_traddr; echo 442$n > ports/$n/addr_trsvcid; \
         ln -s /sys/kernel/config/nvmet/subsystems/{QUICK} ports/$n/subsystems/; done"
    ));
}

fn set_ana(guest: &mut Guest, port: usize, state: &str) {
    let ana = format!("/sys/kernel/config/nvmet/ports/{port}/ana_groups/1/ana_state");
    guest.must(&format!("echo {state} > {ana}"));
}

fn host(lab: &Lab, program: &str, args: &[&str]) -> Command {
    let mut command = lab.machines[0].inside();
    command.arg(built(program)).args(args);
    command
}

fn run(lab: &Lab, program: &str, args: &[&str]) -> Finished {
    lab.machines[0].sandbox().run(host(lab, program, args))
}

fn listed(lab: &Lab) -> Value {
    let args = ["nvme", "list", "--json", "--to", ADDRESSES[0], "--to", ADDRESSES[1]];
    serde_json::from_str(&run(lab, "shunt", &args).stdout).unwrap()
}

#[test]
fn the_kernels_target_serves_this_host() {
    let lab = Lab::new(1, "512M");
    let image = Image::with(lab.path(), Kernel::Own, &MODULES, &[]);
    let mut guest = Guest::start(&lab, &image, 2, Device::Doorbell).ready();
    serve(&mut guest);

    let found = run(&lab, "shunt", &["nvme", "discover", "--json", "--to", ADDRESSES[0]]).stdout;
    let found: Value = serde_json::from_str(&found).unwrap();
    let names: Vec<_> = found.as_array().unwrap().iter().map(|r| &r["subsystem"]).collect();
    assert!(names.contains(&&json!(QUICK)), "{found}");
    let list = listed(&lab);
    assert_eq!(list["namespaces"][0]["number"], 1, "{list}");

    for digests in [&[][..], &["--digests"]] {
        let mut args = vec!["--to", ADDRESSES[0], "--threads", "2", "--commands", "300"];
        args.extend(digests);
        let seen = lines(&run(&lab, "shunt-nvme-verify", &args)).pop().unwrap();
        assert_eq!(seen["failures"], json!([]), "{seen}");
        assert!(seen["blocks_kept"].as_u64().unwrap() > 100, "{seen}");
    }

    // Commands go where they can, whatever the states become under way.
    set_ana(&mut guest, 0, "inaccessible");
    set_ana(&mut guest, 1, "non-optimized");
    let (reader, input) = std::io::pipe().unwrap();
    let args = ["--to", ADDRESSES[0], "--to", ADDRESSES[1], "--threads", "2"];
    let mut command = host(&lab, "shunt-nvme-verify", &args);
    command.stdin(reader);
    let mut verifier = lab.machines[0].sandbox().spawn(command);
    verifier.wait_for_line(|line| line.contains("going").then_some(()));
    for _ in 0..3 {
        set_ana(&mut guest, 0, "optimized");
        set_ana(&mut guest, 1, "inaccessible");
        guest.must("sleep 1");
        verifier.assert_running();
        set_ana(&mut guest, 1, "optimized");
        set_ana(&mut guest, 0, "inaccessible");
        guest.must("sleep 1");
        verifier.assert_running();
    }
    drop(input);
    let seen = lines(&verifier.wait().success()).pop().unwrap();
    assert_eq!((&seen["failures"], &seen["connects"]), (&json!([]), &json!([1, 1])), "{seen}");
}
