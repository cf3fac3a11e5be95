//! Commands of one thread, on whichever path is the best one.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use shunt_nvme::host::{Completion as Response, Fate, SubmitError, Transfer};
use shunt_nvme::transport::Command;
use shunt_nvme::wire::{Direction, Fuse, Status};
use shunt_sys::epoll::{self, Epoll};

use crate::error::Error;
use crate::lane::Lane;
use crate::link::Ended;
use crate::memory::Data;
use crate::outcome::{Completion, Failure, Refusal, Refused, Traffic};
use crate::path::{Order, Post};
use crate::request::Request;
use crate::subsystem::{Handle, Subsystem};

/// The bell's token; connections have those of their paths, from 1 on.
const BELL: u64 = 0;
/// Events taken from epoll at once.
const EVENTS: usize = 16;
/// How often a command is sent again that the controller could not do this time.
const RETRIES: u8 = 5;
/// How long a queue waits without looking at the time.
const TICK: Duration = Duration::from_millis(250);

/// A command that is not over.
#[derive(Debug)]
struct Pending {
    token: u64,
    request: Request,
    place: Place,
    /// When it was submitted, or had no path any more.
    since: Instant,
    tries: u8,
    aborted: bool,
    /// The other half of a fused operation, which begins with this one.
    second: Option<usize>,
}

#[derive(Debug)]
enum Place {
    /// No connection has it.
    Waits(Data),
    /// That of this path has it.
    Sent(usize, Command),
    /// It moves from one to the other.
    Moves,
}

/// See the module's description.
///
/// Commands go in any order; those that have to follow others are submitted when these have
/// completed. Dropping the queue ends its connections, so that no controller reads or fills data of
/// its commands any more.
#[derive(Debug)]
pub struct Queue {
    handle: Arc<Handle>,
    post: Arc<Post>,
    epoll: Poller,
    lanes: Vec<Lane>,
    /// Of the paths' states, as `lanes` has them.
    version: u64,
    commands: Vec<Option<Pending>>,
    free: Vec<usize>,
    waiting: VecDeque<usize>,
    ended: Vec<Ended>,
    max_transfer: u32,
    traffic: Traffic,
    now: Instant,
    looked: Instant,
}

struct Poller(Epoll);

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Poller")
    }
}

impl Subsystem {
    /// Makes a queue: connections of its own on each path, [`crate::Options::depth`] commands at
    /// once. It waits until one of the connections is there.
    ///
    /// # Errors
    /// Why none is.
    pub fn queue(&self) -> Result<Queue, Error> {
        self.queue_at(self.post()?)
    }

    /// A queue in its place.
    pub(crate) fn queue_at(&self, post: Arc<Post>) -> Result<Queue, Error> {
        let epoll = Epoll::new(EVENTS).map_err(Error::Local)?;
        epoll.add(post.bell.fd(), epoll::IN, BELL).map_err(Error::Local)?;
        let depth = usize::from(self.options().depth.max(1));
        let now = Instant::now();
        Ok(Queue {
            handle: Arc::clone(&self.handle),
            post,
            epoll: Poller(epoll),
            lanes: (0..self.options().addresses.len()).map(|_| Lane::default()).collect(),
            version: 0,
            commands: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::new(),
            ended: Vec::new(),
            max_transfer: self.max_transfer(),
            traffic: Traffic::default(),
            now,
            looked: now,
        })
    }
}

impl Queue {
    /// Takes a command. It is sent by the next [`Queue::poll`], with all others that were taken
    /// until then; its completion has `token`.
    ///
    /// # Errors
    /// It was not taken; the data comes back.
    pub fn submit(&mut self, request: Request, data: Data, token: u64) -> Result<(), Refused> {
        if let Some(why) = self.refuses(&request, &data) {
            return Err(Refused { why, data });
        }
        if self.free.is_empty() {
            return Err(Refused { why: Refusal::Full, data });
        }
        if let Some(index) = self.keep(request, data, token) {
            self.begin(index);
        }
        Ok(())
    }

    fn refuses(&self, request: &Request, data: &Data) -> Option<Refusal> {
        if request.len > self.max_transfer {
            Some(Refusal::TooLong)
        } else if data.len() < request.len as usize {
            Some(Refusal::ShortData)
        } else {
            None
        }
    }

    /// Finds a command a place; `None` if there is none.
    fn keep(&mut self, request: Request, data: Data, token: u64) -> Option<usize> {
        let index = self.free.pop()?;
        if self.free.len() + 1 == self.commands.len() {
            // Nothing was under way, and so the time may not have been looked at for long.
            self.now = Instant::now();
        }
        let place = Place::Waits(data);
        let (since, tries, aborted, second) = (self.now, 0, false, None);
        let pending = Pending { token, request, place, since, tries, aborted, second };
        self.commands[index] = Some(pending);
        self.post.outstanding.fetch_add(1, Ordering::Relaxed);
        Some(index)
    }

    /// Sends a command behind those that wait.
    fn begin(&mut self, index: usize) {
        if !self.waiting.is_empty() || !self.start(index) {
            self.waiting.push_back(index);
        }
    }

    /// Takes a fused Compare and Write: the blocks are written if they are as expected, and nothing
    /// else is done to them in between. Both are as long, from the same block on. There are two
    /// completions, with a token each. Where the blocks differ the first one has failed with
    /// *Compare Failure*, and the second one with *Command Aborted due to Failed Fused Command*.
    /// Neither is sent again when its connection is lost ([`Failure::Lost`]).
    ///
    /// # Errors
    /// Nothing was taken; the data of the command at fault comes back.
    pub fn compare_and_write(
        &mut self,
        (compare, expected, first): (Request, Data, u64),
        (write, data, second): (Request, Data, u64),
    ) -> Result<(), Refused> {
        if self.free.len() < 2 {
            return Err(Refused { why: Refusal::Full, data });
        }
        if let Some(why) = self.refuses(&write, &data) {
            return Err(Refused { why, data });
        }
        if let Some(why) = self.refuses(&compare, &expected) {
            return Err(Refused { why, data: expected });
        }
        let first = self.keep(compare.fused(Fuse::First), expected, first);
        let second = self.keep(write.fused(Fuse::Second), data, second);
        if let (Some(first), Some(second)) = (first, second) {
            if let Some(pending) = self.commands[first].as_mut() {
                pending.second = Some(second);
            }
            self.begin(first);
        }
        Ok(())
    }

    /// Commands that are not over.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.commands.len() - self.free.len()
    }

    /// What its commands have sent.
    #[must_use]
    pub const fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Commands that can be submitted now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Becomes readable when [`Queue::poll`] has something to do: for an epoll set of the caller's.
    /// What was submitted is sent by `poll` alone.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Sends what was submitted, and adds commands that are over to the list. Waits for one so long
    /// at most; `None` waits for ever.
    ///
    /// # Errors
    /// Those of epoll_wait(2). What goes wrong with connections is the commands' result.
    pub fn poll(
        &mut self,
        done: &mut Vec<Completion>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let before = done.len();
        let is_patient = timeout != Some(Duration::ZERO);
        let until = timeout.filter(|_| is_patient).map(|timeout| Instant::now() + timeout);
        loop {
            // Also for those who wait for `fd` by themselves: it would stay readable.
            self.post.bell.hush();
            self.look_for_news(done)?;
            self.start_waiting(done);
            self.turn(done)?;
            self.now = Instant::now();
            if self.now.saturating_duration_since(self.looked) >= self.tick() {
                self.look_at_the_time(done);
            }
            if done.len() > before || !is_patient {
                return Ok(());
            }
            let left = until.map(|until| until.saturating_duration_since(self.now));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(());
            }
            let tick = self.tick();
            let wait = left.map_or(tick, |left| left.min(tick)).max(Duration::from_millis(1));
            let bells = self.epoll.0.wait(Some(wait))?.filter(|event| event.data == BELL).count();
            if bells > 0 {
                self.post.bell.silence();
            }
        }
    }

    fn tick(&self) -> Duration {
        (self.handle.shared.options.command_timeout / 4).min(TICK)
    }

    /// Learns how the paths are, if that has changed, and takes connections that were made.
    fn look_for_news(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        let version = self.handle.shared.version();
        let served = self.post.served.iter().zip(&self.lanes);
        let is_new =
            served.clone().any(|(served, lane)| served.load(Ordering::Acquire) != lane.served);
        if version == self.version && !is_new {
            return Ok(());
        }
        self.post.bell.silence();
        self.version = version;
        let mut over = Vec::new();
        for (index, path) in self.handle.shared.paths.iter().enumerate() {
            let lane = &mut self.lanes[index];
            lane.served = self.post.served[index].load(Ordering::Acquire);
            let state = path.state();
            if lane.is_outdated(&state) {
                over.push(index);
            }
            lane.learn(&state);
        }
        for index in over {
            self.give_up(index, done);
        }
        let arrivals = std::mem::take(&mut *self.post.arrivals());
        for arrival in arrivals {
            let lane = &mut self.lanes[arrival.path];
            if arrival.generation != lane.generation || lane.link.is_some() {
                continue;
            }
            let token = arrival.path as u64 + 1;
            self.epoll.0.add(arrival.link.fd(), epoll::IN, token)?;
            lane.arrive(arrival);
        }
        let shared = &self.handle.shared;
        let limits = shared.paths.iter();
        let limits = limits.filter_map(|path| Some(path.state().attributes.as_ref()?.max_transfer));
        self.max_transfer = limits.min().unwrap_or(u32::MAX);
        Ok(())
    }

    /// Sends commands that wait, as far as there are paths.
    fn start_waiting(&mut self, done: &mut Vec<Completion>) {
        for _ in 0..self.waiting.len() {
            let Some(index) = self.waiting.pop_front() else { return };
            if self.is_second(index) {
                // The first half went, and its connection ended before this one did.
                if let Some(Place::Waits(data)) = self.displace(index) {
                    self.finish(index, data, Err(Failure::Lost), done);
                }
            } else if !self.start(index) {
                self.waiting.push_back(index);
            }
        }
    }

    /// Gives a command to the best path; false if none takes it.
    fn start(&mut self, index: usize) -> bool {
        let Some(pending) = self.commands[index].as_mut() else { return true };
        let group = pending.request.ana_group;
        let now = self.now;
        let ranks = self.lanes.iter().enumerate();
        let best = ranks.filter_map(|(at, lane)| Some((lane.rank(group, now)?, at))).min();
        let Some((_, at)) = best else { return false };
        // Both halves of a fused operation go by one connection, and nothing goes between them.
        let second = pending.second;
        let count = 1 + usize::from(second.is_some());
        if !self.lanes[at].link.as_ref().is_some_and(|link| link.has_room(count)) {
            return false;
        }
        if !self.put(index, at) {
            return false;
        }
        if let Some(second) = second
            && !self.put(second, at)
        {
            self.waiting.push_back(second);
        }
        true
    }

    /// True for the second half of a fused operation.
    fn is_second(&self, index: usize) -> bool {
        let pending = self.commands[index].as_ref();
        pending.is_some_and(|pending| pending.request.sqe.fuse() == Fuse::Second)
    }

    /// Takes a command from where it is.
    fn displace(&mut self, index: usize) -> Option<Place> {
        let pending = self.commands[index].as_mut()?;
        Some(std::mem::replace(&mut pending.place, Place::Moves))
    }

    /// Gives a command to a path; false if that does not take it.
    fn put(&mut self, index: usize, at: usize) -> bool {
        let Some(pending) = self.commands[index].as_mut() else { return true };
        let lane = &mut self.lanes[at];
        let Some(link) = lane.link.as_mut() else { return false };
        let Place::Waits(data) = std::mem::replace(&mut pending.place, Place::Moves) else {
            return true;
        };
        let len = pending.request.len;
        let transfer = match pending.request.sqe.direction() {
            _ if len == 0 => Transfer::None,
            Direction::ToHost => Transfer::ToHost(len),
            _ if len <= lane.in_capsule => Transfer::InCapsule(len),
            _ => Transfer::ToController(len),
        };
        match link.submit(&pending.request.sqe, transfer, data, index as u64) {
            Ok(command) => {
                pending.place = Place::Sent(at, command);
                true
            }
            Err((why, data)) => {
                pending.place = Place::Waits(data);
                // A connection that is over is found to be so by `turn`.
                debug_assert!(matches!(why, SubmitError::Full | SubmitError::Closed), "{why}");
                false
            }
        }
    }

    /// Sends and receives on all connections.
    fn turn(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        for at in 0..self.lanes.len() {
            let mut ended = std::mem::take(&mut self.ended);
            let lane = &mut self.lanes[at];
            let Some(link) = lane.link.as_mut() else {
                self.ended = ended;
                continue;
            };
            let went = link.flush().and_then(|()| link.receive(&mut ended));
            let went = went.and_then(|()| link.flush());
            if let Some(events) = lane.watch()
                && let Some(link) = &lane.link
            {
                self.epoll.0.modify(link.fd(), events, at as u64 + 1)?;
            }
            for Ended { tag, completion, data, offered } in ended.drain(..) {
                self.count(tag, offered);
                self.settle(at, tag, &completion, data, done);
            }
            self.ended = ended;
            if went.is_err() {
                self.lose(at, done);
            }
        }
        Ok(())
    }

    fn finish(
        &mut self,
        index: usize,
        data: Data,
        result: Result<u64, Failure>,
        done: &mut Vec<Completion>,
    ) {
        let Some(pending) = self.commands[index].take() else { return };
        self.free.push(index);
        self.post.outstanding.fetch_sub(1, Ordering::Relaxed);
        done.push(Completion { token: pending.token, data, result });
    }

    /// Has a command wait for a path again.
    fn again(&mut self, index: usize, data: Data) {
        if let Some(pending) = self.commands[index].as_mut() {
            pending.place = Place::Waits(data);
            pending.since = self.now;
            self.waiting.push_back(index);
            self.traffic.repeated += 1;
        }
    }

    /// Counts what a command has sent that was answered.
    fn count(&mut self, tag: u64, offered: bool) {
        let pending =
            usize::try_from(tag).ok().and_then(|index| self.commands.get(index)?.as_ref());
        let Some(Pending { request, .. }) = pending else { return };
        if request.sqe.direction() == Direction::ToController {
            let to = if offered { &mut self.traffic.offered } else { &mut self.traffic.copied };
            *to += u64::from(request.len);
        }
    }

    /// The controller has responded.
    fn settle(
        &mut self,
        at: usize,
        tag: u64,
        response: &Response,
        data: Data,
        done: &mut Vec<Completion>,
    ) {
        let Ok(index) = usize::try_from(tag) else { return };
        let status = response.cqe.status();
        if status.is_success() && !response.damaged {
            return self.finish(index, data, Ok(response.cqe.result.get()), done);
        }
        let Some(pending) = self.commands.get_mut(index).and_then(Option::as_mut) else { return };
        if status.is_path_error() && !status.is_dnr() && !pending.request.is_fused() {
            // It was not executed: another path may do, or this one later.
            self.lanes[at].bar(pending.request.ana_group, self.now);
            self.handle.shared.paths[at].order(Order::Look);
            return self.again(index, data);
        }
        if status == Status::ABORT_REQUESTED && pending.aborted {
            return self.finish(index, data, Err(Failure::TimedOut), done);
        }
        let is_passing = response.damaged
            || [
                Status::TRANSIENT_TRANSPORT_ERROR,
                Status::COMMAND_INTERRUPTED,
                Status::NAMESPACE_NOT_READY,
            ]
            .contains(&status);
        if is_passing && pending.tries < RETRIES && pending.request.is_repeatable() {
            pending.tries += 1;
            return self.again(index, data);
        }
        let why = if status.is_success() { Failure::Damaged } else { Failure::Status(status) };
        self.finish(index, data, Err(why), done);
    }

    /// The connection of a path is lost: so its controller is.
    fn lose(&mut self, at: usize, done: &mut Vec<Completion>) {
        let generation = self.lanes[at].generation;
        self.give_up(at, done);
        self.handle.shared.paths[at].order(Order::Lost(generation));
    }

    /// Ends the connection of a path. Commands go to another one, or fail.
    fn give_up(&mut self, at: usize, done: &mut Vec<Completion>) {
        let Some(link) = self.lanes[at].link.take() else { return };
        for lost in link.lose() {
            let Ok(index) = usize::try_from(lost.tag) else { continue };
            let Some(pending) = self.commands.get(index).and_then(Option::as_ref) else { continue };
            match lost.fate {
                Fate::Completed(response) => self.settle(at, lost.tag, &response, lost.data, done),
                Fate::MaybeExecuted if pending.aborted => {
                    self.finish(index, lost.data, Err(Failure::TimedOut), done);
                }
                // Neither half goes again without the other.
                Fate::NeverSent if pending.request.is_fused() => {
                    self.finish(index, lost.data, Err(Failure::Lost), done);
                }
                Fate::MaybeExecuted if !pending.request.is_repeatable() => {
                    self.finish(index, lost.data, Err(Failure::Lost), done);
                }
                Fate::NeverSent | Fate::MaybeExecuted => self.again(index, lost.data),
            }
        }
    }

    /// Aborts what has taken too long, and gives up what has no path.
    fn look_at_the_time(&mut self, done: &mut Vec<Completion>) {
        self.looked = self.now;
        let options = Arc::clone(&self.handle.shared.options);
        let timeout = options.command_timeout;
        let mut stuck = Vec::new();
        let mut hopeless = Vec::new();
        for (index, pending) in self.commands.iter_mut().enumerate() {
            let Some(pending) = pending else { continue };
            let age = self.now.saturating_duration_since(pending.since);
            match pending.place {
                Place::Sent(at, command) if age >= timeout && !pending.aborted => {
                    pending.aborted = true;
                    let lane = &self.lanes[at];
                    if let Some(cid) = lane.link.as_ref().and_then(|link| link.cid(command)) {
                        let (generation, qid) = (lane.generation, self.post.qid);
                        let abort = Order::Abort { generation, qid, cid };
                        self.handle.shared.paths[at].order(abort);
                    }
                }
                Place::Sent(at, _) if pending.aborted && age >= timeout * 2 => stuck.push(at),
                Place::Waits(_) if options.give_up.is_some_and(|longest| age >= longest) => {
                    hopeless.push(index);
                }
                _ => {}
            }
        }
        stuck.dedup();
        for at in stuck {
            self.lose(at, done);
        }
        self.waiting.retain(|index| !hopeless.contains(index));
        for index in hopeless {
            if let Some(Place::Waits(data)) = self.displace(index) {
                self.finish(index, data, Err(Failure::NoPath), done);
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for lane in &mut self.lanes {
            if let Some(link) = lane.link.take() {
                // The socket is closed before the data goes.
                drop(link.lose());
            }
        }
    }
}
