//! What the controller says of itself and of the disk (Base 5.17, NVM 4.1.5).

use shunt_nvme::wire::identify::{
    self, Controller, ControllerType, EVENT_NAMESPACE_ATTRIBUTE, LbaFormat, Namespace, cns, nidt,
};
use shunt_nvme::wire::{Nqn, Sqe, Status};
use zerocopy::IntoBytes;

use super::events::MAX_REQUESTS;
use super::logs::MAX_ERRORS;
use super::prp::PAGE;
use super::registers::VERSION;
use crate::port::Geometry;

/// The disk's number in the guest, whatever it is at the target.
pub const NSID: u32 = 1;
/// All namespaces.
pub const ALL: u32 = u32::MAX;
/// MDTS: the most data of a command, as a power of two of pages.
const MDTS: u8 = 7;
/// The most data of a command.
pub const MAX_DATA: u64 = PAGE << MDTS;
/// The firmware's revision.
pub const REVISION: &str = env!("CARGO_PKG_VERSION");

/// OACS: Doorbell Buffer Config.
const HAS_DOORBELL_BUFFER: u16 = 1 << 8;
/// ONCS: Compare, Dataset Management, Write Zeroes.
const CAN_COMPARE: u16 = 1 << 0;
const CAN_DISCARD: u16 = 1 << 2;
const CAN_WRITE_ZEROES: u16 = 1 << 3;

/// The controller.
fn controller(disk: &Geometry, name: &Nqn) -> Controller {
    let mut data = Controller::zeroed();
    let serial = disk.serial.map(|byte| if byte == 0 { b' ' } else { byte });
    data.sn = serial;
    data.mn = identify::padded("Shunt disk");
    data.fr = identify::padded(REVISION);
    data.mdts = MDTS;
    data.ver = VERSION.into();
    data.oaes = EVENT_NAMESPACE_ATTRIBUTE.into();
    data.cntrltype = ControllerType::Io as u8;
    data.oacs = HAS_DOORBELL_BUFFER.into();
    data.acl = 3;
    // A few, all of which fit.
    data.aerl = u8::try_from(MAX_REQUESTS - 1).unwrap_or(0);
    data.elpe = u8::try_from(MAX_ERRORS - 1).unwrap_or(0);
    // One slot that cannot be written.
    data.frmw = 0b11;
    // Offsets in log pages.
    data.lpa = 1 << 2;
    data.wctemp = 343.into();
    data.cctemp = 373.into();
    data.sqes = 0x66;
    data.cqes = 0x44;
    data.nn = NSID.into();
    let commands = [
        (disk.compare, CAN_COMPARE),
        (disk.discard, CAN_DISCARD),
        (disk.write_zeroes, CAN_WRITE_ZEROES),
    ];
    let can: u16 = commands.iter().filter(|(can, _)| *can).map(|(_, bit)| bit).sum();
    data.oncs = can.into();
    // A volatile write cache; Flush may be for all namespaces.
    data.vwc = 1 | 0b11 << 1;
    data.subnqn = name.field();
    data
}

/// The disk.
fn namespace(disk: &Geometry) -> Namespace {
    let mut data = Namespace::zeroed();
    data.nsze = disk.blocks.into();
    data.ncap = disk.blocks.into();
    data.nuse = disk.blocks.into();
    let lbads = u8::try_from(disk.block_size.max(1).ilog2()).unwrap_or(0);
    data.lbaf[0] = LbaFormat { ms: 0.into(), lbads, rp: 0 };
    data.nsattr = u8::from(disk.read_only);
    data.nguid = disk.nguid.unwrap_or_default();
    // Write Zeroes may deallocate; what deallocated blocks read as is the target's to say.
    data.dlfeat = u8::from(disk.write_zeroes) << 3;
    data
}

/// The data structure that a command asks for.
///
/// # Errors
/// There is none such.
pub fn answer(sqe: &Sqe, disk: &Geometry, name: &Nqn) -> Result<Vec<u8>, Status> {
    let [which, ..] = sqe.cdw10.get().to_le_bytes();
    let nsid = sqe.nsid.get();
    let is_disk = if nsid == NSID { Ok(()) } else { Err(Status::INVALID_NAMESPACE.dnr()) };
    match which {
        cns::CONTROLLER => Ok(controller(disk, name).as_bytes().to_vec()),
        // What all have in common, which are the formats.
        cns::NAMESPACE if nsid == ALL => {
            let any = Geometry { blocks: 0, nguid: None, read_only: false, ..disk.clone() };
            Ok(namespace(&any).as_bytes().to_vec())
        }
        cns::NAMESPACE => is_disk.map(|()| namespace(disk).as_bytes().to_vec()),
        cns::ACTIVE_NAMESPACES if nsid >= ALL - 1 => Err(Status::INVALID_NAMESPACE.dnr()),
        cns::ACTIVE_NAMESPACES => Ok(identify::namespace_list([NSID].into_iter(), nsid).to_vec()),
        cns::NAMESPACE_DESCRIPTORS => is_disk.map(|()| {
            let ids = [(nidt::NGUID, &disk.nguid), (nidt::UUID, &disk.uuid)];
            let known = ids.iter().filter_map(|(kind, id)| Some((*kind, &id.as_ref()?[..])));
            identify::descriptors(&known.collect::<Vec<_>>()).to_vec()
        }),
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}
