//! recvmmsg(2) and sendmmsg(2): several messages in a call.

use libc::{MSG_DONTWAIT, MSG_WAITFORONE};

use crate::conn::Conn;
use crate::stream::in_doubt::InDoubt;
use crate::system::abi::{c_int, c_uint, ssize_t};
use crate::system::clock;

/// Receives up to `count` messages in at most `limit` nanoseconds. `one` receives the message of a number, with these
/// flags, and returns what recvmsg(2) does.
pub fn receive(
    fd: c_int,
    count: c_uint,
    mut flags: c_int,
    limit: Option<u64>,
    mut one: impl FnMut(usize, c_int) -> ssize_t,
) -> c_int {
    let began = clock::now();
    let mut in_doubt = None;
    for i in 0..count {
        if i > 0 {
            in_doubt = in_doubt.or_else(|| Conn::named(fd).map(InDoubt::begins));
        }
        let n = one(i as usize, flags & !MSG_WAITFORONE);
        if n < 0 {
            // An error after the first message is told by the next call.
            return if i == 0 { -1 } else { i.cast_signed() };
        }
        if flags & MSG_WAITFORONE != 0 {
            flags |= MSG_DONTWAIT;
        }
        // The time is looked at after each message, as in the kernel (recvmmsg(2), BUGS).
        if n == 0 || limit.is_some_and(|limit| clock::now() - began >= limit) {
            return (i + 1).cast_signed();
        }
    }
    count.cast_signed()
}

/// Sends `count` messages. `one` sends that of a number, and returns what sendmsg(2) does, and the length of the message.
pub fn send(fd: c_int, count: c_uint, mut one: impl FnMut(usize) -> (ssize_t, usize)) -> c_int {
    let mut in_doubt = None;
    for i in 0..count {
        if i > 0 {
            in_doubt = in_doubt.or_else(|| Conn::named(fd).map(InDoubt::begins));
        }
        let (n, wanted) = one(i as usize);
        if n < 0 {
            return if i == 0 { -1 } else { i.cast_signed() };
        }
        if n.unsigned_abs() < wanted {
            return (i + 1).cast_signed();
        }
    }
    count.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No connection is there.
    const FD: c_int = -1;

    fn received(results: &[ssize_t], flags: c_int, limit: Option<u64>) -> (c_int, Vec<c_int>) {
        let mut given = Vec::new();
        let count = c_uint::try_from(results.len()).unwrap();
        let n = receive(FD, count, flags, limit, |i, flags| {
            given.push(flags);
            results[i]
        });
        (n, given)
    }

    #[test]
    fn an_error_after_the_first_message_is_the_next_calls() {
        assert_eq!(received(&[-1, 5], 0, None), (-1, vec![0]));
        assert_eq!(received(&[5, -1, 5], 0, None), (1, vec![0, 0]));
        assert_eq!(received(&[5, 5], 0, None), (2, vec![0, 0]));
        assert_eq!(received(&[], 0, None), (0, vec![]));
    }

    #[test]
    fn the_end_is_the_last_message() {
        assert_eq!(received(&[5, 0, 5], 0, None).0, 2);
    }

    #[test]
    fn who_waits_for_one_waits_for_no_other() {
        let flags = libc::MSG_WAITALL;
        let (n, given) = received(&[5, 5, 5], flags | MSG_WAITFORONE, None);
        assert_eq!((n, given), (3, vec![flags, flags | MSG_DONTWAIT, flags | MSG_DONTWAIT]));
    }

    #[test]
    fn the_time_is_looked_at_after_each_message() {
        assert_eq!(received(&[5, 5], 0, Some(0)).0, 1);
        assert_eq!(received(&[5, 5], 0, Some(u64::MAX)).0, 2);
    }

    #[test]
    fn a_message_that_is_sent_in_part_is_the_last() {
        let sent = |results: &[(ssize_t, usize)]| {
            send(FD, c_uint::try_from(results.len()).unwrap(), |i| results[i])
        };
        assert_eq!(sent(&[(5, 5), (3, 5), (5, 5)]), 2);
        assert_eq!(sent(&[(5, 5), (-1, 5)]), 1);
        assert_eq!(sent(&[(-1, 5), (5, 5)]), -1);
        assert_eq!(sent(&[(0, 0), (5, 5)]), 2);
    }
}
