//! The standard streams of our own programs (never the library).
//!
//! Rust's `println!` ends a program by a panic when standard output cannot be written, and says nothing
//! when it is closed. Here either is an error, which the caller reports.

use std::ffi::c_int;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, IntoRawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

const OUTPUT: c_int = 1;
const STREAMS: std::ops::Range<c_int> = 0..3;

/// Opens `/dev/null` on those of the standard streams that are closed. Else the next file or socket would get
/// such a number, and what is meant for a person would be written to it.
///
/// All of them are closed again by an exec, so a program that this one becomes or starts finds the streams as
/// they were. Standard output stays as unwritable as it was.
pub fn occupy() {
    for fd in STREAMS {
        // SAFETY: the number is only asked about.
        let stream = unsafe { BorrowedFd::borrow_raw(fd) };
        if rustix::io::fcntl_getfd(stream) != Err(Errno::BADF) {
            continue;
        }
        let access = if fd == OUTPUT { OFlags::RDONLY } else { OFlags::RDWR };
        // The lowest free number is this one. Without /dev/null the streams stay closed.
        if let Ok(null) = open(c"/dev/null", access | OFlags::CLOEXEC, Mode::empty()) {
            let _stays_open = null.into_raw_fd();
        }
    }
}

/// Writes all of `text` to standard output, without a buffer. Of an empty one, finds out whether standard output
/// is open for writing.
///
/// # Errors
/// Those of write(2). `EPIPE` comes only where SIGPIPE is ignored; else a reader that has gone ends the program.
pub fn print(text: &str) -> Result<(), Unwritable> {
    put(text.as_bytes())
}

/// The same with bytes that need not be text.
///
/// # Errors
/// As [`print()`].
pub fn put(bytes: &[u8]) -> Result<(), Unwritable> {
    // SAFETY: nothing here closes the standard streams.
    let output = unsafe { BorrowedFd::borrow_raw(OUTPUT) };
    write_all(output, bytes).map_err(Unwritable)
}

/// Why standard output cannot be written.
#[derive(Debug)]
pub struct Unwritable(pub io::Error);

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "standard output cannot be written: {}", self.0)
    }
}

impl std::error::Error for Unwritable {}

/// Standard output for those who write to whatever there is: as [`put()`], and what goes wrong is an [`Unwritable`].
#[derive(Clone, Copy, Debug)]
pub struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        put(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    loop {
        match rustix::io::write(to, bytes) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(Errno::INTR) => continue,
            // Somebody with whom it is shared has made it non-blocking.
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&to, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            },
            Err(e) => return Err(e.into()),
        }
        if bytes.is_empty() {
            return Ok(());
        }
    }
}

/// Standard error, as a log: what cannot be written there is lost, and the program goes on.
#[derive(Clone, Copy, Debug)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _lost = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    #[test]
    fn a_pipe_that_does_not_block_gets_everything() {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&reader, false).unwrap();
        let text = vec![b'x'; 1 << 20];
        let expected = text.clone();
        let writes = std::thread::spawn(move || write_all(writer.as_fd(), &text));
        let mut got = Vec::new();
        std::fs::File::from(reader).read_to_end(&mut got).unwrap();
        writes.join().unwrap().unwrap();
        assert!(got == expected);
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        let errno = |path: &str, flags, text: &str| {
            let file = open(path, flags, Mode::empty()).unwrap();
            write_all(file.as_fd(), text.as_bytes()).map_err(|e| e.raw_os_error())
        };
        assert_eq!(errno("/dev/full", OFlags::WRONLY, "x"), Err(Some(libc::ENOSPC)));
        assert_eq!(errno("/dev/null", OFlags::WRONLY, ""), Ok(()));
        assert_eq!(errno("/dev/null", OFlags::RDONLY, ""), Err(Some(libc::EBADF)));
    }
}
