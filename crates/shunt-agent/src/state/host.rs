//! What an agent for the host has besides: a policy, marks, and a registry for each party.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use shunt_shm::registry::{Listing, Registry, RegistryWriter, Scope};
use shunt_sys::bpf::Marks;
use shunt_sys::cgroup;
use shunt_wire::agent::ListenerId;
use tracing::{info, warn};

use super::listeners::Listener;
use super::offers::Offers;
use super::{Endpoint, State};
use crate::config::HostConfig;
use crate::held::Held;
use crate::party::Party;
use crate::policy::{End, Policy, Question};

/// Offers that there can be at a time, and listeners.
const MARKS: u32 = 1 << 16;

/// Why this process cannot be the agent of the host.
#[derive(Debug)]
pub enum HostError {
    /// It is not root.
    NotRoot,
    /// A control group was named that cannot be used.
    Group(std::path::PathBuf, io::Error),
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRoot => f.write_str(
                "an agent for the whole host has to be root: it looks at the processes of all users; \
                 start it as root, or leave out --host for an agent of your own",
            ),
            Self::Group(path, e) => write!(
                f,
                "the connections of the control group {} cannot be marked: {e}; name a directory of \
                 the unified hierarchy, or leave out --cgroup",
                path.display()
            ),
        }
    }
}

impl std::error::Error for HostError {}

/// See the module.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) policy: Policy,
    config: HostConfig,
    /// `None`: connections cannot be marked.
    pub(super) marks: Option<Marks>,
    pub(super) offers: Offers,
}

impl Host {
    pub(super) fn new(config: &HostConfig) -> Result<Self, HostError> {
        if !rustix::process::geteuid().is_root() {
            return Err(HostError::NotRoot);
        }
        let marks = match (attach(config), &config.cgroup) {
            (Ok(marks), _) => Some(marks),
            (Err(e), Some(group)) => return Err(HostError::Group(group.clone(), e)),
            (Err(e), None) => {
                warn!(
                    "connections cannot be marked ({e}): those between users, containers and network \
                     namespaces stay on TCP"
                );
                None
            }
        };
        let policy = config.policy.clone();
        Ok(Self { policy, config: config.clone(), marks, offers: Offers::default() })
    }

    fn scope(&self) -> Scope {
        if self.marks.is_some() { Scope::Marked } else { Scope::Unmarked }
    }
}

fn attach(config: &HostConfig) -> io::Result<Marks> {
    let unified = || cgroup::root().ok_or(io::ErrorKind::NotFound);
    let group = config.cgroup.clone().map_or_else(unified, Ok)?;
    // So that the marks of other hosts, and of an earlier agent, are not taken for ours.
    let random = std::hash::RandomState::new().build_hasher().finish();
    #[allow(clippy::cast_possible_truncation, reason = "any part of it")]
    Marks::attach(File::open(group)?.as_fd(), random as u32, MARKS, MARKS)
}

/// The registries, each for one party.
#[derive(Debug, Default)]
pub(super) struct Registries {
    known: HashMap<Party, (RegistryWriter, Rc<Held>)>,
    /// Listeners of other machines, which stand in each of them.
    elsewhere: HashMap<ListenerId, Listing>,
    /// Which memory is shared with those machines.
    memory: u32,
}

impl Registries {
    /// Enters a listener in that of its own party; `false` when there is no room.
    pub(super) fn publish(&mut self, party: Party, listing: &Listing) -> bool {
        // Without one there is nobody to see it.
        self.known.get_mut(&party).is_none_or(|(writer, _)| writer.publish(listing))
    }

    /// Takes it out.
    pub(super) fn remove(&mut self, party: Party, listener: ListenerId) {
        if let Some((writer, _)) = self.known.get_mut(&party) {
            writer.remove(listener);
        }
    }

    /// Enters a listener of another machine. Where there is no room, its connections stay on TCP.
    pub(super) fn publish_everywhere(&mut self, listing: Listing) {
        for (writer, _) in self.known.values_mut() {
            writer.publish(&listing);
        }
        self.elsewhere.insert(listing.listener, listing);
    }

    /// Takes it out.
    pub(super) fn remove_everywhere(&mut self, listener: ListenerId) {
        self.elsewhere.remove(&listener);
        for (writer, _) in self.known.values_mut() {
            writer.remove(listener);
        }
    }

    /// Another memory is shared with other machines.
    pub(super) fn another_memory(&mut self) {
        self.memory = self.memory.wrapping_add(1);
        for (writer, _) in self.known.values_mut() {
            writer.set_memory(self.memory);
        }
    }

    /// No program of this party is left.
    pub(super) fn forget(&mut self, party: Party) {
        self.known.remove(&party);
    }
}

impl State {
    /// The registry of a party, to be read.
    pub(super) fn registry_of(&mut self, party: Party) -> io::Result<Rc<Held>> {
        if let Some((_, fd)) = self.registries.known.get(&party) {
            return Ok(Rc::clone(fd));
        }
        let (mut writer, fd) = Registry::create()?;
        if let Some(host) = &self.host {
            writer.set_scope(host.scope(), &host.policy.networks());
        }
        writer.set_memory(self.registries.memory);
        // Held by workers who are of another party by now.
        for (listener, known) in self.listeners.iter().filter(|(_, l)| l.name.party == party) {
            writer.publish(&known.name.listing(*listener));
        }
        for listing in self.registries.elsewhere.values() {
            writer.publish(listing);
        }
        let fd = Rc::new(Held::own(fd));
        self.registries.known.insert(party, (writer, Rc::clone(&fd)));
        Ok(fd)
    }

    /// For whom the agent is, as `Status` says it.
    pub(crate) fn scope_name(&self) -> &'static str {
        match self.host.as_ref().map_or(Scope::User, Host::scope) {
            Scope::User => "user",
            Scope::Marked => "host",
            Scope::Unmarked => "host-unmarked",
        }
    }

    /// Reads the policy anew. What is shunted stays so.
    pub fn reload(&mut self) {
        let Some(host) = &mut self.host else { return };
        let Some(file) = &host.config.policy_file else { return };
        match Policy::load(file) {
            Ok(policy) => {
                host.policy = policy;
                info!("the policy {} is in force", file.display());
            }
            Err(why) => warn!("{why}; the one before it stays in force"),
        }
        let (scope, networks) = (host.scope(), host.policy.networks());
        for (writer, _) in self.registries.known.values_mut() {
            writer.set_scope(scope, &networks);
        }
    }

    /// Whether the policy lets a client connect to a listener of its own party.
    pub(super) fn policy_permits_listener(&self, client: &Endpoint, to: &Listener) -> bool {
        let holder = to.holders.keys().find_map(|holder| self.endpoints.get(holder));
        holder.is_none_or(|server| {
            self.policy_permits((client, client.netns), (server, to.name.netns), to.name.addr.port)
        })
    }

    /// Whether it lets these two have a connection, whose sockets are in these network namespaces.
    pub(super) fn policy_permits(
        &self,
        (client, here): (&Endpoint, u64),
        (server, there): (&Endpoint, u64),
        port: u16,
    ) -> bool {
        self.host.as_ref().is_none_or(|host| {
            host.policy.permits(&Question {
                client: end(client, here),
                server: end(server, there),
                port,
                same_party: client.origin.party == server.origin.party,
                same_network: here == there,
            })
        })
    }
}

fn end(endpoint: &Endpoint, netns: u64) -> End<'_> {
    // The number that people know is that of the process; a socket of it may be in another one.
    let namespace = if endpoint.netns == netns { endpoint.origin.network } else { 0 };
    End { uid: endpoint.origin.party.uid, cgroup: &endpoint.origin.cgroup, namespace }
}
