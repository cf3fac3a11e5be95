//! Passes descriptors that block whoever closes them, or asks them something, until this process is ended.

use std::any::Any;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, mkfifoat, open};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::thread::{Gid, Uid};
use shunt_blocking::{Held, HungFile, Lingering, chain};
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{Exported, MAX_MESSAGE, Request, encode};

use crate::agent::{Agent, doorbell};
use crate::say;

/// As long as anybody waits.
const FOR_EVER: Duration = Duration::from_secs(3600);
const NAP: Duration = Duration::from_millis(2);

/// A descriptor, and what keeps it as it is.
type Blocking = (OwnedFd, Box<dyn Any>);

/// The same: in whose queue there is one that lingers, so that whoever throws that queue away closes it last.
fn lingering(depth: usize) -> io::Result<Blocking> {
    let (socket, keeper) = Lingering::connect(FOR_EVER)?;
    Ok((chain(depth, socket)?, Box::new(keeper)))
}

fn hung_file() -> io::Result<Blocking> {
    let hung = HungFile::open()?;
    Ok((hung.file().try_clone()?, Box::new(hung)))
}

fn watched_bell() -> io::Result<Blocking> {
    let bell = doorbell()?;
    let held = Held::watching(&bell)?;
    Ok((bell, Box::new(held)))
}

fn locked_pipe() -> io::Result<Blocking> {
    let (reader, writer) = io::pipe()?;
    let held = Held::writing(&writer)?;
    Ok((reader.into(), Box::new(held)))
}

fn fifo() -> io::Result<Blocking> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("fifo");
    mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok((open(&path, flags, Mode::empty())?, Box::new(dir)))
}

fn send(to: &Agent, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    control.push(SendAncillaryMessage::ScmRights(fds));
    sendmsg(to.socket(), &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Says that it is ready, and when `go` is there passes all that it has, in packets that mean something, nothing or
/// half of something. It never receives an answer.
pub fn run(run_dir: &Path, go: &Path, user: Option<u32>) -> io::Result<()> {
    let mut all = Vec::new();
    for _ in 0..2 {
        all.extend([lingering(0)?, lingering(1)?, lingering(300)?]);
        all.extend([hung_file()?, fifo()?, watched_bell()?, locked_pipe()?]);
    }
    if let Some(user) = user {
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    let program = "intruder";
    let hello = Request::Hello { version: PROTOCOL_VERSION, program, run: 0 };
    let requests = [
        Request::Listen,
        Request::Attach { region: 1, slot: 0 },
        Request::Export { what: Exported::Asked },
        Request::Claim,
        Request::Connect { listener: 1 },
    ];
    let mut packets = vec![vec![0xff; 3], vec![]];
    for request in [&[hello][..], &requests].concat() {
        let mut buf = [0; MAX_MESSAGE];
        let whole = encode(&request, &mut buf).map_err(io::Error::other)?.to_vec();
        packets.extend([whole[..whole.len() / 2].to_vec(), whole]);
    }
    // No more than one process may have.
    let mut clients = Vec::new();
    for _ in 0..7 {
        clients.extend([Agent::introduced(run_dir)?.0, Agent::reach(run_dir)?]);
    }
    say("ready", all.len());
    while !go.exists() {
        thread::sleep(NAP);
    }
    let (mut passed, mut kept) = (0, Vec::new());
    for (n, client) in clients.iter().enumerate() {
        for (m, packet) in packets.iter().enumerate() {
            let (fd, _) = &all[(n + m) % all.len()];
            // Few of them, too many, and as many as there can be.
            let count = [1, 2, 17, 253][(n / 2 + m) % 4];
            // It may have hung up.
            passed +=
                if send(client, packet, &vec![fd.as_fd(); count]).is_ok() { count } else { 0 };
        }
    }
    for (fd, keeper) in all {
        // Whoever has it now is the last.
        drop(fd);
        kept.push(keeper);
    }
    say("passed", passed);
    // Half of the conversations end before anything that was said there is heard.
    clients.truncate(7);
    loop {
        thread::sleep(FOR_EVER);
    }
}
