//! Conversations for processes that cannot connect to the agent's socket.
//!
//! A program that has changed its user cannot reach its user's agent any more, nor can its forks;
//! but it goes on as the client that it was. So it asks for a conversation for each child, before
//! the fork. The agent makes both ends, and keeps one of which no other process has a descriptor.
//! The kernel would name the agent itself as that connection's other end. So the kernel identifies
//! the child by its packets (`SCM_CREDENTIALS`).
//!
//! By the time that the agent looks, the child's pid could be another process's. So the child first
//! announces itself. The agent opens a pidfd and only then answers, and the next packet must come
//! from a process of the same pid. If the process of the pidfd still lives, it has had that pid all
//! the time, and is the sender.

use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};
use shunt_sys::fds::close;
use shunt_sys::seqpacket;
use shunt_wire::agent::{Reply, Request};
use shunt_wire::reason::Reason;
use tracing::debug;

use super::Server;
use super::client::{Attention, Client, End, Entrance};
use crate::allowance::Allowance;
use crate::held::{Held, Passed};
use crate::state::{Answer, Role};

impl Server {
    /// Answers what concerns invitations; `None`: this does not.
    pub(super) fn invitation(
        &mut self,
        token: u64,
        request: &Request<'_>,
        passed: &Passed,
    ) -> Option<Result<(), End>> {
        let client = self.clients.get(&token)?;
        let act = match (&client.entrance, client.role, request) {
            (_, Role::Endpoint(_), Request::Invite)
            | (Entrance::Invited(_), Role::Nobody, Request::Invite) => Self::invite,
            (Entrance::Invited(_), Role::Nobody, Request::Arrive) => Self::arrive,
            (Entrance::Arrived(_), Role::Nobody, Request::Hello { .. }) => {
                let is_another = !client.is_itself();
                return is_another
                    .then_some(Err(End::Dropped("it is not the one that has arrived")));
            }
            (Entrance::Invited(_) | Entrance::Arrived(_), Role::Nobody, _) => {
                return Some(Err(End::Dropped("a request that an invitation is not for")));
            }
            _ => return None,
        };
        if !passed.is_empty() {
            return Some(Err(End::Dropped("descriptors that no request asks for")));
        }
        Some(act(self, token))
    }

    fn invite(&mut self, token: u64) -> Result<(), End> {
        let made = self.make_invitation(token);
        let Some(client) = self.clients.get(&token) else { return Ok(()) };
        match made {
            Ok((theirs, guest)) => {
                let inviter = client.inviter();
                let fds = vec![Rc::new(Held::own(theirs))];
                client.send(&Answer { reply: Reply::Invited, fds })?;
                debug!(pid = client.cred.pid, "a child is invited");
                self.admit_guest(guest, inviter);
                Ok(())
            }
            Err(why) => {
                debug!(pid = client.cred.pid, "no child is invited: {why:?}");
                client.send(&Answer::refused(why))
            }
        }
    }

    fn make_invitation(&self, token: u64) -> Result<(OwnedFd, Client), Reason> {
        let by = self.clients.get(&token).ok_or(Reason::Internal)?;
        let inviter = by.inviter();
        let open = self.invitations.get(&inviter).copied().unwrap_or(0);
        if open >= self.config.limits.invitations_per_process || !self.has_place_for(&by.origin) {
            return Err(Reason::Refused);
        }
        let (ours, theirs) = seqpacket::pair().map_err(|_| Reason::NoResources)?;
        if seqpacket::tell_senders(&ours, true).is_err() {
            close(ours);
            close(theirs);
            return Err(Reason::NoResources);
        }
        let since = Instant::now();
        let guest = Client {
            netns: by.netns,
            socket: ours,
            cred: by.cred,
            origin: by.origin.clone(),
            entrance: Entrance::Invited(inviter),
            speaker: None,
            role: Role::Nobody,
            since,
            allowance: Allowance::new(&self.config.limits, since),
            attention: Attention::Heard,
        };
        Ok((theirs, guest))
    }

    /// The process for which an invitation was made says that it is there.
    fn arrive(&mut self, token: u64) -> Result<(), End> {
        let Some(client) = self.clients.get_mut(&token) else { return Ok(()) };
        let Some(pid) = client.speaker else {
            return client.send(&Answer::refused(Reason::Refused));
        };
        let number = pid.as_raw_nonzero().get();
        let of_process = self.per_process.get(&number).copied().unwrap_or(0);
        if of_process >= self.config.limits.clients_per_process {
            return client.send(&Answer::refused(Reason::Refused));
        }
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
            return client.send(&Answer::refused(Reason::NoResources));
        };
        // What is sent from now on is sent by whoever has the pid while the process of the pidfd lives.
        if !matches!(seqpacket::peek(&client.socket, &mut [0]), Err(Errno::AGAIN)) {
            close(pidfd);
            return Err(End::Dropped("it has not waited for the answer"));
        }
        let inviter = client.inviter();
        client.cred.pid = number;
        client.entrance = Entrance::Arrived(pidfd);
        client.since = Instant::now();
        *self.per_process.entry(number).or_default() += 1;
        self.nobodies += 1;
        let sent = client.send(&Answer::done());
        self.invitation_used(inviter);
        sent
    }

    /// An invitation by this process has been used, or is not any more.
    pub(super) fn invitation_used(&mut self, by: i32) {
        if let Entry::Occupied(mut open) = self.invitations.entry(by) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
    }
}
