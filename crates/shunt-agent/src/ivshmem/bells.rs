//! Doorbells of endpoints of other machines, as programs here ring them.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::event::epoll;
use shunt_shm::doorbell;
use shunt_shm::ivshmem::MemberId;
use shunt_wire::agent::{EndpointId, MAX_VECTORS};

/// Where a ring goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bell {
    pub(super) member: MemberId,
    pub(super) place: usize,
    pub(super) vector: usize,
}

#[derive(Debug)]
struct Endpoint {
    place: usize,
    bells: Vec<(u64, Rc<OwnedFd>)>,
}

/// Those that some program here has.
#[derive(Debug, Default)]
pub(super) struct Bells {
    endpoints: HashMap<(MemberId, EndpointId), Endpoint>,
    tokens: HashMap<u64, Bell>,
}

impl Bells {
    /// Which one the token names.
    pub(super) fn of(&self, token: u64) -> Option<Bell> {
        self.tokens.get(&token).copied()
    }

    /// The doorbells of an endpoint at `place` of another member.
    pub(super) fn get(
        &mut self,
        (member, endpoint): (MemberId, EndpointId),
        (place, vectors): (usize, usize),
        epoll: &OwnedFd,
        next_token: &mut u64,
    ) -> io::Result<Vec<Rc<OwnedFd>>> {
        let tokens = &mut self.tokens;
        let known = match self.endpoints.entry((member, endpoint)) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                let mut bells = Vec::new();
                for vector in 0..vectors.clamp(1, MAX_VECTORS) {
                    let bell = doorbell::create()?;
                    let token = *next_token;
                    *next_token += 1;
                    let data = epoll::EventData::new_u64(token);
                    epoll::add(epoll, &bell, data, doorbell::RUNG).map_err(io::Error::from)?;
                    tokens.insert(token, Bell { member, place, vector });
                    bells.push((token, Rc::new(bell)));
                }
                new.insert(Endpoint { place, bells })
            }
        };
        Ok(known.bells.iter().map(|(_, bell)| Rc::clone(bell)).collect())
    }

    /// Forgets those of endpoints that are gone.
    pub(super) fn forget(
        &mut self,
        epoll: &OwnedFd,
        lives: impl Fn(MemberId, usize, EndpointId) -> bool,
    ) {
        let tokens = &mut self.tokens;
        self.endpoints.retain(|(member, id), endpoint| {
            let stays = lives(*member, endpoint.place, *id);
            if !stays {
                for (token, bell) in &endpoint.bells {
                    tokens.remove(token);
                    let _ = epoll::delete(epoll, bell);
                }
            }
            stays
        });
    }
}
