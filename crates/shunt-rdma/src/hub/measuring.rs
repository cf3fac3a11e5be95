//! Measures links against TCP, one at a time, and tells the peers what came of it.
//!
//! | Dialer of the control connection | Answerer |
//! |---|---|
//! | Looks whether its links are at rest, measures a wake-up, registers memory | |
//! | `Measure` | Does the same |
//! | | `Measurable`, or `NotMeasurable` |
//! | Connects once more, and measures link and TCP | Takes that connection, and answers |
//! | Answers | Measures link and TCP |
//! | `Judged`, if it judges otherwise than before | The same |

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use shunt_far::link::SCRATCH;
use shunt_peer::Message;
use shunt_peer::message::{self, Measurable, Refusal, Region, Token};
use shunt_verbs::port::Port;
use shunt_verbs::value::Remote;
use tracing::{debug, info};

use super::Hub;
use crate::config::Promote;
use crate::judge::{Figures, Lack};
use crate::links::{Name, Outcome};
use crate::measuring::Measuring;
use crate::probe::{self, By, PATIENCE, Tells};
use crate::sampling::{Samples, rate};

/// Time until a peer answers, and until it connects.
const ANSWER: Duration = Duration::from_secs(5);

impl<P: Port + Clone + Send + 'static> Hub<P> {
    /// When to measure, or to give up what is being measured.
    pub(super) fn measure_at(&self) -> Option<Duration> {
        match &self.measuring {
            Some(measuring) => Some(measuring.until),
            None => (0..self.peers.len()).filter_map(|at| self.measure_peer_at(at)).min(),
        }
    }

    /// The same of a peer. `None`: it is not this side that begins, or there is nothing to measure.
    fn measure_peer_at(&self, at: usize) -> Option<Duration> {
        let peer = &self.peers[at];
        let can = peer.dials && peer.is_ready() && self.device().is_some();
        let has_link = peer.groups.up().next().is_some();
        (can && has_link && peer.is_to_be_judged(self.promote)).then(|| peer.judge.due())
    }

    /// Begins to measure where it is time to.
    pub(super) fn measure(&mut self, now: Duration) {
        if self.measuring.as_ref().is_some_and(|measuring| now >= measuring.until) {
            self.not_measured(Lack::Failed("the peer has not answered in time".into()), now);
        }
        if self.measuring.is_some() || self.ends_by.is_some() {
            return;
        }
        let due = |at: &usize| self.measure_peer_at(*at).is_some_and(|due| due <= now);
        // That which has waited longest, so that each has its turn.
        let first = (0..self.peers.len()).filter(due).min_by_key(|at| self.measure_peer_at(*at));
        let name = first.map(|at| &self.peers[at]).and_then(|peer| {
            let group = peer.groups.up().next()?;
            Some((peer.name.key, group))
        });
        if let Some(name) = name {
            self.begin_to_measure(name, None, now);
        }
    }

    fn begin_to_measure(&mut self, name: Name, asked: Option<(Measurable, Token)>, now: Duration) {
        let far = asked.as_ref().map(|(it, _)| far_of(it));
        let (number, until) = (self.number(), now + ANSWER);
        let (wake_up, is_busy, token) = (Duration::ZERO, false, None);
        self.measuring = Some(Measuring {
            number,
            name,
            asked,
            wake_up,
            far,
            times: None,
            is_busy,
            token,
            until,
        });
        if let Some(links) = &self.links {
            links.look(name);
        }
    }

    fn tells(&self, number: u64) -> Tells {
        Tells { to: self.outcomes.0.clone(), shared: Arc::clone(&self.shared), number }
    }

    /// The peer at a link group.
    fn peer_of(&self, name: Name) -> Option<usize> {
        self.peers.iter().position(|peer| peer.name.key == name.0)
    }

    /// What has come of a step.
    pub(super) fn came_of_measuring(&mut self, outcome: Outcome, now: Duration) {
        let Some(measuring) = &mut self.measuring else { return };
        let (number, name) = (measuring.number, measuring.name);
        match outcome {
            Outcome::Looked(of, is_at_rest) if of == name => {
                if !is_at_rest {
                    return self.refuses_to_measure(Refusal::Busy, now);
                }
                if let Err(error) = probe::begin_to_wake(self.tells(number)) {
                    self.not_measured(Lack::Failed(error.to_string()), now);
                }
            }
            Outcome::WokenUp(of, woken) if of == number => match woken {
                Ok(wake_up) => {
                    measuring.wake_up = wake_up;
                    if let Some(links) = &mut self.links {
                        links.scratch(name);
                    }
                }
                Err(why) => self.not_measured(Lack::Failed(why), now),
            },
            Outcome::Scratched(of, scratch) if of == name => match scratch {
                Ok(scratch) => self.agree_to_measure(scratch, now),
                Err(why) => self.refuses_to_measure(why, now),
            },
            Outcome::Loads(of, load) if of == number => {
                if let (Some((_, far)), Some(links)) = (measuring.far, &self.links) {
                    links.load(name, load, far);
                }
            }
            Outcome::Loaded(of, time) if of == name => {
                let _ = measuring.times.as_ref().map(|times| times.send(time));
            }
            // The thread hears no more times.
            Outcome::NotLoaded(of) if of == name => {
                (measuring.times, measuring.is_busy) = (None, true);
            }
            Outcome::Sampled(of, samples) if of == number => match samples {
                Ok(samples) => self.measured(&samples, now),
                Err(_) if measuring.is_busy => self.not_measured(Lack::Busy, now),
                Err(why) => self.not_measured(Lack::Failed(why), now),
            },
            _ => {}
        }
    }

    /// This side is ready: says so.
    fn agree_to_measure(&mut self, scratch: Remote, now: Duration) {
        let Some(measuring) = &mut self.measuring else { return };
        let Some(at) = self.peers.iter().position(|peer| peer.name.key == measuring.name.0) else {
            return;
        };
        let length = u32::try_from(SCRATCH).unwrap_or(u32::MAX);
        let wake_up = u32::try_from(measuring.wake_up.as_nanos()).unwrap_or(u32::MAX);
        let region = Region { at: scratch, length };
        let own = Measurable { group: measuring.name.1, wake_up, region };
        let said = match measuring.asked {
            Some((_, token)) => {
                measuring.token = Some(token);
                Message::Measurable(own)
            }
            None => {
                let Some(token) = random() else {
                    let why = "the system has no random numbers".into();
                    return self.not_measured(Lack::Failed(why), now);
                };
                measuring.token = Some(token);
                Message::Measure(own, token)
            }
        };
        self.say_to(at, &said, now);
    }

    /// The peer would measure.
    pub(super) fn hear_measure(
        &mut self,
        at: usize,
        asked: Measurable,
        token: Token,
        now: Duration,
    ) -> Result<(), &'static str> {
        let peer = &self.peers[at];
        if peer.dials {
            return Err("a measurement that is not its to begin");
        }
        is_whole(&asked)?;
        let name = (peer.name.key, asked.group);
        let why = if self.device().is_none() {
            Some(Refusal::Device)
        } else if peer.groups.up().all(|group| group != asked.group) {
            Some(Refusal::Unknown)
        } else {
            let is_busy = self.measuring.is_some() || !peer.judge.may_be_asked(now);
            is_busy.then_some(Refusal::Busy)
        };
        match why {
            Some(why) => self.say_to(at, &Message::NotMeasurable(asked.group, why), now),
            None => self.begin_to_measure(name, Some((asked, token)), now),
        }
        Ok(())
    }

    /// The peer is ready, and awaits a connection.
    pub(super) fn hear_measurable(
        &mut self,
        at: usize,
        far: Measurable,
        now: Duration,
    ) -> Result<(), &'static str> {
        is_whole(&far)?;
        let (key, address) = (self.peers[at].name.key, self.peers[at].address());
        let Some(measuring) = &mut self.measuring else { return Ok(()) };
        let is_it = measuring.name == (key, far.group) && measuring.asked.is_none();
        let (true, Some(token), Some(address)) = (is_it, measuring.token.take(), address) else {
            return Ok(());
        };
        measuring.far = Some(far_of(&far));
        self.sample(By::Connecting(address, token), now);
        Ok(())
    }

    /// The peer does not measure now.
    pub(super) fn hear_not_measurable(
        &mut self,
        at: usize,
        group: u32,
        why: Refusal,
        now: Duration,
    ) {
        let key = self.peers[at].name.key;
        let is_it =
            |it: &Measuring| it.name == (key, group) && it.asked.is_none() && it.times.is_none();
        if self.measuring.as_ref().is_some_and(is_it) {
            let lack = match why {
                Refusal::Busy => Lack::Busy,
                why => Lack::Failed(format!("the peer refuses: {why}")),
            };
            self.not_measured(lack, now);
        }
    }

    /// The connection that was agreed upon has come. Gives it back where none was.
    pub(super) fn take_measured(
        &mut self,
        token: Token,
        stream: TcpStream,
        now: Duration,
    ) -> Option<TcpStream> {
        let awaited = self.measuring.as_mut().filter(|it| it.asked.is_some());
        if awaited.and_then(|it| it.token.take_if(|it| *it == token)).is_none() {
            return Some(stream);
        }
        self.sample(By::Accepted(stream), now);
        None
    }

    /// Has a thread measure.
    fn sample(&mut self, by: By, now: Duration) {
        let Some(measuring) = &mut self.measuring else { return };
        let number = measuring.number;
        let (times, heard) = channel();
        (measuring.times, measuring.until) = (Some(times), now + PATIENCE);
        if let Err(error) = probe::begin_to_sample(by, self.tells(number), heard) {
            self.not_measured(Lack::Failed(error.to_string()), now);
        }
    }

    fn measured(&mut self, samples: &Samples, now: Duration) {
        let Some(Measuring { name, wake_up, far: Some((far, _)), .. }) = self.measuring.take()
        else {
            return;
        };
        let Some(at) = self.peer_of(name) else { return };
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let figures = Figures {
            link_round_trip_ns: ns(samples.link_round_trip),
            tcp_round_trip_ns: ns(samples.tcp_round_trip),
            link_bytes_per_s: rate(samples.link_bulk),
            tcp_bytes_per_s: rate(samples.tcp_bulk),
            wake_up_ns: ns(wake_up),
            peer_wake_up_ns: ns(far),
        };
        let peer = &mut self.peers[at];
        debug!("peer {}: {figures:?}", peer.name);
        if peer.judge.measured(figures, now) {
            match peer.judge.reason() {
                None => info!("peer {}: the link is not slower than TCP", peer.name),
                Some(why) => info!("peer {}: {why}", peer.name),
            }
            peer.is_changed = true;
        }
        self.tell_of_judgements(now);
    }

    /// This side cannot measure now: its judge hears so, or the peer that has asked.
    fn refuses_to_measure(&mut self, why: Refusal, now: Duration) {
        let Some(measuring) = &self.measuring else { return };
        if measuring.asked.is_some() {
            let (name, at) = (measuring.name, self.peer_of(measuring.name));
            self.measuring = None;
            if let Some(at) = at {
                self.say_to(at, &Message::NotMeasurable(name.1, why), now);
            }
            return;
        }
        let lack = match why {
            Refusal::Busy => Lack::Busy,
            why => Lack::Failed(why.to_string()),
        };
        self.not_measured(lack, now);
    }

    /// Nothing has come of it.
    fn not_measured(&mut self, lack: Lack, now: Duration) {
        let Some(measuring) = self.measuring.take() else { return };
        if let Some(at) = self.peer_of(measuring.name) {
            debug!("peer {}: not measured: {lack:?}", self.peers[at].name);
            self.peers[at].judge.lacks(lack, now);
        }
    }

    /// A link group is over, and what was measured of it.
    pub(super) fn no_more_measuring(&mut self, name: Name, now: Duration) {
        if self.measuring.as_ref().is_some_and(|it| it.name == name) {
            self.not_measured(Lack::Failed("the link has failed".into()), now);
        }
    }

    /// Connections are promoted by another rule from now on.
    pub(super) fn set_promote(&mut self, promote: Promote, now: Duration) {
        self.promote = promote;
        self.peers.iter_mut().for_each(|peer| peer.is_changed = true);
        self.tell_of_judgements(now);
    }

    /// Tells peers how this side judges, where they know it otherwise.
    pub(super) fn tell_of_judgements(&mut self, now: Duration) {
        for at in 0..self.peers.len() {
            let judgement = self.peers[at].judgement(self.promote);
            if self.peers[at].is_known() && self.peers[at].knows_judgement != judgement {
                self.peers[at].knows_judgement = judgement;
                self.say_to(at, &Message::Judged(judgement), now);
            }
        }
    }
}

fn far_of(it: &Measurable) -> (Duration, Remote) {
    (Duration::from_nanos(it.wake_up.into()), it.region.at)
}

/// What is written there stays inside of it.
fn is_whole(it: &message::Measurable) -> Result<(), &'static str> {
    let is_whole = usize::try_from(it.region.length).is_ok_and(|length| length >= SCRATCH);
    if is_whole { Ok(()) } else { Err("memory that is too small to measure with") }
}

/// Bytes that nobody guesses.
fn random() -> Option<Token> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok()?;
    Some(Token(bytes))
}
