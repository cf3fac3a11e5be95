//! A connection, and the way of carrying it with blocking calls.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use shunt_functional::record::{Event, Record, Totals};
use shunt_functional::sys;

use crate::half::{Receiver, Sender, Step};
use crate::options::Common;
use crate::watchdog;

/// One end of a connection.
pub struct Conn {
    /// The socket.
    pub fd: OwnedFd,
    /// What goes out.
    pub sender: Sender,
    /// What comes in.
    pub receiver: Receiver,
    /// Close when everything is sent, without reading.
    pub leave: bool,
    half_closed: bool,
    survive: bool,
    totals: bool,
}

/// Connections and bytes of `--totals`.
static TOTALS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Prints what `--totals` asks for, at the end.
pub fn print_totals(common: &Common) -> io::Result<()> {
    if !common.totals {
        return Ok(());
    }
    let [connections, sent_bytes, received_bytes] =
        [0, 1, 2].map(|i| TOTALS[i].load(Ordering::Relaxed));
    print_line(&Totals { connections, sent_bytes, received_bytes })
}

/// True for what a call says whose peer has been killed.
fn is_loss(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected};
    // ENOTCONN is what shutdown says after a reset that a call has told of.
    matches!(error.kind(), BrokenPipe | ConnectionReset | ConnectionRefused | NotConnected)
}

/// The end of a connection of `--survive` whose other end is gone, or was never reached.
pub fn lost(error: io::Error, survive: bool) -> io::Result<()> {
    if !survive || !is_loss(&error) {
        return Err(error);
    }
    give_up(&error)
}

/// The end of a connection that is not as it was to be.
fn give_up(error: &io::Error) -> io::Result<()> {
    print_line(&Event::Lost { at: sys::monotonic(), how: error.to_string() })?;
    watchdog::finished();
    Ok(())
}

/// A label for a stream that the accepting end sends: the top bit tells it from a client's.
fn server_label() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    (1 << 63) | (u64::from(std::process::id()) << 24) | n
}

impl Conn {
    /// The accepting end.
    pub fn accepted(fd: OwnedFd, common: &Common) -> io::Result<Self> {
        Self::new(fd, server_label(), false, common)
    }

    /// The connecting end of connection `number`.
    pub fn connected(fd: OwnedFd, number: usize, leave: bool, common: &Common) -> io::Result<Self> {
        let label = (common.seed << 32) | (number as u64 + 1);
        Self::new(fd, label, leave, common)
    }

    fn new(fd: OwnedFd, label: u64, leave: bool, common: &Common) -> io::Result<Self> {
        watchdog::opened();
        if common.survive {
            print_line(&Event::Begun)?;
        }
        let sender = Sender::new(label, common);
        let receiver = Receiver::new(label, common);
        let Common { survive, totals, .. } = *common;
        Ok(Self { fd, sender, receiver, leave, half_closed: false, survive, totals })
    }

    /// True when the other end may be killed.
    pub const fn survives(&self) -> bool {
        self.survive
    }

    /// The descriptor's number.
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// True when nothing is left to do.
    pub fn is_done(&self) -> bool {
        self.sender.is_done() && (self.leave || self.receiver.is_done())
    }

    /// Ends the outgoing direction once everything is sent.
    pub fn half_close(&mut self) -> io::Result<()> {
        if self.sender.is_done() && !self.half_closed && !self.leave {
            self.half_closed = true;
            self.sender.release();
            sys::shutdown(self.raw(), libc::SHUT_WR)?;
        }
        Ok(())
    }

    /// Closes and prints the record.
    pub fn finish(mut self) -> io::Result<()> {
        self.sender.release();
        self.receiver.release();
        if let Some(wrong) = self.receiver.take_wrong() {
            return give_up(&wrong);
        }
        let record = Record {
            sent_label: self.sender.label,
            sent_bytes: self.sender.sent,
            sent_hash: self.sender.hash(),
            received_label: self.receiver.label,
            received_bytes: self.receiver.got,
            received_hash: self.receiver.hash(),
        };
        drop(self.fd);
        if self.totals {
            let news = [1, record.sent_bytes, record.received_bytes];
            TOTALS.iter().zip(news).for_each(|(total, n)| {
                total.fetch_add(n, Ordering::Relaxed);
            });
        } else {
            print_line(&record)?;
        }
        watchdog::finished();
        Ok(())
    }

    /// Carries the connection to its end with blocking calls, one thread per direction.
    pub fn run_blocking(mut self) -> io::Result<()> {
        match self.carry() {
            Ok(()) => self.finish(),
            Err(e) => lost(e, self.survive),
        }
    }

    fn carry(&mut self) -> io::Result<()> {
        let fd = self.raw();
        if self.leave {
            return send_all(&mut self.sender, fd);
        }
        thread::scope(|scope| -> io::Result<()> {
            let sending = scope.spawn(|| -> io::Result<()> {
                send_all(&mut self.sender, fd)?;
                self.sender.release();
                sys::shutdown(fd, libc::SHUT_WR)
            });
            loop {
                match self.receiver.step(fd, true)? {
                    Step::Done => break,
                    Step::Blocked => wait(fd, libc::POLLIN)?,
                    Step::Moved | Step::Short => {}
                }
            }
            sending.join().map_err(|_| io::Error::other("the sending thread panicked"))?
        })
    }
}

/// Sends everything with blocking calls.
fn send_all(sender: &mut Sender, fd: RawFd) -> io::Result<()> {
    loop {
        match sender.step(fd)? {
            Step::Done => return Ok(()),
            // MSG_DONTWAIT found no room.
            Step::Blocked => wait(fd, libc::POLLOUT)?,
            Step::Moved | Step::Short => {}
        }
    }
}

/// Waits for one event on one descriptor.
fn wait(fd: RawFd, events: i16) -> io::Result<()> {
    let mut fds = [libc::pollfd { fd, events, revents: 0 }];
    match sys::poll(&mut fds, Some(Duration::from_secs(60))) {
        Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
        _ => Ok(()),
    }
}

/// Prints `value` as one line in one write, so that lines of several processes do not mix.
pub fn print_line<T: serde::Serialize>(value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}
