//! Bytes of a ring on their way into a pipe (splice(2)).

use core::sync::atomic::Ordering::Relaxed;

use libc::{c_int, iovec};
use shunt_engine::call::{Errno, Step};
use shunt_engine::conn::recv::{Incoming, Looked};
use shunt_shm::Violation;
use shunt_shm::ring::{RxCursor, Span};

use crate::conn::LEFTOVER;
use crate::control::link::Link;
use crate::memory::imports;
use crate::point;
use crate::stream::bytes::Buffers;
use crate::stream::grants::{self, Use};
use crate::stream::leftover;
use crate::stream::recv::Receiving;
use crate::stream::transfer::Sink;

/// Bytes of a piece of what is granted: it goes over the stack.
const PIECE: usize = 4096;

impl Receiving<'_, '_> {
    /// Puts bytes of the ring into the pipe of the call, and takes those that have gone in. No
    /// handler comes in between: what is in the pipe must not be read a second time.
    pub fn drain(&mut self, sink: &Sink, span: Span) -> Looked {
        let (Some(end), Some(link)) = (self.end, self.link) else { return Ok(None) };
        let granted = end.has_grants();
        let span = if granted { span.split(PIECE).0 } else { span };
        point!(splice_peeked);
        let is_left = self.sock().has(LEFTOVER);
        // Another program may have the same bytes.
        if is_left && !leftover::claim(self.sock(), span.len()) {
            return Ok(None);
        }
        let put = if granted {
            let Some(put) = self.put_granted(link, sink, span)? else { return Ok(None) };
            put
        } else {
            sink.put_span((link.view(), end.record.slot(), end.side()), span)
        };
        if is_left {
            leftover::unclaim(self.sock(), put.unwrap_or(0), span.len());
        }
        let n = match put {
            Ok(n) => n,
            Err(error) => return Ok(Some(Step::Failed(Errno::from_raw_os_error(error)))),
        };
        point!(splice_written);
        let entries = if granted { Some(self.passed(link, span.split(n).0)?) } else { None };
        end.pass_over(self, n, entries);
        self.receives(n);
        let marks = end.record.rx.marks.load(Relaxed);
        let is_open = RxCursor::next_mark(&end.theirs.prod, marks)?.is_some();
        let more = granted || is_open;
        let is_over = n < span.len() || self.got() >= self.total() || !more;
        if is_over && is_open {
            // As for other calls: what comes twice takes room in the kernel socket.
            self.settle();
        }
        Ok(is_over.then_some(Step::Done))
    }

    /// Copies bytes of which some are granted to the pipe. `None`: look again.
    #[inline(never)]
    fn put_granted(
        &self,
        link: &'static Link,
        sink: &Sink,
        span: Span,
    ) -> Result<Option<Result<usize, c_int>>, Violation> {
        let mut bytes = [0; PIECE];
        let (piece, _) = bytes.split_at_mut(span.len());
        let iov = iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
        let seen = self.looking(|reads_pipes| {
            let to = Use::Seen(&Buffers::one(&iov), 0);
            grants::take(self.sock(), link, to, (span, reads_pipes))
        })?;
        self.has_copied();
        Ok(seen.map(|_| sink.put_bytes(piece)))
    }

    /// Passes granted bytes that were seen: the entries that lie behind them.
    fn passed(&self, link: &'static Link, span: Span) -> Result<u32, Violation> {
        loop {
            let reads_pipes = imports::has_pipes(self.sock());
            let drop =
                |reads_pipes| grants::take(self.sock(), link, Use::Dropped, (span, reads_pipes));
            let passed = if reads_pipes { self.looking(drop)? } else { drop(false)? };
            self.has_copied();
            if let Some(entries) = passed {
                return Ok(entries);
            }
        }
    }
}
