//! The ivshmem server with the distribution's QEMU: no guest runs, the devices are real.

use std::io::{self, BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{IoSliceMut, pread, read, write};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::Value;
use shunt_functional::binaries::{built, program};
use shunt_functional::mode::Mode;
use shunt_functional::sandbox::{Process, Sandbox};
use shunt_functional::waiting::settles;

/// A place for a server and virtual machines.
struct Host {
    sandbox: Sandbox,
}

impl Host {
    fn new() -> Self {
        Self { sandbox: Sandbox::new(Mode::Plain) }
    }

    fn socket(&self) -> PathBuf {
        self.sandbox.path().join("ivshmem.sock")
    }

    fn shunt(&self, args: &[&str]) -> Command {
        let mut command = self.sandbox.plain(built("shunt"));
        command.arg("ivshmem-server").args(args).arg("--socket").arg(self.socket());
        command
    }

    /// Starts a server and waits until it is the one that answers.
    fn serve(&self, args: &[&str]) -> Process {
        let mut server = self.sandbox.spawn(self.shunt(args));
        settles("the server that answers", &i64::from(server.pid()), || {
            server.assert_running();
            self.status().map_or(0, |status| status["pid"].as_i64().unwrap_or(0))
        });
        server
    }

    fn status(&self) -> Option<Value> {
        let output = self.shunt(&["status", "--json"]).output().expect("shunt runs");
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Waits until so many are connected, who have been told everything; gives the status.
    fn until_peers(&self, wanted: usize) -> Value {
        let look = || {
            let status = self.status().unwrap_or_default();
            let peers = status["peers"].as_array().cloned().unwrap_or_default();
            let queued = peers.iter().filter_map(|peer| peer["queued"].as_u64()).sum::<u64>();
            (peers.len(), queued)
        };
        settles("clients and what waits for them", &(wanted, 0), look);
        self.status().expect("a server")
    }

    /// A virtual machine with a device of two vectors.
    fn machine(&self, more: &[&str]) -> Process {
        let mut command = self.sandbox.plain(program("qemu-system-x86_64"));
        command.args(["-accel", "tcg", "-m", "16", "-display", "none", "-nodefaults", "-S"]);
        command.args(["-device", "ivshmem-doorbell,addr=5,vectors=2,chardev=c", "-chardev"]);
        command.arg(format!("socket,path={},id=c", self.socket().display())).args(more);
        self.sandbox.spawn(command)
    }
}

/// Ends a virtual machine, which has not complained.
fn end(machine: Process) {
    machine.signal(libc::SIGTERM);
    let finished = machine.wait();
    let complaint = finished.stderr.lines().find(|line| !line.contains("terminating on signal"));
    assert_eq!(complaint, None, "{finished}");
}

fn of(status: &Value, pid: i32, field: &str) -> u64 {
    let peers = status["peers"].as_array().expect("peers");
    let peer = peers.iter().find(|peer| peer["pid"] == pid).expect("it is connected");
    peer[field].as_u64().expect("a number")
}

#[test]
fn machines_meet_one_is_killed_and_the_server_is_replaced() {
    let host = Host::new();
    let first = host.serve(&["--vectors", "2", "--size", "1M"]);
    let one = host.machine(&[]);
    host.until_peers(1);
    let mut other = host.machine(&[]);
    let before = host.until_peers(2);
    assert_eq!((of(&before, one.pid(), "id"), of(&before, other.pid(), "id")), (0, 1));
    // Version, ID, memory, two bells of each.
    assert_eq!(of(&before, one.pid(), "messages"), 7);
    assert_eq!(of(&before, other.pid(), "messages"), 7);

    let second = host.serve(&["--take-over"]);
    let _ended = first.wait().success();
    let after = host.until_peers(2);
    assert_eq!(after["peers"], before["peers"]);

    other.kill();
    let after = host.until_peers(1);
    assert_eq!(after["left"], 1);
    assert_eq!(of(&after, one.pid(), "messages"), 8, "it was told");
    let third = host.machine(&[]);
    let after = host.until_peers(2);
    assert_eq!(
        of(&after, third.pid(), "id"),
        2,
        "1 rests while somebody is there who knew its owner"
    );
    assert_eq!(of(&after, one.pid(), "messages"), 10);
    // Devices that hear of many who come and go.
    for _ in 0..100 {
        let guest = UnixStream::connect(host.socket()).expect("the server listens");
        host.until_peers(3);
        drop(guest);
        host.until_peers(2);
    }

    second.signal(libc::SIGTERM);
    let _ended = second.wait().success();
    assert!(!host.socket().exists());
    for machine in [one, third] {
        end(machine);
    }
}

/// A virtual machine's bus, from outside.
struct Bus {
    lines: BufReader<UnixStream>,
}

impl Bus {
    /// Where the device's registers and memory are put.
    const REGISTERS: u32 = 0xe000_0000;
    const MEMORY: u32 = 0xd000_0000;

    fn accept(listener: &UnixListener) -> Self {
        let (stream, _) = listener.accept().expect("QEMU connects");
        let mut bus = Self { lines: BufReader::new(stream) };
        // Base addresses 0 and 2 of device 5, which then decodes memory accesses.
        for (register, value) in
            [(0x10, Self::REGISTERS), (0x18, Self::MEMORY), (0x1c, 0), (0x04, 2)]
        {
            bus.say(&format!("outl 0xcf8 {:#x}", 0x8000_2800_u32 | register));
            bus.say(&format!("outl 0xcfc {value:#x}"));
        }
        bus
    }

    fn say(&mut self, what: &str) -> String {
        writeln!(self.lines.get_mut(), "{what}").expect("QEMU listens");
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).expect("QEMU answers") > 0, "{what}");
            // Interrupts are reported in between.
            if let Some(answer) = line.strip_prefix("OK") {
                return answer.trim().to_owned();
            }
            assert!(line.starts_with("IRQ"), "{what}: {line}");
        }
    }

    fn set(&mut self, address: u32, value: u32) {
        self.say(&format!("writel {address:#x} {value:#x}"));
    }

    fn get(&mut self, address: u32) -> u32 {
        let answer = self.say(&format!("readl {address:#x}"));
        let digits = answer.trim_start_matches("0x");
        u32::from_str_radix(digits, 16).expect("a number")
    }
}

/// The next message to a client that is not a device.
fn message(socket: &UnixStream) -> io::Result<(i64, Option<OwnedFd>)> {
    let mut bytes = [0; 8];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let buffers = &mut [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(socket, buffers, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    assert_eq!(got.bytes, 8, "the server hung up");
    let rights = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    Ok((i64::from_le_bytes(bytes), rights))
}

#[test]
fn a_device_rings_and_is_rung_and_its_memory_is_shared() {
    let host = Host::new();
    let _server = host.serve(&["--vectors", "2", "--size", "1M"]);
    let path = host.sandbox.path().join("qtest");
    let listener = UnixListener::bind(&path).expect("a socket for qtest");
    let qtest = format!("unix:{}", path.display());
    let machine = host.machine(&["-qtest", &qtest, "-qtest-log", "none"]);
    let mut bus = Bus::accept(&listener);
    host.until_peers(1);

    let client = UnixStream::connect(host.socket()).expect("the server listens");
    let messages: Vec<_> = (0..7).map(|_| message(&client).expect("a message")).collect();
    let numbers: Vec<_> = messages.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [0, 1, -1, 0, 0, 1, 1]);
    let fds: Vec<_> = messages.into_iter().filter_map(|(_, fd)| fd).collect();
    let [memory, _, theirs, own @ ..] = &fds[..] else { panic!("{} descriptors", fds.len()) };
    // What it is told it has read when this has been sent.
    host.until_peers(2);

    const IV_POSITION: u32 = Bus::REGISTERS + 8;
    const DOORBELL: u32 = Bus::REGISTERS + 12;
    assert_eq!(bus.get(IV_POSITION), 0);
    bus.set(Bus::MEMORY + 0x1234, 0xfeed_cafe);
    let mut word = [0; 4];
    pread(memory, &mut word, 0x1234).expect("memory");
    assert_eq!(u32::from_le_bytes(word), 0xfeed_cafe);
    rustix::io::pwrite(memory, &[1, 2, 3, 4], 0x2000).expect("memory");
    assert_eq!(bus.get(Bus::MEMORY + 0x2000), 0x0403_0201);

    for (vector, bell) in (0..).zip(own) {
        let mut count = [0; 8];
        // The device may not have read yet that there is somebody to be rung.
        settles("the doorbell", &true, || {
            bus.set(DOORBELL, 1 << 16 | vector);
            read(bell, &mut count[..]).is_ok()
        });
        assert!(own.iter().all(|other| read(other, &mut count[..]).is_err()), "no other is rung");
    }

    write(theirs, &1_u64.to_ne_bytes()).expect("a doorbell");
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    settles("the device has heard", &Ok(0), || {
        poll(&mut [PollFd::new(theirs, PollFlags::IN)], Some(&now))
    });
    drop(client);
    host.until_peers(1);
    end(machine);
}
