//! Requests that concern other machines, which share memory with this one.

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use serde_json::Value;
use shunt_device::ivshmem::Transport;
use shunt_shm::ivshmem::{FAR_VECTORS, Published};
use shunt_shm::reach::WHOLE;
use shunt_shm::region::Geometry;
use shunt_shm::registry::Listing;
use shunt_sys::sockinfo;
use shunt_wire::agent::{EndpointId, ListenerId, RegionId, Reply, Request};
use shunt_wire::reason::Reason;
use shunt_wire::version::{HOSTS_SINCE, MARKS_SINCE};

use super::regions::Connected;
use super::{Answer, Name, Outcome, Rejection, State, first_id, names_of};
use crate::held::{Passed, Thing};
use crate::ivshmem::{Attached, Fabric, Linked};

/// Whatever is likely to be in no other option.
fn random() -> u32 {
    #[allow(clippy::cast_possible_truncation, reason = "any part of it")]
    let random = std::hash::RandomState::new().build_hasher().finish() as u32;
    random
}

impl State {
    /// Shares memory with other machines; instead of that which was shared before, through which what is connected
    /// goes on. `heed` is given what is readable when they have something to say.
    ///
    /// # Errors
    /// Why it can't, or that of `heed`. All is as before then, so that it can be tried again.
    pub(crate) fn share(
        &mut self,
        transport: Box<dyn Transport>,
        heed: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            None,
        )?;
        let netns = sockinfo::netns_cookie(&socket);
        let mut fabric = Fabric::join(transport, geteuid().as_raw(), netns)?;
        // Before it takes the place of the one before, which alone is known to have no server.
        heed(fabric.ear())?;
        // Those that it has, unless they are another machine's: what they name may still be in use.
        let own = names_of(self.next_id);
        let mut first = Some(own);
        let names = fabric.names_from(|| first.take().unwrap_or_else(first_id));
        if names != own {
            self.next_id = names;
        }
        for (listener, known) in &self.listeners {
            let Name { addr, v6only, netns, .. } = known.name;
            fabric.publish(&Published { id: *listener, addr, v6only, bits: WHOLE }, netns);
        }
        if let Some(mut before) = self.fabric.take() {
            for listener in before.retire() {
                self.registries.remove_everywhere(listener);
            }
            self.retired.push(before);
        }
        self.registries.another_memory();
        self.fabric = Some(fabric);
        Ok(())
    }

    /// True when there is no server that would tell of other machines.
    pub(crate) fn has_no_server(&self) -> bool {
        self.fabric.as_ref().is_none_or(Fabric::is_deaf)
    }

    /// For `Status`.
    pub(crate) fn describe_shared(&self) -> Value {
        let Some(fabric) = self.fabric.as_ref().filter(|_| !self.is_shared_with_hosts) else {
            return Value::Null;
        };
        let mut shared = fabric.describe();
        shared["earlier_memories"] = self.retired.len().into();
        shared
    }

    /// How long the agent may sleep.
    pub(crate) fn patience(&self, now: Instant) -> Option<Duration> {
        self.retired.iter().chain(&self.fabric).map(|fabric| fabric.patience(now)).min()
    }

    /// Takes in what other machines have to say.
    pub(crate) fn hear(&mut self) {
        let Self { retired, fabric, next_id, registries, endpoints, .. } = self;
        for fabric in retired.iter_mut().chain(fabric) {
            let news = fabric.turn(|| {
                let id = *next_id;
                *next_id += 1;
                id
            });
            for listener in news.gone {
                registries.remove_everywhere(listener);
            }
            let netns = fabric.netns();
            for (listener, Published { addr, v6only, bits, .. }) in news.come {
                let listing = Listing { listener, addr, v6only, bits, netns };
                registries.publish_everywhere(listing);
            }
            for (endpoint, vectors) in news.rings {
                let Some(endpoint) = endpoints.get(&endpoint) else { continue };
                for vector in (0..FAR_VECTORS).filter(|vector| vectors & 1 << vector != 0) {
                    endpoint.ring(vector);
                }
            }
        }
        retired.retain(Fabric::is_in_use);
    }

    /// The memory in which a region is; that which is shared just now, for one that nobody has asked for yet.
    fn fabric_of(&mut self, region: RegionId) -> Option<&mut Fabric> {
        let of_before = self.retired.iter_mut().find(|fabric| fabric.has(region));
        of_before.or(self.fabric.as_mut())
    }

    /// The answer to a request that concerns another machine; `None` to others.
    pub(super) fn answer_remote(
        &mut self,
        me: EndpointId,
        request: &Request<'_>,
        passed: &mut Passed,
    ) -> Option<Outcome> {
        let serves = |listener| self.fabric.as_ref().is_some_and(|fabric| fabric.serves(listener));
        let has = |region| self.retired.iter().chain(&self.fabric).any(|fabric| fabric.has(region));
        match *request {
            Request::Connect { listener } if serves(listener) => {
                Some(self.connect_remote(me, listener))
            }
            Request::Attach { region, slot }
                if self.fabric.is_some() && !self.regions.contains_key(&region) =>
            {
                Some(self.attach_remote(me, region, slot, passed))
            }
            Request::Mark { region, slot } => Some(self.mark(me, region, slot, passed)),
            Request::Bells { region, endpoint } if has(region) => {
                let found =
                    self.fabric_of(region)?.bells(me, region, endpoint).map_err(Rejection::Refused);
                Some(found.map(|(bells, fds)| Answer { reply: Reply::BellsShared { bells }, fds }))
            }
            Request::Detach { region } if has(region) => {
                let was = self.fabric_of(region)?.detach(me, region);
                Some(if was {
                    Ok(Answer::bare(Reply::Done))
                } else {
                    Err(Rejection::Refused(Reason::Refused))
                })
            }
            _ => None,
        }
    }

    /// True for a region with connections to another host.
    pub(crate) fn leads_to_host(&self, region: RegionId) -> bool {
        self.is_shared_with_hosts && self.fabric.as_ref().is_some_and(|it| it.has(region))
    }

    /// False for a library that does not know of links to other hosts.
    fn may_share(&self, me: EndpointId) -> bool {
        let version = self.endpoints.get(&me).map_or(0, |endpoint| endpoint.version);
        !self.is_shared_with_hosts || version >= HOSTS_SINCE
    }

    fn connect_remote(&mut self, me: EndpointId, listener: ListenerId) -> Outcome {
        let region = self.new_id();
        if !self.may_share(me) {
            return Err(Rejection::Refused(Reason::VersionMismatch));
        }
        let endpoint = self.endpoints.get(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        let fabric = self.fabric.as_mut().ok_or(Rejection::Refused(Reason::Internal))?;
        if endpoint.origin.party.uid != fabric.uid() {
            return Err(Rejection::Refused(Reason::OtherUser));
        }
        if endpoint.netns != fabric.netns() {
            return Err(Rejection::Refused(Reason::OtherNamespace));
        }
        let before: usize = self.retired.iter().map(|fabric| fabric.count(me)).sum();
        if before + fabric.count(me) >= self.limits.regions_per_endpoint {
            return Err(Rejection::Refused(Reason::Refused));
        }
        let to_kernel = self.plane.as_ref().is_some_and(|plane| {
            fabric.peer_of(listener).is_some_and(|peer| plane.memory().is_kernels(peer))
        });
        if to_kernel && (self.smc_marks.is_none() || endpoint.version < MARKS_SINCE) {
            return Err(Rejection::Refused(Reason::VersionMismatch));
        }
        let me = (me, &endpoint.bells[..]);
        let linked = fabric.connect(me, listener, region).map_err(Rejection::Refused)?;
        let Linked { table, region: at, fds } = linked;
        let reply = if to_kernel {
            Reply::LinkedToKernel { region, table, at }
        } else {
            Reply::LinkedShared { region, table, at }
        };
        Ok(Answer { reply, fds })
    }

    /// Marks the SYN of a socket that is about to connect to a server with the kernel's SMC-R, and has it spoken on.
    fn mark(&self, me: EndpointId, region: RegionId, slot: u32, passed: &mut Passed) -> Outcome {
        let (socket, held) = match passed.take() {
            Some(Thing::Kept(socket, held)) => (socket, held),
            Some(_) => return Err(Rejection::Refused(Reason::Unsupported)),
            None => return Err(Rejection::Misconduct("a Mark without a socket")),
        };
        let refused = Err(Rejection::Refused(Reason::Refused));
        let (Some(marks), Some(plane)) = (&self.smc_marks, &self.plane) else { return refused };
        let mut fabrics = self.retired.iter().chain(&self.fabric);
        let peer = fabrics.find_map(|fabric| fabric.peer_at(me, region));
        let is_new = socket.peer.is_none() && !socket.listens;
        let slot = usize::try_from(slot).ok().filter(|slot| *slot < Geometry::Device.slots());
        let Some(slot) = slot.filter(|_| is_new) else { return refused };
        if !peer.is_some_and(|peer| plane.memory().is_kernels(peer)) {
            return refused;
        }
        let no_resources = |_| Rejection::Refused(Reason::NoResources);
        let socket_of_plane = held.as_fd().try_clone_to_owned().map_err(no_resources)?;
        marks.mark(socket.cookie, random()).map_err(no_resources)?;
        plane.pass(region, slot, socket_of_plane);
        Ok(Answer::bare(Reply::Done))
    }

    fn attach_remote(
        &mut self,
        me: EndpointId,
        region: RegionId,
        slot: u32,
        passed: &mut Passed,
    ) -> Outcome {
        let socket = passed.take().ok_or(Rejection::Misconduct("an Attach without a socket"))?;
        let Connected { tuple, netns, .. } =
            super::regions::connected(&socket).ok_or(Rejection::Refused(Reason::Unsupported))?;
        if !self.may_share(me) {
            return Err(Rejection::Refused(Reason::VersionMismatch));
        }
        let endpoint = self.endpoints.get(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        let bells = endpoint.bells.clone();
        let fabric = self.fabric_of(region).ok_or(Rejection::Refused(Reason::Internal))?;
        if netns != fabric.netns() {
            return Err(Rejection::Refused(Reason::OtherNamespace));
        }
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        let me = (me, &bells[..]);
        let attached = fabric.attach(me, (region, slot), &tuple).map_err(Rejection::Refused)?;
        let Attached { endpoint, region: at, bells, fds } = attached;
        Ok(Answer { reply: Reply::AttachedShared { endpoint, at, bells }, fds })
    }

    /// The answer to a `Listen`, of a listener that other machines are to know of.
    pub(super) fn listening(&mut self, answer: Answer) -> Answer {
        let Reply::Listening { listener } = answer.reply else { return answer };
        let (Some(fabric), Some(known)) = (&mut self.fabric, self.listeners.get(&listener)) else {
            return answer;
        };
        let name = &known.name;
        let Name { addr, v6only, .. } = *name;
        let published = Published { id: listener, addr, v6only, bits: WHOLE };
        let netns = name.netns;
        match (fabric.publish(&published, netns), fabric.memory()) {
            (Some(table), Ok(memory)) => {
                let mut fds = answer.fds;
                fds.push(Rc::clone(&memory));
                Answer { reply: Reply::ListeningShared { listener, table }, fds }
            }
            _ => answer,
        }
    }
}
