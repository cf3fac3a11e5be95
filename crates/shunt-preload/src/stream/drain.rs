//! Bytes of a ring on their way into a pipe (splice(2)).

use core::sync::atomic::Ordering::Relaxed;

use libc::{c_int, iovec};
use shunt_engine::call::{Errno, Step};
use shunt_shm::Violation;
use shunt_shm::ring::{RxCursor, Span};

use crate::conn::LEFTOVER;
use crate::imports;
use crate::points::point;
use crate::stream::borrow::Request;
use crate::stream::bytes::Buffers;
use crate::stream::call::Call;
use crate::stream::grants::{self, Use};
use crate::stream::recv::{Looked, Rx};
use crate::stream::transfer::Sink;
use crate::stream::{again, leftover};

/// Bytes of a piece of what is granted: it goes over the stack.
const PIECE: usize = 4096;

impl Rx<'_> {
    /// Puts bytes of the ring into the pipe of the call, and takes those that have gone in. No
    /// handler comes in between: what is in the pipe must not be read a second time.
    pub fn drain(&self, call: &mut Call<'_>, got: &mut usize, span: Span) -> Looked {
        let Request::Into(sink) = call.request else { return Ok(None) };
        let granted = self.has_grants();
        let span = if granted { span.split(PIECE).0 } else { span };
        point!(splice_peeked);
        let is_left = self.sock().has(LEFTOVER);
        // Another program may have the same bytes.
        if is_left && !leftover::claim(self.sock(), span.len()) {
            return Ok(None);
        }
        let put = if granted {
            let Some(put) = self.put_granted(sink, span)? else { return Ok(None) };
            put
        } else {
            sink.put_span((self.view, self.slot, self.sock().record().side()), span)
        };
        if is_left {
            leftover::unclaim(self.sock(), put.unwrap_or(0), span.len());
        }
        let n = match put {
            Ok(n) => n,
            Err(error) => return Ok(Some(Step::Failed(Errno::from_raw_os_error(error)))),
        };
        point!(splice_written);
        let entries = if granted { Some(self.passed(span.split(n).0)?) } else { None };
        self.pass_over(n, entries);
        *got += n;
        let marks = self.sock().record().rx.marks.load(Relaxed);
        let is_open = RxCursor::next_mark(&self.theirs.prod, marks)?.is_some();
        let more = granted || is_open;
        let is_over = n < span.len() || *got >= call.buffers.total || !more;
        if is_over && is_open {
            // As for other calls: what comes twice takes room in the kernel socket.
            again::settle_locked(self.sock(), self.fd);
        }
        Ok(is_over.then_some(Step::Done))
    }

    /// Copies bytes of which some are granted to the pipe. `None`: look again.
    #[inline(never)]
    fn put_granted(
        &self,
        sink: &Sink,
        span: Span,
    ) -> Result<Option<Result<usize, c_int>>, Violation> {
        let mut bytes = [0; PIECE];
        let (piece, _) = bytes.split_at_mut(span.len());
        let iov = iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
        let seen = self.looking(true, |pulls| {
            let to = Use::Seen(&Buffers::one(&iov), 0);
            grants::take(self.sock(), self.link, to, (span, pulls))
        })?;
        self.has_pulled();
        Ok(seen.map(|_| sink.put_bytes(piece)))
    }

    /// Passes granted bytes that were seen: the entries that lie behind them.
    fn passed(&self, span: Span) -> Result<u32, Violation> {
        loop {
            let pulls = imports::has_pipes(self.sock());
            let drop = |pulls| grants::take(self.sock(), self.link, Use::Dropped, (span, pulls));
            let passed = if pulls { self.looking(true, drop)? } else { drop(false)? };
            self.has_pulled();
            if let Some(entries) = passed {
                return Ok(entries);
            }
        }
    }
}
