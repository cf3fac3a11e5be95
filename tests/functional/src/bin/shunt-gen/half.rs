//! One direction of a connection: the sending half and the receiving half.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use fastrand::Rng;
use shunt_api::{Released, Room};
use shunt_functional::{pattern, sys};
use xxhash_rust::xxh3::Xxh3;

use crate::hand_over;
use crate::options::{Common, HandOver, RecvCall, SendCall};
use crate::watchdog;
use crate::zero::Zero;

/// Most bytes that are borrowed at once where they have to be copied.
const MOST_COPIED: usize = 2_000;

/// What a step of a half came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Bytes moved; there may be more to do at once.
    Moved,
    /// Bytes moved, fewer than asked for: the kernel has no more (or no more room) now.
    Short,
    /// The call would have blocked.
    Blocked,
    /// This half is done.
    Done,
}

/// Which of the random choices a half makes.
#[derive(Clone)]
pub struct Mix {
    send: Vec<SendCall>,
    recv: Vec<RecvCall>,
    max_call: usize,
    pause: u64,
}

impl Mix {
    /// As the command line says.
    pub fn new(common: &Common) -> Self {
        Self {
            send: common.send_calls.clone(),
            recv: common.recv_calls.clone(),
            max_call: common.max_call.max(1),
            pause: common.pause,
        }
    }

    /// A length for a call: each order of magnitude is as likely as another.
    fn length(&self, rng: &mut Rng) -> usize {
        let top = usize::BITS - 1 - self.max_call.leading_zeros();
        let magnitude = rng.u32(0..=top);
        rng.usize(1..=2 << magnitude).min(self.max_call)
    }

    /// Now and then, a pause.
    fn pause(&self, rng: &mut Rng) {
        if self.pause > 0 && rng.u8(..64) == 0 {
            std::thread::sleep(Duration::from_micros(rng.u64(0..=self.pause)));
        }
    }
}

/// True for the errors that mean "try again".
fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The sending half.
pub struct Sender {
    /// Names the stream; its first 8 bytes.
    pub label: u64,
    /// Bytes sent.
    pub sent: u64,
    total: u64,
    hash: Xxh3,
    chunk: Vec<u8>,
    /// What of `chunk` has been sent.
    done: usize,
    mix: Mix,
    /// How and where in the stream it is taken back to TCP.
    hand_over: Option<(HandOver, u64)>,
    /// Calls go through duplicates of the descriptor.
    duplicate: Option<OwnedFd>,
    dup: bool,
    zero: Option<Zero>,
    any_order: bool,
    rng: Rng,
}

impl Sender {
    /// Sends `common.bytes` bytes of stream `label`.
    pub fn new(label: u64, common: &Common) -> Self {
        let total = if common.bytes == 0 { 0 } else { common.bytes.max(8) };
        let mut rng = Rng::with_seed(label ^ common.seed);
        let hand_over = common.hand_over.map(|how| (how, rng.u64(0..=total / 4 * 3)));
        Self {
            label,
            sent: 0,
            total,
            hand_over,
            hash: Xxh3::new(),
            chunk: Vec::new(),
            done: 0,
            mix: Mix::new(common),
            duplicate: None,
            dup: common.dup,
            zero: None,
            // Bytes that an end which is killed leaves, or that lie in pipes, are freed when TCP
            // likes.
            any_order: common.any_order
                || common.survive
                || common.recv_calls.contains(&RecvCall::Splice),
            rng,
        }
    }

    /// True when everything is sent.
    pub fn is_done(&self) -> bool {
        self.sent == self.total
    }

    /// Hash of the bytes sent.
    pub fn hash(&self) -> u64 {
        self.hash.digest()
    }

    /// Forgets the buffers and the duplicate once nothing more is to be sent.
    pub fn release(&mut self) {
        self.chunk = Vec::new();
        self.duplicate = None;
        self.zero = None;
    }

    /// The descriptor for the next call.
    fn pick(&mut self, fd: RawFd) -> io::Result<RawFd> {
        if !self.dup {
            return Ok(fd);
        }
        if self.duplicate.is_none() || self.rng.u8(..16) == 0 {
            self.duplicate = Some(sys::dup(fd)?);
        }
        Ok(self.duplicate.as_ref().map_or(fd, AsRawFd::as_raw_fd))
    }

    /// One call.
    pub fn step(&mut self, fd: RawFd) -> io::Result<Step> {
        if self.is_done() {
            return Ok(Step::Done);
        }
        self.mix.pause(&mut self.rng);
        if self.done == self.chunk.len() {
            let left = usize::try_from(self.total - self.sent).unwrap_or(usize::MAX);
            let len = self.mix.length(&mut self.rng).min(left);
            self.chunk.resize(len, 0);
            pattern::fill(self.label, self.sent, &mut self.chunk);
            self.done = 0;
        }
        let fd = self.pick(fd)?;
        let call = self.mix.send[self.rng.usize(..self.mix.send.len())];
        let wanted = self.chunk.len() - self.done;
        let sent = match self.hand_over.take_if(|(_, at)| self.sent >= *at) {
            Some((how, _)) => hand_over::send(how, fd, &self.chunk[self.done..])
                .map_err(|e| io::Error::new(e.kind(), format!("{how}: {e}"))),
            None => self.call(call, fd),
        };
        match sent {
            Ok(n) if n > wanted || n == 0 => {
                Err(io::Error::other(format!("{call} of {wanted} bytes returned {n}")))
            }
            Ok(n) => {
                self.hash.update(&self.chunk[self.done..self.done + n]);
                self.done += n;
                self.sent += n as u64;
                watchdog::progress(n);
                // A sendfile may stop at the end of its own pipe's worth, a splice at that of ours.
                let short = n < wanted
                    && !matches!(
                        call,
                        SendCall::Sendfile
                            | SendCall::Splice
                            | SendCall::SendZerocopy
                            | SendCall::SendFound
                            | SendCall::SendPrivate
                    );
                Ok(if self.is_done() {
                    Step::Done
                } else if short {
                    Step::Short
                } else {
                    Step::Moved
                })
            }
            Err(e) if would_block(&e) => Ok(Step::Blocked),
            Err(e) => Err(io::Error::new(e.kind(), format!("{call} at byte {}: {e}", self.sent))),
        }
    }

    fn call(&mut self, call: SendCall, fd: RawFd) -> io::Result<usize> {
        let bytes = &self.chunk[self.done..];
        let pieces = self.rng.usize(1..=8);
        match call {
            SendCall::Write => sys::write(fd, bytes),
            SendCall::Writev => sys::writev(fd, bytes, pieces),
            SendCall::Send => sys::send(fd, bytes, libc::MSG_NOSIGNAL),
            SendCall::SendDontwait => sys::send(fd, bytes, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT),
            SendCall::SendMore => {
                // The last bytes go without MSG_MORE, which would hold them back.
                let last = bytes.len() as u64 == self.total - self.sent;
                sys::send(fd, bytes, if last { 0 } else { libc::MSG_MORE })
            }
            SendCall::Sendto => sys::sendto(fd, bytes, libc::MSG_NOSIGNAL),
            SendCall::Sendmsg => sys::sendmsg(fd, bytes, pieces, libc::MSG_NOSIGNAL),
            SendCall::Sendmmsg => sys::sendmmsg(fd, bytes, pieces, libc::MSG_NOSIGNAL),
            SendCall::SendZerocopy | SendCall::SendFound | SendCall::SendPrivate => {
                if self.zero.is_none() {
                    self.zero = Some(Zero::new(fd, call, self.any_order)?);
                }
                self.zero.as_mut().map_or(Ok(0), |zero| zero.send(fd, bytes))
            }
            SendCall::Sendfile => {
                // A new file each time: the kernel sends the file's own pages, so whoever wrote
                // to them again would change bytes that are still on their way.
                let file = sys::memfd(c"shunt-gen")?;
                sys::pwrite_all(file.as_raw_fd(), bytes)?;
                sys::sendfile(fd, file.as_raw_fd(), bytes.len())
            }
            SendCall::Splice => splice_out(fd, bytes),
            SendCall::Pwritev2 => sys::pwritev2(fd, bytes, -1, 0),
        }
    }
}

/// Sends by a pipe. What the connection does not take stays there, and is sent by the next call.
fn splice_out(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    let (read, write) = sys::pipe()?;
    let piped = sys::write(write.as_raw_fd(), &bytes[..bytes.len().min(PIPE)])?;
    let sent = sys::splice(read.as_raw_fd(), fd, piped, libc::SPLICE_F_MORE)?;
    let left = usize::try_from(sys::fionread(read.as_raw_fd())?).unwrap_or(0);
    if sent + left == piped {
        Ok(sent)
    } else {
        let text = format!("splice sent {sent} bytes of {piped}, and {left} are left");
        Err(io::Error::other(text))
    }
}

/// Receives by a pipe.
fn splice_in(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (read, write) = sys::pipe()?;
    let piped = sys::splice(fd, write.as_raw_fd(), buffer.len(), 0)?;
    drop(write);
    let mut got = 0;
    while let n @ 1.. = sys::read(read.as_raw_fd(), &mut buffer[got..])? {
        got += n;
    }
    if got == piped { Ok(got) } else { Err(io::Error::other(format!("{got} bytes of {piped}"))) }
}

/// Bytes that a pipe holds.
const PIPE: usize = 64 << 10;

/// The receiving half.
pub struct Receiver {
    /// The label that came, once 8 bytes have.
    pub label: Option<u64>,
    /// Bytes received.
    pub got: u64,
    first: [u8; 8],
    hash: Xxh3,
    buffer: Vec<u8>,
    scratch: Vec<u8>,
    room: Option<Room>,
    eof: bool,
    /// A call has said that nothing but the end can follow.
    ending: bool,
    /// Signals interrupt calls: those of the programs that this one starts, when they end.
    signalled: bool,
    /// Wrong bytes are no failure of this program.
    distrust: bool,
    /// What was wrong first, with `distrust`.
    wrong: Option<io::Error>,
    mix: Mix,
    rng: Rng,
}

impl Receiver {
    /// Receives to the end of the stream.
    pub fn new(seed: u64, common: &Common) -> Self {
        Self {
            label: None,
            got: 0,
            first: [0; 8],
            hash: Xxh3::new(),
            buffer: Vec::new(),
            scratch: Vec::new(),
            room: None,
            eof: false,
            ending: false,
            signalled: matches!(common.hand_over, Some(HandOver::Spawn | HandOver::Shell)),
            distrust: common.distrust,
            wrong: None,
            mix: Mix::new(common),
            rng: Rng::with_seed(seed ^ common.seed ^ 0x5ec5_ec5e),
        }
    }

    /// True after the end of the stream.
    pub fn is_done(&self) -> bool {
        self.eof
    }

    /// Hash of the bytes received.
    pub fn hash(&self) -> u64 {
        self.hash.digest()
    }

    /// Forgets the buffers once the end has come.
    pub fn release(&mut self) {
        self.buffer = Vec::new();
        self.scratch = Vec::new();
        self.room = None;
    }

    /// What came over a connection whose other end is not trusted and should not have come.
    pub const fn take_wrong(&mut self) -> Option<io::Error> {
        self.wrong.take()
    }

    /// Takes what should not have come for an error, or goes on without looking at what comes.
    fn complain(&mut self, error: io::Error) -> io::Result<()> {
        if !self.distrust {
            return Err(error);
        }
        self.wrong.get_or_insert(error);
        Ok(())
    }

    /// One call (or a peek and a call). `blocking` says whether the descriptor blocks.
    pub fn step(&mut self, fd: RawFd, blocking: bool) -> io::Result<Step> {
        if self.eof {
            return Ok(Step::Done);
        }
        self.mix.pause(&mut self.rng);
        let len = self.mix.length(&mut self.rng);
        let mut call = self.mix.recv[self.rng.usize(..self.mix.recv.len())];
        // Discarding is for bytes that are known from their position, so not for the label.
        if call == RecvCall::RecvDiscard && self.label.is_none() {
            call = RecvCall::Read;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(len, 0);
        let result = self.call(call, fd, &mut buffer, blocking);
        let step = match result {
            Ok(n) => self.take(call, &mut buffer, n, blocking),
            Err(e) if would_block(&e) => Ok(Step::Blocked),
            Err(e) => Err(io::Error::new(e.kind(), format!("{call} at byte {}: {e}", self.got))),
        };
        self.buffer = buffer;
        step
    }

    fn take(
        &mut self,
        call: RecvCall,
        buffer: &mut [u8],
        n: usize,
        blocking: bool,
    ) -> io::Result<Step> {
        let wanted = buffer.len();
        if n > wanted {
            return Err(io::Error::other(format!("{call} of {wanted} bytes returned {n}")));
        }
        if n == 0 {
            self.eof = true;
            return Ok(Step::Done);
        }
        if self.ending {
            self.complain(io::Error::other(format!(
                "{call} received {n} bytes after MSG_WAITALL had come back short"
            )))?;
        }
        if let (RecvCall::RecvDiscard, Some(label)) = (call, self.label) {
            pattern::fill(label, self.got, &mut buffer[..n]);
        } else if self.wrong.is_none()
            && let Err(e) = self.verify(call, &buffer[..n])
        {
            self.complain(e)?;
        }
        self.hash.update(&buffer[..n]);
        self.got += n as u64;
        watchdog::progress(n);
        if n == wanted {
            return Ok(Step::Moved);
        }
        // Without signals MSG_WAITALL comes back short only at the end of the stream.
        self.ending = call == RecvCall::RecvWaitall && blocking && !self.signalled;
        // Of several messages each can be short while the next one finds new bytes; what is lent at
        // once is of one kind; and a pipe takes so much at a time.
        let some = matches!(call, RecvCall::Recvmmsg | RecvCall::RecvBorrow | RecvCall::Splice);
        Ok(if some { Step::Moved } else { Step::Short })
    }

    /// Compares with what the position says; the first 8 bytes give the label.
    fn verify(&mut self, call: RecvCall, bytes: &[u8]) -> io::Result<()> {
        let mut bytes = bytes;
        let mut at = self.got;
        if self.label.is_none() {
            let have = usize::try_from(at).unwrap_or(8);
            let n = bytes.len().min(8 - have);
            self.first[have..have + n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            at += n as u64;
            if at < 8 {
                return Ok(());
            }
            self.label = Some(u64::from_le_bytes(self.first));
        }
        let label = self.label.unwrap_or_default();
        pattern::verify(label, at, bytes, &mut self.scratch)
            .map_err(|e| io::Error::other(format!("{call}: {e}")))
    }

    fn call(
        &mut self,
        call: RecvCall,
        fd: RawFd,
        buffer: &mut [u8],
        blocking: bool,
    ) -> io::Result<usize> {
        let pieces = self.rng.usize(1..=8);
        match call {
            RecvCall::Read => sys::read(fd, buffer),
            RecvCall::Readv => sys::readv(fd, buffer, pieces),
            RecvCall::Recv => sys::recv(fd, buffer, 0, false),
            RecvCall::RecvDontwait => sys::recv(fd, buffer, libc::MSG_DONTWAIT, false),
            RecvCall::RecvWaitall => sys::recv(fd, buffer, libc::MSG_WAITALL, false),
            RecvCall::RecvDiscard => sys::recv(fd, buffer, libc::MSG_TRUNC, true),
            RecvCall::Recvfrom => sys::recvfrom(fd, buffer, 0).map(|(n, _)| n),
            RecvCall::Recvmsg => sys::recvmsg(fd, buffer, pieces, 0).map(|r| r.len),
            RecvCall::Recvmmsg => {
                let flags = if blocking { libc::MSG_WAITFORONE } else { 0 };
                sys::recvmmsg(fd, buffer, pieces, flags).map(|r| r.len)
            }
            RecvCall::Peek | RecvCall::PeekMsg => self.peek(call, fd, buffer, pieces),
            RecvCall::RecvBorrow => self.borrow(fd, buffer),
            RecvCall::Splice => splice_in(fd, buffer),
            RecvCall::Preadv2 => sys::preadv2(fd, buffer, -1, 0),
        }
    }

    /// Looks at what is there for a while, and goes on behind a part of it.
    fn borrow(&mut self, fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the connection is open for as long as the call takes.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let room = self.room.get_or_insert_with(|| Room::new(MOST_COPIED));
        loop {
            let lent = room.borrow(&socket)?;
            self.mix.pause(&mut self.rng);
            let mut n = 0;
            for piece in lent.pieces() {
                n += piece.copy_from(0, &mut buffer[n..]);
            }
            match lent.release(n) {
                Ok(Released::Whole) => return Ok(n),
                Ok(Released::Stale) => {}
                // A peer that breaks the rules can have shown more than there is.
                Err(e) if e.kind() == io::ErrorKind::Other => {
                    self.complain(e)?;
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Looks at what is there, then reads exactly as much, which must be the same bytes.
    fn peek(
        &mut self,
        call: RecvCall,
        fd: RawFd,
        buffer: &mut [u8],
        pieces: usize,
    ) -> io::Result<usize> {
        let n = if call == RecvCall::Peek {
            sys::recv(fd, buffer, libc::MSG_PEEK, false)?
        } else {
            sys::recvmsg(fd, buffer, pieces, libc::MSG_PEEK)?.len
        };
        if n > buffer.len() {
            return Ok(n);
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(&buffer[..n]);
        if n == 0 {
            return Ok(0);
        }
        let again = sys::recv(fd, &mut buffer[..n], 0, false)?;
        if again != n || self.scratch != buffer[..n] {
            let same =
                self.scratch.iter().zip(&buffer[..again]).take_while(|(a, b)| a == b).count();
            self.complain(io::Error::other(format!(
                "peeked {n} bytes, then received {again}, of which the first {same} are the same"
            )))?;
            return Ok(again);
        }
        Ok(n)
    }
}
