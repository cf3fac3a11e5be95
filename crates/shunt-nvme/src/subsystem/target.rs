//! A target: its subsystems, and the controllers of hosts.

use super::{
    config::{Limits, MAX_CNTLID, NamespaceConfig, SubsystemConfig},
    controller::Controller,
    notice::Notice,
    reservation::Reservations,
};
use crate::wire::{
    Nqn,
    discovery::Record,
    identify::{EVENT_ANA_CHANGE, EVENT_DISCOVERY_CHANGE, EVENT_NAMESPACE_ATTRIBUTE},
    log::{AnaState, Smart},
    nqn,
    reservation::Notification,
};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) config: NamespaceConfig,
    pub(super) reservations: Reservations,
}

#[derive(Debug)]
pub(super) struct Subsystem {
    pub(super) config: SubsystemConfig,
    pub(super) namespaces: BTreeMap<u32, Namespace>,
    /// States of ANA groups that are not optimized, by port and group.
    ana: BTreeMap<(u16, u32), AnaState>,
    pub(super) ana_changes: u64,
    pub(super) health: Smart,
}

impl Subsystem {
    pub(super) fn ana_state(&self, port: u16, group: u32) -> AnaState {
        self.ana.get(&(port, group)).copied().unwrap_or(AnaState::Optimized)
    }
}

/// Subsystems, and the controllers of hosts.
#[derive(Debug)]
pub struct Target {
    pub(super) limits: Limits,
    pub(super) subsystems: BTreeMap<Nqn, Subsystem>,
    pub(super) controllers: BTreeMap<u16, Controller>,
    /// Entries of the discovery log, by port; port 0 stands for all.
    pub(super) records: Vec<(u16, Record)>,
    pub(super) discovery_generation: u64,
    next_cntlid: u16,
    generation: u64,
    pub(super) notices: VecDeque<Notice>,
}

impl Target {
    /// A target without subsystems.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits: limits.clamped(),
            subsystems: BTreeMap::new(),
            controllers: BTreeMap::new(),
            records: Vec::new(),
            discovery_generation: 0,
            next_cntlid: 1,
            generation: 0,
            notices: VecDeque::new(),
        }
    }

    /// Adds a subsystem, or changes the one of that name: hosts, keys and texts. Controllers of hosts
    /// end that are not allowed any more, or have to prove who they are by another key than before.
    /// False if it can't have the name, which is that of the discovery subsystem.
    pub fn add_subsystem(&mut self, config: SubsystemConfig) -> bool {
        if config.nqn.as_str() == nqn::DISCOVERY {
            return false;
        }
        self.discovery_generation += 1;
        if let Some(subsystem) = self.subsystems.get_mut(&config.nqn) {
            let name = config.nqn.clone();
            let before = core::mem::replace(&mut subsystem.config, config).hosts;
            let hosts = &subsystem.config.hosts;
            let may_stay = |host: &Nqn| {
                let keys = hosts.keys(host);
                hosts.allow(host) && (keys.is_none() || keys == before.keys(host))
            };
            let refused = self.controllers.iter().filter(|(_, controller)| {
                controller.subsystem.as_ref() == Some(&name) && !may_stay(&controller.host)
            });
            let refused: Vec<u16> = refused.map(|(cntlid, _)| *cntlid).collect();
            for cntlid in refused {
                self.end(cntlid);
            }
        } else {
            let subsystem = Subsystem {
                namespaces: BTreeMap::new(),
                ana: BTreeMap::new(),
                ana_changes: 0,
                health: healthy(),
                config,
            };
            self.subsystems.insert(subsystem.config.nqn.clone(), subsystem);
        }
        true
    }

    /// Ends the controllers of a host. It may connect again if it is allowed.
    pub fn end_host(&mut self, name: &Nqn, host: &Nqn) {
        for cntlid in self.controllers_of(name) {
            if self.controllers.get(&cntlid).is_some_and(|controller| controller.host == *host) {
                self.end(cntlid);
            }
        }
    }

    /// Removes a subsystem and ends its controllers.
    pub fn remove_subsystem(&mut self, name: &Nqn) -> bool {
        let known = self.subsystems.remove(name).is_some();
        self.discovery_generation += 1;
        for cntlid in self.controllers_of(name) {
            self.end(cntlid);
        }
        known
    }

    /// Adds a namespace, or changes it: its size, for one. Its reservations stay. False without
    /// such a subsystem, with an identifier that none can have, or beyond the limit.
    pub fn add_namespace(&mut self, name: &Nqn, nsid: u32, config: NamespaceConfig) -> bool {
        let max = self.limits.namespaces;
        let Some(subsystem) = self.subsystems.get_mut(name) else { return false };
        if nsid == 0 || nsid > max || !config.is_valid() {
            return false;
        }
        match subsystem.namespaces.get_mut(&nsid) {
            Some(namespace) => namespace.config = config,
            None => {
                let reservations = Reservations::default();
                subsystem.namespaces.insert(nsid, Namespace { config, reservations });
            }
        }
        self.namespace_changed(name, nsid);
        true
    }

    /// Removes a namespace.
    pub fn remove_namespace(&mut self, name: &Nqn, nsid: u32) -> bool {
        let known = self
            .subsystems
            .get_mut(name)
            .is_some_and(|subsystem| subsystem.namespaces.remove(&nsid).is_some());
        if known {
            self.namespace_changed(name, nsid);
        }
        known
    }

    fn namespace_changed(&mut self, name: &Nqn, nsid: u32) {
        self.changed();
        for cntlid in self.controllers_of(name) {
            if let Some(controller) = self.controllers.get_mut(&cntlid) {
                controller.changed_namespace(nsid);
                self.notices.extend(controller.notify(cntlid, EVENT_NAMESPACE_ATTRIBUTE));
            }
        }
    }

    /// Tells a host of a reservation, on each of its controllers (Base 8.19).
    pub(super) fn reservation_changed(
        &mut self,
        name: &Nqn,
        nsid: u32,
        host: [u8; 16],
        what: Notification,
    ) {
        for cntlid in self.controllers_of(name) {
            if let Some(controller) = self.controllers.get_mut(&cntlid)
                && controller.hostid == host
            {
                self.notices.extend(controller.reservation_changed(cntlid, nsid, what));
            }
        }
    }

    /// Sets the ANA state of a group on a port (Base 8.1).
    pub fn set_ana(&mut self, name: &Nqn, port: u16, group: u32, state: AnaState) -> bool {
        let Some(subsystem) = self.subsystems.get_mut(name) else { return false };
        if subsystem.ana_state(port, group) == state {
            return true;
        }
        subsystem.ana.insert((port, group), state);
        subsystem.ana_changes += 1;
        self.generation += 1;
        for cntlid in self.controllers_of(name) {
            if let Some(controller) = self.controllers.get_mut(&cntlid)
                && controller.port == port
            {
                self.notices.extend(controller.notify(cntlid, EVENT_ANA_CHANGE));
            }
        }
        true
    }

    /// Sets what the SMART log of a subsystem says.
    pub fn set_health(&mut self, name: &Nqn, health: Smart) -> bool {
        self.subsystems.get_mut(name).map(|subsystem| subsystem.health = health).is_some()
    }

    /// Sets what the discovery log says: each record with the port on which it is told, or 0 for
    /// every port. Records of subsystems are told to hosts that they allow.
    pub fn set_discovery(&mut self, records: Vec<(u16, Record)>) {
        if self.records == records {
            return;
        }
        self.records = records;
        self.discovery_generation += 1;
        for (cntlid, controller) in &mut self.controllers {
            if controller.subsystem.is_none() {
                self.notices.extend(controller.notify(*cntlid, EVENT_DISCOVERY_CHANGE));
            }
        }
    }

    /// Changes whenever I/O commands may have to be planned otherwise than before: for those who
    /// keep a [`View`](super::View). A session's own view is to be taken after its Connect, too.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) const fn changed(&mut self) {
        self.generation += 1;
    }

    /// The next notice.
    pub fn poll(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// What a shutdown asked for is durable (Base 3.6).
    pub fn shutdown_complete(&mut self, cntlid: u16) {
        if let Some(controller) = self.controllers.get_mut(&cntlid) {
            controller.shutdown_complete();
        }
    }

    /// The command that [`Notice::Abort`] names was aborted, or could not be.
    pub fn aborted(&mut self, cntlid: u16, qid: u16, cid: u16, is_aborted: bool) {
        if let Some(controller) = self.controllers.get_mut(&cntlid) {
            self.notices.extend(controller.aborted(cntlid, (qid, cid), is_aborted));
        }
    }

    /// Ends controllers whose Keep Alive Timer has run out (Base 3.9).
    pub fn expire(&mut self, now: Duration) {
        let silent = |controller: &Controller| controller.deadline.is_some_and(|end| end <= now);
        let expired: Vec<u16> = self
            .controllers
            .iter()
            .filter(|(_, controller)| silent(controller))
            .map(|(cntlid, _)| *cntlid)
            .collect();
        for cntlid in expired {
            self.end(cntlid);
        }
    }

    /// When [`Target::expire`] has to be called next.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.controllers.values().filter_map(|controller| controller.deadline).min()
    }

    /// Controllers: identifier, subsystem (`None`: discovery), host, I/O queues.
    pub fn controllers(&self) -> impl Iterator<Item = (u16, Option<&Nqn>, &Nqn, usize)> {
        self.controllers.iter().map(|(cntlid, controller)| {
            let queues = controller.queues.range(1..).count();
            (*cntlid, controller.subsystem.as_ref(), &controller.host, queues)
        })
    }

    fn controllers_of(&self, name: &Nqn) -> Vec<u16> {
        let is_of = |controller: &Controller| controller.subsystem.as_ref() == Some(name);
        self.controllers
            .iter()
            .filter(|(_, controller)| is_of(controller))
            .map(|(cntlid, _)| *cntlid)
            .collect()
    }

    /// Ends a controller; its connections are the caller's to close.
    pub(super) fn end(&mut self, cntlid: u16) {
        if self.controllers.remove(&cntlid).is_some() {
            self.changed();
            self.notices.push_back(Notice::Ended { cntlid });
        }
    }

    /// A free controller identifier: not soon one that was in use.
    pub(super) fn free_cntlid(&mut self) -> Option<u16> {
        if self.controllers.len() >= usize::from(self.limits.controllers) {
            return None;
        }
        // Fewer controllers than identifiers: the search ends.
        loop {
            let cntlid = self.next_cntlid;
            self.next_cntlid = if cntlid >= MAX_CNTLID { 1 } else { cntlid + 1 };
            if !self.controllers.contains_key(&cntlid) {
                return Some(cntlid);
            }
        }
    }

    pub(super) fn subsystem_of(&self, controller: &Controller) -> Option<&Subsystem> {
        self.subsystems.get(controller.subsystem.as_ref()?)
    }
}

/// The SMART log of a subsystem that its owner has said nothing about.
fn healthy() -> Smart {
    let mut smart = Smart::zeroed();
    smart.temperature = 300.into();
    smart.available_spare = 100;
    smart.spare_threshold = 10;
    smart
}
