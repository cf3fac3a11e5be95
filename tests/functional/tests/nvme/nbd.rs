//! The plugin of nbdkit, with NBD clients of others.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use shunt_functional::binaries::{built, program};
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Expect, Process, Sandbox};
use shunt_functional::waiting::settles;

use crate::changed::apply;
use crate::{Target, sized};

const STORE: &[&str] = &["--file", "disk.img", "--size", "32MiB", "--block-size", "512"];

/// nbdkit with the plugin, and its socket.
fn serve(sandbox: &Sandbox, port: u16) -> (Process, PathBuf) {
    let socket = sandbox.path().join("nbd.sock");
    let mut command = sandbox.command(program("nbdkit"));
    command.args(["--foreground", "--unix"]).arg(&socket).arg(built("libshunt_nbdkit.so"));
    command.arg(format!("target=127.0.0.1:{port}"));
    let process = sandbox.spawn(command);
    settles("nbdkit's socket", &true, || socket.exists());
    (process, socket)
}

fn uri(socket: &Path) -> String {
    format!("nbd+unix:///?socket={}", socket.display())
}

fn client(sandbox: &Sandbox, name: &str, args: &[&str]) -> Command {
    let mut command = sandbox.plain(program(name));
    command.args(args);
    command
}

/// An image without a pattern that a mistake in its order could hide.
fn image(path: &Path, len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    })
    .take(len)
    .collect();
    std::fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn clients_of_others_find_their_bytes() {
    for mode in Mode::enabled() {
        let sandbox = Sandbox::new(mode);
        let target = Target::quick(&sandbox, STORE);
        let (source, copy) = (sandbox.path().join("source"), sandbox.path().join("copy"));
        let bytes = image(&source, 32 << 20);
        let (from, to) = (source.to_str().unwrap(), copy.to_str().unwrap());
        let (nbdkit, socket) = serve(&sandbox, target.port);
        let uri = uri(&socket);
        sandbox.expect(Expect::Ends(4), || {
            // All of it, by one client to the disk and by another one back.
            let convert = ["convert", "-n", "-f", "raw", "-O", "raw", from, &uri];
            let _ = sandbox.run(client(&sandbox, "qemu-img", &convert));
            let there = std::fs::read(sandbox.path().join("disk.img")).unwrap();
            assert!(there == bytes, "{mode}: the file has other bytes");
            let _ = sandbox.run(client(&sandbox, "nbdcopy", &[&uri, to]));
            assert!(std::fs::read(&copy).unwrap() == bytes, "{mode}: the copy has other bytes");
        });
        let _ = sandbox.run(client(&sandbox, "qemu-img", &["compare", from, &uri]));
        // Parts of it.
        let io = |commands: &[&str]| {
            let mut args = vec!["-f", "raw"];
            commands.iter().for_each(|command| args.extend(["-c", command]));
            args.push(&uri);
            sandbox.run(client(&sandbox, "qemu-io", &args)).stdout
        };
        let said = io(&[
            "write -P 0xa5 1536 3M",
            "read -P 0xa5 1536 3M",
            "write -z 1M 64k",
            "read -P 0 1M 64k",
            "discard 2M 64k",
            "flush",
            "write -f -P 0x11 8M 512",
            "read -P 0x11 8M 512",
        ]);
        assert!(!said.contains("verification failed") && !said.contains("error"), "{said}");
        let there = std::fs::read(sandbox.path().join("disk.img")).unwrap();
        assert!(there[..1536] == bytes[..1536] && there[1536..1 << 20].iter().all(|b| *b == 0xa5));
        assert!(there[(1 << 20)..(1 << 20) + 65536].iter().all(|b| *b == 0));
        assert!(there[(8 << 20) + 512..] == bytes[(8 << 20) + 512..]);
        nbdkit.signal(libc::SIGTERM);
        let _ = nbdkit.wait().success();
        target.end();
    }
}

/// A copy goes on when the target has come back.
#[test]
fn a_target_that_is_killed_does_not_end_a_copy() {
    let sandbox = Sandbox::new(Mode::Plain);
    let mut target = Target::quick(&sandbox, STORE);
    let port = target.port;
    let source = sandbox.path().join("source");
    let bytes = image(&source, 32 << 20);
    let (nbdkit, socket) = serve(&sandbox, port);
    // The connections are made before the target goes.
    let args = ["-f", "raw", "-c", "read 0 4k", "-c", "sleep 1500", "-c", "read 0 4k"];
    let mut patient = client(&sandbox, "qemu-io", &args);
    patient.arg(uri(&socket));
    let patient = sandbox.spawn(patient);
    std::thread::sleep(Duration::from_millis(500));
    target.process.kill();
    drop(target);
    let args = [source.to_str().unwrap(), &uri(&socket)];
    let copy = client(&sandbox, "nbdcopy", &args);
    let target = Target::at(&sandbox, port, STORE);
    let _ = sandbox.run(copy);
    let _ = patient.wait().success();
    assert!(std::fs::read(sandbox.path().join("disk.img")).unwrap() == bytes);
    nbdkit.signal(libc::SIGTERM);
    let _ = nbdkit.wait().success();
    target.end();
}

/// NBD has no message that tells of another size.
#[test]
fn a_client_that_connects_again_sees_another_size() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::configured(&sandbox, &sized("8MiB"));
    let (nbdkit, socket) = serve(&sandbox, target.port);
    let size = || {
        let info = client(&sandbox, "nbdinfo", &["--size", &uri(&socket)]);
        sandbox.run(info).stdout.trim().to_owned()
    };
    assert_eq!(size(), "8388608");
    apply(&sandbox, target.port, &sized("12MiB"));
    settles("the size", &"12582912".to_owned(), size);
    nbdkit.signal(libc::SIGTERM);
    let _ = nbdkit.wait().success();
    target.end();
}

#[test]
fn parameters_that_make_no_sense_are_told() {
    let sandbox = Sandbox::new(Mode::Plain);
    let plugin = built("libshunt_nbdkit.so");
    for (args, why) in [
        (&[][..], "target=ADDRESS:PORT is missing"),
        (&["target=nowhere"], "target=nowhere"),
        (&["target=127.0.0.1:1", "nqn=disk"], "nqn=disk"),
        (&["target=127.0.0.1:1", "nsid=x"], "nsid=x"),
        (&["target=127.0.0.1:1", "colour=red"], "no such parameter"),
    ] {
        let mut command = sandbox.plain(program("nbdkit"));
        command.args(["--foreground", "--unix"]).arg(sandbox.path().join("s")).arg(&plugin);
        command.args(args);
        let finished = sandbox.spawn(command).wait();
        assert!(finished.stderr.contains(why), "{args:?}: {finished}");
    }
}
