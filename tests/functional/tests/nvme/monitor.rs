//! A virtual machine whose NVMe controller `shunt nvme disk --vfio-user` is, by QEMU's client and Linux's driver.

use std::time::Duration;

use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;
use shunt_functional::vm::{Drive, Guest, Image, Kernel};

use crate::changed::apply;
use crate::disk::{Disk, GUESTS_STORE};
use crate::{Target, sized};

const MODULES: [&str; 3] = ["crc32c_generic", "nvme", "ext4"];
const PROGRAMS: [&str; 4] = ["nvme", "fio", "mkfs.ext4", "e2fsck"];

/// What fills and compares MiBs of random bytes.
const BYTES: &str = "dd if=/dev/urandom of=/tmp/bytes bs=1M count=16 2> /dev/null";

/// Begins writes, several at once, that take two seconds, and are read back and compared behind that.
fn begin_writes(guest: &mut Guest, offset: &str) {
    guest.must(&format!(
        "rm -f /tmp/status; (fio --name=a --filename=/dev/nvme0n1 --ioengine=libaio --iodepth=8 --direct=1 --rw=randwrite \
         --bsrange=4k-256k --offset={offset} --size=32m --rate=16m --verify=crc32c --randseed=7 > /tmp/fio 2>&1; echo $? > /tmp/status) & \
         sleep 0.7"
    ));
}

/// Waits for the end of both: no write has failed, and all bytes are there.
fn end_writes(guest: &mut Guest) {
    guest.must(
        "until [ -e /tmp/status ]; do sleep 0.1; done; cat /tmp/fio; [ $(cat /tmp/status) = 0 ]",
    );
    // Linux finds completions of which it was not told when it has waited for long.
    guest.must("! dmesg | grep -i 'nvme.*timeout'");
}

/// The sum of what `BYTES` has put there, by the disk's word.
const SUM: &str = "dd if=/dev/nvme0n1 bs=1M count=16 iflag=direct 2> /dev/null | md5sum";

/// Interrupts of a queue since the guest began.
fn interrupts(guest: &mut Guest, queue: u32) -> u64 {
    let found = guest.must(&format!(
        "while read -r line; do case $line in *nvme0q{queue}) set -- $line; echo $(($2 + $3));; esac; done < /proc/interrupts"
    ));
    found.parse().expect("a number")
}

/// Under Shunt where that is enabled, else over plain TCP.
#[test]
fn a_guests_driver_uses_a_controller() {
    let mode = if Mode::enabled().contains(&Mode::Attach) { Mode::Attach } else { Mode::Plain };
    let sandbox = Sandbox::new(mode);
    let image = Image::with(sandbox.path(), Kernel::Own, &MODULES, &PROGRAMS);
    let mut target = Target::quick(&sandbox, GUESTS_STORE);
    let port = target.port;
    let disk = Disk::of_kind("--vfio-user", &sandbox, port, &["--grant"]);
    let mut guest = Guest::with_disk(&sandbox, &image, Drive::Nvme(&disk.socket)).ready();
    guest.must("[ $(cat /sys/block/nvme0n1/size) = 524288 ]");
    guest.must(
        "nvme id-ctrl /dev/nvme0 && nvme id-ns /dev/nvme0n1 && nvme smart-log /dev/nvme0 && \
         nvme error-log /dev/nvme0 && nvme fw-log /dev/nvme0 && nvme flush /dev/nvme0n1",
    );

    // A file system keeps its bytes, by the target's word and not the cache's.
    guest.must("mkfs.ext4 -q /dev/nvme0n1 && mkdir -p /mnt && mount -t ext4 /dev/nvme0n1 /mnt");
    guest.must(
        &format!("{BYTES} && cp /tmp/bytes /mnt && sync && umount /mnt && echo 3 > /proc/sys/vm/drop_caches && \
         mount -t ext4 /dev/nvme0n1 /mnt && cmp /tmp/bytes /mnt/bytes && umount /mnt && e2fsck -fn /dev/nvme0n1"),
    );
    // From each processor, which has a queue and an interrupt of its own.
    for processor in [0, 1] {
        let before = interrupts(&mut guest, processor + 1);
        let fio = format!(
            "fio --name=a --filename=/dev/nvme0n1 --ioengine=libaio --iodepth=16 --direct=1 --rw=randrw \
             --bsrange=4k-1m --size=64m --io_size=32m --verify=crc32c --randseed=7 --cpus_allowed={processor}"
        );
        let said = guest.run(&fio, Duration::from_secs(300));
        assert!(said.ok, "{}", said.text);
        let since = interrupts(&mut guest, processor + 1) - before;
        assert!(since > 0, "no interrupt of queue {}", processor + 1);
    }
    // What was given up reads as zero.
    guest.must("blkdiscard -o 0 -l 16777216 /dev/nvme0n1");
    let zeroes = guest.must("dd if=/dev/zero bs=1M count=16 2> /dev/null | md5sum");
    assert_eq!(guest.must(SUM), zeroes);

    // The target is killed while the guest writes, and comes back.
    begin_writes(&mut guest, "128m");
    target.process.kill();
    drop(target);
    std::thread::sleep(Duration::from_millis(500));
    let target = Target::at(&sandbox, port, GUESTS_STORE);
    end_writes(&mut guest);

    // QEMU is killed while the guest writes elsewhere, and the next guest finds what was there.
    let write =
        "dd if=/tmp/bytes of=/dev/nvme0n1 bs=1M oflag=direct 2> /dev/null && md5sum < /tmp/bytes";
    let sum = guest.must(write);
    begin_writes(&mut guest, "128m");
    guest.kill();
    drop(guest);
    let mut guest = Guest::with_disk(&sandbox, &image, Drive::Nvme(&disk.socket)).ready();
    assert_eq!(guest.must(SUM), sum);
    guest.kill();
    drop(guest);
    disk.end_granted(target, &sandbox, 6);
}

/// Resets of the controller and of the function while the guest writes, a driver that goes and comes, a disk that changes its
/// size, and a guest that begins anew.
#[test]
fn a_controller_is_reset_in_use() {
    let sandbox = Sandbox::new(Mode::Plain);
    let image = Image::with(sandbox.path(), Kernel::Newer, &MODULES, &PROGRAMS);
    let target = Target::configured(&sandbox, &sized("256MiB"));
    let disk = Disk::of_kind("--vfio-user", &sandbox, target.port, &[]);
    let mut guest = Guest::with_disk(&sandbox, &image, Drive::Nvme(&disk.socket)).ready();
    guest.must("ln -s $(readlink -f /sys/block/nvme0n1/device/device) /run/pci");
    for how in [
        "nvme reset /dev/nvme0",
        "[ $(cat /run/pci/reset_method) = flr ] && echo 1 > /run/pci/reset",
    ] {
        begin_writes(&mut guest, "128m");
        for _ in 0..3 {
            guest.must(how);
        }
        end_writes(&mut guest);
    }

    // Writes that are under way fail, and the next driver finds what was there.
    let device = guest.must("basename $(readlink -f /run/pci)");
    let driver = "/sys/bus/pci/drivers/nvme";
    guest.must(&format!("{BYTES} && dd if=/tmp/bytes of=/dev/nvme0n1 bs=1M oflag=direct"));
    let sum = guest.must("md5sum < /tmp/bytes");
    begin_writes(&mut guest, "128m");
    guest.must(&format!("echo {device} > {driver}/unbind && [ ! -e /dev/nvme0n1 ]"));
    guest.must(&format!(
        "echo {device} > {driver}/bind; until [ -e /dev/nvme0n1 ]; do sleep 0.1; done"
    ));
    assert_eq!(guest.must(SUM), sum);

    apply(&sandbox, target.port, &sized("288MiB"));
    let is = "[ $(cat /sys/block/nvme0n1/size) = 589824 ]";
    guest.must(&format!("for n in $(seq 100); do {is} && break; sleep 0.1; done; {is}"));
    guest.must(
        "dd if=/tmp/bytes of=/dev/nvme0n1 bs=1M seek=256 oflag=direct && \
         dd if=/dev/nvme0n1 of=/tmp/read bs=1M skip=256 count=16 iflag=direct && cmp /tmp/bytes /tmp/read",
    );
    begin_writes(&mut guest, "128m");
    guest.reboot();
    assert_eq!(guest.must(SUM), sum);
    guest.must("[ $(cat /sys/block/nvme0n1/size) = 589824 ]");
    guest.kill();
    drop(guest);
    disk.end();
    target.end();
}
