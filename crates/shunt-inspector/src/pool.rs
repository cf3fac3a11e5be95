//! The inspectors of a process: who does what, and who is stuck on whose account. Nothing here waits.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use shunt_sys::fds::{Fds, close};
use shunt_sys::seqpacket::{self, MOST_FDS};
use shunt_wire::agent::decode;

use crate::said::{BURY, INSPECT, Kind, MAX_SAID, Said};
use crate::spawner::Spawner;
use crate::{Claimant, Limits, Loss, Message, Outcome, Thing};

/// Events taken from epoll at once.
const BATCH: usize = 16;
/// What passes for the time between two turns, at the most: a machine that stood still is nobody's fault.
const STEP: Duration = Duration::from_millis(50);
/// How long until another try where there was no room for a process or for descriptors.
const RETRY: Duration = Duration::from_millis(20);
/// What is to be buried waits so long for more of the same process: it is in no hurry.
const WAKE: Duration = Duration::from_millis(5);
/// Burials that wait. Beyond, they are left with any inspector that is stuck, in the kernel's queue, so that this process does
/// not run out of descriptors.
const CROWD: usize = 1024;
/// Among so many of the last burials one of the same process is looked for.
const RECENT: usize = 8;

/// What an inspector is about.
#[derive(Debug)]
enum Task<A> {
    /// It has not said yet that it is there.
    Start,
    /// Nothing.
    Idle,
    /// Something for this claimant; a packet of this ticket, if that has not been answered.
    Work(Claimant<A>, Option<u64>),
}

#[derive(Debug)]
struct Inspector<A> {
    socket: OwnedFd,
    /// Into whose queue goes what is to be buried. Until it is ordered to, the inspector takes nothing out: this process
    /// closes what it has first, which is nothing to wait for while something lies there.
    grave: OwnedFd,
    /// Orders to bury that are still to be given.
    owed: usize,
    /// Things of which it is still to say that they are done: what was to be buried, beside whatever else it is about,
    /// and what it had to let go of when it had seen a packet.
    undone: usize,
    /// To kill it; `None` until it has begun.
    pidfd: Option<OwnedFd>,
    task: Task<A>,
    /// How long it has been at it.
    age: Duration,
    is_killed: bool,
}

impl<A> Inspector<A> {
    /// Gives the orders that are owed, as far as there is room.
    fn pay(&mut self) {
        while self.owed > 0 && seqpacket::send_all(&self.socket, &[BURY], &[]).is_ok() {
            self.owed -= 1;
        }
    }

    const fn is_idle(&self) -> bool {
        matches!(self.task, Task::Idle) && !self.is_killed
    }

    /// The claimant of whatever it does for longer than it should.
    fn is_stuck_for(&self, hurry: Duration) -> Option<&Claimant<A>> {
        match &self.task {
            Task::Work(claimant, _) if self.age >= hurry => Some(claimant),
            _ => None,
        }
    }
}

/// A packet that is to be received.
#[derive(Debug)]
struct Packet<A> {
    claimant: Claimant<A>,
    ticket: u64,
    /// How long it has waited.
    age: Duration,
}

/// Descriptors that are to be let go of.
#[derive(Debug)]
struct Burial<A> {
    claimant: Claimant<A>,
    fds: Vec<OwnedFd>,
    age: Duration,
}

impl<A> Burial<A> {
    fn is_due(&self) -> bool {
        self.age >= WAKE || self.fds.len() >= MOST_FDS / 4
    }
}

/// Who is to do something.
enum Place {
    /// This inspector, which has nothing to do.
    Idle(u64),
    /// Nobody: its claimant has as many that are stuck as may be, of which this is one.
    Barred(u64),
    /// Nobody is free.
    Nowhere,
}

/// See the crate.
#[derive(Debug)]
pub struct Inspectors<A> {
    limits: Limits,
    spawner: Spawner,
    epoll: OwnedFd,
    inspectors: HashMap<u64, Inspector<A>>,
    packets: VecDeque<Packet<A>>,
    burials: VecDeque<Burial<A>>,
    next: u64,
    /// When time was last added up.
    ticked: Instant,
    /// No inspector is made for so long.
    rest: Duration,
}

impl<A: Clone + Eq> Inspectors<A> {
    /// Makes the first inspector. To be called before this process has anything that others should not have: they are
    /// made of it as it is now.
    ///
    /// # Errors
    /// Those of fork(2), and of making descriptors.
    pub fn start(limits: Limits) -> io::Result<Self> {
        let mut inspectors = Self {
            limits,
            spawner: Spawner::start()?,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            inspectors: HashMap::new(),
            packets: VecDeque::new(),
            burials: VecDeque::new(),
            next: 0,
            ticked: Instant::now(),
            rest: Duration::ZERO,
        };
        inspectors.spawn()?;
        Ok(inspectors)
    }

    /// Readable when [`Inspectors::hear`] has something to do.
    pub fn ear(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// How long the process may sleep before the next [`Inspectors::turn`].
    pub fn patience(&self) -> Option<Duration> {
        let is_timed = |i: &Inspector<A>| !i.is_idle() && !i.is_killed;
        if !self.packets.is_empty() {
            return Some(self.limits.hurry);
        }
        let timed = !self.burials.is_empty() || self.inspectors.values().any(is_timed);
        timed.then_some(if self.burials.iter().any(Burial::is_due) { RETRY } else { STEP })
    }

    /// Inspectors that are stuck, and descriptors that wait for one.
    pub fn burden(&self) -> (usize, usize) {
        let is_stuck = |i: &&Inspector<A>| i.is_stuck_for(self.limits.hurry).is_some();
        let waiting = self.burials.iter().map(|burial| burial.fds.len());
        (self.inspectors.values().filter(is_stuck).count(), waiting.sum())
    }

    /// Has the next packet on a connection received, which until then is not to be read. The next
    /// [`Inspectors::turn`] sees to it, and [`Inspectors::hear`] or a later turn says by this ticket what came of it.
    pub fn inspect(&mut self, ticket: u64, claimant: Claimant<A>) {
        // What was before it does not count.
        self.tick();
        self.packets.push_back(Packet { claimant, ticket, age: Duration::ZERO });
    }

    /// Lets go of descriptors, in time.
    pub fn bury(&mut self, claimant: &Claimant<A>, mut fds: Vec<OwnedFd>) {
        if fds.is_empty() {
            return;
        }
        self.tick();
        let mut recent = self.burials.iter_mut().rev().take(RECENT);
        if let Some(same) = recent.find(|burial| burial.claimant == *claimant) {
            let room = MOST_FDS.saturating_sub(same.fds.len()).min(fds.len());
            same.fds.extend(fds.drain(..room));
        }
        let mut fds = fds.into_iter().peekable();
        while fds.peek().is_some() {
            let some = fds.by_ref().take(MOST_FDS).collect();
            let burial = Burial { claimant: claimant.clone(), fds: some, age: Duration::ZERO };
            self.burials.push_back(burial);
        }
    }

    /// Leaves what is still to be buried, and this, with inspectors, which end when this value goes. What they cannot be
    /// given is left open to the end of this process.
    pub fn end(&mut self, fds: Vec<OwnedFd>) {
        let mut all = fds;
        all.extend(self.burials.drain(..).flat_map(|burial| burial.fds));
        while !all.is_empty() {
            let some = all.split_off(all.len().saturating_sub(MOST_FDS));
            let takes = |i: &Inspector<A>| put(&i.grave, &some).is_ok();
            // Of which they are not told: the kernel lets go of it at their end.
            let mut taken = self.inspectors.values().any(takes);
            if !taken && self.spawn().is_ok() {
                taken = self.inspectors.values().any(takes);
            }
            if !taken {
                some.into_iter().for_each(std::mem::forget);
            }
        }
    }

    /// Takes in what inspectors have to say: `done` is told what came of a packet.
    pub fn hear(&mut self, mut done: impl FnMut(u64, Outcome)) {
        let mut room = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; BATCH];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.epoll, &mut room[..], Some(&at_once)).unwrap_or(0);
        for event in &room[..count] {
            self.listen_to(event.data.u64(), &mut done);
        }
    }

    /// Goes on as far as can be without waiting. `socket_of` leads from a ticket to its connection; `done` as in
    /// [`Inspectors::hear`].
    pub fn turn<'s>(
        &mut self,
        socket_of: impl Fn(u64) -> Option<BorrowedFd<'s>>,
        mut done: impl FnMut(u64, Outcome),
    ) {
        if self.packets.is_empty() && self.burials.is_empty() && self.inspectors.len() == 1 {
            // One that is idle, most of the time.
            if self.inspectors.values().all(Inspector::is_idle) {
                return;
            }
        }
        self.tick();
        self.inspectors.values_mut().for_each(Inspector::pay);
        self.end_what_takes_too_long(&mut done);
        self.give_packets(socket_of);
        self.give_burials();
        self.dismiss_idle();
    }

    /// Adds up time.
    fn tick(&mut self) {
        let now = Instant::now();
        let passed = now.duration_since(self.ticked).min(STEP);
        self.ticked = now;
        self.rest = self.rest.saturating_sub(passed);
        for inspector in self.inspectors.values_mut().filter(|i| !i.is_idle()) {
            inspector.age += passed;
        }
        for packet in &mut self.packets {
            packet.age += passed;
        }
        for burial in &mut self.burials {
            burial.age += passed;
        }
    }

    /// The next thing that an inspector has to say.
    fn listen_to(&mut self, token: u64, done: &mut impl FnMut(u64, Outcome)) {
        let Some(inspector) = self.inspectors.get_mut(&token) else { return };
        let (mut buf, mut fds) = ([0; MAX_SAID], Fds::new());
        let len = match seqpacket::recv(&inspector.socket, &mut buf, &mut fds, Duration::ZERO) {
            Err(Errno::AGAIN) => return,
            Ok(len @ 1..) => len,
            // It has ended.
            _ => return self.bereave(token, done),
        };
        let (packet, things) = match decode(&buf[..len]) {
            Ok(Said::Ready) => {
                (inspector.pidfd, inspector.task) = (fds.take(), Task::Idle);
                return;
            }
            Ok(Said::Done) => {
                inspector.undone = inspector.undone.saturating_sub(1);
                // It may have been given a packet meanwhile, of which it is still to tell.
                if inspector.undone == 0 && !matches!(inspector.task, Task::Work(_, Some(_))) {
                    inspector.task = Task::Idle;
                }
                return;
            }
            Ok(Said::Seen { packet, things }) => (packet, things),
            Err(_) => return self.bereave(token, done),
        };
        let is_done = !things.iter().any(|kind| kind.is_passed_on());
        inspector.undone += usize::from(!is_done);
        let is_idle = inspector.undone == 0;
        let next = if is_idle { Task::Idle } else { Task::Start };
        let Task::Work(claimant, ticket) = std::mem::replace(&mut inspector.task, next) else {
            return;
        };
        match ticket {
            Some(ticket) => {
                let things = things.into_iter().map(|kind| thing(kind, &mut fds)).collect();
                done(ticket, Outcome::Seen(Message { packet: packet.map(Into::into), things }));
            }
            // Too late.
            None => self.bury(&claimant, std::iter::from_fn(|| fds.take()).collect()),
        }
        if let Some(inspector) = self.inspectors.get_mut(&token).filter(|_| !is_idle) {
            inspector.task = Task::Work(claimant, None);
        }
    }

    /// An inspector is no more.
    fn bereave(&mut self, token: u64, done: &mut impl FnMut(u64, Outcome)) {
        match self.inspectors.remove(&token).map(|inspector| inspector.task) {
            Some(Task::Work(_, Some(ticket))) => done(ticket, Outcome::Lost(Loss::Died)),
            // No process could be made, or it came to nothing.
            Some(Task::Start) => self.rest = RETRY,
            _ => {}
        }
    }

    fn end_what_takes_too_long(&mut self, done: &mut impl FnMut(u64, Outcome)) {
        let patience = self.limits.patience;
        let late = |i: &Inspector<A>| !i.is_idle() && !i.is_killed && i.age >= patience;
        let mut unborn = Vec::new();
        for (token, inspector) in self.inspectors.iter_mut().filter(|(_, i)| late(i)) {
            let Some(pidfd) = &inspector.pidfd else {
                unborn.push(*token);
                continue;
            };
            // Which ends what a signal ends; of what none ends it is heard when it is over.
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
            inspector.is_killed = true;
            if let Task::Work(_, ticket) = &mut inspector.task
                && let Some(ticket) = ticket.take()
            {
                done(ticket, Outcome::Lost(Loss::Stuck));
            }
        }
        for token in unborn {
            self.bereave(token, done);
        }
        self.packets.retain(|packet| {
            let is_late = packet.age >= patience;
            if is_late {
                done(packet.ticket, Outcome::Lost(Loss::Late));
            }
            !is_late
        });
    }

    /// Gives packets to those who are free.
    fn give_packets<'s>(&mut self, socket_of: impl Fn(u64) -> Option<BorrowedFd<'s>>) {
        let mut at = 0;
        while let Some(Packet { claimant, ticket, .. }) = self.packets.get(at) {
            let Some(client) = socket_of(*ticket) else {
                // It is over.
                self.packets.remove(at);
                continue;
            };
            let token = match self.place_for(claimant) {
                Place::Idle(token) => token,
                Place::Barred(_) => {
                    at += 1;
                    continue;
                }
                Place::Nowhere => return self.make_more(),
            };
            let inspector = self.inspectors.get(&token);
            match inspector.map(|i| seqpacket::send_all(&i.socket, &[INSPECT], &[client])) {
                Some(Ok(())) => {
                    let Some(Packet { claimant, ticket, .. }) = self.packets.remove(at) else {
                        return;
                    };
                    self.begin(token, Task::Work(claimant, Some(ticket)));
                }
                // It had nothing to do.
                Some(Err(Errno::PIPE | Errno::CONNRESET)) => drop(self.inspectors.remove(&token)),
                // There is no room for descriptors that are under way.
                _ => return,
            }
        }
    }

    /// Gives burials to those who are free, and those of whoever has some that are stuck to these.
    fn give_burials(&mut self) {
        let mut at = 0;
        while let Some(Burial { claimant, fds, .. }) = self.burials.get(at) {
            let is_crowded = self.burials.len() > CROWD;
            let any_stuck = || {
                let is_stuck = |i: &Inspector<A>| i.is_stuck_for(self.limits.hurry).is_some();
                self.inspectors.iter().find(|(_, i)| is_stuck(i)).map(|(token, _)| *token)
            };
            let (token, is_stuck) = match self.place_for(claimant) {
                _ if !self.burials[at].is_due() && !is_crowded => {
                    at += 1;
                    continue;
                }
                Place::Idle(token) => (token, false),
                Place::Barred(token) => (token, true),
                Place::Nowhere => match any_stuck().filter(|_| is_crowded) {
                    Some(token) => (token, true),
                    None => return self.make_more(),
                },
            };
            match self.inspectors.get(&token).map(|i| put(&i.grave, fds)) {
                Some(Ok(())) => {
                    let Some(Burial { claimant, fds, .. }) = self.burials.remove(at) else {
                        return;
                    };
                    fds.into_iter().for_each(close);
                    if !is_stuck {
                        self.begin(token, Task::Work(claimant, None));
                    }
                    if let Some(inspector) = self.inspectors.get_mut(&token) {
                        inspector.owed += 1;
                        inspector.undone += 1;
                        inspector.pay();
                    }
                }
                Some(Err(Errno::PIPE | Errno::CONNRESET)) if !is_stuck => {
                    self.inspectors.remove(&token);
                }
                _ => at += 1,
            }
        }
    }

    fn begin(&mut self, token: u64, task: Task<A>) {
        if let Some(inspector) = self.inspectors.get_mut(&token) {
            (inspector.task, inspector.age) = (task, Duration::ZERO);
        }
    }

    /// Who is to do something for a claimant.
    fn place_for(&self, claimant: &Claimant<A>) -> Place {
        let (mut of_process, mut of_account, mut barred, mut idle) = (0, 0, None, None);
        for (token, inspector) in &self.inspectors {
            if inspector.is_idle() {
                idle = Some(*token);
            }
            let Some(of) = inspector.is_stuck_for(self.limits.hurry) else { continue };
            let is_same = of.process == claimant.process && claimant.process != 0;
            of_process += usize::from(is_same);
            of_account += usize::from(of.account == claimant.account);
            if is_same || of.account == claimant.account {
                barred = Some(*token);
            }
        }
        let is_barred =
            of_process >= self.limits.of_process || of_account >= self.limits.of_account;
        match (barred.filter(|_| is_barred), idle) {
            (Some(token), _) => Place::Barred(token),
            (None, Some(token)) => Place::Idle(token),
            (None, None) => Place::Nowhere,
        }
    }

    /// Has another inspector made, if those that are not stuck won't do.
    fn make_more(&mut self) {
        let is_soon_free = |i: &Inspector<A>| i.age < self.limits.hurry;
        if self.rest.is_zero()
            && self.inspectors.len() < self.limits.inspectors
            && !self.inspectors.values().any(is_soon_free)
            && self.spawn().is_err()
        {
            self.rest = RETRY;
        }
    }

    fn spawn(&mut self) -> io::Result<()> {
        let ((socket, end), (grave, its_grave)) = (seqpacket::pair()?, seqpacket::pair()?);
        let ends = [&end, &its_grave];
        if let Err(Errno::PIPE | Errno::CONNRESET) = self.spawner.spawn(ends) {
            // Somebody has killed it.
            self.spawner = Spawner::start()?;
            self.spawner.spawn(ends)?;
        }
        let token = self.next;
        self.next += 1;
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN)?;
        let (task, age) = (Task::Start, Duration::ZERO);
        let inspector = Inspector {
            socket,
            grave,
            owed: 0,
            undone: 0,
            pidfd: None,
            task,
            age,
            is_killed: false,
        };
        self.inspectors.insert(token, inspector);
        Ok(())
    }

    /// One that has nothing to do is enough.
    fn dismiss_idle(&mut self) {
        let kept = self.inspectors.iter().find(|(_, i)| i.is_idle()).map(|(token, _)| *token);
        self.inspectors.retain(|token, i| !i.is_idle() || Some(*token) == kept);
    }
}

impl<A> Drop for Inspectors<A> {
    fn drop(&mut self) {
        // What `end` has not seen to.
        let left = self.burials.drain(..).flat_map(|burial| burial.fds);
        left.for_each(std::mem::forget);
    }
}

/// Puts these into a queue.
fn put(grave: &OwnedFd, fds: &[OwnedFd]) -> rustix::io::Result<()> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    seqpacket::send_all(grave, &[0], &fds)
}

fn thing(kind: Kind, fds: &mut Fds) -> Thing {
    let passed = match kind {
        Kind::Socket(socket) => return Thing::Socket(socket),
        Kind::Kept(socket) => fds.take().map(|fd| Thing::Kept(socket, fd)),
        Kind::Bell => fds.take().map(Thing::Bell),
        Kind::Memory => fds.take().map(Thing::Memory),
        Kind::Pipe => fds.take().map(Thing::Pipe),
        Kind::Other => None,
    };
    passed.unwrap_or(Thing::Other)
}
