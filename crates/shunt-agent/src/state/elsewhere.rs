//! What concerns other machines, with which memory is shared.

use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use shunt_device::ivshmem::Transport;
use shunt_shm::ivshmem::Published;
use shunt_shm::registry::Listing;
use shunt_sys::fds::Fds;
use shunt_sys::sockinfo;
use shunt_wire::agent::{EndpointId, ListenerId, MAX_VECTORS, RegionId, Reply, Request};
use shunt_wire::reason::Reason;

use super::regions::Connected;
use super::{Answer, No, Outcome, State, first_id};
use crate::ivshmem::{Attached, Fabric, Linked};

impl State {
    /// Shares memory with other machines, before any program is known.
    ///
    /// # Errors
    /// Why it can't.
    pub(crate) fn share(&mut self, transport: Box<dyn Transport>) -> io::Result<()> {
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            None,
        )?;
        let netns = sockinfo::netns_cookie(&socket);
        let fabric = Fabric::join(transport, geteuid().as_raw(), netns)?;
        self.next_id = fabric.names_from(first_id);
        self.fabric = Some(fabric);
        Ok(())
    }

    /// Readable when other machines have something to say.
    pub(crate) fn ear(&self) -> Option<BorrowedFd<'_>> {
        self.fabric.as_ref().map(Fabric::ear)
    }

    /// How long the agent may sleep.
    pub(crate) fn patience(&self, now: Instant) -> Option<Duration> {
        self.fabric.as_ref().map(|fabric| fabric.patience(now))
    }

    /// Takes in what other machines have to say.
    pub(crate) fn hear(&mut self) {
        let Some(fabric) = &mut self.fabric else { return };
        let next = &mut self.next_id;
        let news = fabric.turn(|| {
            let id = *next;
            *next += 1;
            id
        });
        for listener in news.gone {
            self.registries.remove_everywhere(listener);
        }
        let (uid, netns) = (fabric.uid(), fabric.netns());
        for (listener, Published { addr, v6only, .. }) in news.come {
            let listing = Listing { listener, addr, v6only, uid, netns };
            self.registries.publish_everywhere(listing);
        }
        for (endpoint, vectors) in news.rings {
            let Some(endpoint) = self.endpoints.get(&endpoint) else { continue };
            let rung = |(vector, _): &(usize, _)| vectors & 1 << vector != 0;
            for (_, bell) in endpoint.bells.iter().enumerate().take(MAX_VECTORS).filter(rung) {
                shunt_shm::doorbell::ring_fd(bell);
            }
        }
    }

    /// The answer to a request that concerns another machine; `None` to others.
    pub(super) fn elsewhere(
        &mut self,
        me: EndpointId,
        request: &Request<'_>,
        fds: &mut Fds,
    ) -> Option<Outcome> {
        let fabric = self.fabric.as_ref()?;
        match *request {
            Request::Connect { listener } if fabric.serves(listener) => {
                Some(self.connect_elsewhere(me, listener))
            }
            Request::Attach { region, slot } if !self.regions.contains_key(&region) => {
                Some(self.attach_elsewhere(me, region, slot, fds))
            }
            Request::Bells { region, endpoint } if fabric.has(region) => {
                let found = fabric.bells(me, region, endpoint).map_err(No::Refused);
                Some(found.map(|(bells, fds)| Answer { reply: Reply::BellsShared { bells }, fds }))
            }
            Request::Detach { region } if fabric.has(region) => {
                let was = self.fabric.as_mut()?.detach(me, region);
                Some(if was {
                    Ok(Answer::bare(Reply::Done))
                } else {
                    Err(No::Refused(Reason::Refused))
                })
            }
            _ => None,
        }
    }

    fn connect_elsewhere(&mut self, me: EndpointId, listener: ListenerId) -> Outcome {
        let region = self.new_id();
        let endpoint = self.endpoints.get(&me).ok_or(No::Refused(Reason::Internal))?;
        let fabric = self.fabric.as_mut().ok_or(No::Refused(Reason::Internal))?;
        if endpoint.origin.party.uid != fabric.uid() {
            return Err(No::Refused(Reason::OtherUser));
        }
        if endpoint.netns != fabric.netns() {
            return Err(No::Refused(Reason::OtherNamespace));
        }
        if fabric.count(me) >= self.limits.regions_per_endpoint {
            return Err(No::Refused(Reason::Refused));
        }
        let me = (me, endpoint.bells.len());
        let linked = fabric.connect(me, listener, region).map_err(No::Refused)?;
        let Linked { table, region: at, fds } = linked;
        Ok(Answer { reply: Reply::LinkedShared { region, table, at }, fds })
    }

    fn attach_elsewhere(
        &mut self,
        me: EndpointId,
        region: RegionId,
        slot: u32,
        fds: &mut Fds,
    ) -> Outcome {
        let socket = fds.take().ok_or(No::Misconduct("an Attach without a socket"))?;
        let Connected { tuple, netns, .. } =
            super::regions::inspect(socket).ok_or(No::Refused(Reason::Unsupported))?;
        let endpoint = self.endpoints.get(&me).ok_or(No::Refused(Reason::Internal))?;
        let fabric = self.fabric.as_mut().ok_or(No::Refused(Reason::Internal))?;
        if netns != fabric.netns() {
            return Err(No::Refused(Reason::OtherNamespace));
        }
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        let me = (me, endpoint.bells.len());
        let attached = fabric.attach(me, (region, slot), &tuple).map_err(No::Refused)?;
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
        let published = Published { id: listener, addr: name.addr, v6only: name.v6only };
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
