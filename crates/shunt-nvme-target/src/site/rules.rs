//! A configuration in the words of the rules.

use shunt_nvme::subsystem::{self, NamespaceConfig, SubsystemConfig};
use shunt_nvme::wire::Nqn;

use crate::config::{Host, Hosts, Limits, Namespace, Subsystem};
use crate::store::Store;

/// The revision that controllers report: the version of this program.
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// The bounds.
pub(super) fn limits(limits: &Limits) -> subsystem::Limits {
    subsystem::Limits {
        controllers: u16::try_from(limits.connections).unwrap_or(u16::MAX),
        io_queues: limits.queues,
        queue_depth: limits.queue_depth,
        max_transfer: limits.transfer,
        in_capsule: limits.in_capsule,
        ..subsystem::Limits::default()
    }
}

/// A subsystem.
pub(super) fn subsystem(subsystem: &Subsystem) -> SubsystemConfig {
    let hosts = match &subsystem.hosts {
        Hosts::Any => subsystem::Hosts::Any,
        Hosts::Listed(hosts) => {
            subsystem::Hosts::Listed(hosts.iter().map(|h| (h.nqn.clone(), keys(h))).collect())
        }
    };
    SubsystemConfig {
        nqn: subsystem.nqn.clone(),
        serial: subsystem.serial.clone(),
        model: subsystem.model.clone(),
        firmware: FIRMWARE.to_owned(),
        hosts,
    }
}

fn keys(host: &Host) -> Option<subsystem::Keys> {
    host.key.as_ref().map(|key| subsystem::Keys {
        host: key.secret().clone(),
        controller: host.controller_key.as_ref().map(|key| key.secret().clone()),
    })
}

/// A namespace whose blocks this store has.
pub(super) fn namespace(namespace: &Namespace, store: &dyn Store) -> NamespaceConfig {
    let geometry = store.geometry();
    NamespaceConfig {
        blocks: geometry.blocks,
        block_shift: geometry.block.shift(),
        uuid: namespace.identity.uuid,
        nguid: namespace.identity.nguid.unwrap_or_default(),
        ana_group: namespace.ana_group,
        read_only: store.is_read_only(),
        write_cache: store.has_volatile_cache(),
        deallocate: true,
        preferred_write: 0,
    }
}

/// Hosts that could map memory of a subsystem, and may not any more.
pub(super) fn no_more_granted<'a>(before: &'a Subsystem, now: &Subsystem) -> Vec<&'a Nqn> {
    let granted = |subsystem: &'a Subsystem| match &subsystem.hosts {
        Hosts::Any => &[][..],
        Hosts::Listed(hosts) => hosts,
    };
    let still = |nqn: &Nqn| match &now.hosts {
        Hosts::Any => false,
        Hosts::Listed(hosts) => hosts.iter().any(|host| host.grant && host.nqn == *nqn),
    };
    let lost = granted(before).iter().filter(|host| host.grant && !still(&host.nqn));
    lost.map(|host| &host.nqn).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn of(hosts: &str) -> Subsystem {
        let text = format!(
            "listen = [\"127.0.0.1:0\"]\n[[subsystem]]\nnqn = \"nqn.2024-01.a\"\nhosts = {hosts}\n"
        );
        Config::parse(Path::new("test"), &text).unwrap().subsystems.remove(0)
    }

    #[test]
    fn grants_that_are_taken_back() {
        let granted = of("[{ nqn = \"nqn.2024-01.h\", grant = true }]");
        let not = of("[{ nqn = \"nqn.2024-01.h\" }]");
        assert_eq!(no_more_granted(&granted, &not), [&Nqn::new("nqn.2024-01.h").unwrap()]);
        assert_eq!(no_more_granted(&granted, &of("\"any\"")).len(), 1);
        assert!(no_more_granted(&granted, &granted).is_empty());
        assert!(no_more_granted(&not, &granted).is_empty());
    }
}
