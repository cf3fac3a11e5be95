//! Carrying a plan out, and what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use shunt_shm::counters::RunPage;
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;

use super::board::{Board, State};
use super::plan::{Actor, Level, Op, Plan, Step};
use crate::binaries;
use crate::sandbox::Sandbox;
use crate::sys;

/// Longest wait for a step over kernel TCP that neither ends nor sleeps.
const LONGEST: Duration = Duration::from_secs(5);
/// Longest wait over kernel TCP for one that time is to end. Times of plans are much shorter.
const TIMED: Duration = Duration::from_millis(1500);
/// Longest wait for a call that has slept before to do so again: under Shunt a sleeper looks for itself now and then.
const DOZE: Duration = Duration::from_millis(3);
/// Between two looks at calls that sleep.
const LOOK: Duration = Duration::from_micros(100);
/// Looks in a row at which a call has to be asleep.
const LOOKS: u32 = 2;

/// What a step returned, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The group after which it was done.
    pub group: usize,
    /// Which step of the plan.
    pub step: usize,
    /// What came of it.
    pub text: String,
}

/// What came of a plan.
#[derive(Clone, Default, Debug)]
pub struct Transcript {
    /// What was done, in order.
    pub events: Vec<Event>,
    /// Why it ends before the plan: what differs from the transcript that was expected.
    pub differs: Option<Differs>,
    /// A step was neither done nor asleep for long; the transcript ends there.
    pub restless: bool,
    /// Connection ends that were shunted.
    pub shunted: u64,
    /// Why others were not.
    pub declined: String,
}

/// A result that was not expected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Differs {
    /// In one line, the same for others of its kind: the operation, and what it returned over TCP and under Shunt.
    pub kind: String,
    /// At length.
    pub what: String,
}

impl Differs {
    fn new(op: &str, tcp: &str, shunt: &str, what: String) -> Self {
        let mut kind = format!("{op}: {} / {}", kind_of(tcp), kind_of(shunt));
        if !streams(tcp).is_empty() && !streams(shunt).is_subset(&streams(tcp)) {
            kind += " of another stream";
        }
        Self { kind, what }
    }
}

/// A result without what is different each time: numbers, and which stream.
fn kind_of(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace().take_while(|word| *word != "unknown") {
        let name = word.find([':', '+', '@']).unwrap_or(word.len());
        let (name, rest) = word.split_at(name);
        let is_var = !rest.is_empty() || name.parse::<u32>().is_err();
        let short = name.len() < 6 && name.ends_with(|c: char| c.is_ascii_digit());
        let word =
            match (is_var && short, rest.chars().next()) {
                (true, Some('@')) => "elsewhere".into(),
                (true, Some(':')) => rest[1..].into(),
                (true, _) => continue,
                _ if !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit()) => {
                    if word == "0" { "0".into() } else { "n".into() }
                }
                _ => word.to_owned(),
            };
        if words.last() != Some(&word) {
            words.push(word);
        }
    }
    if text.contains("unknown") {
        words.push("unknown".into());
    }
    words.join(" ")
}

/// The streams of which a result has bytes.
fn streams(text: &str) -> BTreeSet<&str> {
    let named = text.split_whitespace().filter_map(|word| word.split_once(['+', '@']));
    named.map(|(name, _)| name).collect()
}

/// What is expected of a plan.
#[derive(Clone, Copy)]
pub struct Expected<'a> {
    /// What came of it over kernel TCP.
    pub transcript: &'a Transcript,
    /// How long a step may take of which the transcript says that it ends.
    pub patience: Duration,
}

/// Runs plans in one sandbox.
pub struct Runner<'a> {
    sandbox: &'a Sandbox,
    program: PathBuf,
}

impl<'a> Runner<'a> {
    /// In this sandbox and its mode.
    ///
    /// # Panics
    /// When the program has not been built.
    #[must_use]
    pub fn new(sandbox: &'a Sandbox) -> Self {
        // Processes whose parents have ended come to this one, which knows their pids and waits for them.
        // SAFETY: no pointers. Where it fails they go to init, as they would without.
        let _ = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        Self { sandbox, program: binaries::built("shunt-differential") }
    }

    /// What comes of `plan`. With something expected it ends at the first difference.
    ///
    /// # Errors
    /// Those of what it takes to start processes.
    pub fn run(&self, plan: &Plan, expected: Option<Expected<'_>>) -> io::Result<Transcript> {
        let mut stage = Stage::new(self, plan)?;
        let mut transcript = Transcript::default();
        for group in 0..plan.groups.len() {
            stage.begin(group);
            let done = stage.settle(group, expected);
            transcript.events.append(&mut stage.events);
            if expected.is_none() && stage.restless {
                transcript.restless = true;
                break;
            }
            if let Err(why) = done {
                transcript.differs = Some(why);
                break;
            }
            let differs =
                expected.and_then(|expected| difference(plan, group, expected, &transcript));
            if differs.is_some() {
                transcript.differs = differs;
                break;
            }
        }
        transcript.shunted = stage.page.get().counters()[Counter::Shunted as usize];
        transcript.declined = declined(&stage.page);
        Ok(transcript)
    }
}

/// Why connection ends were not shunted.
fn declined(page: &RunPage) -> String {
    let counts = page.get().declined();
    let known = Reason::ALL.iter().map(|why| (why.name(), counts[*why as usize]));
    let some: Vec<_> = known.filter(|k| k.1 > 0).map(|(name, n)| format!("{name} {n}")).collect();
    some.join(", ")
}

/// How a group's events differ from what is expected.
fn difference(
    plan: &Plan,
    group: usize,
    expected: Expected<'_>,
    found: &Transcript,
) -> Option<Differs> {
    let of = |transcript: &Transcript| -> BTreeMap<usize, String> {
        let events = transcript.events.iter().filter(|event| event.group == group);
        events.map(|event| (event.step, event.text.clone())).collect()
    };
    let (before, now) = (of(expected.transcript), of(found));
    let steps: BTreeSet<usize> = before.keys().chain(now.keys()).copied().collect();
    let mut differs: Option<Differs> = None;
    for step in steps {
        let (a, b) = (before.get(&step), now.get(&step));
        if a != b {
            let show = |result: Option<&String>| result.map_or("(goes on)".into(), Clone::clone);
            let (tcp, shunt) = (show(a), show(b));
            let Some(of) = plan.steps().nth(step) else { continue };
            let text = format!(
                "  step {step}: {of}\n    after group {group}\n    tcp:   {tcp}\n    shunt: {shunt}\n"
            );
            match &mut differs {
                Some(differs) => differs.what += &text,
                None => differs = Some(Differs::new(of.op.name(), &tcp, &shunt, text)),
            }
        }
    }
    differs
}

/// A step that has been begun.
struct Pending<'a> {
    index: usize,
    step: &'a Step,
    /// It was seen asleep.
    slept: bool,
    /// How often its actor had come.
    births: u32,
}

/// The processes of one plan.
struct Stage<'a> {
    plan: &'a Plan,
    board: Board,
    _board: OwnedFd,
    page: RunPage,
    _page: OwnedFd,
    /// Processes that were there from the start: their pids.
    roots: BTreeMap<u8, i32>,
    ended: BTreeMap<u8, String>,
    pending: Vec<Pending<'a>>,
    events: Vec<Event>,
    /// The first step of each group.
    firsts: Vec<usize>,
    /// A step was neither done nor asleep for long.
    restless: bool,
}

impl<'a> Stage<'a> {
    fn new(runner: &Runner<'_>, plan: &'a Plan) -> io::Result<Self> {
        let (board, board_fd) = Board::new(&plan.to_string())?;
        let (page, page_fd) = RunPage::create()?;
        let firsts = plan.groups.iter().scan(0, |next, group| {
            let first = *next;
            *next += group.len();
            Some(first)
        });
        let firsts = firsts.collect();
        let path = |fd: &OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        let (board_path, page_path) = (path(&board_fd), path(&page_fd));
        let mut stage = Self {
            plan,
            board,
            _board: board_fd,
            page,
            _page: page_fd,
            roots: BTreeMap::new(),
            ended: BTreeMap::new(),
            pending: Vec::new(),
            events: Vec::new(),
            firsts,
            restless: false,
        };
        for process in (0..plan.processes.len()).filter(|p| !plan.is_child(*p)) {
            let process = u8::try_from(process).unwrap_or(0);
            let mut command = runner.sandbox.preloaded(&runner.program);
            command.args(["act", &board_path, &process.to_string()]);
            command.env("SHUNT_RUN_PAGE", &page_path).stdout(Stdio::null());
            // SAFETY: the closure makes two system calls and allocates nothing.
            unsafe {
                command.pre_exec(|| {
                    if libc::setsid() < 0 || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0
                    {
                        return Err(io::Error::last_os_error());
                    }
                    Ok(())
                });
            }
            let child = command.spawn()?;
            stage.roots.insert(process, i32::try_from(child.id()).map_err(io::Error::other)?);
        }
        stage.wait_for_roots()?;
        Ok(stage)
    }

    fn wait_for_roots(&mut self) -> io::Result<()> {
        let started = Instant::now();
        loop {
            let rings = self.board.rings();
            let actors = self.roots.keys().flat_map(|process| {
                let threads = self.plan.processes[usize::from(*process)];
                (0..threads).map(|thread| Actor { process: *process, thread })
            });
            let mut actors = actors;
            if actors.all(|actor| self.tid(actor) != 0) {
                return Ok(());
            }
            self.look_for_ends();
            if !self.ended.is_empty() || started.elapsed() > LONGEST * 6 {
                return Err(io::Error::other(format!("no actors: {:?}", self.ended)));
            }
            self.board.wait_for_ring(rings, Duration::from_millis(5));
        }
    }

    fn tid(&self, actor: Actor) -> i32 {
        self.board.slot(actor).tid.load(std::sync::atomic::Ordering::Acquire)
    }

    fn births(&self, actor: Actor) -> u32 {
        self.board.slot(actor).births.load(std::sync::atomic::Ordering::Acquire)
    }

    fn pid(&self, process: u8) -> i32 {
        self.board.pid(process).load(std::sync::atomic::Ordering::Acquire)
    }

    /// Begins a group's steps.
    fn begin(&mut self, group: usize) {
        for (n, step) in self.plan.groups[group].iter().enumerate() {
            let index = self.firsts[group] + n;
            let busy = |pending: &Pending<'_>| {
                let other = pending.step;
                other.actor == step.actor
                    && (step.level == Level::Base || other.level != Level::Base)
            };
            if self.tid(step.actor) == 0 || self.ended.contains_key(&step.actor.process) {
                self.events.push(Event { group, step: index, text: "nobody".into() });
                continue;
            }
            if self.pending.iter().any(busy) {
                self.events.push(Event { group, step: index, text: "busy".into() });
                continue;
            }
            match step.level {
                Level::Base => self.board.command(step.actor, index),
                Level::Handler(signal) => {
                    let number = u32::try_from(index + 1).unwrap_or(0);
                    let slot = self.board.slot(step.actor);
                    slot.handler.store(number, std::sync::atomic::Ordering::Release);
                    let (pid, tid) = (self.pid(step.actor.process), self.tid(step.actor));
                    // SAFETY: no pointers. The thread is there: it has a slot, and its process has not ended.
                    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal.number()) };
                }
            }
            let births = self.births(step.actor);
            self.pending.push(Pending { index, step, slept: false, births });
        }
    }

    /// Waits until all that is under way is done or asleep, and what is expected to be done is.
    fn settle(&mut self, group: usize, expected: Option<Expected<'_>>) -> Result<(), Differs> {
        let wanted: BTreeSet<usize> = expected.map_or_else(BTreeSet::new, |expected| {
            let events = expected.transcript.events.iter();
            events.filter(|event| event.group == group).map(|event| event.step).collect()
        });
        let patience = expected.map_or(LONGEST, |expected| expected.patience.max(LONGEST));
        let started = Instant::now();
        let mut asleep = (0, Vec::new());
        loop {
            let rings = self.board.rings();
            self.look_for_ends();
            self.harvest(group);
            let elapsed = started.elapsed();
            if self.pending.is_empty() {
                return Ok(());
            }
            if let Some(late) = self.pending.iter().find(|p| wanted.contains(&p.index)) {
                let patience = expected.map_or(LONGEST, |expected| expected.patience);
                if elapsed > patience {
                    return Err(self.stuck(late, group, patience));
                }
                self.board.wait_for_ring(rings, Duration::from_millis(2));
                continue;
            }
            let by_itself = |p: &Pending<'_>| {
                (p.step.op.takes_time() && elapsed < LONGEST) || (p.step.timed && elapsed < TIMED)
            };
            if expected.is_none() && self.pending.iter().any(by_itself) {
                self.board.wait_for_ring(rings, Duration::from_millis(2));
                continue;
            }
            let looks = self.looks();
            asleep = match looks {
                Some(looks) if looks == asleep.1 => (asleep.0 + 1, looks),
                Some(looks) => (1, looks),
                None => (0, Vec::new()),
            };
            if asleep.0 > 0 {
                self.pending.iter_mut().for_each(|p| p.slept = true);
            }
            let dozes = expected.is_some()
                && elapsed > DOZE
                && self.pending.iter().all(|pending| pending.slept);
            if asleep.0 >= LOOKS || dozes {
                return Ok(());
            }
            if elapsed > patience {
                self.restless = true;
                return Ok(());
            }
            self.board.wait_for_ring(rings, LOOK);
        }
    }

    /// Takes the results of what is done.
    fn harvest(&mut self, group: usize) {
        let pending = std::mem::take(&mut self.pending);
        for pending in pending {
            let actor = pending.step.actor;
            // Threads end by themselves, or with their program when another takes its place.
            let has_gone = !matches!(pending.step.op, Op::Exec {})
                && (self.tid(actor) == 0 || self.births(actor) != pending.births);
            let text = match self.board.state(pending.index) {
                State::Done => self.board.outcome(pending.index),
                _ => match self.ended.get(&actor.process) {
                    Some(how) => how.clone(),
                    None if has_gone => "gone".into(),
                    None => {
                        self.pending.push(pending);
                        continue;
                    }
                },
            };
            self.events.push(Event { group, step: pending.index, text });
        }
        self.events.sort_by_key(|event| (event.group, event.step));
    }

    /// Notes which processes have ended.
    fn look_for_ends(&mut self) {
        for (process, pid) in &self.roots {
            if !self.ended.contains_key(process)
                && let Ok(Some(code)) = sys::has_ended(*pid)
            {
                self.ended.insert(*process, how_ended(code));
            }
        }
        for process in 0..self.plan.processes.len() {
            let process = u8::try_from(process).unwrap_or(0);
            let pid = self.pid(process);
            let known = self.roots.contains_key(&process) || self.ended.contains_key(&process);
            if pid != 0 && !known && matches!(state(pid, pid), None | Some('Z' | 'X')) {
                self.ended.insert(process, "gone".into());
            }
        }
    }

    /// What all threads with something under way look like, if they are all asleep in it.
    fn looks(&self) -> Option<Vec<(usize, String)>> {
        let look = |pending: &Pending<'_>| {
            let actor = pending.step.actor;
            let (pid, tid) = (self.pid(actor.process), self.tid(actor));
            let begun = self.board.state(pending.index) == State::Begun;
            if !begun || state(pid, tid) != Some('S') {
                return None;
            }
            Some((pending.index, slices(pid, tid)))
        };
        self.pending.iter().map(look).collect()
    }

    /// Says that a step does not end, and where everybody is.
    fn stuck(&self, late: &Pending<'_>, group: usize, patience: Duration) -> Differs {
        let mut text = format!(
            "  step {}: {}\n    after group {group}\n    tcp:   ends\n    shunt: not after {patience:?}\n",
            late.index, late.step
        );
        for pending in &self.pending {
            let actor = pending.step.actor;
            let (pid, tid) = (self.pid(actor.process), self.tid(actor));
            let field = |name: &str| {
                fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}")).unwrap_or_default()
            };
            text += &format!(
                "    under way: step {} {} (state {}, in {}, call {})\n",
                pending.index,
                pending.step,
                state(pid, tid).unwrap_or('-'),
                field("wchan").trim(),
                field("syscall").trim()
            );
        }
        Differs::new(late.step.op.name(), "ends", "does not end", text)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // Each leads a session, and so a group, of its own; what comes of it stays there.
        for root in self.roots.values() {
            sys::end_group(*root);
        }
    }
}

/// How a process has ended.
fn how_ended(code: i32) -> String {
    if code > 128 {
        format!("gone by signal {}", code - 128)
    } else {
        format!("gone, status {code}")
    }
}

/// The state of a thread, as /proc has it.
fn state(pid: i32, tid: i32) -> Option<char> {
    let stat = fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(end + 2).map(|byte| char::from(*byte))
}

/// Changes whenever a thread runs.
fn slices(pid: i32, tid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_one_kind_are_told_from_others() {
        for (text, kind) in [
            ("100 a0+100", "n"),
            ("0", "0"),
            ("ECONNRESET", "ECONNRESET"),
            ("7 a0@+3+7", "n elsewhere"),
            ("some b1", "some"),
            ("3 b0:IN|OUT l0:IN b1:IN|OUT", "n IN|OUT IN IN|OUT"),
            ("5 unknown [1b, 00, 00, 00]", "n unknown"),
            ("10 a0+10 left 3", "n left n"),
        ] {
            assert_eq!(kind_of(text), kind, "{text}");
        }
        let kind = |tcp: &str, shunt: &str| Differs::new("recv", tcp, shunt, String::new()).kind;
        assert_eq!(kind("7 a0+7", "3 a0+3"), "recv: n / n");
        assert_eq!(kind("7 a0+7", "7 a1+7"), "recv: n / n of another stream");
    }
}
