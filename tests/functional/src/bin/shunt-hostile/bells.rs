//! Doorbells: eventfds that this process and its peers hold together. The library hides them from its
//! program, so they are found in /proc and used past it.

use std::fs;
use std::io;
use std::os::fd::RawFd;

use fastrand::Rng;
use shunt_functional::sys::uring::unseen;

/// Every eventfd of this process.
pub fn all() -> Vec<RawFd> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let is_bell = |path: &std::path::Path| {
        fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("[eventfd]"))
    };
    let bells = entries.flatten().filter(|entry| is_bell(&entry.path()));
    bells.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Adds to the count of an eventfd, unless it is full.
pub fn add(bell: RawFd, count: u64) {
    if is_ready(bell, libc::POLLOUT) {
        let count = count.to_ne_bytes();
        // It may just have been closed.
        let _ = call(libc::SYS_write, bell, count.as_ptr().expose_provenance(), count.len());
    }
}

/// Does something with a doorbell that only its owner should.
pub fn meddle(bell: RawFd, rng: &mut Rng) {
    let flags = |flags: libc::c_int| {
        let flags = usize::try_from(flags).unwrap_or(0);
        let _ = call(libc::SYS_fcntl, bell, usize::try_from(libc::F_SETFL).unwrap_or(0), flags);
    };
    match rng.u8(..5) {
        // As full as it gets. What does not fit would wait, for ever: nobody reads.
        0 | 1 => {
            flags(libc::O_NONBLOCK);
            add(bell, u64::MAX - 1);
        }
        2 => flags(0),
        3 => flags(libc::O_NONBLOCK),
        _ if is_ready(bell, libc::POLLIN) => {
            let mut count = [0_u8; 8];
            let _ = call(libc::SYS_read, bell, count.as_mut_ptr().expose_provenance(), 8);
        }
        _ => {}
    }
}

fn call(number: libc::c_long, fd: RawFd, b: usize, c: usize) -> io::Result<usize> {
    unseen(number, [usize::try_from(fd).unwrap_or(0), b, c, 0, 0, 0])
}

/// poll(2)'s answer at once, from the kernel.
pub fn is_ready(fd: RawFd, events: i16) -> bool {
    let mut fds = [libc::pollfd { fd, events, revents: 0 }];
    let at = fds.as_mut_ptr().expose_provenance();
    unseen(libc::SYS_poll, [at, 1, 0, 0, 0, 0]).is_ok_and(|n| n == 1) && fds[0].revents != 0
}
