//! Clients: their arrival, their turns, and their end.

use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::epoll;
use rustix::net::{Shutdown, shutdown};
use rustix::process::geteuid;
use shunt_inspector::Claimant;
use shunt_sys::seqpacket::{self, PeerCred};
use shunt_sys::sockinfo;
use tracing::{debug, warn};

use super::client::{Attention, Client, End, Entrance, Share};
use super::{BATCH, Server};
use crate::acceptor::Accepted;
use crate::allowance::Allowance;
use crate::metrics::Exporter;
use crate::party::{Account, Origin};
use crate::state::Role;

/// Descriptors that may wait for inspectors to let go of them while more clients are accepted.
const MOST_TO_BURY: usize = 512;

impl Server {
    /// As many as of other events at once: a client finds the backlog full (it does not wait then) when
    /// somebody connects faster than is accepted.
    pub(super) fn accept(&mut self) {
        for _ in 0..BATCH {
            // Whoever comes and goes faster than that is done waits outside.
            let (_, to_bury) = self.inspectors.burden();
            if to_bury >= MOST_TO_BURY {
                break;
            }
            match self.acceptor.accept(self.claim.socket()) {
                Accepted::Connection(socket) => self.admit(socket),
                Accepted::Aborted => {}
                Accepted::Exhausted(socket) => {
                    warn!("out of descriptors or memory: a client was turned away");
                    self.state.count_rejected("no descriptors or memory");
                    if let Some(socket) = socket {
                        self.turn_away(socket, None);
                        self.acceptor.restore_spare();
                    } else {
                        // Nothing can be done but to wait, and not to be told of it again and again.
                        std::thread::sleep(super::PAUSE);
                    }
                    break;
                }
                Accepted::Nothing => break,
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        self.last_used = Instant::now();
        let Ok(cred) = seqpacket::peer_cred(&socket) else { return self.turn_away(socket, None) };
        match self.may_enter(&socket, cred) {
            Ok(origin) => self.enter(socket, cred, origin),
            Err(why) => {
                warn!(pid = cred.pid, uid = cred.uid, "a client was turned away: {why}");
                self.state.count_rejected(why);
                self.turn_away(socket, Some(cred));
            }
        }
    }

    /// Where a client comes from, or why it has no business here.
    fn may_enter(&self, socket: &OwnedFd, cred: PeerCred) -> Result<Origin, &'static str> {
        let limits = &self.config.limits;
        if self.clients.len() >= limits.clients {
            return Err("too many clients");
        }
        let of_process = self.per_process.get(&cred.pid).copied().unwrap_or(0);
        if of_process >= limits.clients_per_process {
            return Err("too many clients of one process");
        }
        let origin = self.origin(socket, cred)?;
        if !self.account_has_place(&origin) {
            return Err("too many clients of one account");
        }
        Ok(origin)
    }

    fn account_has_place(&self, of: &Origin) -> bool {
        let limits = &self.config.limits;
        let share = self.accounts.get(&of.account).map_or(0, |share| share.clients);
        !self.is_bounded(&of.account) || share < (limits.clients / limits.share).max(1)
    }

    /// True when there can be one more client of this origin.
    pub(super) fn has_place_for(&self, origin: &Origin) -> bool {
        self.clients.len() < self.config.limits.clients && self.account_has_place(origin)
    }

    fn is_bounded(&self, account: &Account) -> bool {
        self.config.host.is_some() && *account != Account::Host
    }

    fn origin(&self, socket: &OwnedFd, cred: PeerCred) -> Result<Origin, &'static str> {
        if self.config.host.is_none() {
            // The directory keeps other users out, unless somebody has opened it since it was looked at.
            // A worker that has changed its user said Hello before.
            let is_own = cred.uid == geteuid().as_raw();
            return if is_own { Ok(Origin::own(cred)) } else { Err("it is another user's") };
        }
        let seen = Origin::of_process(cred).map_err(|e| {
            debug!(pid = cred.pid, "a process that cannot be looked at: {e}");
            "its process cannot be looked at"
        })?;
        // What was seen is of that process if its pid was not another's meanwhile.
        seqpacket::peer_lives(socket).then_some(seen).ok_or("its process has ended")
    }

    fn enter(&mut self, socket: OwnedFd, cred: PeerCred, origin: Origin) {
        let (since, limits) = (Instant::now(), &self.config.limits);
        let client = Client {
            netns: sockinfo::netns_cookie(&socket),
            socket,
            cred,
            origin,
            role: Role::Nobody,
            entrance: Entrance::Accepted,
            speaker: None,
            since,
            allowance: Allowance::new(limits, since),
            attention: Attention::Heard,
        };
        if self.attend_to(client) {
            if cred.pid != 0 {
                *self.per_process.entry(cred.pid).or_default() += 1;
            }
            self.nobodies += 1;
        }
    }

    /// Whoever was invited may speak from now on.
    pub(super) fn admit_guest(&mut self, guest: Client, inviter: i32) {
        if self.attend_to(guest) {
            *self.invitations.entry(inviter).or_default() += 1;
        }
    }

    fn attend_to(&mut self, client: Client) -> bool {
        let token = self.next_token;
        self.next_token += 1;
        let data = epoll::EventData::new_u64(token);
        if epoll::add(&self.epoll, &client.socket, data, epoll::EventFlags::IN).is_err() {
            self.state.count_rejected("no descriptors or memory");
            self.turn_away(client.socket, Some(client.cred));
            return false;
        }
        let account = &client.origin.account;
        if self.is_bounded(account) {
            let limits = &self.config.limits;
            // Who comes back at once is not given the allowance anew.
            self.accounts.retain(|_, share| share.clients > 0 || !share.allowance.is_full(limits));
            let new =
                || Share { clients: 0, allowance: Allowance::of_account(limits, client.since) };
            self.accounts.entry(account.clone()).or_insert_with(new).clients += 1;
        }
        self.clients.insert(token, client);
        true
    }

    /// Hangs up. There may be packets in the connection's queue, with anything.
    fn turn_away(&mut self, socket: OwnedFd, from: Option<PeerCred>) {
        if seqpacket::end_drained(&socket) {
            return;
        }
        let (process, uid) = from.map_or((0, u32::MAX), |cred| (cred.pid, cred.uid));
        self.inspectors.bury(&Claimant { process, account: Account::User(uid) }, vec![socket]);
    }

    /// Leaves a client's packets where they are; when its socket is full it waits.
    pub(super) fn pause(&mut self, token: u64) {
        self.paused.push(token);
        self.attend(token, Attention::Paused);
    }

    /// Has epoll tell of a client's packets, or of nothing but that it has left.
    pub(super) fn attend(&mut self, token: u64, attention: Attention) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        client.attention = attention;
        let data = epoll::EventData::new_u64(token);
        let is_heard = attention == Attention::Heard;
        let flags = if is_heard { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let _ = epoll::modify(&self.epoll, &client.socket, data, flags);
    }

    /// Reads those again who may send by now.
    pub(super) fn resume(&mut self) {
        let now = Instant::now();
        for token in std::mem::take(&mut self.paused) {
            let Some(client) = self.clients.get_mut(&token) else { continue };
            let ((cost, of_account), account) = (client.cost(), &client.origin.account);
            let (limits, share) = (&self.config.limits, self.accounts.get_mut(account));
            if !client.allowance.covers(cost, limits, now)
                || share.is_some_and(|share| !share.allowance.covers(of_account, limits, now))
            {
                self.paused.push(token);
            } else {
                self.attend(token, Attention::Heard);
            }
        }
    }

    /// A client that is not read has left.
    pub(super) fn leaves(&mut self, token: u64) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        if client.attention == Attention::Inspected {
            // It is not told again and again. What it has sent last is still to be heard of.
            client.attention = Attention::Leaving;
            let _ = epoll::delete(&self.epoll, &client.socket);
        } else {
            self.remove(token, &End::Left);
        }
    }

    pub(super) fn remove(&mut self, token: u64, end: &End) {
        let Some(client) = self.clients.remove(&token) else { return };
        if client.is_nobody() {
            self.nobodies -= 1;
        }
        if let Entrance::Invited(by) = client.entrance {
            self.invitation_used(by);
        } else if let Entry::Occupied(mut count) = self.per_process.entry(client.cred.pid) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if let Entry::Occupied(mut share) = self.accounts.entry(client.origin.account.clone()) {
            share.get_mut().clients -= 1;
        }
        match *end {
            End::Left => debug!(pid = client.cred.pid, "client left"),
            End::Dropped(why) => {
                self.state.count_rejected(why);
                warn!(pid = client.cred.pid, uid = client.cred.uid, "client dropped: {why}");
            }
        }
        self.state.gone(client.role);
        self.last_used = Instant::now();
        // There may be unread packets in its queue, with anything. Whoever has the descriptor after this process is not
        // what epoll is asked about.
        let _ = epoll::delete(&self.epoll, &client.socket);
        let mut left = self.grave.take();
        let claimant = client.claimant();
        if !seqpacket::end_drained(&client.socket) {
            left.push(client.socket);
        }
        self.inspectors.bury(&claimant, left);
    }

    pub(super) fn drop_nobodies(&mut self) {
        if self.nobodies == 0 {
            return;
        }
        let patience = self.config.limits.introduction;
        let late = |c: &Client| c.is_nobody() && c.since.elapsed() >= patience;
        let late: Vec<_> =
            self.clients.iter().filter(|(_, c)| late(c)).map(|(token, _)| *token).collect();
        for token in late {
            self.remove(token, &End::Dropped("it did not say who it is"));
        }
    }

    /// Ends all conversations, without waiting for anything.
    pub(super) fn hang_up(&mut self) {
        let mut left: Vec<_> = self.clients.drain().map(|(_, client)| client.socket).collect();
        left.extend(self.metrics.iter_mut().flat_map(Exporter::hang_up));
        for socket in &left {
            let _ = shutdown(socket, Shutdown::Both);
        }
        // Of those who have not been accepted yet there may be packets, too.
        left.extend(self.claim.socket().try_clone());
        self.state.end();
        left.extend(self.grave.take());
        self.inspectors.end(left);
    }
}
