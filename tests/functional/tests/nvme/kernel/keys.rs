//! A kernel's host that has to prove who it is, and asks the controller to do so.

use shunt_functional::machines::Lab;
use shunt_functional::sandbox::Process;
use shunt_functional::vm::{Device, Guest, Image, Kernel};

use super::capture::{self, Capture};
use super::{HOST, MODULES, configure, connect, connecting, disconnect, reload, serve_file};

/// Of 32 zero bytes, and of 32 times 2, with their CRC-32s.
const KEY: &str = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";
const OTHER: &str = "DHHC-1:00:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgJvwX3v:";

/// Connections that are no hosts, until it is told to end: some say nothing, some begin and go no further, some talk
/// nonsense.
const FLOOD: &str = "
import select, socket, struct
begin = struct.pack('<BBBBI', 0, 0, 128, 0, 128) + bytes(120)
count = 0
held = []
while True:
    peer = socket.socket()
    peer.setblocking(False)
    try:
        peer.connect(('10.77.0.1', 4420))
    except BlockingIOError:
        select.select([], [peer], [])
    try:
        peer.send([b'', begin, b'GET / HTTP/1.1', begin + begin][count % 4])
    except OSError:
        pass
    held.append(peer)
    if len(held) > 400:
        held.pop(0).close()
    count += 1
    if count % 1000 == 0:
        print(count, flush=True)
";

fn flood(lab: &Lab) -> Process {
    let machine = &lab.machines[0];
    let mut command = machine.inside();
    command.args(["python3", "-c", FLOOD]);
    machine.sandbox().spawn(command)
}

fn host(keys: &str) -> String {
    format!("[{{ nqn = \"{HOST}\"{keys} }}]")
}

/// Tries to connect, which must fail.
fn refused(guest: &mut Guest, options: &str) {
    let command = connecting(4420, options);
    let said = guest.must(&format!("! {command} && [ ! -e /dev/nvme0n1 ]; dmesg | tail -n 5"));
    assert!(!said.contains("connecting to device"), "{said}");
}

#[test]
fn the_kernels_host_proves_who_it_is() {
    let lab = Lab::new(1, "64M");
    let image = Image::with(lab.path(), Kernel::Newer, &MODULES, &["nvme"]);
    let guest = Guest::start(&lab, &image, 2, Device::Doorbell);
    let file = lab.path().join("nvme.toml");
    let listen = "\"10.77.0.1:4420\"";
    let disk = "[[subsystem.namespace]]\nstore = \"memory\"\nsize = \"32MiB\"";
    let one_sided = host(&format!(", key = \"{KEY}\""));
    configure(&file, listen, &one_sided, disk);
    let mut serving = serve_file(&lab, &file);
    let mut guest = guest.ready();
    guest.must("uname -r | grep '^6\\.12\\.'");
    let works = "dd if=/dev/urandom of=/tmp/a bs=1M count=8 && dd if=/tmp/a of=/dev/nvme0n1 bs=1M oflag=direct && \
                 dd if=/dev/nvme0n1 of=/tmp/b bs=1M count=8 iflag=direct && cmp /tmp/a /tmp/b";
    let (good, bad) = (format!("--dhchap-secret={KEY}"), format!("--dhchap-secret={OTHER}"));

    let capture = Capture::start(&lab, "keys");
    connect(&mut guest, &good);
    guest.must(works);
    disconnect(&mut guest);
    refused(&mut guest, &bad);
    refused(&mut guest, "");
    // The controller has no key with which it could answer.
    let both = format!("{good} --dhchap-ctrl-secret={OTHER}");
    refused(&mut guest, &both);

    // Both prove who they are.
    configure(
        &file,
        listen,
        &host(&format!(", key = \"{KEY}\", controller-key = \"{OTHER}\"")),
        disk,
    );
    reload(&mut serving);
    connect(&mut guest, &format!("{both} --hdr-digest --data-digest"));
    guest.must(works);
    disconnect(&mut guest);
    refused(&mut guest, &format!("{good} --dhchap-ctrl-secret={KEY}"));
    connect(&mut guest, &good);
    guest.must(works);
    capture.check(&capture::ALL, true);

    // Connections that prove nothing come in as fast as they can: the host that has goes on.
    let mut many = flood(&lab);
    let count =
        |many: &mut Process| many.wait_for_text(|text| text.lines().last()?.parse::<u32>().ok());
    let before = count(&mut many);
    for _ in 0..3 {
        guest.must(works);
    }
    while count(&mut many) < before + 2000 {
        std::thread::yield_now();
    }
    guest.must(works);
    many.kill();
    let log = serving.describe();
    assert!(log.contains("the connection is ended"), "nonsense was not noticed: {log}");
    // A key that is not good any more ends what was connected with it.
    configure(&file, listen, &host(&format!(", key = \"{OTHER}\"")), disk);
    reload(&mut serving);
    guest.must("for n in $(seq 300); do [ \"$(cat /sys/class/nvme/nvme0/state)\" = live ] || exit 0; sleep 0.2; done; exit 1");
    serving.signal(libc::SIGTERM);
    let _ = serving.wait().success();
}
