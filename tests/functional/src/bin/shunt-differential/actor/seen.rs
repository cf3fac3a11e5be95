//! Whose bytes were received: each byte is known by its stream and its position.

use std::sync::atomic::Ordering::Relaxed;

use shunt_functional::differential::board::{Board, Line};
use shunt_functional::differential::plan::Stream;
use shunt_functional::pattern;

/// Most runs of bytes of one stream that are told apart.
const RUNS: usize = 6;
/// Bytes in a row that tell a stream for certain.
const SURE: usize = 16;
/// Longer than any stream.
const LONGEST: u64 = 1 << 40;
/// How far from where they should be a few bytes are looked for.
const NEAR: u64 = 70_000;

/// Bytes in a row of one stream.
#[derive(Clone, Copy)]
struct Run {
    stream: usize,
    /// How far they are from where they should be.
    shift: i64,
    len: u64,
}

/// What calls have received.
#[derive(Default)]
pub struct Seen {
    runs: [Option<Run>; RUNS],
    /// Bytes that are of no stream.
    unknown: Option<[u8; 4]>,
    /// Where each stream is that was only looked at.
    looked: Option<u64>,
}

impl Seen {
    /// Adds bytes that came from where those of `nominal` should. With `peek` they will come again.
    pub fn add(&mut self, board: &Board, nominal: Stream, mut bytes: &[u8], peek: bool) {
        while !bytes.is_empty() && self.unknown.is_none() {
            let Some((stream, from, len)) = origin(board, nominal, self.looked, bytes) else {
                let mut first = [0; 4];
                first.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
                self.unknown = Some(first);
                return;
            };
            let progress = board.stream(Stream::at(stream));
            let due = progress.received.load(Relaxed);
            let shift = from.cast_signed() - due.cast_signed();
            if peek {
                self.looked = Some(from + len as u64);
            } else {
                progress.received.store(from + len as u64, Relaxed);
            }
            self.note(Run { stream, shift, len: len as u64 });
            bytes = &bytes[len..];
        }
    }

    /// The stream of the last bytes.
    pub fn last(&self) -> Option<Stream> {
        self.runs.iter().flatten().last().map(|run| Stream::at(run.stream))
    }

    fn note(&mut self, run: Run) {
        let used = self.runs.iter().flatten().count();
        let last = used.checked_sub(1).and_then(|n| self.runs[n].as_mut());
        match last {
            Some(last) if last.stream == run.stream && run.shift == 0 => last.len += run.len,
            _ => {
                if let Some(place) = self.runs.get_mut(used) {
                    *place = Some(run);
                }
            }
        }
    }

    /// Says what they were. How many there are of a stream whose bytes are under way in numbers that depend on buffers is not said.
    pub fn say(&self, board: &Board, line: &mut Line) {
        for run in self.runs.iter().flatten() {
            let stream = Stream::at(run.stream);
            line.say(format_args!(" {stream}"));
            match (run.shift, is_elastic(board, stream)) {
                (0, true) => {}
                (0, false) => line.say(format_args!("+{}", run.len)),
                // How far depends on how much was sent before.
                (shift, true) => line.say(format_args!("@{}", if shift > 0 { '+' } else { '-' })),
                (shift, false) => line.say(format_args!("@{shift:+}+{}", run.len)),
            }
        }
        if let Some(bytes) = self.unknown {
            line.say(format_args!(" unknown {bytes:02x?}"));
        }
    }
}

/// True when how much of it is under way depends on the sizes of buffers.
pub fn is_elastic(board: &Board, stream: Stream) -> bool {
    board.stream(stream).elastic.load(Relaxed) != 0
}

/// Where bytes begin, and how many of them are in order: the stream's number, the position, and the length.
fn origin(
    board: &Board,
    nominal: Stream,
    looked: Option<u64>,
    bytes: &[u8],
) -> Option<(usize, u64, usize)> {
    let sure = bytes.len().min(SURE);
    let due = |stream: usize| board.stream(Stream::at(stream)).received.load(Relaxed);
    let nominal = nominal.index();
    if let Some(at) = looked {
        let len = agree(nominal, at, bytes);
        if len >= sure {
            return Some((nominal, at, len));
        }
    }
    let others = (0..Stream::COUNT).filter(|stream| *stream != nominal);
    let in_order = std::iter::once(nominal)
        .chain(others)
        .map(|stream| (stream, due(stream), agree(stream, due(stream), bytes)));
    // The first of the longest: the one that should be there wins.
    let best = in_order.reduce(|a, b| if b.2 > a.2 { b } else { a })?;
    if best.2 >= sure {
        return Some(best);
    }
    let elsewhere = |stream: usize| {
        let label = Stream::at(stream).label();
        let at = pattern::origin_of(label, bytes)
            // Every word stands somewhere in every stream, but mostly where no stream ever comes.
            .filter(|at| *at < LONGEST)
            .or_else(|| near(stream, due(stream), bytes))?;
        let len = agree(stream, at, bytes);
        (len >= sure).then_some((stream, at, len))
    };
    let others = (0..Stream::COUNT).filter(|stream| *stream != nominal);
    std::iter::once(nominal).chain(others).find_map(elsewhere)
}

/// How many of the bytes are those of a stream from a position on.
fn agree(stream: usize, mut at: u64, bytes: &[u8]) -> usize {
    let label = Stream::at(stream).label();
    let mut wanted = [0; 512];
    let mut agreed = 0;
    let mut step = 8;
    while agreed < bytes.len() {
        let chunk = &bytes[agreed..bytes.len().min(agreed + step)];
        pattern::fill(label, at, &mut wanted[..chunk.len()]);
        let same = chunk.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
        agreed += same;
        if same < chunk.len() {
            break;
        }
        at += same as u64;
        step = wanted.len();
    }
    agreed
}

/// Where not far from `due` a few bytes are.
fn near(stream: usize, due: u64, bytes: &[u8]) -> Option<u64> {
    let first = &bytes[..bytes.len().min(SURE)];
    if first.len() < 4 {
        return None;
    }
    let label = Stream::at(stream).label();
    let mut part = [0; 1024];
    let mut at = due.saturating_sub(NEAR);
    while at < due + NEAR {
        pattern::fill(label, at, &mut part);
        if let Some(n) = part.windows(first.len()).position(|window| window == first) {
            return Some(at + n as u64);
        }
        at += (part.len() - first.len() + 1) as u64;
    }
    None
}
