//! Peers as members of the memory of this host's programs, and acceptors that are to look for peers' proposals.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use shunt_peer::PublicKey;
use shunt_shm::ivshmem::table_offset;
use shunt_shm::table::Table;
use shunt_verbs::port::Port;
use shunt_wire::addr::Addr;
use shunt_wire::agent::RegionId;
use tracing::debug;

use super::Hub;
use crate::links::Links;
use crate::machine::Machine;
use crate::memory::SharedMemory;
use crate::mirror::agents_home;
use crate::peers::Peer;
use crate::reach::Reach;

/// How long the part of a peer that is gone is kept.
pub(super) const RETIRED: Duration = Duration::from_millis(500);

impl<P: Port + Clone + Send + 'static> Hub<P> {
    /// The peers as members of the memory: those that are connected, and with which there can be link groups.
    pub(super) fn see_to_machines(&mut self, now: Duration) {
        let workers = self.links.as_ref().map_or(0, Links::workers);
        let has_device = self.device().is_some();
        for at in 0..self.peers.len() {
            let peer = &self.peers[at];
            let key = peer.name.key;
            let is_wanted = peer.is_met() && workers > 0;
            match (is_wanted, self.machines.contains_key(&key)) {
                (true, false) => {
                    self.member = self.member.wrapping_add(1).max(1);
                    match self.join(self.member, workers) {
                        Ok(machine) => {
                            self.machines.insert(key, machine);
                            self.peers[at].is_changed = true;
                        }
                        Err(error) => debug!("peer {}: {error}", self.peers[at].name),
                    }
                }
                (false, true) => self.retire(key, now),
                _ => {}
            }
            if std::mem::take(&mut self.peers[at].is_changed)
                && let Some(machine) = self.machines.get_mut(&key)
            {
                // New connections are left to TCP where there can be no link group for them.
                let can = self.peers[at].is_reached()
                    && has_device
                    && self.peers[at].promotes(self.promote);
                let listeners = if can { self.peers[at].listeners() } else { &[] };
                machine.set_addresses(self.peers[at].addresses());
                let listeners: Vec<_> = listeners.iter().copied().map(Reach::from).collect();
                machine.set_listeners(&listeners);
            }
        }
        let is_named = |key: &PublicKey| self.peers.iter().any(|peer| peer.name.key == *key);
        let gone: Vec<_> = self.machines.keys().filter(|key| !is_named(key)).copied().collect();
        gone.into_iter().for_each(|key| self.retire(key, now));
        self.retired.retain(|(until, _)| now < *until);
        if now >= self.beat_at {
            self.beat_at = now + Duration::from_secs(1);
            let kernels = self.kernels.iter().filter_map(|kernels| kernels.machine.as_ref());
            self.machines.values().chain(kernels).for_each(Machine::beats);
        }
        self.await_proposals();
    }

    /// A peer is gone. Workers may be at its connections for a moment, so nobody else gets its part of the memory before.
    fn retire(&mut self, key: PublicKey, now: Duration) {
        if let Some(mut machine) = self.machines.remove(&key) {
            // Else a program would propose to it, and not to the one in its place.
            machine.set_listeners(&[]);
            self.retired.push((now + RETIRED, machine));
            self.awaited.clear();
            self.awaited_news = None;
        }
    }

    fn join(&self, number: u16, workers: usize) -> io::Result<Machine> {
        Machine::join(&self.shared.memory, number, workers)
    }

    /// Has acceptors look for proposals while there are peers: these come a little later than the connections.
    fn await_proposals(&mut self) {
        // Those that stay on TCP have nothing to look for.
        let is_awaited =
            |peer: &Peer| self.machines.contains_key(&peer.name.key) && peer.promotes(self.promote);
        if !self.peers.iter().any(is_awaited) {
            return;
        }
        if self.agents_home.is_none() {
            self.agents_home = agents_home(&self.shared.memory);
        }
        let Some((home, at)) = &self.agents_home else { return };
        // With what is told to peers later in this turn.
        let news = Some(home.news()).filter(|news| self.awaited_news != Some(*news));
        let Some(news) = news else { return };
        self.awaited_news = Some(news);
        for (place, listener) in home.listeners() {
            if !self.awaited.insert(listener.id) {
                continue;
            }
            let table = Table::map_device(self.shared.memory.fd(), at + table_offset(place));
            if let Ok(table) = table {
                // Taken back with the table.
                std::mem::forget(table.connect_begins(AWAITED));
            }
        }
    }
}

/// As which region proposals are announced that may come.
const AWAITED: RegionId = 1;

/// The proposals of other hosts to a listener here.
pub(super) fn listeners_table(memory: &SharedMemory, to: SocketAddr) -> Option<Table> {
    let (home, at) = agents_home(memory)?;
    let wanted = Addr::from(to);
    let takes = |addr: &Addr, v6only: bool| {
        let any = addr.is_unspecified()
            && if addr.is_v4() { wanted.is_v4() } else { !(wanted.is_v4() && v6only) };
        addr.port == wanted.port && (any || addr.ip == wanted.ip)
    };
    let mut found = home.listeners();
    let (place, _) = found.find(|(_, listener)| takes(&listener.addr, listener.v6only))?;
    Table::map_device(memory.fd(), at + table_offset(place)).ok()
}
