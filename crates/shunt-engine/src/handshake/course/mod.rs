//! The handshake's course, step by step, as the calls on a connection take it: [`advance`] and [`poll_handshake`].
//!
//! A *server* looks for the client's proposal when the program first uses what it has accepted; or in accept(2), where the
//! program is known to use it itself ([`at_accept`]). A *client* looks for the answer. A client whose acceptor may be elsewhere on
//! this host has *offered* its socket to the agent: it is a candidate, too, until the agent has said where its place is.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use shunt_shm::arena::{Identity, Record};
use shunt_wire::agent::{EndpointId, RegionId};
use shunt_wire::offer::Offer;
use shunt_wire::reason::Reason;

use crate::conn::flags::RESET_DUE;
use crate::conn::{End, has, is_half_settled};
use crate::handshake::brevity::has_lasted;
use crate::handshake::{CLIENT_LOOKS, Missed, Phase, gives_up, missed};
use crate::spin::Nanos;

/// When a proposal is taken up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// In accept(2): the program can't have sent anything.
    AtAccept,
    /// Later.
    AtUse,
}

/// A connection of this process, and what may lead to its peer.
pub trait Course {
    /// A proposal in the listener's table.
    type Ticket;

    /// What it keeps.
    fn record(&self) -> &Record;
    /// What it has of shared memory: `None` before this process takes part in its link group.
    fn end(&self) -> Option<End<'_>>;
    /// Its descriptor still stands for it.
    fn is_open(&self) -> bool;
    /// Monotonic nanoseconds.
    fn now(&self) -> Nanos;

    /// Takes steps with the connection kept: until they are over its end does not come, and its place is not another one's, whatever
    /// other threads close. `None`: this end is closed, and nothing was done.
    fn kept<T>(&self, steps: impl FnOnce() -> T) -> Option<T>;
    /// Runs a step, one at a time among all threads and processes that share the connection. The step is told whether it runs
    /// in a signal handler above another one. `None`: in a handler that may set nothing up, it was not run.
    fn alone<T>(&self, step: impl FnOnce(bool) -> T) -> Option<T>;

    /// Those before it were too short for what it costs this process to set one up: it has to prove first that it lasts.
    fn is_put_off(&self) -> bool;
    /// Its proposal, if there is one.
    fn find(&self) -> Option<Self::Ticket>;
    /// Some client is between its connect and its post.
    fn is_connecting(&self) -> bool;
    /// Takes the proposal up, and answers.
    ///
    /// # Errors
    /// Why the connection stays on TCP.
    fn accept(&self, ticket: &Self::Ticket, time: Time) -> Result<(), Reason>;
    /// Takes the connection up in the place that it has, and answers: a relative was killed as it did so, before its answer or
    /// behind it. False: the link group cannot be had.
    fn resumes(&self) -> bool;
    /// Asks the agent for the place of one whose other end was offered, takes it, and answers. False: it was not offered.
    ///
    /// # Errors
    /// Why the connection stays on TCP.
    fn claim(&self, time: Time) -> Result<bool, Reason>;

    /// Takes the place that the agent has found for an offered connection.
    ///
    /// # Errors
    /// Why the connection stays on TCP.
    fn takes_place(&self, region: RegionId, slot: usize) -> Result<(), Reason>;
    /// Nobody can take up what is offered to that destination.
    fn is_unanswered(&self);
    /// Gets the doorbells of the endpoint that has answered. False: not now, or not at all.
    fn meets(&self, acceptor: EndpointId) -> bool;
    /// The client's end is promoted.
    fn has_agreed(&self);
    /// Takes the open proposal back. False: it has been taken up.
    fn withdraw(&self) -> bool;

    /// Takes part in the link group in which parent or child has settled the connection. False: it cannot be had.
    fn joins(&self) -> bool;
    /// Gets the peer's doorbells, if they are to be had, after [`Course::joins`].
    fn greets(&self);
    /// The connection stays on TCP for good.
    fn decline(&self, why: Reason);
}

/// True for a client's end that was offered and is not declined.
#[must_use]
pub fn is_offered(id: &Identity) -> bool {
    id.offer.load(Relaxed) != Offer::None.to_word()
}

/// The client has enough of waiting, or has closed the connection.
pub fn withdraw_offer(id: &Identity) {
    id.offer.store(Offer::None.to_word(), Release);
}

fn phase(host: &impl Course) -> Phase {
    Phase::from_code(host.record().id.phase.load(Acquire))
}

fn set_phase(host: &impl Course, phase: Phase) {
    host.record().id.phase.store(phase as u32, Release);
}

/// Looks after the handshake before a call. Returns where the connection stands.
#[inline]
pub fn advance(host: &impl Course) -> Phase {
    unless_settled(host, |phase| match phase {
        Phase::Candidate if has_to_last(host, 1) => Phase::Candidate,
        Phase::Candidate => adopted(host, look_for_proposal(host, Time::AtUse)),
        Phase::Proposed => look_for_answer(host),
        Phase::Active => adopt(host),
        other => other,
    })
}

/// The same for one who only asks for readiness and may hold locks: never gives up.
#[inline]
pub fn poll_handshake(host: &impl Course) -> Phase {
    unless_settled(host, |phase| match phase {
        Phase::Active => adopt(host),
        Phase::Proposed => {
            if host.end().is_none() && is_offered(&host.record().id) {
                host.joins();
            }
            answered(host).unwrap_or(Phase::Proposed)
        }
        Phase::Candidate if has_to_last(host, 0) => Phase::Candidate,
        Phase::Candidate => adopted(host, poll_proposal(host)),
        other => other,
    })
}

/// The same in accept(2).
pub fn at_accept(host: &impl Course) -> Phase {
    host.kept(|| look_for_proposal(host, Time::AtAccept)).unwrap_or(Phase::Candidate)
}

/// Where the connection stands; the steps that its phase asks for where that is not settled in this process.
#[inline]
fn unless_settled(host: &impl Course, steps: impl FnOnce(Phase) -> Phase) -> Phase {
    match phase(host) {
        Phase::Active if host.end().is_some() => Phase::Active,
        // Of an end that is closed the call says what is to be said.
        before @ (Phase::Candidate | Phase::Proposed | Phase::Active) => host
            .kept(|| match phase(host) {
                Phase::Active if host.end().is_some() => Phase::Active,
                now => steps(now),
            })
            .unwrap_or(before),
        settled => settled,
    }
}

/// True for an accepted one that is put off, and has not lasted yet, with so many calls more.
fn has_to_last(host: &impl Course, calls: u32) -> bool {
    !is_half_settled(host.record()) && host.is_put_off() && {
        let looks = host.record().id.looks.fetch_add(calls, Relaxed).saturating_add(calls);
        !has_lasted(looks, age(host))
    }
}

#[cold]
fn look_for_proposal(host: &impl Course, time: Time) -> Phase {
    let found = host.alone(|is_nested| match phase(host) {
        // A signal handler above the very call that is at it.
        phase if is_nested => Ok(phase),
        // Another thread may have been at it: what it finds is gone from the table before it says so.
        Phase::Candidate => take_proposal(host, time),
        other => Ok(other),
    });
    // Alone no more: epoll instances are told, and they ask us with their own locks held.
    match found {
        None => Phase::Candidate,
        Some(Ok(phase)) => phase,
        Some(Err(why)) => {
            host.decline(why);
            Phase::Tcp
        }
    }
}

fn poll_proposal(host: &impl Course) -> Phase {
    let found = host.alone(|is_nested| {
        let phase = phase(host);
        if is_nested || phase != Phase::Candidate {
            return phase;
        }
        let id = &host.record().id;
        if is_offered(id) {
            return match Offer::from_word(id.offer.load(Acquire)) {
                Offer::Claimed { region, slot } => {
                    take_up(host, region, slot.into()).unwrap_or(Phase::Candidate)
                }
                _ => Phase::Candidate,
            };
        }
        if is_half_settled(host.record()) {
            return resume(host);
        }
        let accepted = host.find().is_some_and(|found| host.accept(&found, Time::AtUse).is_ok());
        if accepted { Phase::Active } else { Phase::Candidate }
    });
    found.unwrap_or(Phase::Candidate)
}

/// Takes a proposal for the candidate up; an error is why it stays on TCP for good.
fn take_proposal(host: &impl Course, time: Time) -> Result<Phase, Reason> {
    let id = &host.record().id;
    if is_half_settled(host.record()) {
        return Ok(resume(host));
    }
    if owes_reset(host) {
        return Ok(Phase::Candidate);
    }
    let outcome = if is_offered(id) { look_at_offer(host) } else { look_in_table(host, time) };
    if outcome.is_err() {
        // So that no other thread declines it a second time.
        set_phase(host, Phase::Tcp);
    }
    outcome
}

fn look_in_table(host: &impl Course, time: Time) -> Result<Phase, Reason> {
    // Whether somebody is connecting is asked before the look that counts: who posts between the two is
    // found by it.
    let mut connecting = false;
    let found = host.find().or_else(|| {
        connecting = host.is_connecting();
        host.find()
    });
    if let Some(ticket) = found {
        return host.accept(&ticket, time).map(|()| Phase::Active);
    }
    if host.claim(time)? {
        return Ok(Phase::Active);
    }
    match missed(age(host), connecting) {
        Missed::LookAgain => Ok(Phase::Candidate),
        Missed::Decline(why) => Err(why),
    }
}

/// Looks for the agent's answer.
fn look_at_offer(host: &impl Course) -> Result<Phase, Reason> {
    let id = &host.record().id;
    let word = id.offer.load(Acquire);
    match Offer::from_word(word) {
        Offer::Open(_) => {
            let none = Offer::None.to_word();
            let is_over =
                has_enough(host) && id.offer.compare_exchange(word, none, AcqRel, Relaxed).is_ok();
            if is_over { Err(Reason::NotAccepted) } else { Ok(Phase::Candidate) }
        }
        // SYNC POINT offer.
        Offer::Claimed { region, slot } => take_up(host, region, slot.into()),
        Offer::Declined(why) => {
            if why == Reason::PeerNotShunted {
                host.is_unanswered();
            }
            Err(why)
        }
        Offer::None => Err(Reason::Internal),
    }
}

/// An acceptor has the offered connection: it goes on as one that was proposed.
fn take_up(host: &impl Course, region: RegionId, slot: usize) -> Result<Phase, Reason> {
    host.takes_place(region, slot)?;
    set_phase(host, Phase::Proposed);
    Ok(answered(host).unwrap_or(Phase::Proposed))
}

/// The phase that the acceptor's answer leads to; `None` without an answer that settles anything.
fn answered(host: &impl Course) -> Option<Phase> {
    let end = host.end()?;
    end.uses_proposal();
    let acceptor = end.answerer()?;
    // Without the acceptor's doorbells this side could not wake it: then it goes on over TCP, and
    // reads what comes through the ring all the same.
    if !host.meets(acceptor) {
        return None;
    }
    let (from, to) = (Phase::Proposed as u32, Phase::Active as u32);
    match host.record().id.phase.compare_exchange(from, to, AcqRel, Acquire) {
        Ok(_) => {
            host.has_agreed();
            Some(Phase::Active)
        }
        // Another thread was at it, and may have gone further.
        Err(now) => Some(Phase::from_code(now)),
    }
}

#[cold]
fn look_for_answer(host: &impl Course) -> Phase {
    if host.end().is_none() && !(is_offered(&host.record().id) && host.joins()) {
        // Proposed by the process that this one was forked from, after the fork.
        return Phase::Tcp;
    }
    if let Some(phase) = answered(host) {
        return phase;
    }
    // Whoever has declined has taken the proposal.
    if let Some(why) = declined(host) {
        host.decline(why);
        return Phase::Tcp;
    }
    // Where the acceptor was quicker its answer is on the way.
    if !has_enough(host) || owes_reset(host) || !host.withdraw() {
        return Phase::Proposed;
    }
    host.decline(Reason::NotAccepted);
    Phase::Tcp
}

fn declined(host: &impl Course) -> Option<Reason> {
    host.end()?.declined()
}

/// A candidate that another program was killed over. The table has its proposal no more, and the client may put bytes into the ring.
#[cold]
fn resume(host: &impl Course) -> Phase {
    match host.resumes() {
        true => Phase::Active,
        false => unreachable_place(host, Phase::Candidate),
    }
}

/// Without its link group nothing is known of what the peer has sent.
fn unreachable_place(host: &impl Course, closed: Phase) -> Phase {
    // The call says of a descriptor that was closed what is to be said.
    if host.is_open() { Phase::Broken } else { closed }
}

/// An active connection whose link group this process does not have: it was promoted by the parent
/// or child with which it is shared.
#[cold]
fn adopt(host: &impl Course) -> Phase {
    if host.joins() {
        host.greets();
        return Phase::Active;
    }
    unreachable_place(host, Phase::Active)
}

/// What a look has come to, before which this process may have waited for another one to take the connection up.
fn adopted(host: &impl Course, found: Phase) -> Phase {
    if found == Phase::Active && host.end().is_none() { adopt(host) } else { found }
}

/// The peer may know of the connection's place: of its end it is to be told by the last process that holds it, as the kernel alone
/// tells of the end of a killed one.
#[must_use]
pub fn is_to_be_told(record: &Record) -> bool {
    match Phase::from_code(record.id.phase.load(Acquire)) {
        Phase::Active | Phase::Proposed => true,
        Phase::Candidate => is_half_settled(record),
        Phase::Tcp | Phase::Broken => false,
    }
}

/// True for the last process that holds the connection and is about to end it, where parent or child alone has taken part in its
/// link group: it has to, as nobody else is left who could tell the peer.
pub fn is_to_join_at_end(host: &impl Course) -> bool {
    let has_place = match phase(host) {
        Phase::Active | Phase::Broken => true,
        Phase::Proposed => is_offered(&host.record().id),
        Phase::Candidate => is_half_settled(host.record()),
        Phase::Tcp => false,
    };
    has_place && host.end().is_none()
}

/// What is to be done about a connection whose last descriptor goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtEnd {
    /// No peer knows of its place, which is the client's again.
    GivesBack,
    /// The peer is told, where there is one.
    Tells,
}

/// The connection ends. What was proposed or offered is taken back.
pub fn ends(host: &impl Course) -> AtEnd {
    match phase(host) {
        Phase::Tcp => AtEnd::GivesBack,
        Phase::Proposed if declined(host).is_some() || host.withdraw() => AtEnd::GivesBack,
        Phase::Candidate => {
            withdraw_offer(&host.record().id);
            AtEnd::Tells
        }
        Phase::Proposed | Phase::Active | Phase::Broken => AtEnd::Tells,
    }
}

fn age(host: &impl Course) -> Nanos {
    host.now().saturating_sub(host.record().id.since.load(Relaxed))
}

/// The kernel has told a reset to a call that returned bytes, and the next call fails with it: so that is not one that the library
/// leaves to the kernel.
fn owes_reset(host: &impl Course) -> bool {
    has(host.record(), RESET_DUE)
}

/// Counts a look of a client; true when it has waited long enough. The clock is not asked each time.
fn has_enough(host: &impl Course) -> bool {
    let looks = host.record().id.looks.fetch_add(1, Relaxed);
    looks.is_multiple_of(CLIENT_LOOKS) && gives_up(looks, age(host))
}

#[cfg(test)]
mod tests;
