//! What is served now: the configuration, its stores, and the ports at which hosts come in.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use shunt_nvme::subsystem;
use shunt_nvme::wire::discovery::{Record, SubsystemType};
use shunt_nvme::wire::log::AnaState;
use shunt_nvme::wire::{Nqn, nqn};

use crate::config::{ANA_STATES, Backing, Config, Host, Hosts, Subsystem};
use crate::control::report;
use crate::store::Store;
use crate::stores::Stores;

/// A namespace, as a host sees it.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// What keeps its blocks.
    pub store: Arc<dyn Store>,
    /// The host may map its memory.
    pub grant: bool,
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Served {
    pub config: Config,
    pub stores: Stores,
    /// What each namespace is to hosts.
    pub known: BTreeMap<(Nqn, u32), subsystem::NamespaceConfig>,
    /// Addresses at which hosts have come in, with the numbers of these ports. Those of the configuration are told to
    /// all hosts; others, behind a wildcard, to hosts that come in there.
    pub ports: BTreeMap<SocketAddr, u16>,
    pub listening: Vec<SocketAddr>,
}

impl Served {
    /// Nothing of a configuration.
    pub fn nothing(config: &Config) -> Self {
        Self {
            config: Config { subsystems: Vec::new(), ..config.clone() },
            stores: Stores::default(),
            known: BTreeMap::new(),
            ports: BTreeMap::new(),
            listening: Vec::new(),
        }
    }

    /// The number of a port, which it gets now if it has none.
    pub fn port(&mut self, address: SocketAddr) -> u16 {
        let next = u16::try_from(self.ports.len() + 1).unwrap_or(u16::MAX);
        *self.ports.entry(address).or_insert(next)
    }

    /// The states of all ANA groups that namespaces are in, on all ports: subsystem, port, group.
    pub fn ana_states(&self) -> Vec<(&Nqn, u16, u32, AnaState)> {
        let mut states = Vec::new();
        for subsystem in &self.config.subsystems {
            let mut groups: Vec<u32> = subsystem.namespaces.iter().map(|n| n.ana_group).collect();
            groups.sort_unstable();
            groups.dedup();
            for (address, port) in &self.ports {
                let state = |group: &u32| {
                    let state = subsystem.ana_state(*address, *group);
                    (&subsystem.nqn, *port, *group, state)
                };
                states.extend(groups.iter().map(state));
            }
        }
        states
    }

    /// The namespaces of a subsystem, as a host sees them.
    pub fn namespaces(&self, nqn: &Nqn, host: &Nqn) -> BTreeMap<u32, Namespace> {
        let found = self.config.subsystems.iter().find(|subsystem| subsystem.nqn == *nqn);
        let Some(subsystem) = found else { return BTreeMap::new() };
        let grant = match &subsystem.hosts {
            Hosts::Any => false,
            Hosts::Listed(hosts) => hosts.iter().any(|h| h.nqn == *host && h.grant),
        };
        let namespaces = subsystem.namespaces.iter().filter_map(|namespace| {
            let store = Arc::clone(self.stores.get(nqn, namespace.nsid)?);
            Some((namespace.nsid, Namespace { store, grant }))
        });
        namespaces.collect()
    }

    /// What there is to say of the subsystems, without their controllers.
    pub fn report(&self) -> Vec<report::Subsystem> {
        let states = self.ana_states();
        let of = |subsystem: &Subsystem| {
            let mut ana = Vec::new();
            for (nqn, port, group, state) in &states {
                let at = self.ports.iter().find(|(_, number)| *number == port);
                let name = ANA_STATES.iter().find(|(_, known)| known == state);
                if let (Some((at, _)), Some((name, _))) = (at, name)
                    && **nqn == subsystem.nqn
                    && *state != AnaState::Optimized
                {
                    ana.push(report::Ana { group: *group, at: *at, state: (*name).to_owned() });
                }
            }
            let namespaces = subsystem.namespaces.iter().filter_map(|namespace| {
                let geometry = self.stores.get(&subsystem.nqn, namespace.nsid)?.geometry();
                let (store, path) = match &namespace.store {
                    Backing::Null => ("null", None),
                    Backing::Memory => ("memory", None),
                    Backing::File { path, .. } => ("file", Some(path.clone())),
                };
                Some(report::Namespace {
                    nsid: namespace.nsid,
                    store: store.to_owned(),
                    path,
                    bytes: geometry.bytes(),
                    block_size: geometry.block.bytes(),
                    ana_group: namespace.ana_group,
                    read_only: namespace.read_only,
                })
            });
            let host = |host: &Host| report::Host {
                nqn: host.nqn.as_str().to_owned(),
                authenticates: host.key.is_some(),
                grant: host.grant,
            };
            report::Subsystem {
                nqn: subsystem.nqn.as_str().to_owned(),
                hosts: match &subsystem.hosts {
                    Hosts::Any => None,
                    Hosts::Listed(hosts) => Some(hosts.iter().map(host).collect()),
                },
                namespaces: namespaces.collect(),
                ana,
                controllers: Vec::new(),
            }
        };
        self.config.subsystems.iter().map(of).collect()
    }

    /// The discovery log: every subsystem at every address, and other discovery services. With each record the port on
    /// which it is told, or 0 for all.
    pub fn records(&self, queue_depth: u16) -> Vec<(u16, Record)> {
        let record = |kind, nqn: &Nqn, address, portid| Record {
            kind,
            subnqn: nqn.clone(),
            address,
            portid,
            max_admin_queue: queue_depth,
        };
        let mut records = Vec::new();
        for (address, portid) in &self.ports {
            let named = self.listening.contains(address);
            let behind = |l: &SocketAddr| l.ip().is_unspecified() && l.port() == address.port();
            if !named && !self.listening.iter().any(behind) {
                continue;
            }
            let told_at = if named { 0 } else { *portid };
            let of = |s: &Subsystem| record(SubsystemType::Nvm, &s.nqn, *address, *portid);
            records.extend(self.config.subsystems.iter().map(|s| (told_at, of(s))));
        }
        let discovery = Nqn::new(nqn::DISCOVERY);
        for referral in &self.config.referrals {
            let nqn = referral.nqn.as_ref().or(discovery.as_ref().ok());
            if let Some(nqn) = nqn {
                records.push((0, record(SubsystemType::Referral, nqn, referral.address, 0)));
            }
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn served(listening: &[&str], hosts: &[&str]) -> Served {
        let text = "listen = [\"10.0.0.1:4420\", \"0.0.0.0:4421\"]\n\
                    [[referral]]\naddress = \"10.0.0.9:8009\"\n\
                    [[subsystem]]\nnqn = \"nqn.2024-01.org.example:a\"\n\
                    hosts = [{ nqn = \"nqn.2024-01.org.example:trusted\", grant = true }, { nqn = \"nqn.2024-01.org.example:other\" }]\n\
                    [[subsystem.ana]]\ngroup = 2\nstate = \"inaccessible\"\n\
                    [[subsystem.ana]]\ngroup = 2\nat = \"10.0.0.1:4420\"\nstate = \"non-optimized\"\n\
                    [[subsystem.namespace]]\nstore = \"memory\"\nsize = 4096\n\
                    [[subsystem.namespace]]\nstore = \"memory\"\nsize = 4096\nana-group = 2\n";
        let config = Config::parse(Path::new("test"), text).unwrap();
        let stores = Stores::open(&config).unwrap();
        let mut served = Served { stores, ..Served::nothing(&config) };
        served.config = config;
        served.listening = listening.iter().map(|address| address.parse().unwrap()).collect();
        for address in hosts {
            served.port(address.parse().unwrap());
        }
        served
    }

    fn name(last: &str) -> Nqn {
        Nqn::new(&format!("nqn.2024-01.org.example:{last}")).unwrap()
    }

    #[test]
    fn ports_keep_their_numbers() {
        let mut served = served(&[], &["10.0.0.1:4420", "10.0.0.2:4421"]);
        assert_eq!(served.port("10.0.0.1:4420".parse().unwrap()), 1);
        assert_eq!(served.port("10.0.0.2:4421".parse().unwrap()), 2);
        assert_eq!(served.port("10.0.0.3:4421".parse().unwrap()), 3);
    }

    #[test]
    fn addresses_behind_a_wildcard_are_told_to_hosts_that_come_in_there() {
        let listening = ["10.0.0.1:4420", "0.0.0.0:4421"];
        let served = served(&listening, &["10.0.0.1:4420", "10.0.0.2:4421", "10.0.0.3:9999"]);
        let records = served.records(128);
        let told: Vec<_> = records.iter().map(|(at, r)| (*at, r.address.to_string())).collect();
        // That of 10.0.0.3 is no address of the configuration any more.
        assert_eq!(
            told,
            [
                (0, "10.0.0.1:4420".to_owned()),
                (2, "10.0.0.2:4421".to_owned()),
                (0, "10.0.0.9:8009".to_owned())
            ]
        );
    }

    #[test]
    fn memory_may_be_mapped_by_hosts_that_are_named_for_it() {
        let served = served(&[], &[]);
        for (host, grant) in [("trusted", true), ("other", false)] {
            let found = served.namespaces(&name("a"), &name(host));
            assert_eq!(found.len(), 2, "{host}");
            assert!(found.values().all(|namespace| namespace.grant == grant), "{host}");
        }
        assert!(served.namespaces(&name("b"), &name("trusted")).is_empty());
    }

    #[test]
    fn a_state_for_an_address_goes_before_that_for_all() {
        let served = served(&[], &["10.0.0.1:4420", "10.0.0.2:4421"]);
        let states: Vec<_> =
            served.ana_states().into_iter().map(|(_, p, g, s)| (p, g, s)).collect();
        assert_eq!(
            states,
            [
                (1, 1, AnaState::Optimized),
                (1, 2, AnaState::NonOptimized),
                (2, 1, AnaState::Optimized),
                (2, 2, AnaState::Inaccessible),
            ]
        );
    }
}
