//! What concerns agents of other hosts.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketType};
use serde_json::{Map, Value};
use shunt_rdma::kernels::Servers;
use shunt_rdma::report::{PeerState, Promotion};
use shunt_rdma::{PeerName, Plane, Promote, StartError};
use shunt_sys::bpf::SmcMarks;
use shunt_sys::{cgroup, sockinfo};
use tracing::{info, warn};

use super::State;
use crate::hosts::Hosts;
use crate::smc_section::SmcSection;

/// Sockets that may be marked at a time: each is for as long as it connects.
const SOCKETS: u32 = 4096;

impl State {
    /// Begins to hear agents of other hosts: those of the command line, and those that the policy names.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn hear_peers(
        &mut self,
        mut config: shunt_rdma::Config,
        promote: Option<Promote>,
    ) -> Result<(), StartError> {
        config.peers = self.peers_with(&config.peers);
        config.promote = self.promote_by(promote);
        config.servers = self.smc_servers();
        self.plane = Some(Plane::start(config)?);
        self.listeners_changed = true;
        Ok(())
    }

    /// Servers that speak the kernel's SMC-R, as the policy names them. `None`: there are none, or they cannot be asked.
    fn smc_servers(&mut self) -> Option<Servers> {
        let host = self.host.as_ref()?;
        let SmcSection { server, eid } = host.policy.smc().clone();
        if server.is_empty() {
            return None;
        }
        let group = cgroup::root().ok_or(io::ErrorKind::NotFound);
        let marks = group.map_err(io::Error::from).and_then(|group| {
            let group = host.config.cgroup.clone().unwrap_or(group);
            SmcMarks::attach(File::open(group)?.as_fd(), SOCKETS)
        });
        match marks {
            Ok(marks) => {
                let marks = Arc::new(marks);
                self.smc_marks = Some(Arc::clone(&marks));
                Some(Servers { at: server, eids: eid, marks })
            }
            Err(why) => {
                warn!(
                    "connections to servers with SMC-R stay on TCP: a SYN cannot be marked ({why})"
                );
                None
            }
        }
    }

    /// Has programs find those of other hosts. `heed` is given what is readable when there is news of them.
    ///
    /// # Errors
    /// As for [`Self::share`].
    pub(crate) fn share_with_hosts(
        &mut self,
        heed: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(plane) = &self.plane else { return Ok(()) };
        let memory = plane.memory();
        self.is_shared_with_hosts = true;
        self.share(Box::new(Hosts(memory)), heed)
    }

    /// Takes leave of agents of other hosts: connections to programs there go back to TCP, while programs here still have what leads to
    /// them.
    pub(crate) fn part_with_peers(&mut self) {
        self.plane = None;
    }

    /// Those of the command line, and those of the policy in force.
    fn peers_with(&self, named: &[PeerName]) -> Vec<PeerName> {
        let policy = self.host.iter().flat_map(|host| host.policy.rdma().peers());
        let others = policy.filter(|peer| !named.contains(peer));
        named.iter().chain(others).cloned().collect()
    }

    /// When connections are promoted: by the command line, else by the policy in force.
    fn promote_by(&self, named: Option<Promote>) -> Promote {
        let policy = || self.host.as_ref().and_then(|host| host.policy.rdma().promote);
        named.or_else(policy).unwrap_or_default()
    }

    /// Goes on with the peers of a policy that was read anew, and by its rule for promotion.
    pub(crate) fn reload_peers(&self, named: &[PeerName], promote: Option<Promote>) {
        let Some(plane) = &self.plane else {
            if self.host.as_ref().is_some_and(|host| host.policy.rdma().device.is_some()) {
                info!("a device is opened when an agent starts: start it anew to have peers");
            }
            return;
        };
        plane.set_promote(self.promote_by(promote));
        if let Err(why) = plane.set_peers(self.peers_with(named)) {
            warn!("{why}; the peers before it stay");
        }
    }

    /// Tells the peers of listeners that have come and gone: those in this agent's network, which others can reach.
    ///
    /// # Errors
    /// There is no descriptor to look at this network by; it is tried again.
    pub(crate) fn tell_peers(&mut self) -> io::Result<()> {
        let Some(plane) = self.plane.as_ref().filter(|_| self.listeners_changed) else {
            return Ok(());
        };
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        let here = sockinfo::netns_cookie(&socket);
        let listeners = self.listeners.values().filter(|known| known.name.netns == here);
        plane.set_listeners(listeners.map(|known| known.name.addr.into()).collect());
        self.listeners_changed = false;
        Ok(())
    }

    /// For `Status`; null: no peers are heard.
    pub(crate) fn describe_peers(&self) -> Value {
        let report = self.plane.as_ref().and_then(Plane::report);
        let mut value = report.and_then(|it| serde_json::to_value(it).ok()).unwrap_or_default();
        if let Some(fabric) = self.fabric.as_ref().filter(|_| self.is_shared_with_hosts) {
            let shared = fabric.describe();
            value["reachable"] = shared["reachable"].clone();
            value["regions"] = shared["link_groups"].clone();
        }
        value
    }

    /// How many peers are in each state.
    pub(crate) fn count_peers(&self) -> [(PeerState, usize); 4] {
        let report = self.plane.as_ref().and_then(Plane::report);
        PeerState::ALL.map(|state| (state, report.as_ref().map_or(0, |report| report.count(state))))
    }

    /// With how many peers connections are promoted, or why not.
    pub(crate) fn count_promotion(&self) -> [(Promotion, usize); 5] {
        let report = self.plane.as_ref().and_then(Plane::report);
        let count = |of| report.as_ref().map_or(0, |report| report.count_promotion(of));
        Promotion::ALL.map(|of| (of, count(of)))
    }

    /// The same, for `Stats`; `None`: no peers are heard.
    pub(crate) fn promotion_counts(&self) -> Option<Value> {
        self.plane.as_ref()?;
        let counts = self.count_promotion().map(|(of, count)| (of.name().to_owned(), count.into()));
        Some(Value::Object(Map::from_iter(counts)))
    }

    /// The same, for `Stats`; `None`: no peers are heard.
    pub(crate) fn peer_counts(&self) -> Option<Value> {
        self.plane.as_ref()?;
        let counts =
            self.count_peers().map(|(state, count)| (state.name().to_owned(), count.into()));
        Some(Value::Object(Map::from_iter(counts)))
    }
}
