//! The kernel's host, in a virtual machine that a distribution's kernel runs, and its own tool.

use std::path::Path;
use std::time::Duration;

use shunt_functional::binaries::built;
use shunt_functional::machines::Lab;
use shunt_functional::sandbox::Process;
use shunt_functional::vm::{Device, Guest, Image};

use crate::QUICK;

/// What the kernel needs: its host, its checksums, and a file system.
const MODULES: [&str; 3] = ["crc32c_generic", "nvme_tcp", "ext4"];
const PROGRAMS: [&str; 4] = ["nvme", "fio", "mkfs.ext4", "e2fsck"];

const HOST: &str = "--hostnqn=nqn.2014-08.org.nvmexpress:uuid:2f6c9c1e-5d5a-4d29-9b1c-6a3f8a1a2b3c \
                    --hostid=2f6c9c1e-5d5a-4d29-9b1c-6a3f8a1a2b3c";

/// A target in the lab's first machine, which its guests reach.
fn target(lab: &Lab, file: &Path) -> Process {
    let machine = &lab.machines[0];
    let mut command = machine.inside();
    command.arg(built("shunt")).args(["nvme", "target", "--listen", "10.77.0.1:4420"]);
    command.arg("--file").arg(file).args(["--size", "256MiB"]);
    machine.sandbox().spawn(command)
}

/// Connects the guest's kernel.
fn connect(guest: &mut Guest, options: &str) {
    // The target may be about to listen only now.
    guest.must(&format!(
        "for n in $(seq 50); do nvme connect -t tcp -a 10.77.0.1 -s 4420 -n {QUICK} {HOST} \
         --reconnect-delay=1 {options} && break; sleep 0.2; done; \
         for n in $(seq 100); do [ -b /dev/nvme0n1 ] && exit; sleep 0.1; done; dmesg | tail; false"
    ));
}

fn disconnect(guest: &mut Guest) {
    guest.must(&format!(
        "nvme disconnect -n {QUICK} && while [ -e /dev/nvme0n1 ]; do sleep 0.1; done"
    ));
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
    let image = Image::with(lab.path(), &MODULES, &PROGRAMS);
    let file = lab.path().join("disk");
    let guest = Guest::start(&lab, &image, 2, Device::Doorbell);
    let mut serving = target(&lab, &file);
    let mut guest = guest.ready();
    for digests in ["", "--hdr-digest --data-digest"] {
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
    }

    // The target is killed while the guest writes, and comes back.
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
    serving.signal(libc::SIGTERM);
    let _ = serving.wait().success();
}
