//! The policy in force: it decides which listeners programs find and which peers they are shunted
//! with. The registries show it.

use std::io;
use std::rc::Rc;

use shunt_shm::registry::{Registry, Scope};
use tracing::{info, warn};

use super::{Endpoint, Host, Listener, State};
use crate::held::Held;
use crate::party::Party;
use crate::policy::{End, Policy, Question};

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
        writer.set_wake_ups(self.registries.wake_ups);
        if let Err(why) = writer.tell_of_our_end() {
            warn!("programs will look for killed peers themselves, once a second: {why}");
        }
        // Held by workers who are of another party by now.
        for (listener, known) in self.listeners.iter().filter(|(_, l)| l.name.party == party) {
            writer.publish(&known.name.listing(*listener));
        }
        for listing in self.registries.remote.values() {
            writer.publish(listing);
        }
        let fd = Rc::new(Held::own(fd));
        self.registries.known.insert(party, (writer, Rc::clone(&fd)));
        Ok(fd)
    }

    /// What wake-ups take on this machine, in nanoseconds, for programs that come from now on.
    pub fn set_wake_ups(&mut self, nanos: [u32; 2]) {
        self.registries.wake_ups = nanos;
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
