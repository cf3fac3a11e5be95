//! The peer is on another host: what the link brings and what the kernel tells, in every order that can be, also in the middle of a step.

use super::*;
use crate::conn::poll::{self, KernelReadiness, Polled};
use crate::events;
use crate::stretch::Path;
use core::cell::Cell;
use core::ops::Range;
use shunt_shm::ring::MARKS;

/// What the agent writes, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Brings {
    /// A switch point, behind so many bytes of the stretch before it.
    Mark(u64),
    /// So many bytes of the ring.
    Ring(u64),
    /// The end, in good order.
    End,
    /// The link has failed, and the sender goes on over TCP behind so many bytes of the ring.
    GoesOn(u64),
    /// It can't, as the other agent is gone.
    BreaksOff,
    /// It is gone itself.
    Dies,
}

/// A direction.
struct Story {
    kernel: &'static [Arrival],
    link: &'static [Brings],
    /// Its bytes, by stretch: TCP first, then ring, and so on.
    stretches: &'static [usize],
    /// So many of what the link brings come before the second bytes over TCP: the sender awaits that it was heard, and so far the agents
    /// have said where the link stood.
    awaited: usize,
    /// Not all may come.
    may_break: bool,
}

const fn whole(
    kernel: &'static [Arrival],
    link: &'static [Brings],
    stretches: &'static [usize],
    awaited: usize,
) -> Story {
    Story { kernel, link, stretches, awaited, may_break: false }
}

const fn broken(
    kernel: &'static [Arrival],
    link: &'static [Brings],
    stretches: &'static [usize],
    awaited: usize,
) -> Story {
    Story { may_break: true, ..whole(kernel, link, stretches, awaited) }
}

const STORIES: &[Story] = {
    use Arrival::{Bytes, Fin, Reset};
    use Brings::{BreaksOff, Dies, End, GoesOn, Mark, Ring};
    let all: &[_] = &[Mark(3), Ring(2), Ring(4), End];
    let cut: &[_] = &[Mark(3), Ring(2), BreaksOff];
    let dead: &[_] = &[Mark(3), Ring(2), Dies];
    let resumed: &[_] = &[Mark(3), Ring(2), GoesOn(2)];
    &[
        whole(&[Bytes(3), Fin], all, &[3, 6], 0),
        whole(&[Bytes(3), Fin, Reset], all, &[3, 6], 0),
        broken(&[Bytes(3), Fin], cut, &[3, 6], 0),
        broken(&[Bytes(3), Fin, Reset], cut, &[3, 6], 0),
        broken(&[Bytes(3), Reset], cut, &[3, 6], 0),
        broken(&[Bytes(3), Fin], dead, &[3, 6], 0),
        broken(&[Bytes(3), Fin, Reset], dead, &[3, 6], 0),
        broken(&[Bytes(3), Reset], dead, &[3, 6], 0),
        // Nothing has come over the link.
        broken(&[Bytes(3), Fin, Reset], &[BreaksOff], &[3, 6], 0),
        broken(&[Bytes(3), Fin, Reset], &[Dies], &[3, 6], 0),
        // The sender has left the ring by itself.
        whole(&[Bytes(3), Bytes(5), Fin], &[Mark(3), Ring(6), Mark(6), End], &[3, 6, 5], 3),
        broken(&[Bytes(3), Bytes(5), Fin], &[Mark(3), Ring(6), Mark(6), Dies], &[3, 6, 5], 3),
        broken(
            &[Bytes(3), Bytes(5), Fin, Reset],
            &[Mark(3), Ring(6), Mark(6), BreaksOff],
            &[3, 6, 5],
            3,
        ),
        // Since the link has failed.
        whole(&[Bytes(3), Bytes(4), Fin], resumed, &[3, 2, 4], 2),
        whole(&[Bytes(3), Bytes(4), Fin, Reset], resumed, &[3, 2, 4], 2),
        broken(&[Bytes(3), Bytes(4), Fin, Reset], cut, &[3, 2, 4], 2),
        broken(&[Bytes(3), Bytes(4), Fin, Reset], dead, &[3, 2, 4], 2),
    ]
};

/// What happens next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Kernel(Arrival),
    Link(Brings),
}

/// All orders of both, each of which keeps its own.
fn orders(kernel: &[Arrival], link: &[Brings]) -> Vec<Vec<Event>> {
    if kernel.is_empty() && link.is_empty() {
        return vec![Vec::new()];
    }
    let behind = |event: Event, rest: Vec<Vec<Event>>| {
        rest.into_iter().map(move |rest| [vec![event], rest].concat())
    };
    let mut all = Vec::new();
    if let [first, rest @ ..] = kernel {
        all.extend(behind(Event::Kernel(*first), orders(rest, link)));
    }
    if let [first, rest @ ..] = link {
        all.extend(behind(Event::Link(*first), orders(kernel, rest)));
    }
    all
}

impl Story {
    /// The orders in which it can happen.
    fn orders(&self) -> impl Iterator<Item = Vec<Event>> {
        orders(self.kernel, self.link).into_iter().filter(|events| {
            let is_bytes = |event: &&Event| matches!(event, Event::Kernel(Arrival::Bytes(_)));
            let place = |event| events.iter().position(|it| it == event);
            let second = events.iter().filter(is_bytes).nth(1).and_then(place);
            let is_link = |event: &&Event| matches!(event, Event::Link(_));
            second.is_none_or(|at| events[..at].iter().filter(is_link).count() >= self.awaited)
        })
    }
}

/// How a program's reading stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stands {
    Waits,
    Eof,
    Reset,
}

/// How a program reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct How {
    /// Bytes of a call.
    most: usize,
    /// It calls where poll(2) has told of something.
    polls: bool,
}

struct Reader<'a> {
    memory: Rc<Memory>,
    socket: Socket,
    is_cut_off: Rc<Cell<bool>>,
    story: &'a Story,
    how: How,
    read: usize,
    stands: Stands,
}

impl<'a> Reader<'a> {
    fn new(story: &'a Story, how: How) -> Self {
        let memory = Rc::new(Memory::default());
        memory.activate();
        put(memory.record(), HOSTED, true);
        memory.end().theirs.prod.behind.store(1, Relaxed);
        let (socket, is_cut_off) = (Socket::default(), Rc::default());
        Self { memory, socket, is_cut_off, story, how, read: 0, stands: Stands::Waits }
    }

    fn happens(&self, event: Event) {
        match event {
            Event::Kernel(what) => {
                self.socket.arrive(what);
                self.is_woken_by_kernel();
            }
            Event::Link(brings) => brings.to(&self.memory, &self.is_cut_off),
        }
    }

    /// In the middle of the next call, at this question to the kernel.
    fn happens_at(&self, question: usize, event: Event) {
        let (memory, is_cut_off) = (Rc::clone(&self.memory), Rc::clone(&self.is_cut_off));
        match event {
            Event::Kernel(what) => self.socket.arrive_at(question, what),
            Event::Link(brings) => {
                self.socket.before(question, move || brings.to(&memory, &is_cut_off));
            }
        }
    }

    /// A program that sleeps knows who has woken it.
    fn is_woken_by_kernel(&self) {
        put(self.memory.record(), KERNEL_HINT, true);
    }

    /// Calls, until one waits.
    fn calls(&mut self) {
        while self.stands == Stands::Waits {
            if self.how.polls && !self.is_told() {
                return;
            }
            let mut call = Receives::new(&self.memory, &self.socket, self.how.most);
            call.is_cut_off = self.is_cut_off.get();
            let end = self.memory.end();
            let step = receive(end.record, Some(&end), &mut call, true);
            let (got, in_ring) = (call.got, call.in_ring);
            match step {
                Ok(Step::Done) if got == 0 => self.stands = Stands::Eof,
                Ok(Step::Done) => self.takes(got, in_ring),
                // A call that waits has nothing yet.
                Ok(Step::Wait(_)) => {
                    assert_eq!(got, 0);
                    return;
                }
                Ok(Step::Failed(Errno::CONNRESET)) | Err(_) => self.stands = Stands::Reset,
                Ok(other) => panic!("{other:?}"),
            }
        }
    }

    /// Whether poll(2) tells of something.
    fn is_told(&self) -> bool {
        let (end, wanted) = (self.memory.end(), events::IN | events::RDHUP);
        let of = (end.record, Some(end));
        poll::look(of, Phase::Active, (wanted, &mut KernelReadiness::Nothing), self) & wanted != 0
    }

    fn takes(&mut self, got: usize, in_ring: usize) {
        for n in 0..got {
            let mut at = self.read + n;
            let stretch = self.story.stretches.iter().position(|len| {
                let is_in = at < *len;
                at = at.saturating_sub(*len);
                is_in
            });
            let stretch = stretch.expect("more than was sent");
            if got == 1 {
                assert_eq!(stretch % 2, in_ring, "byte {}", self.read);
            }
        }
        self.read += got;
    }
}

impl Polled for Reader<'_> {
    type Socket = Socket;

    fn ask<T>(&self, mut question: impl FnMut(&Socket) -> T) -> Option<T> {
        Some(question(&self.socket))
    }

    fn now(&self) -> u64 {
        0
    }

    fn low_water(&self) -> u64 {
        1
    }

    fn can_tell(&self) -> bool {
        true
    }

    fn is_cut_off(&self) -> bool {
        self.is_cut_off.get()
    }

    fn is_orphaned(&self) -> bool {
        false
    }

    fn follows(&self) {}

    fn repeats(&self) {}

    fn settles(&self) {
        if self.memory.end().pass_end_of_ring() == Path::Tcp {
            self.memory.end().drop_repeated(&self.socket);
        }
    }

    // The call that comes next finds it, too.
    fn breaks_off(&self) {}

    fn doubts(&self) {}

    fn finds_unmarked(&self) {}
}

impl Brings {
    fn to(self, memory: &Memory, is_cut_off: &Cell<bool>) {
        let theirs = memory.end().theirs;
        match self {
            Self::Mark(at) => TxCursor::set_mark(&theirs.prod, at),
            Self::Ring(n) => memory.receive(n),
            Self::End => {
                theirs.prod.fin.store(1, Relaxed);
                theirs.prod.behind.store(0, Relaxed);
            }
            Self::GoesOn(at) => {
                let next = theirs.prod.marks.load(Relaxed) + 1;
                theirs.prod.mark_at[next as usize % MARKS].store(at, Relaxed);
                theirs.prod.marks.store(next, Relaxed);
                theirs.prod.behind.store(0, Relaxed);
            }
            Self::BreaksOff => {
                theirs.prod.grants.store(u32::MAX / 2, Relaxed);
                theirs.cons.cons.store(u64::MAX, Relaxed);
            }
            Self::Dies => is_cut_off.set(true),
        }
    }
}

/// Where in a call some of the events come, behind others.
#[derive(Clone, Debug)]
struct Middle {
    events: Range<usize>,
    question: usize,
    /// There are calls between those before.
    is_eager: bool,
}

/// So many questions a call may ask the kernel, at least.
const QUESTIONS: usize = 10;

impl Middle {
    fn all(events: usize) -> impl Iterator<Item = Self> {
        let ranges = (0..events).flat_map(move |from| (from + 1..=events).map(move |to| from..to));
        ranges.flat_map(|events| {
            let questions = (0..QUESTIONS).flat_map(|at| [(at, true), (at, false)]);
            questions.map(move |(question, is_eager)| Self {
                events: events.clone(),
                question,
                is_eager,
            })
        })
    }
}

fn tells_no_end_in_front_of_bytes(story: &Story, events: &[Event], how: How, middle: &Middle) {
    let mut reader = Reader::new(story, how);
    for event in &events[..middle.events.start] {
        reader.happens(*event);
        if middle.is_eager {
            reader.calls();
        }
    }
    for event in &events[middle.events.clone()] {
        reader.happens_at(middle.question, *event);
    }
    reader.calls();
    reader.socket.settle();
    reader.is_woken_by_kernel();
    reader.calls();
    for event in &events[middle.events.end..] {
        reader.happens(*event);
        reader.calls();
    }
    let all = story.stretches.iter().sum::<usize>();
    let Reader { stands, read, .. } = reader;
    let is_right = match stands {
        Stands::Waits => false,
        Stands::Eof => read == all,
        Stands::Reset => story.may_break,
    };
    assert!(is_right, "{stands:?} behind {read} of {all} bytes: {events:?} {middle:?} {how:?}");
}

#[test]
fn no_order_of_link_and_kernel_ends_a_stream_in_front_of_its_bytes() {
    for story in STORIES {
        for events in story.orders() {
            for middle in Middle::all(events.len()) {
                for (most, polls) in [(1, false), (1, true), (100, false)] {
                    let how = How { most, polls };
                    tells_no_end_in_front_of_bytes(story, &events, how, &middle);
                }
            }
        }
    }
}
