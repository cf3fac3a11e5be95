//! A configuration that changes under the kernel's host: sizes, namespaces, paths.

use shunt_functional::machines::Lab;
use shunt_functional::vm::{Device, Guest, Image, Kernel};

use super::capture::{self, Capture};
use super::{MODULES, configure, connect, connecting, disconnect, reload, serve_file, until};

const LISTEN: &str = "\"10.77.0.1:4420\", \"10.77.0.1:4421\"";
const PATH: &str = "/sys/class/nvme/nvme0/nvme0c0n1/ana_state";
const OTHER_PATH: &str = "/sys/class/nvme/nvme1/nvme0c1n1/ana_state";

fn namespace(nsid: u32, size: &str) -> String {
    format!("[[subsystem.namespace]]\nnsid = {nsid}\nstore = \"memory\"\nsize = \"{size}\"\n")
}

fn ana(port: u16, state: &str) -> String {
    format!("[[subsystem.ana]]\ngroup = 1\nat = \"10.77.0.1:{port}\"\nstate = \"{state}\"\n")
}

#[test]
fn the_kernels_host_hears_of_changes() {
    let lab = Lab::new(1, "64M");
    let image = Image::with(lab.path(), Kernel::Own, &MODULES, &["nvme"]);
    let guest = Guest::start(&lab, &image, 2, Device::Doorbell);
    let file = lab.path().join("nvme.toml");
    configure(&file, LISTEN, "\"any\"", &namespace(1, "32MiB"));
    let mut serving = serve_file(&lab, &file);
    let mut guest = guest.ready();
    let capture = Capture::start(&lab, "changes");
    connect(&mut guest, "");
    guest.must("[ $(blockdev --getsize64 /dev/nvme0n1) = 33554432 ]");

    // A disk that grows, another one that comes, and goes.
    let two = namespace(1, "48MiB") + &namespace(7, "8MiB");
    configure(&file, LISTEN, "\"any\"", &two);
    reload(&mut serving);
    until(&mut guest, "[ $(blockdev --getsize64 /dev/nvme0n1) = 50331648 ]");
    until(&mut guest, "[ $(blockdev --getsize64 /dev/nvme0n2 || echo 0) = 8388608 ]");
    guest.must("dd if=/dev/urandom of=/tmp/a bs=1M count=48 && dd if=/tmp/a of=/dev/nvme0n1 bs=1M oflag=direct");
    configure(&file, LISTEN, "\"any\"", &namespace(1, "48MiB"));
    reload(&mut serving);
    until(&mut guest, "[ ! -e /dev/nvme0n2 ]");
    guest.must("dd if=/dev/nvme0n1 of=/tmp/b bs=1M iflag=direct && cmp /tmp/a /tmp/b");

    // A second path, and the first one is closed while the guest reads: it goes on over the other.
    guest.must(&connecting(4421, ""));
    until(&mut guest, &format!("[ \"$(cat {OTHER_PATH})\" = optimized ]"));
    guest.must(
        "rm -f /tmp/status; (while [ ! -e /tmp/enough ]; do dd if=/dev/nvme0n1 of=/tmp/b bs=1M iflag=direct && \
         cmp /tmp/a /tmp/b || break; done > /tmp/dd 2>&1; [ -e /tmp/enough ]; echo $? > /tmp/status) & sleep 1",
    );
    for (closed, open, port) in [(PATH, OTHER_PATH, 4420), (OTHER_PATH, PATH, 4421)] {
        let text = namespace(1, "48MiB") + &ana(port, "inaccessible");
        configure(&file, LISTEN, "\"any\"", &text);
        reload(&mut serving);
        until(
            &mut guest,
            &format!("[ \"$(cat {closed}) $(cat {open})\" = 'inaccessible optimized' ]"),
        );
    }
    configure(&file, LISTEN, "\"any\"", &namespace(1, "48MiB"));
    reload(&mut serving);
    until(&mut guest, &format!("[ \"$(cat {PATH})\" = optimized ]"));
    guest.must("touch /tmp/enough; until [ -e /tmp/status ]; do sleep 0.1; done; cat /tmp/dd; [ $(cat /tmp/status) = 0 ]");

    // It goes, and comes back.
    for _ in 0..2 {
        disconnect(&mut guest);
        connect(&mut guest, "");
        guest.must("dd if=/dev/nvme0n1 of=/tmp/b bs=1M iflag=direct && cmp /tmp/a /tmp/b");
    }
    disconnect(&mut guest);
    capture.check(&capture::ALL, false);
    serving.signal(libc::SIGTERM);
    let finished = serving.wait().success();
    assert!(!finished.stderr.contains("the connection is ended"), "{finished}");
}
