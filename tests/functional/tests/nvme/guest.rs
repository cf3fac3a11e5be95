//! A virtual machine whose disk `shunt nvme disk` is.

use std::time::Duration;

use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;
use shunt_functional::vm::{Drive, Guest, Image, Kernel};

use crate::changed::apply;
use crate::disk::{Disk, GUESTS_STORE};
use crate::{Target, sized};

const MODULES: [&str; 3] = ["crc32c_generic", "virtio_blk", "ext4"];
const PROGRAMS: [&str; 3] = ["fio", "mkfs.ext4", "e2fsck"];

/// Under Shunt where that is enabled, else over plain TCP.
#[test]
fn a_guest_has_a_disk() {
    let mode = if Mode::enabled().contains(&Mode::Attach) { Mode::Attach } else { Mode::Plain };
    let sandbox = Sandbox::new(mode);
    let image = Image::with(sandbox.path(), Kernel::Own, &MODULES, &PROGRAMS);
    let mut target = Target::quick(&sandbox, GUESTS_STORE);
    let port = target.port;
    let disk = Disk::start(&sandbox, port, &["--grant"]);
    let mut guest = Guest::with_disk(&sandbox, &image, Drive::Virtio(&disk.socket)).ready();
    guest.must("[ $(cat /sys/block/vda/size) = 524288 ] && cat /sys/block/vda/serial");

    // A file system keeps its bytes, by the target's word and not the cache's.
    guest.must("mkfs.ext4 -q /dev/vda && mkdir -p /mnt && mount -t ext4 /dev/vda /mnt");
    guest.must(
        "head -c 20000000 /dev/urandom > /tmp/bytes && cp /tmp/bytes /mnt && sync && umount /mnt && \
         echo 3 > /proc/sys/vm/drop_caches && mount -t ext4 /dev/vda /mnt && \
         cmp /tmp/bytes /mnt/bytes && umount /mnt && e2fsck -fn /dev/vda",
    );
    let fio = "fio --name=a --filename=/dev/vda --ioengine=psync --direct=1 --rw=randrw \
               --bsrange=4k-256k --size=64m --io_size=32m --numjobs=1 --verify=crc32c --randseed=7";
    let said = guest.run(fio, Duration::from_secs(300));
    assert!(said.ok, "{}", said.text);
    // What was given up reads as zero.
    guest.must("blkdiscard -o 0 -l 16777216 /dev/vda");
    guest.must("head -c 16777216 /dev/zero > /tmp/zero && dd if=/dev/vda of=/tmp/read bs=1M count=16 iflag=direct && cmp /tmp/zero /tmp/read");

    // The target is killed while the guest writes, and comes back.
    guest.must(
        "head -c 50000000 /dev/urandom > /tmp/bytes; \
         (dd if=/tmp/bytes of=/dev/vda bs=64k oflag=direct > /tmp/dd 2>&1; echo $? > /tmp/status) & sleep 0.5",
    );
    target.process.kill();
    drop(target);
    std::thread::sleep(Duration::from_millis(500));
    let target = Target::at(&sandbox, port, GUESTS_STORE);
    guest.must(
        "until [ -e /tmp/status ]; do sleep 0.1; done; cat /tmp/dd; [ $(cat /tmp/status) = 0 ]",
    );
    guest.must("dd if=/dev/vda of=/tmp/read bs=64k count=763 iflag=direct && head -c 50000000 /tmp/read | cmp - /tmp/bytes && md5sum /tmp/bytes > /tmp/sum");
    let sum = guest.must("cut -c 1-32 /tmp/sum");

    // QEMU is killed while the guest writes elsewhere, and the next guest finds what was there.
    guest.must("(while :; do dd if=/tmp/bytes of=/dev/vda bs=64k seek=2000 oflag=direct; done > /dev/null 2>&1) & sleep 1");
    guest.kill();
    drop(guest);
    let mut guest = Guest::with_disk(&sandbox, &image, Drive::Virtio(&disk.socket)).ready();
    let found = guest.must("dd if=/dev/vda bs=64k count=763 iflag=direct 2> /dev/null | head -c 50000000 | md5sum | cut -c 1-32");
    assert_eq!(found, sum);
    guest.kill();
    drop(guest);
    disk.end_granted(target, &sandbox, 8);
}

/// The target changes the size of the disk, and the guest uses what it has at once.
#[test]
fn a_guests_disk_changes_its_size() {
    let sandbox = Sandbox::new(Mode::Plain);
    let image = Image::with(sandbox.path(), Kernel::Own, &MODULES, &[]);
    let target = Target::configured(&sandbox, &sized("64MiB"));
    let disk = Disk::start(&sandbox, target.port, &[]);
    let mut guest = Guest::with_disk(&sandbox, &image, Drive::Virtio(&disk.socket)).ready();
    let becomes = |guest: &mut Guest, mib: u64| {
        let is = format!("[ $(cat /sys/block/vda/size) = {} ]", mib << 11);
        guest.must(&format!("for n in $(seq 100); do {is} && break; sleep 0.1; done; {is}"));
    };
    becomes(&mut guest, 64);
    apply(&sandbox, target.port, &sized("96MiB"));
    becomes(&mut guest, 96);
    guest.must(
        "head -c 33554432 /dev/urandom > /tmp/a && dd if=/tmp/a of=/dev/vda bs=1M seek=64 oflag=direct && \
         dd if=/dev/vda of=/tmp/b bs=1M skip=64 iflag=direct && cmp /tmp/a /tmp/b",
    );
    // While no driver has the disk QEMU takes no notice.
    let device = "basename $(readlink -f /sys/block/vda/device)";
    let device = guest.must(device).trim().to_owned();
    let driver = "/sys/bus/virtio/drivers/virtio_blk";
    guest.must(&format!("echo {device} > {driver}/unbind && [ ! -e /dev/vda ]"));
    apply(&sandbox, target.port, &sized("128MiB"));
    guest.must(&format!("echo {device} > {driver}/bind"));
    becomes(&mut guest, 128);
    guest.must("dd if=/dev/vda of=/tmp/b bs=1M skip=64 count=32 iflag=direct && cmp /tmp/a /tmp/b");
    guest.kill();
    drop(guest);
    disk.end();
    target.end();
}
