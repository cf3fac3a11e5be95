//! One packet of one client, and its answer.

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::io::Errno;
use shunt_inspector::{Loss, Outcome};
use shunt_sys::seqpacket;
use shunt_wire::agent::{MAX_MESSAGE, Malformed, Request, decode, is_hello, stated_version};
use shunt_wire::reason::Reason;
use shunt_wire::version::SPOKEN;
use tracing::debug;

use super::Server;
use super::client::{Attention, Client, End, Entrance};
use crate::held::Passed;
use crate::state::{Answer, Misconduct, Peer, Role, State};

/// What is to be done about a client that has sent something.
enum Next {
    /// This has come.
    Answer(usize),
    /// Something comes with it that this process does not receive.
    Inspect,
    /// Nothing has come.
    Nothing,
}

impl Server {
    /// One packet of one client.
    pub(super) fn serve(&mut self, token: u64) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        if client.attention != Attention::Heard {
            return self.leaves(token);
        }
        let ((cost, of_account), now) = (client.cost(), Instant::now());
        let limits = &self.config.limits;
        let share = self.accounts.get_mut(&client.origin.account);
        let shared = share.is_none_or(|share| share.allowance.covers(of_account, limits, now));
        if !shared || !client.allowance.take(cost, limits, now) {
            self.pause(token);
            return;
        }
        if let Some(share) = self.accounts.get_mut(&client.origin.account) {
            share.allowance.take(of_account, limits, now);
        }
        let mut buf = [0; MAX_MESSAGE];
        match look(client, &mut buf) {
            Ok(Next::Nothing) => {}
            Ok(Next::Answer(len)) => self.answer(token, &buf[..len], Passed::default()),
            Ok(Next::Inspect) => {
                self.inspectors.inspect(token, client.claimant());
                self.attend(token, Attention::Inspected);
            }
            Err(end) => self.remove(token, &end),
        }
    }

    /// Takes in what inspectors have to say.
    pub(super) fn hear_inspectors(&mut self) {
        let mut outcomes = Vec::new();
        self.inspectors.hear(|token, outcome| outcomes.push((token, outcome)));
        for (token, outcome) in outcomes {
            self.inspected(token, outcome);
        }
    }

    /// Has them go on.
    pub(super) fn direct_inspectors(&mut self) {
        let mut outcomes = Vec::new();
        let clients = &self.clients;
        self.inspectors.turn(
            |token| clients.get(&token).map(|client| client.socket.as_fd()),
            |token, outcome| outcomes.push((token, outcome)),
        );
        // Who was turned away for want of a descriptor may just have been let go of: before anything else takes its number.
        self.acceptor.restore_spare();
        for (token, outcome) in outcomes {
            self.inspected(token, outcome);
        }
        self.state.burden = self.inspectors.burden();
    }

    fn inspected(&mut self, token: u64, outcome: Outcome) {
        let (packet, passed) = match outcome {
            Outcome::Seen(message) => {
                (message.packet.ok_or(TOO_LONG), Passed::new(message.things, &self.grave))
            }
            Outcome::Lost(why) => (Err(end_of(why)), Passed::default()),
        };
        match packet {
            Ok(packet) => self.answer(token, &packet, passed),
            Err(why) => self.remove(token, &End::Dropped(why)),
        }
        match self.clients.get(&token).map(|client| client.attention) {
            Some(Attention::Leaving) => self.remove(token, &End::Left),
            Some(_) => self.attend(token, Attention::Heard),
            None => {}
        }
    }

    fn answer(&mut self, token: u64, packet: &[u8], mut passed: Passed) {
        let request = decode::<Request<'_>>(packet);
        let concerns = request.as_ref().ok();
        let invitation = concerns.and_then(|request| self.invitation(token, request, &passed));
        let Some(client) = self.clients.get_mut(&token) else { return };
        let was_nobody = client.is_nobody();
        let outcome = invitation
            .unwrap_or_else(|| exchange(client, &mut self.state, (packet, request), &mut passed));
        let end = outcome.err();
        drop(passed);
        if was_nobody && !client.is_nobody() {
            self.nobodies -= 1;
        }
        let left = self.grave.take();
        if !left.is_empty() {
            self.inspectors.bury(&client.claimant(), left);
        }
        if let Some(end) = end {
            self.remove(token, &end);
        }
    }
}

const TOO_LONG: &str = "its message is too long";

const fn end_of(loss: Loss) -> &'static str {
    match loss {
        Loss::Stuck => "what it has passed is not let go of",
        Loss::Late => "what it has passed could not be looked at in time",
        Loss::Died => "what it has passed could not be looked at",
    }
}

/// Receives a packet, unless something comes with it.
fn look(client: &mut Client, buf: &mut [u8]) -> Result<Next, End> {
    let peeked = if client.is_of_invitation() && client.role == Role::Nobody {
        seqpacket::peek_sender(&client.socket, buf).map(|(peeked, sender)| {
            client.speaker = sender;
            peeked
        })
    } else {
        seqpacket::peek(&client.socket, buf)
    };
    match peeked {
        Ok(peeked) if peeked.has_fds => Ok(Next::Inspect),
        Ok(peeked) if peeked.is_longer => Err(End::Dropped(TOO_LONG)),
        Ok(peeked) if peeked.len == 0 => Err(End::Left),
        Ok(peeked) => {
            // Its bytes are here.
            let _ = seqpacket::discard(&client.socket, &mut []);
            Ok(Next::Answer(peeked.len))
        }
        Err(Errno::AGAIN) => Ok(Next::Nothing),
        Err(Errno::CONNRESET) => Err(End::Left),
        Err(_) => Err(End::Dropped("its connection failed")),
    }
}

/// Acts on a packet and sends its answer.
fn exchange(
    client: &mut Client,
    state: &mut State,
    (packet, request): (&[u8], Result<Request<'_>, Malformed>),
    passed: &mut Passed,
) -> Result<(), End> {
    let first = client.role == Role::Nobody;
    if first
        && let Some(version) = stated_version(packet)
        && !SPOKEN.contains(&version)
    {
        if is_hello(packet) {
            state.note_other_version(client.cred.pid, client.origin.party, version);
        }
        // Whatever else another version says cannot be understood; this much can be.
        client.send(&Answer::refused(Reason::VersionMismatch))?;
        return Err(End::Left);
    }
    let Ok(request) = request else {
        return Err(End::Dropped("its message is malformed"));
    };
    debug!(pid = client.cred.pid, ?request);
    // Nobody waits for an answer.
    if let (Role::Endpoint(me), &Request::Ring { region, endpoint, vector }, true) =
        (client.role, &request, passed.is_empty())
    {
        state.ring(me, region, endpoint, vector);
        return Ok(());
    }
    let Client { cred, netns, ref origin, .. } = *client;
    let pidfd = client.entrance.pidfd();
    let peer = Peer { socket: client.socket.as_fd(), pidfd, cred, origin, netns };
    match state.handle(&mut client.role, peer, &request, passed) {
        Ok(answer) => {
            if client.role != Role::Nobody && client.is_of_invitation() {
                // It is known by now. Else each packet would look as if descriptors came with it.
                let stopped = seqpacket::tell_senders(&client.socket, false);
                stopped.map_err(|_| End::Dropped("its connection failed"))?;
                // The state has a descriptor of the process by now, of which this is not the last one.
                client.entrance = Entrance::Accepted;
            }
            client.send(&answer)
        }
        Err(Misconduct(why)) => Err(End::Dropped(why)),
    }
}
