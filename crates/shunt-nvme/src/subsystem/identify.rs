//! Identify (Base 5.17, NVM 4.1.5).

use super::{
    admin::{DISCOVERY_EVENTS, EVENTS},
    config::{ANA_GROUPS, NamespaceConfig},
    controller::{ABORT_LIMIT, Controller, ERROR_ENTRIES},
    reply::Reply,
    request::MAX_FUSED,
    reservation::Reservations,
    session::Session,
    target::Target,
};
use crate::{
    controller::Transfer,
    wire::{
        Nqn, Sqe, Status,
        identify::{self, ControllerType, cns, nidt},
        nqn, registers,
    },
};
use zerocopy::{FromZeros, IntoBytes};

/// KAS: the granularity of KATO, in 100 ms.
const KEEP_ALIVE_GRANULARITY: u16 = 10;

/// ONCS: Compare, Dataset Management, Write Zeroes, Reservations, Verify.
const OPTIONAL_COMMANDS: u16 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 7;

impl Session {
    pub(super) fn identify(
        &self,
        target: &Target,
        sqe: &Sqe,
        transfer: Transfer,
    ) -> Result<Reply, Status> {
        let controller = self.controller(target)?;
        let [which, ..] = sqe.cdw10.get().to_le_bytes();
        let [.., csi] = sqe.cdw11.get().to_le_bytes();
        let nsid = sqe.nsid.get();
        let invalid = Status::INVALID_FIELD.dnr();
        let subsystem = target.subsystem_of(controller);
        let mut data = if which == cns::CONTROLLER {
            self.identify_controller(target, controller)?.as_bytes().to_vec()
        } else {
            // A discovery controller has no namespaces (Base 3.1.2.3).
            let subsystem = subsystem.ok_or(invalid)?;
            let find = || match subsystem.namespaces.get(&nsid) {
                None if nsid == 0 || nsid > target.limits.namespaces => {
                    Err(Status::INVALID_NAMESPACE.dnr())
                }
                found => Ok(found.map(|namespace| namespace.config)),
            };
            let active = || find()?.ok_or(invalid);
            let list = || {
                if nsid >= 0xffff_fffe {
                    return Err(Status::INVALID_NAMESPACE.dnr());
                }
                Ok(identify::namespace_list(subsystem.namespaces.keys().copied(), nsid))
            };
            match (which, csi) {
                (cns::NAMESPACE, _) => {
                    // Zeroes for one that is not active.
                    find()?
                        .map_or_else(identify::Namespace::zeroed, |config| namespace(&config))
                        .as_bytes()
                        .to_vec()
                }
                (cns::ACTIVE_NAMESPACES, _)
                | (cns::ACTIVE_NAMESPACES_OF_COMMAND_SET, identify::CSI_NVM) => list()?.to_vec(),
                (cns::NAMESPACE_DESCRIPTORS, _) => descriptors(&active()?).to_vec(),
                (cns::NAMESPACE_OF_COMMAND_SET, identify::CSI_NVM) => {
                    active()?;
                    vec![0; identify::LEN]
                }
                (cns::CONTROLLER_OF_COMMAND_SET, identify::CSI_NVM) => {
                    nvm_controller().as_bytes().to_vec()
                }
                (cns::NAMESPACE_INDEPENDENT, _) => find()?
                    .map_or_else(identify::IndependentNamespace::new_zeroed, |config| {
                        independent(&config)
                    })
                    .as_bytes()
                    .to_vec(),
                (cns::COMMAND_SETS, _) => {
                    let mut data = vec![0; identify::LEN];
                    // One combination: the NVM Command Set.
                    data[0] = 1;
                    data
                }
                _ => return Err(invalid),
            }
        };
        data.truncate(usize::try_from(transfer.len()).unwrap_or(0));
        Ok(Reply::data(data))
    }

    fn identify_controller(
        &self,
        target: &Target,
        controller: &Controller,
    ) -> Result<identify::Controller, Status> {
        let limits = &target.limits;
        let mut data = identify::Controller::zeroed();
        data.mdts = u8::try_from((limits.max_transfer / 4096).ilog2()).unwrap_or(0);
        data.cntlid = self.cntlid.into();
        data.ver = registers::VERSION.into();
        // Host identifiers have 128 bits; any command keeps the controller alive.
        data.ctratt = (1 << 0 | 1 << 6).into();
        data.aerl = limits.async_events - 1;
        data.lpa = 1 << 1 | 1 << 2;
        data.elpe = u8::try_from(ERROR_ENTRIES - 1).unwrap_or(0);
        data.frmw = 0b11;
        data.kas = KEEP_ALIVE_GRANULARITY.into();
        data.sqes = 0x66;
        data.cqes = 0x44;
        data.maxcmd = limits.queue_depth.into();
        // SGLs without alignment, offsets in the capsule, transport data blocks.
        data.sgls = (1 << 0 | 1 << 20 | 1 << 21).into();
        data.ioccsz = ((64 + limits.in_capsule) / 16).into();
        data.iorcsz = 1.into();
        data.msdbd = 1;
        data.ofcs = 1.into();
        let Some(subsystem) = target.subsystem_of(controller) else {
            data.sn = identify::padded("");
            data.mn = identify::padded("Shunt discovery");
            data.fr = identify::padded(env!("CARGO_PKG_VERSION"));
            data.cntrltype = ControllerType::Discovery as u8;
            data.oaes = DISCOVERY_EVENTS.into();
            if let Ok(name) = Nqn::new(nqn::DISCOVERY) {
                data.subnqn = name.field();
            }
            return Ok(data);
        };
        data.sn = identify::padded(&subsystem.config.serial);
        data.mn = identify::padded(&subsystem.config.model);
        data.fr = identify::padded(&subsystem.config.firmware);
        data.subnqn = subsystem.config.nqn.field();
        data.cntrltype = ControllerType::Io as u8;
        data.oaes = EVENTS.into();
        // Several ports, several controllers, ANA.
        data.cmic = 1 << 0 | 1 << 1 | 1 << 3;
        data.acl = ABORT_LIMIT;
        data.anatt = 10;
        data.anacap = 0x1f;
        data.anagrpmax = ANA_GROUPS.into();
        data.nanagrpid = ANA_GROUPS.into();
        data.nn = limits.namespaces.into();
        data.mnan = limits.namespaces.into();
        data.oncs = OPTIONAL_COMMANDS.into();
        data.fuses = 1.into();
        data.acwu = u16::try_from(MAX_FUSED - 1).unwrap_or(0).into();
        // Present or not; Flush is one namespace's.
        data.vwc = u8::from(self.has_write_cache(target)?) | 0b10 << 1;
        Ok(data)
    }
}

fn namespace(config: &NamespaceConfig) -> identify::Namespace {
    let mut data = identify::Namespace::zeroed();
    data.nsze = config.blocks.into();
    data.ncap = config.blocks.into();
    data.nuse = config.blocks.into();
    data.nmic = 1;
    data.rescap = Reservations::CAPABILITIES;
    if config.deallocate {
        data.dlfeat = 1 | 1 << 3;
    }
    let blocks = config.preferred_write >> config.block_shift;
    if let Ok(granularity) = u16::try_from(blocks.saturating_sub(1))
        && blocks > 0
    {
        data.nsfeat = 1 << 4;
        data.npwg = granularity.into();
        data.npwa = granularity.into();
        data.npdg = granularity.into();
        data.npda = granularity.into();
        data.nows = granularity.into();
    }
    data.nvmcap = (u128::from(config.blocks) << config.block_shift).into();
    data.anagrpid = config.ana_group.into();
    data.nsattr = u8::from(config.read_only);
    data.nguid = config.nguid;
    data.lbaf[0].lbads = config.block_shift;
    data
}

fn independent(config: &NamespaceConfig) -> identify::IndependentNamespace {
    let mut data = identify::IndependentNamespace::new_zeroed();
    data.nmic = 1;
    data.rescap = Reservations::CAPABILITIES;
    data.anagrpid = config.ana_group.into();
    data.nsattr = u8::from(config.read_only);
    data.nstat = 1;
    data
}

fn descriptors(config: &NamespaceConfig) -> [u8; identify::LEN] {
    let csi = [identify::CSI_NVM];
    let mut list: Vec<(u8, &[u8])> = vec![(nidt::UUID, &config.uuid), (nidt::CSI, &csi)];
    if config.nguid != [0; 16] {
        list.push((nidt::NGUID, &config.nguid));
    }
    identify::descriptors(&list)
}

fn nvm_controller() -> identify::NvmController {
    let mut data = identify::NvmController::new_zeroed();
    // Write Zeroes and Verify have no data: no limit but that of their field.
    data.dmrl = u8::MAX;
    data
}
