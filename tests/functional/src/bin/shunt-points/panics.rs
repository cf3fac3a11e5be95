//! The library panics at each of its points, in one of two processes. The bytes of the connection on which that happens are
//! right and complete, or it is reset at both ends; and another connection of the two goes on.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use shunt_functional::sys::{self, ListenOptions, points};

use crate::ends::{self, Kind, Way};
use crate::wire::{Bad, Style, Wire};
use crate::{signals, watch};

/// What the two processes tell each other over the connection that is to go on.
const WORDS: usize = 512;
/// The end of all rounds.
const OVER: u64 = u64::MAX;

/// How a round has come out at an end.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Outcome {
    Complete,
    Reset(String),
    Wrong(String),
}

impl Outcome {
    fn of(result: Result<(), Bad>) -> Self {
        match result {
            Ok(()) => Self::Complete,
            Err(Bad::Reset(stage)) => Self::Reset(stage.to_owned()),
            Err(Bad::Wrong(what)) => Self::Wrong(what),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Complete => "complete".into(),
            Self::Reset(stage) => format!("reset {stage}"),
            Self::Wrong(what) => format!("wrong {what}"),
        }
    }

    fn from_text(text: &str) -> Self {
        match text.split_once(' ') {
            Some(("reset", stage)) => Self::Reset(stage.into()),
            Some((_, what)) => Self::Wrong(what.into()),
            None if text == "complete" => Self::Complete,
            None => Self::Wrong(text.into()),
        }
    }
}

/// The connection over which the processes talk.
struct Talk {
    wire: Wire,
}

impl Talk {
    fn open(way: &Way) -> io::Result<Self> {
        let fd = match way {
            Way::Connect(to) => {
                let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC)?;
                sys::connect(fd.as_raw_fd(), *to)?;
                fd
            }
            Way::Accept(listener) => sys::accept(listener.as_raw_fd(), libc::SOCK_CLOEXEC)?.0,
        };
        let mut wire =
            Wire::new(fd, Style::Blocking, way.is_client(), 0).map_err(|bad| fatal(&bad))?;
        wire.warm_up(way.is_client()).map_err(|bad| fatal(&bad))?;
        Ok(Self { wire })
    }

    /// Sends a number and a text, between bytes that are known.
    fn say(&mut self, number: u64, text: &str) -> io::Result<()> {
        self.wire.stage = "talk";
        let mut words = number.to_le_bytes().to_vec();
        words.extend(text.bytes().take(WORDS - 8));
        words.resize(WORDS, 0);
        sys::write(self.wire.raw(), &words)?;
        self.wire.send(10_000).map_err(|bad| fatal(&bad))
    }

    fn hear(&mut self) -> io::Result<(u64, String)> {
        self.wire.stage = "talk";
        let mut words = [0; WORDS];
        let n = sys::recv(self.wire.raw(), &mut words, libc::MSG_WAITALL, false)?;
        if n != WORDS {
            return Err(io::Error::other(format!("{n} bytes of a message")));
        }
        self.wire.recv(10_000).map_err(|bad| fatal(&bad))?;
        let (number, text) = words.split_at(8);
        let number = u64::from_le_bytes(number.try_into().map_err(io::Error::other)?);
        let text = String::from_utf8_lossy(text).trim_end_matches('\0').to_owned();
        Ok((number, text))
    }
}

fn fatal(bad: &Bad) -> io::Error {
    io::Error::other(format!("the other connection: {bad:?}"))
}

/// Listens, and says where.
pub fn listening() -> io::Result<Way> {
    let listener = sys::listen(([127, 0, 0, 1], 0).into(), ListenOptions::default())?;
    let fd = listener.as_raw_fd();
    // SAFETY: a descriptor of this process.
    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    let port = sys::local_addr(fd)?.get().map_or(0, |at: SocketAddr| at.port());
    println!("{{\"port\":{port}}}");
    Ok(Way::Accept(listener))
}

/// The process that does what the other one says.
pub fn other(way: &Way) -> io::Result<()> {
    watch::begin("hello");
    let mut talk = Talk::open(way)?;
    loop {
        let (number, kind) = talk.hear()?;
        if number == OVER {
            return talk.say(OVER, "over");
        }
        let known = Kind::ALL.into_iter().find(|k| format!("{k:?}") == kind);
        let kind = known.ok_or_else(|| io::Error::other(format!("no kind {kind}")))?;
        watch::begin(&format!("the other end of {kind:?} {number}"));
        let outcome = Outcome::of(ends::other(way, kind, number));
        talk.say(number, &outcome.to_text())?;
    }
}

/// What has come of the panics at a point.
#[derive(Default)]
struct Tally {
    panics: u64,
    complete: u64,
    reset: u64,
    /// Kinds of which the first panic has ended the connection.
    ended: Vec<String>,
}

/// The process whose library panics.
pub fn tested(way: &Way, kinds: &[Kind], event: Event, is_full: bool) -> io::Result<bool> {
    watch::begin("hello");
    if event == Event::Signal {
        signals::prepare()?;
    }
    let mut rounds = Rounds { way, talk: Talk::open(way)?, event, number: 0, is_right: true };
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for kind in kinds {
        // Which points there are on its way.
        let (outcome, _) = rounds.run(*kind, "")?;
        if outcome != Outcome::Complete {
            rounds.complain(&format!("{kind:?} without a panic: {outcome:?}"));
            continue;
        }
        let passes: Vec<_> = points::names()
            .into_iter()
            .map(|name| (points::passed(&name), name))
            .filter(|(passed, _)| *passed > 0)
            .collect();
        for (passed, point) in passes {
            let mut at = vec![1, 2, 3, passed / 2, passed];
            if is_full {
                at.extend([4, 5, 6, passed / 3, passed / 4, passed - 1]);
            }
            at.retain(|n| (1..=passed).contains(n));
            at.sort_unstable();
            at.dedup();
            let what = match event {
                Event::Panic => "panic".to_owned(),
                Event::Signal => format!("signal:{}", signals::SIGNAL),
            };
            let plans = at.iter().map(|n| format!("{point}={what}@{n}"));
            // A handler that comes to the point again would have no end.
            let each = (event == Event::Panic).then(|| format!("{point}={what}"));
            for plan in plans.chain(each) {
                let (outcome, panics) = rounds.run(*kind, &plan)?;
                let tally = tallies.entry(point.clone()).or_default();
                if panics == 0 {
                    continue;
                }
                tally.panics += panics;
                match outcome {
                    Outcome::Complete => tally.complete += 1,
                    _ => tally.reset += 1,
                }
                if plan.ends_with("@1") && outcome != Outcome::Complete {
                    tally.ended.push(format!("{kind:?}"));
                }
            }
        }
    }
    rounds.talk.say(OVER, "")?;
    rounds.talk.hear()?;
    for (point, Tally { panics, complete, reset, ended }) in tallies {
        println!(
            "{point}: {panics} times, {complete} complete, {reset} reset, ended by the first: {ended:?}"
        );
    }
    Ok(rounds.is_right)
}

/// What happens at the points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A panic, after which the connection may be reset.
    Panic,
    /// A signal, of which nothing is to be noticed.
    Signal,
}

impl Event {
    /// How often it has happened.
    fn count(self) -> u64 {
        match self {
            Self::Panic => points::contained(),
            Self::Signal => signals::runs(),
        }
    }
}

struct Rounds<'a> {
    way: &'a Way,
    event: Event,
    talk: Talk,
    number: u64,
    is_right: bool,
}

impl Rounds<'_> {
    fn complain(&mut self, what: &str) {
        self.is_right = false;
        eprintln!("{what}");
    }

    /// One connection; how it has come out, and how often the library has panicked.
    fn run(&mut self, kind: Kind, plan: &str) -> io::Result<(Outcome, u64)> {
        self.number += 1;
        let number = self.number;
        watch::begin(&format!("{kind:?} {number} {plan}"));
        self.talk.say(number, &format!("{kind:?}"))?;
        let before = self.event.count();
        points::plan(plan);
        let outcome = Outcome::of(ends::tested(self.way, kind, number));
        if !plan.is_empty() {
            points::plan("");
        }
        let panics = self.event.count() - before;
        let (answer, there) = self.talk.hear()?;
        let there = Outcome::from_text(&there);
        if answer != number {
            return Err(io::Error::other(format!("an answer to {answer} in round {number}")));
        }
        // What the child of a fork contains is not counted here.
        let may_fail =
            self.event == Event::Panic && (panics > 0 || (kind == Kind::Forks && !plan.is_empty()));
        if let Some(failure) = signals::failure() {
            self.complain(&format!("{kind:?} {plan}: {failure}"));
        }
        if !agree(&outcome, &there) || (!may_fail && outcome != Outcome::Complete) {
            self.complain(&format!(
                "{kind:?} {plan} ({panics} times): here {outcome:?}, there {there:?}"
            ));
        }
        Ok((outcome, panics))
    }
}

/// Whether this is what may come of a panic.
fn agree(here: &Outcome, there: &Outcome) -> bool {
    use Outcome::{Complete, Reset, Wrong};
    match (here, there) {
        (Complete, Complete) | (Reset(_), Reset(_)) => true,
        // All bytes have come, and the end with them or after them.
        (Complete, Reset(stage)) | (Reset(stage), Complete) => stage == "end",
        (Wrong(_), _) | (_, Wrong(_)) => false,
    }
}
