//! Measures what a wake-up costs on this host.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::sampling::median;

/// Wake-ups there and back, of which the first few do not count.
const TIMES: usize = 24;
const WARM: usize = 4;

/// Time for one of them.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// How long it takes from a write into an eventfd until the thread that sleeps on it in poll(2) runs: by two threads that wake each
/// other, as a program and its agent do.
///
/// # Errors
/// No thread, no descriptor; it took longer than a second.
pub(crate) fn measure() -> io::Result<Duration> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let (there, back) = (eventfd(0, flags)?, eventfd(0, flags)?);
    let samples = std::thread::scope(|scope| {
        let answers = std::thread::Builder::new().name("shunt-wake".into());
        let answers = answers.spawn_scoped(scope, || {
            for _ in 0..TIMES {
                wait(&there)?;
                wake(&back)?;
            }
            Ok::<_, io::Error>(())
        })?;
        let mut samples = Vec::new();
        for _ in 0..TIMES {
            let began = Instant::now();
            wake(&there)?;
            wait(&back)?;
            samples.push(began.elapsed() / 2);
        }
        let is_lost = || io::Error::other("the thread that answers has ended");
        answers.join().map_err(|_| is_lost())??;
        Ok::<_, io::Error>(samples)
    });
    Ok(median(samples?.split_off(WARM)))
}

fn wake(fd: &OwnedFd) -> io::Result<()> {
    rustix::io::write(fd, &1_u64.to_ne_bytes())?;
    Ok(())
}

fn wait(fd: &OwnedFd) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&PATIENCE)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    rustix::io::read(fd, &mut [0; 8][..])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_wake_up_takes_some_time() {
        assert!(!super::measure().unwrap().is_zero());
    }
}
