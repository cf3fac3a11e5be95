//! `shunt capture`.

mod extcap;
mod flows;
mod packet;
mod sink;

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use shunt_shm::capture::{Event, PIECE, Reader};
use shunt_sys::{signals, stdio};

use crate::cli::Capture;
use crate::directory::{Directory, Unreachable};
use crate::list::filter::Filter;
use crate::output::{USAGE, complain};
use flows::{Flows, Program, Programs, Seen, Wanted};
use sink::{INTERFACE, Lost, Pcap, Sink};

/// How often the agent is asked for programs that have come: while events wait for that, and else.
const ASK: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];
/// So many bytes do not wait so long.
const MOST_WAITING: usize = 32 << 20;
/// How long a sender may take from the time that it notes until its event is there, in nanoseconds.
const HOLD: u64 = 2_000_000;
/// How long to sleep where nothing is sent.
const PAUSE: Duration = Duration::from_millis(2);
/// Most events taken from a program in a turn.
const MOST: usize = 4096;
/// Programs that have ended whose rings are read still: their forks may go on with their connections.
const MOST_ENDED: usize = 64;

/// Runs the subcommand.
pub fn run(args: &Capture) -> u8 {
    if let Some(status) = extcap::answer(&args.extcap) {
        return status;
    }
    let (words, to) = extcap::conditions(args);
    let filter = match Filter::parse(&words) {
        Ok(filter) => filter,
        Err(why) => {
            complain(&format!("the filter makes no sense: {why}"));
            return USAGE;
        }
    };
    let link = match args.interface.as_deref().map(link_number) {
        None => None,
        Some(Ok(link)) => link,
        Some(Err(why)) => {
            complain(&why);
            return USAGE;
        }
    };
    match capture(args, Wanted { filter, link }, to) {
        Ok(()) => 0,
        Err(Failure::Agent(e)) => {
            complain(&e);
            1
        }
        Err(Failure::Writing(e)) if is_of_output(&e) => {
            complain(&e);
            1
        }
        Err(Failure::Writing(e)) => {
            complain(&format!("the packets cannot be written: {e}"));
            1
        }
    }
}

/// The link group of an interface; `None`: all.
fn link_number(name: &str) -> Result<Option<u64>, String> {
    if matches!(name, INTERFACE | "any") {
        return Ok(None);
    }
    let number = name.strip_prefix("link-").unwrap_or(name).parse();
    number.map(Some).map_err(|_| {
        format!("`{name}` is no link group: these are `link-NUMBER`, as a capture names them, and `{INTERFACE}` is all")
    })
}

fn left_on_tcp(connections: usize) -> String {
    let (count, they) = match connections {
        1 => ("1 connection".to_owned(), "it"),
        n => (format!("{n} connections"), "them"),
    };
    format!("{count} stayed on kernel TCP: tcpdump shows {they}, and `shunt stats` counts why")
}

enum Failure {
    Agent(Unreachable),
    Writing(io::Error),
}

impl From<Unreachable> for Failure {
    fn from(e: Unreachable) -> Self {
        Self::Agent(e)
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self::Writing(e)
    }
}

/// Standard output, not a file, is what cannot be written.
fn is_of_output(error: &io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<stdio::Unwritable>()).is_some()
}

fn nanos(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec.cast_unsigned())
}

fn open(to: Option<&Path>, snap: u32) -> io::Result<Sink> {
    let to: Box<dyn Write> = match to {
        None => return Ok(Sink::Text),
        Some(path) if path == Path::new("-") => Box::new(stdio::Output),
        Some(path) => Box::new(File::create(path)?),
    };
    Ok(Sink::File(Box::new(Pcap::new(to, snap)?)))
}

fn capture(args: &Capture, wanted: Wanted, to: Option<&Path>) -> Result<(), Failure> {
    let stop = signals::stop_fd()?;
    let data = args.snaplen.saturating_sub(u32::try_from(packet::HEADERS).unwrap_or(0));
    let agent = Directory::open()?;
    let snap = data.min(u32::try_from(PIECE).unwrap_or(u32::MAX));
    let place = agent.capture(snap, wanted.filter.port().unwrap_or(0))?;
    let mut session = Session {
        agent,
        place: place.into(),
        programs: Programs::new(),
        rings: HashMap::new(),
        ended: VecDeque::new(),
        flows: Flows::default(),
        wanted,
        waiting: Vec::new(),
        sink: open(to, args.snaplen)?,
        left: args.count,
        written: 0,
        lost: Lost::default(),
    };
    session.ask()?;
    // The file tells its readers that the capture has begun.
    session.sink.flush()?;
    complain(&"capturing; Ctrl-C ends it");
    let ends = session.work(&stop, args.duration.map(Duration::from_secs_f64));
    let lost = session.end()?;
    session.sink.end(lost, nanos(ClockId::Realtime))?;
    let Lost { sends, bytes, damaged } = lost;
    complain(&format!("{} packets captured, {sends} sends of {bytes} bytes lost", session.written));
    let left = session.flows.left_on_tcp(&session.programs, &session.wanted);
    if left > 0 {
        complain(&left_on_tcp(left));
    }
    if damaged > 0 {
        complain(&format!("{damaged} times a program's ring had something that made no sense"));
    }
    ends
}

/// A capture at work.
struct Session {
    agent: Directory,
    place: usize,
    programs: Programs,
    rings: HashMap<u64, Reader>,
    /// Programs that have ended, the oldest first.
    ended: VecDeque<u64>,
    flows: Flows,
    wanted: Wanted,
    /// Events that may not be the next ones.
    waiting: Vec<Seen>,
    sink: Sink,
    /// Packets that are to be written; `None`: all.
    left: Option<u64>,
    written: u64,
    /// Of programs whose rings are not read any more.
    lost: Lost,
}

impl Session {
    /// Goes on until it is to stop.
    fn work(&mut self, stop: &OwnedFd, duration: Option<Duration>) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut asked = begun;
        loop {
            let bytes: usize = self.waiting.iter().map(|seen| seen.bytes.len()).sum();
            let due = ASK[usize::from(self.waiting.is_empty())];
            let mut until = 0;
            if asked.elapsed() >= due || bytes >= MOST_WAITING {
                // All programs that have sent anything by now are known then.
                until = nanos(ClockId::Realtime).saturating_sub(HOLD);
                self.ask()?;
                asked = Instant::now();
            }
            let found = self.turn(until)?;
            if self.left == Some(0) || duration.is_some_and(|most| begun.elapsed() >= most) {
                return Ok(());
            }
            let pause = if found { Duration::ZERO } else { PAUSE };
            let time = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
            let mut stops = [PollFd::new(stop, PollFlags::IN)];
            match poll(&mut stops, Some(&time)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                _ => return Ok(()),
            }
        }
    }

    /// Learns which programs have come and gone.
    fn ask(&mut self) -> Result<(), Failure> {
        loop {
            let (news, memory) = self.agent.captured()?;
            let programs = news["programs"].as_array().map_or(&[][..], Vec::as_slice);
            for (program, memory) in programs.iter().zip(memory) {
                self.begin(program, &memory);
            }
            let ended = news["ended"].as_array().into_iter().flatten().filter_map(Value::as_u64);
            self.ended.extend(ended);
            while self.ended.len() > MOST_ENDED {
                // What it has sent last.
                self.turn(0)?;
                if let Some(oldest) = self.ended.pop_front() {
                    self.forget(oldest);
                }
            }
            if news["more"] != true {
                return Ok(());
            }
        }
    }

    fn begin(&mut self, program: &Value, memory: &OwnedFd) {
        let Some(endpoint) = program["endpoint"].as_u64() else { return };
        // One that cannot be mapped is not captured.
        let Ok(reader) = Reader::new(memory, self.place) else { return };
        self.rings.insert(endpoint, reader);
        let name = program["program"].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| program[name].as_u64().unwrap_or(0);
        self.programs
            .insert(endpoint, Program { pid: number("pid"), name, network: number("network") });
    }

    fn forget(&mut self, endpoint: u64) {
        self.programs.remove(&endpoint);
        if let Some(reader) = self.rings.remove(&endpoint) {
            add(&mut self.lost, &reader);
        }
    }

    /// Takes what was sent, and writes what was sent before `until`. True when there was something.
    fn turn(&mut self, until: u64) -> io::Result<bool> {
        let now = nanos(ClockId::Monotonic);
        let before = self.waiting.len();
        for (from, reader) in &mut self.rings {
            reader.lives(now);
            for _ in 0..MOST {
                let Some((event, bytes)) = reader.next(now) else { break };
                self.waiting.push(Seen { event, bytes, from: *from });
            }
        }
        let found = self.waiting.len() > before;
        // Each direction is in order already.
        self.waiting.sort_by_key(|Seen { event: Event { at, .. }, .. }| *at);
        let ready = self.waiting.partition_point(|seen| seen.event.at < until);
        for seen in self.waiting.drain(..ready) {
            for packet in self.flows.take(seen, &self.programs, &self.wanted) {
                if self.left != Some(0) {
                    self.sink.write(&packet)?;
                    self.written += 1;
                    self.left = self.left.map(|left| left - 1);
                }
            }
        }
        if ready > 0 {
            self.sink.flush()?;
        }
        Ok(found)
    }

    /// Takes what was sent until now; what was lost in all.
    fn end(&mut self) -> io::Result<Lost> {
        // Whoever sends on and on does not keep it. Where the agent is gone nothing more is known.
        let _ = self.ask();
        self.turn(0)?;
        for reader in self.rings.values() {
            reader.close();
        }
        self.turn(u64::MAX)?;
        let mut lost = self.lost;
        for reader in self.rings.values() {
            add(&mut lost, reader);
        }
        Ok(lost)
    }
}

fn add(lost: &mut Lost, reader: &Reader) {
    let losses = reader.losses();
    lost.sends = lost.sends.saturating_add(losses.events);
    lost.bytes = lost.bytes.saturating_add(losses.bytes);
    lost.damaged = lost.damaged.saturating_add(losses.damaged);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_groups_go_by_number() {
        assert_eq!(link_number("shunt"), Ok(None));
        assert_eq!(link_number("link-17"), Ok(Some(17)));
        assert_eq!(link_number("17"), Ok(Some(17)));
        assert!(link_number("eth0").is_err());
    }
}
