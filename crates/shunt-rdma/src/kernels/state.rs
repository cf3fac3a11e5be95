//! What there is of connections to servers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use shunt_far::kernel::Reset;
use shunt_wire::agent::RegionId;

use super::groups::{At, Groups};
use super::servers::Servers;
use super::socket::Socket;
use super::talk::Talk;
use crate::machine::Machine;
use crate::mirror::{Bells, Place};
use crate::reach::Reach;
use crate::report::ServerReport;

/// What there is of them.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) servers: Servers,
    /// What wakes programs.
    pub(crate) bells: Arc<Bells>,
    /// Their member; `None`: there is no device.
    pub(crate) machine: Option<Machine>,
    /// Sockets of connections that are about to be proposed, by their places.
    pub(crate) passed: BTreeMap<(RegionId, usize), Socket>,
    /// Connections on their way, by a number.
    pub(crate) talks: BTreeMap<u64, Talk>,
    pub(crate) groups: Groups,
    /// What has become of connections, by the names of their servers.
    pub(crate) tallies: BTreeMap<Reach, Tally>,
    /// Connections that were declined, which may have been ending just then: until when to look.
    pub(crate) declined: Vec<(Place, u32, Duration)>,
    /// When to look whether programs still want their connections.
    pub(crate) look_at: Duration,
    next: u64,
}

/// What has become of connections to a server.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    agreed: u64,
    declined: u64,
    failed: u64,
    reset: u64,
    why: Option<String>,
}

impl Kernels {
    /// Counts a connection to a server, and why it is as it is.
    fn counts(
        &mut self,
        server: SocketAddr,
        why: Option<String>,
        count: fn(&mut Tally) -> &mut u64,
    ) {
        let Some(reach) = self.servers.of(server) else { return };
        let tally = self.tallies.entry(reach).or_default();
        *count(tally) += 1;
        if let Some(why) = why {
            tally.why = Some(if reach.is_wide() { format!("{server}: {why}") } else { why });
        }
    }

    pub(crate) fn has_agreed(&mut self, server: SocketAddr) {
        self.counts(server, None, |tally| &mut tally.agreed);
    }

    pub(crate) fn has_declined(&mut self, server: SocketAddr, why: String) {
        self.counts(server, Some(why), |tally| &mut tally.declined);
    }

    pub(crate) fn has_failed(&mut self, server: SocketAddr, why: String) {
        self.counts(server, Some(why), |tally| &mut tally.failed);
    }

    /// A connection over SMC-R was reset; to which server.
    pub(crate) fn has_reset(&mut self, at: At, why: Reset) -> Option<SocketAddr> {
        let server = self.groups.lanes().find(|(of, _)| *of == at)?.1.server;
        self.counts(server, Some(why.to_string()), |tally| &mut tally.reset);
        Some(server)
    }

    /// What is known of servers, by their names.
    pub(crate) fn report(&self) -> Vec<ServerReport> {
        let report = |reach: &Reach| {
            let none = Tally::default();
            let tally = self.tallies.get(reach).unwrap_or(&none);
            let is_its = |server: SocketAddr| self.servers.of(server) == Some(*reach);
            let of_it = self.groups.lanes().filter(|(_, lane)| is_its(lane.server)).count();
            let talks = self.talks.values().filter(|talk| is_its(talk.server) && talk.at.is_some());
            ServerReport {
                at: reach.to_string(),
                connections: of_it.saturating_sub(talks.count()),
                connections_total: tally.agreed,
                declined_total: tally.declined,
                failed_total: tally.failed,
                reset_total: tally.reset,
                reason: tally.why.clone(),
            }
        };
        self.servers.at.iter().map(report).collect()
    }

    pub(crate) fn new(servers: Servers, bells: Arc<Bells>) -> Self {
        Self {
            servers,
            bells,
            machine: None,
            passed: BTreeMap::new(),
            talks: BTreeMap::new(),
            groups: Groups::default(),
            tallies: BTreeMap::new(),
            declined: Vec::new(),
            look_at: Duration::ZERO,
            next: 0,
        }
    }

    pub(crate) fn talks_with(&mut self, talk: Talk) -> u64 {
        self.next += 1;
        self.talks.insert(self.next, talk);
        self.next
    }
}
