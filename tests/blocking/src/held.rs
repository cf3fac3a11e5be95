//! Kernel locks held by a process that waits for memory, which a file system that hangs is to provide.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use shunt_sys::fds::close_all_but;

use crate::HungFile;

const PAGE: usize = 4096;

/// A lock that is held as long as this value is there.
#[derive(Debug)]
pub struct Held {
    holder: Pid,
    /// Without its server the holder goes on.
    memory: Option<HungFile>,
}

/// What the holder does with memory that never comes.
#[derive(Clone, Copy)]
enum Deed {
    WaitAtEpoll,
    Write,
}

impl Held {
    /// The lock of an epoll instance that watches `watched`, which is waited for by whoever closes that last.
    ///
    /// # Errors
    /// As [`HungFile::open`].
    pub fn watching(watched: impl AsFd) -> io::Result<Self> {
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let ready = eventfd(1, EventfdFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&instance, watched, data, epoll::EventFlags::IN)?;
        epoll::add(&instance, &ready, data, epoll::EventFlags::IN)?;
        // The instance goes on watching what is open anywhere.
        Self::by(Deed::WaitAtEpoll, instance.as_fd(), Some(ready.as_fd()))
    }

    /// The lock of a pipe, or of a socket, to which its holder writes.
    ///
    /// # Errors
    /// As [`HungFile::open`].
    pub fn writing(to: impl AsFd) -> io::Result<Self> {
        Self::by(Deed::Write, to.as_fd(), None)
    }

    fn by(deed: Deed, with: BorrowedFd<'_>, besides: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let memory = HungFile::open()?;
        // SAFETY: a fresh mapping at an address that the kernel chooses; nobody here touches it.
        let page = unsafe {
            let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            mmap(std::ptr::null_mut(), PAGE, prot, flags, memory.file(), 0)
        }?;
        // SAFETY: the child makes system calls, on memory that it shares with nobody.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the child ends here, and uses those descriptors alone that are kept.
            unsafe {
                close_all_but([with, besides.unwrap_or(with)]);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::prctl(libc::PR_SET_NAME, c"shunt-inspector".as_ptr());
                let fd = with.as_raw_fd();
                match deed {
                    Deed::WaitAtEpoll => {
                        libc::epoll_wait(fd, page.cast(), 1, -1);
                    }
                    Deed::Write => {
                        libc::write(fd, page.cast(), PAGE);
                    }
                }
                libc::_exit(0);
            }
        }
        // SAFETY: of this function's own making, and used nowhere else in this process.
        let _ = unsafe { munmap(page, PAGE) };
        let holder = Pid::from_raw(child).ok_or_else(io::Error::last_os_error)?;
        memory.until_it_is_read()?;
        Ok(Self { holder, memory: Some(memory) })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.memory.take());
        let _ = kill_process(self.holder, Signal::KILL);
        let _ = waitpid(Some(self.holder), WaitOptions::empty());
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::thread::sleep;
    use std::time::Duration;

    use rustix::io::close;

    use super::*;

    /// Whether a process that closes this last is held up, and goes on when `until` does.
    fn blocks(last: OwnedFd, until: Held) -> bool {
        let fd = last.as_raw_fd();
        std::mem::forget(last);
        // SAFETY: the child makes system calls, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // Until it is the only one who has it.
            sleep(Duration::from_millis(200));
            // SAFETY: closes what it has inherited, and ends.
            unsafe {
                close(fd);
                libc::_exit(0)
            }
        }
        // SAFETY: of which this process knows nothing any more.
        unsafe { close(fd) };
        let child = Pid::from_raw(child).unwrap();
        sleep(Duration::from_millis(500));
        let blocked = waitpid(Some(child), WaitOptions::NOHANG).unwrap().is_none();
        drop(until);
        if blocked {
            waitpid(Some(child), WaitOptions::empty()).unwrap();
        }
        blocked
    }

    #[test]
    fn what_a_held_instance_watches_is_not_closed() {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let held = Held::watching(&bell).unwrap();
        assert!(blocks(bell, held));
    }

    #[test]
    fn the_end_of_a_held_pipe_is_not_closed() {
        let (reader, writer) = std::io::pipe().unwrap();
        let held = Held::writing(&writer).unwrap();
        drop(writer);
        assert!(blocks(reader.into(), held));
    }
}
