//! Programs: their arrival and their end.

use std::collections::{HashMap, HashSet};
use std::io;
use std::rc::Rc;

use shunt_shm::arena::{self, ArenaView};
use shunt_shm::capture;
use shunt_sys::seqpacket::peer_pidfd;
use shunt_wire::agent::{EndpointId, MAX_VECTORS, Reply};
use shunt_wire::reason::Reason;
use shunt_wire::version::SPOKEN;

use super::capture::Capturable;
use super::{Answer, Endpoint, Outcome, Peer, Rejection, Role, State};
use crate::held::{Held, Passed, Thing};
use crate::memory_limit;
use crate::totals::Totals;

/// Longest program name that is kept, in bytes.
const MAX_NAME: usize = 64;

impl State {
    pub(super) fn hello(
        &mut self,
        role: &mut Role,
        peer: Peer<'_>,
        (version, run): (u32, u64),
        program: &str,
        passed: &mut Passed,
    ) -> Outcome {
        if !SPOKEN.contains(&version) {
            while passed.take().is_some() {}
            return Err(Rejection::Refused(Reason::VersionMismatch));
        }
        let bell = doorbell(passed)?;
        let of_account = |e: &&Endpoint| e.origin.account == peer.origin.account;
        if self.endpoints.len() >= self.limits.endpoints
            || self.exceeds_share(&peer.origin.account, self.limits.endpoints, || {
                self.endpoints.values().filter(of_account).count()
            })
        {
            return Err(Rejection::Refused(Reason::Refused));
        }
        // Others are given it.
        let pidfd = match peer.pidfd {
            Some(pidfd) => pidfd.try_clone_to_owned()?,
            None => peer_pidfd(peer.socket).map_err(io::Error::from)?,
        };
        let pidfd = Rc::new(self.grave.keep(pidfd));
        let arena_fd = arena::create()?;
        let arena = Rc::new(ArenaView::map(&arena_fd)?);
        // It may take its time to go.
        let rings = Rc::new(self.grave.keep(capture::create()?));
        let registry = self.registry_of(peer.origin.party)?;
        let endpoint = self.new_id();
        *role = Role::Endpoint(endpoint);
        self.endpoints.insert(
            endpoint,
            Endpoint {
                pid: peer.cred.pid,
                origin: peer.origin.clone(),
                netns: peer.netns,
                program: printable(program),
                run,
                version,
                capturable: Capturable::new(Rc::clone(&arena), Rc::clone(&rings)),
                arena,
                pidfd,
                bells: vec![bell],
                holds: HashSet::new(),
                owns: HashSet::new(),
                attached: HashSet::new(),
                exports: HashMap::new(),
                offers: HashSet::new(),
                awaits: HashSet::new(),
            },
        );
        self.come_to_be_captured(endpoint);
        Ok(Answer {
            reply: Reply::Welcome { endpoint, memory: memory_limit::of_process(peer.cred.pid) },
            fds: vec![registry, Rc::new(Held::own(arena_fd)), rings],
        })
    }

    /// An endpoint has one completion vector more.
    pub(super) fn add_bell(&mut self, me: EndpointId, passed: &mut Passed) -> Outcome {
        let bell = doorbell(passed)?;
        let endpoint = self.endpoints.get(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        let account = &endpoint.origin.account;
        let more = |e: &Endpoint| e.bells.len() - 1;
        let of_account = |e: &&Endpoint| e.origin.account == *account;
        if endpoint.bells.len() >= MAX_VECTORS
            || self.endpoints.values().map(more).sum::<usize>() >= self.limits.bells
            || self.exceeds_share(account, self.limits.bells, || {
                self.endpoints.values().filter(of_account).map(more).sum()
            })
        {
            return Err(Rejection::Refused(Reason::NoResources));
        }
        let endpoint = self.endpoints.get_mut(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        let vector = u8::try_from(endpoint.bells.len()).unwrap_or(0);
        endpoint.bells.push(bell);
        for fabric in self.retired.iter_mut().chain(&mut self.fabric) {
            fabric.add_bell((me, &endpoint.bells));
        }
        Ok(Answer::bare(Reply::Added { vector }))
    }

    /// The client in `role` is gone: whatever was its alone goes with it.
    pub fn gone(&mut self, role: Role) {
        let me = match role {
            Role::Nobody | Role::Tool => return,
            Role::Capture { place, number } => return self.end_capture(place, number),
            Role::Endpoint(me) => me,
        };
        let Some(endpoint) = self.endpoints.remove(&me) else { return };
        self.ended.fold(endpoint.run, &endpoint.program, &Totals::of(&endpoint.arena));
        self.captured_left(me, &endpoint);
        self.forget_offers(&endpoint);
        let party = endpoint.origin.party;
        for region in endpoint.owns {
            self.owner_left(region);
        }
        for region in endpoint.attached {
            self.attacher_left(me, region);
        }
        for listener in endpoint.holds {
            self.holder_left(me, listener, None);
        }
        for fabric in self.retired.iter_mut().chain(&mut self.fabric) {
            fabric.endpoint_left(me);
        }
        if !self.endpoints.values().any(|other| other.origin.party == party) {
            self.registries.forget(party);
        }
    }
}

/// The one doorbell that comes with a request.
fn doorbell(passed: &mut Passed) -> Result<Rc<Held>, Rejection> {
    match (passed.take(), passed.is_empty()) {
        (Some(Thing::Bell(fd)), true) => Ok(Rc::new(fd)),
        // It is rung with write(2) by programs that did not make it: anything else could block them there.
        (Some(_), true) => Err(Rejection::Misconduct("a doorbell that is not an eventfd")),
        _ => Err(Rejection::Misconduct("a wrong number of doorbells")),
    }
}

/// The name as tools may print it: bounded, and without control characters.
fn printable(name: &str) -> String {
    let mut kept = String::new();
    for c in name.chars().map(|c| if c.is_control() { '?' } else { c }) {
        if kept.len() + c.len_utf8() > MAX_NAME {
            break;
        }
        kept.push(c);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_printable() {
        assert_eq!(printable("nginx"), "nginx");
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a?[2Jb?");
        let long = printable(&"é".repeat(100));
        assert_eq!(long.len(), MAX_NAME);
        assert_eq!(printable(&format!("x{long}")).len(), MAX_NAME - 1);
    }
}
