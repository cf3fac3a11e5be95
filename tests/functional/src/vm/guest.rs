//! A running guest.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::binaries::{self, program};
use crate::machines::Lab;
use crate::sandbox::{Process, Sandbox};

use super::Image;

/// How long a guest may take to boot: emulated, on a machine with other things to do.
const BOOT: Duration = Duration::from_secs(180);

/// What memory a guest shares.
#[derive(Clone, Copy, Debug)]
pub enum Device<'a> {
    /// That of the lab's server, with doorbells and interrupts.
    Doorbell,
    /// A file of `PLAIN` bytes, and nobody who interrupts or tells who is gone.
    Plain(&'a Path),
}

/// What a guest has its disk by: a process behind a socket.
#[derive(Clone, Copy, Debug)]
pub enum Drive<'a> {
    /// vhost-user-blk: `/dev/vda`.
    Virtio(&'a Path),
    /// An NVMe controller by vfio-user, `/dev/nvme0n1`: for a monitor that knows how.
    Nvme(&'a Path),
}

impl Drive<'_> {
    fn attach(self, command: &mut Command) {
        match self {
            Self::Virtio(socket) => {
                let socket = socket.display();
                command.arg("-no-reboot");
                command.args(["-chardev", &format!("socket,path={socket},id=d,reconnect=1")]);
                command.args(["-device", "vhost-user-blk-pci,chardev=d,num-queues=2"]);
            }
            Self::Nvme(socket) => {
                let socket = serde_json::json!({ "type": "unix", "path": socket });
                let device = serde_json::json!({ "driver": "vfio-user-pci", "socket": socket });
                command.args(["-device", &device.to_string()]);
            }
        }
    }

    /// QEMU of the distribution, which most people have, or a newer one where that has not what it takes.
    fn monitor(self) -> PathBuf {
        match self {
            Self::Virtio(_) => program("qemu-system-x86_64"),
            Self::Nvme(_) => newer_qemu(),
        }
    }
}

/// A newer QEMU than Debian 12's: `SHUNT_TEST_QEMU`, or where `make deps-qemu` puts one. It attaches devices by vfio-user (from 10.1
/// on). Under 7.2's emulation a kernel that is kept busy for minutes ends at times: its flags register has the lower half of another
/// register's value.
fn newer_qemu() -> PathBuf {
    let beside = || binaries::dir().join("../qemu/qemu-system-x86_64");
    let path = std::env::var_os("SHUNT_TEST_QEMU").map_or_else(beside, PathBuf::from);
    assert!(path.exists(), "{} is missing: `make deps-qemu`", path.display());
    path
}

/// Length of the memory of [`Device::Plain`].
pub const PLAIN: u64 = 128 << 20;

/// A guest, and what it runs.
pub struct Guest {
    process: Process,
    line: UnixStream,
    console: PathBuf,
    /// Its address.
    pub ip: [u8; 4],
}

/// What a command line in a guest has come to.
#[derive(Debug)]
pub struct Said {
    /// Its status is 0.
    pub ok: bool,
    /// What it has printed.
    pub text: String,
}

impl Guest {
    /// Starts a guest at 10.77.0.N, in the network of the lab's first machine and with its memory. It boots meanwhile:
    /// see [`Self::ready`].
    ///
    /// # Panics
    /// When QEMU can't be started.
    #[must_use]
    pub fn start(lab: &Lab, image: &Image, n: u8, device: Device<'_>) -> Self {
        let dir = lab.path();
        let (line, console) =
            (dir.join(format!("guest{n}.line")), dir.join(format!("guest{n}.console")));
        let _ = fs::remove_file(&line);
        let tap = format!("tap{n}");
        lab.inside(&format!(
            "ip link del {tap} 2>/dev/null; ip tuntap add {tap} mode tap && \
             ip link set {tap} master shunt0 up"
        ));
        let mut command = lab.machines[0].inside();
        command.arg(newer_qemu());
        // Half of the memory is what its root can take. With one processor the emulator makes atomic instructions of several, which another machine sees.
        command.args(["-accel", "tcg,thread=multi", "-machine", "q35", "-smp", "2", "-m", "1024"]);
        command.args(["-nodefaults", "-display", "none", "-no-reboot"]);
        command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs);
        command.args([
            "-append",
            &format!(
                "console=ttyS0 panic=-1 quiet no_timer_check mitigations=off intel_iommu=on \
             shunt.ip=10.77.0.{n} shunt.interrupts={}",
                u8::from(matches!(device, Device::Doorbell))
            ),
        ]);
        command.args(["-netdev", &format!("tap,id=n,ifname={tap},script=no,downscript=no")]);
        command.args(["-device", &format!("virtio-net-pci,netdev=n,mac=52:54:00:77:00:{n:02x}")]);
        match device {
            Device::Doorbell => {
                command.args(["-device", "intel-iommu", "-chardev"]);
                command.arg(format!("socket,path={},id=m", lab.socket().display()));
                command.args(["-device", "ivshmem-doorbell,vectors=4,chardev=m"]);
            }
            Device::Plain(file) => {
                let file = file.display();
                command.args(["-object"]);
                command
                    .arg(format!("memory-backend-file,id=m,share=on,mem-path={file},size={PLAIN}"));
                command.args(["-device", "ivshmem-plain,memdev=m"]);
            }
        }
        command.args(["-serial", &format!("file:{}", console.display())]);
        command
            .args(["-chardev", &format!("socket,path={},server=on,wait=off,id=c", line.display())]);
        command.args(["-serial", "chardev:c"]);
        let process = lab.machines[0].sandbox().spawn(command);
        Self::reach(process, &line, console, [10, 77, 0, n])
    }

    /// Starts a guest without a network, with a disk. It boots meanwhile.
    ///
    /// # Panics
    /// When QEMU can't be started.
    #[must_use]
    pub fn with_disk(sandbox: &Sandbox, image: &Image, disk: Drive<'_>) -> Self {
        let dir = sandbox.path();
        let (line, console) = (dir.join("guest.line"), dir.join("guest.console"));
        let _ = fs::remove_file(&line);
        let mut command = sandbox.plain(disk.monitor());
        command.args(["-accel", "tcg,thread=multi", "-machine", "q35,memory-backend=ram"]);
        command.args(["-object", "memory-backend-memfd,id=ram,size=768M,share=on"]);
        command.args(["-smp", "2", "-m", "768M"]);
        command.args(["-nodefaults", "-display", "none"]);
        command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs);
        let kernel = "console=ttyS0 panic=-1 quiet no_timer_check mitigations=off";
        command.args(["-append", kernel]);
        disk.attach(&mut command);
        command.args(["-serial", &format!("file:{}", console.display())]);
        command
            .args(["-chardev", &format!("socket,path={},server=on,wait=off,id=c", line.display())]);
        command.args(["-serial", "chardev:c"]);
        Self::reach(sandbox.spawn(command), &line, console, [127, 0, 0, 1])
    }

    /// Starts guests at 10.77.0.2 and 10.77.0.3, whose network cards are the two ends of one cable. They boot meanwhile.
    ///
    /// # Panics
    /// When QEMU can't be started.
    #[must_use]
    pub fn pair(sandbox: &Sandbox, image: &Image) -> [Self; 2] {
        let dir = sandbox.path();
        [(2, 3), (3, 2)].map(|(n, other): (u8, u8)| {
            let (line, console) =
                (dir.join(format!("guest{n}.line")), dir.join(format!("guest{n}.console")));
            let end = |n: u8| dir.join(format!("cable{n}")).display().to_string();
            let mut command = sandbox.plain(newer_qemu());
            command.args(["-accel", "tcg,thread=multi", "-machine", "q35", "-smp", "2"]);
            command.args(["-m", "1024", "-nodefaults", "-display", "none", "-no-reboot"]);
            command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs);
            let kernel = "console=ttyS0 panic=-1 quiet no_timer_check mitigations=off";
            command.args(["-append", &format!("{kernel} shunt.ip=10.77.0.{n}")]);
            command.arg("-netdev").arg(format!(
                "dgram,id=n,local.type=unix,local.path={},remote.type=unix,remote.path={}",
                end(n),
                end(other)
            ));
            let mac = format!("virtio-net-pci,netdev=n,mac=52:54:00:77:00:{n:02x}");
            command.args(["-device", &mac]);
            command.args(["-serial", &format!("file:{}", console.display())]);
            let line_at = format!("socket,path={},server=on,wait=off,id=c", line.display());
            command.args(["-chardev", &line_at, "-serial", "chardev:c"]);
            Self::reach(sandbox.spawn(command), &line, console, [10, 77, 0, n])
        })
    }

    fn reach(process: Process, line: &Path, console: PathBuf, ip: [u8; 4]) -> Self {
        let started = Instant::now();
        let line = loop {
            match UnixStream::connect(line) {
                Ok(line) => break line,
                Err(e) => assert!(
                    started.elapsed() < BOOT,
                    "QEMU does not listen ({e}): {}",
                    process.describe()
                ),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        Self { process, line, console, ip }
    }

    /// Waits until it has booted.
    #[must_use]
    pub fn ready(mut self) -> Self {
        self.answer(BOOT);
        self
    }

    /// Begins it anew in the same emulator, without a word to its file systems, and waits until it has booted: one with an NVMe
    /// disk.
    ///
    /// # Panics
    /// When it does not.
    pub fn reboot(&mut self) {
        // What comes is its first word.
        let said = self.run("reboot -f; sleep 1000", BOOT);
        assert!(said.ok && said.text.is_empty(), "it has not begun anew: {}", said.text);
    }

    /// Starts its agent.
    ///
    /// # Panics
    /// When it does not run.
    pub fn join(&mut self) {
        self.must("shunt agent --detach --ivshmem $(readlink /run/ivshmem) && shunt machines");
    }

    /// Runs a command line in the guest.
    ///
    /// # Panics
    /// When it takes longer than `patience`.
    pub fn run(&mut self, line: &str, patience: Duration) -> Said {
        if let Err(error) = writeln!(self.line, "{line}") {
            let console = fs::read_to_string(&self.console).unwrap_or_default();
            panic!("the guest has ended: {error}\n{console}");
        }
        self.answer(patience)
    }

    /// The same of one that must succeed, within a minute; what it has printed.
    ///
    /// # Panics
    /// When it does not.
    pub fn must(&mut self, line: &str) -> String {
        let said = self.run(line, Duration::from_secs(120));
        assert!(said.ok, "{line}: {}", said.text);
        said.text
    }

    fn answer(&mut self, patience: Duration) -> Said {
        let deadline = Instant::now() + patience;
        let mut text = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let told = String::from_utf8_lossy(&text).into_owned();
            let console = || fs::read_to_string(&self.console).unwrap_or_default();
            assert!(!left.is_zero(), "the guest does not answer: {told}\n{}", console());
            if let Some((before, status)) = told.rsplit_once("@@")
                && let Some(status) = status.strip_suffix('\n')
            {
                return Said { ok: status == "0", text: before.trim_end().to_owned() };
            }
            let mut room = [0; 65536];
            self.line.set_read_timeout(Some(left)).expect("a timeout");
            match self.line.read(&mut room) {
                Ok(0) => {
                    panic!("the guest is gone: {told}\n{}\n{}", self.process.describe(), console())
                }
                Ok(n) => text.extend(&room[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => panic!("the guest's line: {e}"),
            }
        }
    }

    /// A counter of its agent's.
    pub fn counter(&mut self, name: &str) -> u64 {
        let stats: Value = serde_json::from_str(&self.must("shunt stats --json")).expect("JSON");
        stats[name].as_u64().expect("a counter")
    }

    /// Ends the emulator as a crash would.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}
