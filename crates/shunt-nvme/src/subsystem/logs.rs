//! Get Log Page (Base 5.16).

use super::{
    controller::{Controller, ERROR_ENTRIES},
    reply::Reply,
    session::Session,
    target::{Subsystem, Target},
};
use crate::{
    controller::Transfer,
    wire::{
        Sqe, Status,
        discovery::{self, SubsystemType},
        log::{self, AnaDescriptor, EFFECT_CHANGES_BLOCKS, EFFECT_SUPPORTED, GetLogPage, lid},
        opcode::{admin, io},
    },
};
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

/// Pages of a controller of a subsystem, and of a discovery controller.
const PAGES: [u8; 8] = [
    lid::SUPPORTED,
    lid::ERROR,
    lid::SMART,
    lid::FIRMWARE,
    lid::CHANGED_NAMESPACES,
    lid::EFFECTS,
    lid::ANA,
    lid::RESERVATION,
];
const DISCOVERY_PAGES: [u8; 3] = [lid::SUPPORTED, lid::ERROR, lid::DISCOVERY];

/// Commands with their effects.
const ADMIN_COMMANDS: [(u8, u32); 7] = [
    (admin::GET_LOG_PAGE, 0),
    (admin::IDENTIFY, 0),
    (admin::ABORT, 0),
    (admin::SET_FEATURES, 0),
    (admin::GET_FEATURES, 0),
    (admin::ASYNC_EVENT, 0),
    (admin::KEEP_ALIVE, 0),
];
const IO_COMMANDS: [(u8, u32); 11] = [
    (io::FLUSH, 0),
    (io::WRITE, EFFECT_CHANGES_BLOCKS),
    (io::READ, 0),
    (io::COMPARE, 0),
    (io::WRITE_ZEROES, EFFECT_CHANGES_BLOCKS),
    (io::DATASET_MANAGEMENT, EFFECT_CHANGES_BLOCKS),
    (io::VERIFY, 0),
    (io::RESERVATION_REGISTER, 0),
    (io::RESERVATION_REPORT, 0),
    (io::RESERVATION_ACQUIRE, 0),
    (io::RESERVATION_RELEASE, 0),
];

impl Session {
    pub(super) fn get_log_page(
        &self,
        target: &mut Target,
        sqe: &Sqe,
        transfer: Transfer,
    ) -> Result<Reply, Status> {
        let page = GetLogPage::of(sqe);
        let invalid = Status::INVALID_FIELD.dnr();
        let controller = self.controller(target)?;
        let pages: &[u8] = if controller.is_discovery() { &DISCOVERY_PAGES } else { &PAGES };
        if !pages.contains(&page.lid) {
            return Err(Status::INVALID_LOG_PAGE.dnr());
        }
        if page.by_index || !page.offset.is_multiple_of(4) {
            return Err(invalid);
        }
        let log = match (page.lid, target.subsystem_of(controller)) {
            (lid::SUPPORTED, _) => {
                let mut log = vec![0; 1024];
                for page in pages {
                    log[usize::from(*page) * 4] = 1;
                }
                log
            }
            (lid::ERROR, _) => {
                let entries = controller.errors.iter();
                let mut log: Vec<u8> =
                    entries.flat_map(|entry| entry.as_bytes().iter().copied()).collect();
                log.resize(ERROR_ENTRIES * size_of::<log::ErrorEntry>(), 0);
                log
            }
            (lid::DISCOVERY, _) => discovery_log(target, controller),
            (lid::SMART, Some(subsystem)) => {
                let mut smart = subsystem.health;
                smart.error_entries = u128::from(controller.error_count()).into();
                smart.as_bytes().to_vec()
            }
            (lid::FIRMWARE, Some(subsystem)) => {
                let mut log = vec![0; 512];
                // Slot 1 is active, and has this revision.
                log[0] = 1;
                let revision: [u8; 8] = crate::wire::identify::padded(&subsystem.config.firmware);
                log[8..16].copy_from_slice(&revision);
                log
            }
            (lid::CHANGED_NAMESPACES, _) => {
                let list = controller.changed_list();
                let mut log: Vec<u8> = list.iter().flat_map(|nsid| nsid.to_le_bytes()).collect();
                log.resize(4096, 0);
                log
            }
            (lid::EFFECTS, _) => effects(),
            (lid::ANA, Some(subsystem)) => ana(subsystem, controller.port, page.lsp & 1 != 0),
            (lid::RESERVATION, _) => controller.reservation_page().as_bytes().to_vec(),
            _ => return Err(invalid),
        };
        let start = usize::try_from(page.offset).unwrap_or(usize::MAX);
        let mut data = log.get(start..).ok_or(invalid)?.to_vec();
        // Not more than the command's data, which has a limit. Behind the page's end are zeroes.
        let len = page.len.min(u64::from(transfer.len()));
        data.resize(usize::try_from(len).unwrap_or(0), 0);
        if !page.retain {
            let cntlid = self.cntlid;
            let controller = self.controller_mut(target)?;
            if page.lid == lid::CHANGED_NAMESPACES {
                controller.forget_changes();
            } else if page.lid == lid::RESERVATION {
                controller.reservation_page_was_read();
            }
            let notice = controller.log_was_read(cntlid, page.lid);
            target.notices.extend(notice);
        }
        Ok(Reply::data(data))
    }
}

fn effects() -> Vec<u8> {
    let mut log = vec![0; 4096];
    for (base, commands) in [(0, &ADMIN_COMMANDS[..]), (1024, &IO_COMMANDS[..])] {
        for (opcode, effect) in commands {
            let at = base + usize::from(*opcode) * 4;
            log[at..at + 4].copy_from_slice(&(EFFECT_SUPPORTED | effect).to_le_bytes());
        }
    }
    log
}

fn ana(subsystem: &Subsystem, port: u16, groups_only: bool) -> Vec<u8> {
    let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (nsid, namespace) in &subsystem.namespaces {
        groups.entry(namespace.config.ana_group).or_default().push(*nsid);
    }
    let groups: Vec<AnaDescriptor> = groups
        .into_iter()
        .map(|(group, namespaces)| AnaDescriptor {
            group,
            state: subsystem.ana_state(port, group) as u8,
            namespaces,
        })
        .collect();
    log::ana(subsystem.ana_changes, &groups, groups_only)
}

/// What the host may know of: subsystems that allow it, and referrals.
fn discovery_log(target: &Target, controller: &Controller) -> Vec<u8> {
    let records: Vec<_> = target
        .records
        .iter()
        .filter(|(port, record)| {
            let allowed = record.kind != SubsystemType::Nvm
                || target
                    .subsystems
                    .get(&record.subnqn)
                    .is_none_or(|subsystem| subsystem.config.hosts.allow(&controller.host));
            (*port == 0 || *port == controller.port) && allowed
        })
        .map(|(_, record)| record.clone())
        .collect();
    discovery::log(target.discovery_generation, &records)
}
