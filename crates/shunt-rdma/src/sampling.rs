//! Measures a link and TCP in turn, over a connection that two agents have agreed upon. Each side measures what it sends, the one that
//! has connected first; the other one answers meanwhile. No I/O of its own: connection, link and clock are handed in.
//!
//! | First byte | Bytes, with it | Answer |
//! |---|---:|---|
//! | [`PING`] | [`SMALL`] | The same bytes |
//! | [`BYTES`] | 1 and [`BULK`] | [`DONE`] |
//! | [`OVER`] | 1 | None: the other side's turn, or both are through |

use std::io::{self, Read, Write};
use std::time::Duration;

use shunt_far::link::BULK;

/// Begins a message that is sent back.
const PING: u8 = 1;
/// Begins many bytes.
const BYTES: u8 = 2;
/// Ends a side's turn.
const OVER: u8 = 3;
/// What many bytes are answered by.
const DONE: u8 = 4;
/// What the side that was connected to begins with: it has taken the connection.
const READY: u8 = 5;

/// Bytes of a message that is sent back.
const SMALL: usize = 128;
/// Bytes of one call.
const PIECE: usize = 64 * 1024;

/// Small messages of one kind in a row, of which the first one does not count: caches and processors are warm behind it.
const ROW: usize = 6;
/// Rows of each kind.
const ROWS: usize = 4;
/// Times that many bytes are sent, of which the first one does not count: a congestion window is open behind it.
const TIMES: usize = 4;

/// What is measured besides.
pub(crate) trait OverLink {
    /// How long a small message and its answer take.
    fn ping(&mut self) -> io::Result<Duration>;

    /// How long [`BULK`] bytes take.
    fn bulk(&mut self) -> io::Result<Duration>;
}

/// Medians.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Samples {
    pub(crate) link_round_trip: Duration,
    pub(crate) tcp_round_trip: Duration,
    pub(crate) link_bulk: Duration,
    pub(crate) tcp_bulk: Duration,
}

/// Bytes per second.
pub(crate) fn rate(bulk: Duration) -> u64 {
    let bytes = BULK as u128 * 1_000_000_000 / bulk.as_nanos().max(1);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// The one in the middle; of an even number the later one.
pub(crate) fn median(mut of: Vec<Duration>) -> Duration {
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or_default()
}

/// The side that has connected.
///
/// # Errors
/// The connection, or the link, failed; the other side does not keep to what was agreed upon.
pub(crate) fn begin<S: Read + Write>(
    stream: &mut S,
    link: &mut impl OverLink,
    clock: &impl Fn() -> Duration,
) -> io::Result<Samples> {
    expect(stream, READY)?;
    let samples = measure(stream, link, clock)?;
    answer(stream)?;
    Ok(samples)
}

/// The other one.
///
/// # Errors
/// As for [`begin`].
pub(crate) fn follow<S: Read + Write>(
    stream: &mut S,
    link: &mut impl OverLink,
    clock: &impl Fn() -> Duration,
) -> io::Result<Samples> {
    stream.write_all(&[READY])?;
    answer(stream)?;
    measure(stream, link, clock)
}

fn measure<S: Read + Write>(
    stream: &mut S,
    link: &mut impl OverLink,
    clock: &impl Fn() -> Duration,
) -> io::Result<Samples> {
    let timed = |run: &mut dyn FnMut() -> io::Result<()>| -> io::Result<Duration> {
        let began = clock();
        run()?;
        Ok(clock().saturating_sub(began))
    };
    // In turn, so that what else the machine does falls on both.
    let (mut links, mut tcps) = (Vec::new(), Vec::new());
    for _ in 0..ROWS {
        let of_link = (0..ROW).map(|_| link.ping()).collect::<io::Result<Vec<_>>>()?;
        let mut of_tcp = Vec::new();
        for _ in 0..ROW {
            of_tcp.push(timed(&mut || ping(stream))?);
        }
        links.extend_from_slice(&of_link[1..]);
        tcps.extend_from_slice(&of_tcp[1..]);
    }
    let (link_round_trip, tcp_round_trip) = (median(links), median(tcps));
    let (mut links, mut tcps) = (Vec::new(), Vec::new());
    let bytes = vec![0; PIECE];
    for _ in 0..TIMES {
        links.push(link.bulk()?);
        tcps.push(timed(&mut || bulk(stream, &bytes))?);
    }
    let (link_bulk, tcp_bulk) = (median(links.split_off(1)), median(tcps.split_off(1)));
    stream.write_all(&[OVER])?;
    Ok(Samples { link_round_trip, tcp_round_trip, link_bulk, tcp_bulk })
}

fn ping<S: Read + Write>(stream: &mut S) -> io::Result<()> {
    let (message, mut answer) = ([PING; SMALL], [0; SMALL]);
    stream.write_all(&message)?;
    stream.read_exact(&mut answer)?;
    if answer == message { Ok(()) } else { Err(wrong()) }
}

fn bulk<S: Read + Write>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&[BYTES])?;
    for _ in 0..BULK / PIECE {
        stream.write_all(bytes)?;
    }
    expect(stream, DONE)
}

/// Answers the other side's turn, which is no longer than it may be.
fn answer<S: Read + Write>(stream: &mut S) -> io::Result<()> {
    let mut room = vec![0; PIECE];
    for _ in 0..=ROW * ROWS + TIMES {
        let mut first = [0];
        stream.read_exact(&mut first)?;
        match first[0] {
            PING => {
                let rest = &mut room[1..SMALL];
                stream.read_exact(rest)?;
                room[0] = PING;
                stream.write_all(&room[..SMALL])?;
            }
            BYTES => {
                for _ in 0..BULK / PIECE {
                    stream.read_exact(&mut room)?;
                }
                stream.write_all(&[DONE])?;
            }
            OVER => return Ok(()),
            _ => break,
        }
    }
    Err(wrong())
}

fn expect(stream: &mut impl Read, wanted: u8) -> io::Result<()> {
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    if byte[0] == wanted { Ok(()) } else { Err(wrong()) }
}

fn wrong() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer did not keep to what is to be sent")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A link whose times are these, one after the other, and the last of them for ever.
    struct Timed(Vec<u64>, Vec<u64>);

    fn next(of: &mut Vec<u64>) -> io::Result<Duration> {
        let first = if of.len() > 1 { of.remove(0) } else { of[0] };
        if first == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(Duration::from_micros(first))
    }

    impl OverLink for Timed {
        fn ping(&mut self) -> io::Result<Duration> {
            next(&mut self.0)
        }

        fn bulk(&mut self) -> io::Result<Duration> {
            next(&mut self.1)
        }
    }

    fn steady() -> Timed {
        Timed(vec![9], vec![70])
    }

    /// Each look at it is so much later.
    fn clock(step: u64) -> impl Fn() -> Duration {
        let now = Cell::new(0);
        move || {
            now.set(now.get() + step);
            Duration::from_micros(now.get())
        }
    }

    fn two(first: Timed, second: Timed) -> [io::Result<Samples>; 2] {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let mut second = second;
        let answers = std::thread::spawn(move || {
            let samples = follow(&mut other, &mut second, &clock(7));
            drop(other);
            samples
        });
        let mut first = first;
        let samples = begin(&mut one, &mut first, &clock(5));
        drop(one);
        [samples, answers.join().unwrap()]
    }

    #[test]
    fn both_sides_measure_link_and_tcp() {
        let [first, second] = two(steady(), Timed(vec![11], vec![90])).map(Result::unwrap);
        let us = Duration::from_micros;
        let of = |tcp, ping, bulk| Samples {
            link_round_trip: us(ping),
            tcp_round_trip: us(tcp),
            link_bulk: us(bulk),
            tcp_bulk: us(tcp),
        };
        assert_eq!((first, second), (of(5, 9, 70), of(7, 11, 90)));
    }

    #[test]
    fn the_first_of_a_row_and_those_that_are_late_do_not_count() {
        let mut pings = Vec::new();
        for _ in 0..ROWS {
            pings.extend([900, 9, 9, 9, 700, 9]);
        }
        let [first, _] = two(Timed(pings, vec![900, 70, 70, 800]), steady());
        let Samples { link_round_trip, link_bulk, .. } = first.unwrap();
        assert_eq!((link_round_trip.as_micros(), link_bulk.as_micros()), (9, 70));
    }

    #[test]
    fn a_link_that_fails_meanwhile_ends_it_on_both_sides() {
        for [first, second] in [
            two(Timed(vec![9, 9, 0], vec![70]), steady()),
            two(steady(), Timed(vec![9], vec![70, 0])),
        ] {
            assert!(first.is_err() && second.is_err());
        }
    }

    #[test]
    fn a_peer_that_answers_wrongly_or_says_too_much_is_noticed() {
        let wrong = |bytes: &[u8], begins: bool| {
            let (mut one, mut other) = UnixStream::pair().unwrap();
            other.write_all(bytes).unwrap();
            other.shutdown(std::net::Shutdown::Write).unwrap();
            let outcome = if begins {
                begin(&mut one, &mut steady(), &clock(1))
            } else {
                follow(&mut one, &mut steady(), &clock(1))
            };
            outcome.unwrap_err().kind()
        };
        let (invalid, end) = (io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof);
        // Not ready; another answer than was sent; an end.
        assert_eq!(wrong(&[PING], true), invalid);
        assert_eq!(wrong(&[&[READY][..], &[7; SMALL]].concat(), true), invalid);
        assert_eq!(wrong(&[READY, PING, PING], true), end);
        // What is nothing; more than a turn has.
        assert_eq!(wrong(&[9], false), invalid);
        let pings = [PING; SMALL].repeat(ROW * ROWS + TIMES + 1);
        assert_eq!(wrong(&pings, false), invalid);
        assert_eq!(wrong(&[], false), end);
    }

    #[test]
    fn rates_and_medians_of_anything_are_numbers() {
        assert_eq!(rate(Duration::from_millis(1)), BULK as u64 * 1000);
        assert_eq!(rate(Duration::ZERO), BULK as u64 * 1_000_000_000);
        assert_eq!(rate(Duration::MAX), 0);
        assert_eq!(median(Vec::new()), Duration::ZERO);
        assert_eq!(median([3, 1, 2].map(Duration::from_secs).to_vec()), Duration::from_secs(2));
    }
}
