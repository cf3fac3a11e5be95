//! A file in a file system that a process serves, and then does not serve any more (FUSE, by hand).
//!
//! The server is a process of its own. It answers until it is told to stop. Processes of the program that made it are
//! answered all the same, so that they, and what they fork, can close what they have; not those that have taken another
//! name.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Access, Mode, OFlags, access, fstat, open};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, Signal, geteuid, getpid, kill_process, waitpid};
use tempfile::NamedTempFile;

/// Longer than any request that a file of no use gets.
const ROOM: usize = 1 << 16;

/// A file whose file system answers nobody but this program. Whoever else closes it, asks it something, or reads it
/// (also through a mapping, on whatever behalf) waits until this value goes.
#[derive(Debug)]
pub struct HungFile {
    file: Option<OwnedFd>,
    /// Closed: the server ends.
    control: OwnedFd,
    server: Pid,
}

impl HungFile {
    /// Mounts the file system in a namespace of its own.
    ///
    /// # Errors
    /// Where there is no FUSE, or it is not for this user.
    pub fn open() -> io::Result<Self> {
        let place = NamedTempFile::new()?;
        let place = c_path(place.path())?;
        let flags = SocketFlags::CLOEXEC;
        let (control, end) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let maker = getpid();
        // SAFETY: the child makes system calls, on memory that it has of its own.
        let server = match unsafe { libc::fork() } {
            0 => {
                // SAFETY: the child uses nothing else. What others wait to see closed it must not keep open.
                unsafe { shunt_sys::fds::close_all_but([end.as_fd()]) };
                let why = serve(&end, &place, maker).err().as_ref().map_or(0, raw);
                let _ = rustix::io::write(&end, &why.to_ne_bytes());
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) }
            }
            child => Pid::from_raw(child).ok_or_else(io::Error::last_os_error)?,
        };
        drop(end);
        let mut hung = Self { file: None, control, server };
        hung.file = Some(receive(&hung.control)?);
        // From now on nobody else is answered.
        rustix::io::write(&hung.control, &[0])?;
        let mut heard = [0];
        rustix::io::read(&hung.control, &mut heard)?;
        Ok(hung)
    }

    /// Waits until somebody reads it.
    ///
    /// # Errors
    /// When nobody has after some seconds.
    pub(crate) fn until_it_is_read(&self) -> io::Result<()> {
        let patience = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&self.control, PollFlags::IN)], Some(&patience))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        rustix::io::read(&self.control, &mut [0])?;
        Ok(())
    }

    /// The file.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn file(&self) -> &OwnedFd {
        self.file.as_ref().expect("it is there as long as this value")
    }
}

impl Drop for HungFile {
    fn drop(&mut self) {
        // While there is somebody to be told of it.
        drop(self.file.take());
        let _ = kill_process(self.server, Signal::KILL);
        let _ = waitpid(Some(self.server), rustix::process::WaitOptions::empty());
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn raw(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}

/// The descriptor that the server has sent, or why there is none.
fn receive(from: &OwnedFd) -> io::Result<OwnedFd> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut word = [0; 4];
    let iov = &mut [io::IoSliceMut::new(&mut word)];
    let got = recvmsg(from, iov, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = part
            && let Some(fd) = fds.next()
        {
            return Ok(fd);
        }
    }
    let why = if got == word.len() { i32::from_ne_bytes(word) } else { libc::EIO };
    Err(io::Error::from_raw_os_error(why))
}

/// Serves the file at `place` in namespaces of its own until `end` closes.
fn serve(end: &OwnedFd, place: &CStr, maker: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    shunt_sys::signals::forget_children();
    let root = geteuid().is_root();
    let (uid, gid) = (geteuid().as_raw(), rustix::process::getegid().as_raw());
    let user = if root { 0 } else { libc::CLONE_NEWUSER };
    // SAFETY: this process has one thread; the call takes no address.
    if unsafe { libc::unshare(libc::CLONE_NEWNS | user) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let device = open(c"/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let number = device.as_raw_fd();
    if !root {
        map_root(uid, gid)?;
    }
    let options = CString::new(format!("fd={number},rootmode=100644,user_id=0,group_id=0"))?;
    // SAFETY: strings that end with a zero.
    let private = unsafe {
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        libc::mount(c"".as_ptr(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null())
    };
    // SAFETY: strings that end with a zero.
    let mounted = unsafe {
        let (name, flags) = (c"shunt-test".as_ptr(), libc::MS_NOSUID | libc::MS_NODEV);
        libc::mount(name, place.as_ptr(), c"fuse".as_ptr(), flags, options.as_ptr().cast())
    };
    if private != 0 || mounted != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the child makes system calls.
    match unsafe { libc::fork() } {
        0 => {
            // With the device it would keep its own request open for ever.
            // SAFETY: the child uses nothing else.
            unsafe { shunt_sys::fds::close_all_but([end.as_fd()]) };
            let why = hand_over(end, place).err().as_ref().map_or(0, raw);
            if why != 0 {
                let _ = rustix::io::write(end, &why.to_ne_bytes());
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        }
        -1 => return Err(io::Error::last_os_error()),
        _ => {}
    }
    answer(&device, end, maker)
}

/// Makes this process, alone in a user namespace, its root.
fn map_root(uid: u32, gid: u32) -> io::Result<()> {
    let say = |file: &CStr, text: &str| -> io::Result<()> {
        let file = open(file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, text.as_bytes())?;
        Ok(())
    };
    say(c"/proc/self/setgroups", "deny")?;
    say(c"/proc/self/uid_map", &format!("0 {uid} 1"))?;
    say(c"/proc/self/gid_map", &format!("0 {gid} 1"))
}

/// Opens the file, and sends it.
fn hand_over(end: &OwnedFd, place: &CStr) -> io::Result<()> {
    let file = open(place, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // The kernel does not read where it knows of no bytes.
    fstat(&file)?;
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    let fds = [file.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(end, &[io::IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// What is asked (`enum fuse_opcode` of include/uapi/linux/fuse.h).
mod asked {
    pub const GETATTR: u32 = 3;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const RELEASE: u32 = 18;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const INTERRUPT: u32 = 36;
}

/// The length of the file.
const LENGTH: u64 = 1 << 20;

/// Answers all requests until it is told that it is enough, and then those of this program alone.
fn answer(device: &OwnedFd, end: &OwnedFd, maker: Pid) -> io::Result<()> {
    let mut request = vec![0; ROOM];
    let mut hangs = false;
    loop {
        let mut sources = [PollFd::new(device, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
        poll(&mut sources, None)?;
        if !sources[1].revents().is_empty() {
            let mut byte = [0];
            if hangs || rustix::io::read(end, &mut byte)? == 0 {
                return Ok(());
            }
            hangs = true;
            rustix::io::write(end, &byte)?;
            continue;
        }
        let len = match rustix::io::read(device, &mut request[..]) {
            Ok(len) => len,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => continue,
            Err(e) => return Err(e.into()),
        };
        let header = request.get(..len.min(40)).filter(|header| header.len() == 40);
        let Some(header) = header else { continue };
        let word = |at: usize| {
            header.get(at..at + 4).map_or(0, |w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]))
        };
        let (code, unique, thread) = (word(4), header[8..16].to_vec(), word(32));
        if hangs && code == asked::READ {
            rustix::io::write(end, &[0])?;
        }
        if code == asked::INTERRUPT || hangs && !is_of_this_program(thread, maker) {
            continue;
        }
        let (error, body) = match code {
            asked::INIT => (0, initial()),
            asked::GETATTR => (0, attributes()),
            asked::OPEN => (0, vec![0; 16]),
            asked::FLUSH | asked::RELEASE => (0, Vec::new()),
            _ => (-libc::ENOSYS, Vec::new()),
        };
        let total = u32::try_from(16 + body.len()).unwrap_or(16);
        let reply = [&total.to_ne_bytes()[..], &error.to_ne_bytes(), &unique, &body].concat();
        // Whoever has asked may be gone.
        let _ = rustix::io::write(device, &reply);
    }
}

/// What threads are called that are none of the program's, though they run its code.
const OTHERS: &str = "shunt-inspector";

fn is_of_this_program(thread: u32, maker: Pid) -> bool {
    // At its end it is not known any more what its program was.
    let of_maker = format!("/proc/{}/task/{thread}", maker.as_raw_pid());
    if access(of_maker, Access::EXISTS).is_ok() {
        return true;
    }
    let of = |thread: &str, what| std::fs::read_link(format!("/proc/{thread}/{what}")).ok();
    let name = std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
    of(&thread.to_string(), "exe") == of("self", "exe") && name.trim() != OTHERS
}

/// `struct fuse_init_out`: version 7.31, no more than the least.
fn initial() -> Vec<u8> {
    let mut body = vec![0; 64];
    body[..4].copy_from_slice(&7_u32.to_ne_bytes());
    body[4..8].copy_from_slice(&31_u32.to_ne_bytes());
    // The longest write, and the resolution of times.
    body[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
    body[24..28].copy_from_slice(&1_u32.to_ne_bytes());
    body
}

/// `struct fuse_attr_out`: a file that all may use, whose attributes are to be asked for each time.
fn attributes() -> Vec<u8> {
    let mut body = vec![0; 104];
    body[16..24].copy_from_slice(&1_u64.to_ne_bytes());
    body[24..32].copy_from_slice(&LENGTH.to_ne_bytes());
    body[76..80].copy_from_slice(&0o100_666_u32.to_ne_bytes());
    body[80..84].copy_from_slice(&1_u32.to_ne_bytes());
    body
}

#[cfg(test)]
mod tests {
    use rustix::process::WaitOptions;

    use super::*;

    #[test]
    fn whoever_else_closes_it_waits() {
        let hung = HungFile::open().unwrap();
        let file = hung.file().try_clone().unwrap();
        // SAFETY: the child makes system calls, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            rustix::thread::set_name(c"shunt-inspector").unwrap();
            drop(file);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        // Its maker may.
        drop(file);
        let child = Pid::from_raw(child).unwrap();
        let ended = || waitpid(Some(child), WaitOptions::NOHANG).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(ended().is_none());
        kill_process(child, Signal::KILL).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(ended().is_none(), "not even then");
        drop(hung);
        waitpid(Some(child), WaitOptions::empty()).unwrap();
    }
}
