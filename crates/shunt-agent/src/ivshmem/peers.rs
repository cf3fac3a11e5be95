//! The other members, and their listeners.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use shunt_shm::ivshmem::{Home, MemberId, Published, offset};
use shunt_shm::reach;
use shunt_wire::addr::Addr;
use shunt_wire::agent::ListenerId;
use tracing::{debug, info};

use super::peer::{Peer, Remote};
use super::{Fabric, News};

/// How long a member may show no sign of life before nothing new is begun with it.
const SILENCE: Duration = Duration::from_secs(5);

impl Fabric {
    /// Notices who has come and gone, and what they serve.
    pub(super) fn see_who_is_there(
        &mut self,
        news: &mut News,
        beat: bool,
        mut name: impl FnMut() -> u64,
    ) {
        let gone: Vec<_> =
            self.peers.keys().filter(|member| !self.control.lives(**member)).copied().collect();
        for member in gone {
            info!(member = member.index, "a machine is gone");
            if let Some(peer) = self.peers.remove(&member) {
                self.forget(peer.published.into_values(), news);
            }
            self.break_links_to(member, news);
        }
        let members: Vec<_> = self.control.members().filter(|m| *m != self.me).collect();
        for member in members {
            let Some(home_at) = self.control.home_of(member) else { continue };
            let beats = self.control.member(member.index).beat();
            if !self.peers.contains_key(&member) {
                let Ok(home) = Home::map(self.transport.memory(), offset(home_at)) else {
                    continue;
                };
                let (news, beaten, published) = (None, Instant::now(), HashMap::new());
                debug!(member = member.index, "a machine is there");
                self.peers.insert(member, Peer { home, news, beat: beats, beaten, published });
            }
            let Some(peer) = self.peers.get_mut(&member) else { continue };
            if peer.beat != beats {
                (peer.beat, peer.beaten) = (beats, Instant::now());
            }
            let silent = peer.beaten.elapsed() > SILENCE;
            if silent && beat && !peer.published.is_empty() {
                info!(member = member.index, "a machine is silent: new connections to it are TCP");
                peer.news = None;
                let silent = std::mem::take(&mut peer.published);
                self.forget(silent.into_values(), news);
            } else if !silent && !self.retired && peer.news != Some(peer.home.news()) {
                self.read_home(member, news, &mut name);
            }
        }
    }

    fn forget(&mut self, listeners: impl Iterator<Item = ListenerId>, news: &mut News) {
        for listener in listeners {
            self.remotes.remove(&listener);
            news.gone.push(listener);
        }
    }

    /// Reads what a member has published.
    fn read_home(&mut self, member: MemberId, news: &mut News, name: &mut impl FnMut() -> u64) {
        let Some(peer) = self.peers.get_mut(&member) else { return };
        peer.news = Some(peer.home.news());
        // An address of this machine's own leads nowhere else. And a machine is believed only about the networks that
        // this one is attached to: beyond them it could claim to be anybody.
        let mut theirs = peer.home.addresses();
        theirs.retain(|ip| {
            self.addresses.iter().all(|own| own.ip != *ip)
                && self.addresses.iter().any(|own| own.reaches(ip))
        });
        let listed: Vec<_> = peer.home.listeners().collect();
        // All anew: an address may have come or gone, and there are few.
        let before = std::mem::take(&mut peer.published);
        let mut found = Vec::new();
        for (place, listener) in listed {
            let known = before.get(&listener.id).copied().unwrap_or_else(&mut *name);
            found.push((place, listener, known));
            peer.published.insert(listener.id, known);
        }
        self.forget(before.into_values(), news);
        let peer = self.control.member(member.index).peer();
        let may_have_networks = peer.is_some_and(|peer| self.transport.may_have_networks(peer));
        for (place, listener, known) in found {
            let addresses = if !reach::is_wide(&listener.addr, listener.bits) {
                reached_at(&listener, &theirs)
            } else if may_have_networks && self.reaches_all_of(&listener) {
                vec![listener.addr]
            } else {
                Vec::new()
            };
            let at = |addr: &Addr| (known, Published { addr: *addr, ..listener });
            news.come.extend(addresses.iter().map(at));
            self.remotes.insert(known, Remote { member, place, addresses });
        }
    }

    /// True for a network within one to which this machine is attached.
    fn reaches_all_of(&self, listener: &Published) -> bool {
        let ip = u128::from_be_bytes(listener.addr.ip);
        let open = u128::MAX.checked_shr(listener.bits.into()).unwrap_or(0);
        let ends = [ip & !open, ip | open].map(u128::to_be_bytes);
        self.addresses.iter().any(|own| ends.iter().all(|ip| own.reaches(ip)))
    }

    /// The addresses that a member says are its machine's.
    pub(super) fn is_address_of(&self, member: MemberId, ip: &[u8; 16]) -> bool {
        self.peers.get(&member).is_some_and(|peer| peer.home.addresses().contains(ip))
    }
}

/// At which of its machine's addresses a listener can be reached.
fn reached_at(listener: &Published, addresses: &[[u8; 16]]) -> Vec<Addr> {
    let Published { addr, v6only, .. } = *listener;
    let fits = |ip: &[u8; 16]| {
        let at = Addr { ip: *ip, port: addr.port };
        let any = addr.is_unspecified()
            && if addr.is_v4() { at.is_v4() } else { !(at.is_v4() && v6only) };
        (any || addr.ip == *ip).then_some(at)
    };
    addresses.iter().filter_map(fits).collect()
}
