//! A disk in use: a file system, verified reads and writes, a target that is killed.

use std::path::Path;
use std::time::Duration;

use shunt_functional::machines::Lab;
use shunt_functional::sandbox::Process;
use shunt_functional::vm::{Device, Guest, Image, Kernel};

use super::capture::{self, Capture};
use super::{MODULES, connect, disconnect, serve};

const PROGRAMS: [&str; 4] = ["nvme", "fio", "mkfs.ext4", "e2fsck"];

fn target(lab: &Lab, file: &Path) -> Process {
    let file = file.to_str().expect("a path");
    serve(lab, &["--listen", "10.77.0.1:4420", "--file", file, "--size", "256MiB"])
}

/// A file system, and a file whose bytes are those that were written, by the target's word and not the cache's.
fn a_file_system_keeps_its_bytes(guest: &mut Guest) {
    guest.must("mkfs.ext4 -q /dev/nvme0n1 && mkdir -p /mnt && mount -t ext4 /dev/nvme0n1 /mnt");
    guest.must(
        "head -c 20000000 /dev/urandom > /tmp/bytes && cp /tmp/bytes /mnt && sync && umount /mnt && \
         echo 3 > /proc/sys/vm/drop_caches && mount -t ext4 /dev/nvme0n1 /mnt && \
         cmp /tmp/bytes /mnt/bytes && umount /mnt && e2fsck -fn /dev/nvme0n1",
    );
}

#[test]
fn the_kernels_host_uses_a_disk() {
    let lab = Lab::new(1, "512M");
    let image = Image::with(lab.path(), Kernel::Own, &MODULES, &PROGRAMS);
    let file = lab.path().join("disk");
    let guest = Guest::start(&lab, &image, 2, Device::Doorbell);
    let mut serving = target(&lab, &file);
    let mut guest = guest.ready();
    for (digests, name) in [("", "plain"), ("--hdr-digest --data-digest", "digests")] {
        let capture = Capture::start(&lab, name);
        connect(&mut guest, digests);
        guest.must(
            "nvme id-ctrl /dev/nvme0 && nvme id-ns /dev/nvme0n1 && nvme smart-log /dev/nvme0",
        );
        a_file_system_keeps_its_bytes(&mut guest);
        let fio = "fio --name=a --filename=/dev/nvme0n1 --ioengine=psync --direct=1 --rw=randrw \
                   --bsrange=4k-256k --size=64m --io_size=32m --numjobs=1 --verify=crc32c --randseed=7";
        let said = guest.run(fio, Duration::from_secs(300));
        assert!(said.ok, "{}", said.text);
        // What was given up reads as zero.
        guest.must("blkdiscard -o 0 -l 16777216 /dev/nvme0n1");
        guest.must("head -c 16777216 /dev/zero > /tmp/zero && dd if=/dev/nvme0n1 of=/tmp/read bs=1M count=16 iflag=direct && cmp /tmp/zero /tmp/read");
        disconnect(&mut guest);
        capture.check(&capture::ALL, !digests.is_empty());
    }

    // The target is killed while the guest writes, and comes back.
    let capture = Capture::start(&lab, "killed");
    connect(&mut guest, "");
    guest.must(
        "head -c 50000000 /dev/urandom > /tmp/bytes; \
         (dd if=/tmp/bytes of=/dev/nvme0n1 bs=64k oflag=direct > /tmp/dd 2>&1; echo $? > /tmp/status) & sleep 1",
    );
    serving.kill();
    drop(serving);
    let serving = target(&lab, &file);
    guest.must(
        "until [ -e /tmp/status ]; do sleep 0.1; done; cat /tmp/dd; [ $(cat /tmp/status) = 0 ]",
    );
    guest.must("dd if=/dev/nvme0n1 of=/tmp/read bs=64k count=763 iflag=direct && head -c 50000000 /tmp/read | cmp - /tmp/bytes");
    disconnect(&mut guest);
    capture.check(&capture::ALL, false);
    serving.signal(libc::SIGTERM);
    let _ = serving.wait().success();
}
