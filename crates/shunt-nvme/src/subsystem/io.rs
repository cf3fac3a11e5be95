//! I/O commands: what becomes a request to the caller's store.

use super::{
    reply::Plan,
    request::{Io, MAX_FUSED, Operation, Range},
    session::{Session, Unpaired},
    target::{Namespace, Target},
    view::{Access, View},
};
use crate::{
    controller::Transfer,
    wire::{Fuse, Sqe, Status, log::AnaState, opcode::io},
};

/// CDW12: Force Unit Access.
const FUA: u32 = 1 << 30;
/// CDW12 of Write Zeroes: Deallocate.
const DEAC: u32 = 1 << 25;
/// CDW11 of Dataset Management: Attribute - Deallocate.
const ATTRIBUTE_DEALLOCATE: u32 = 1 << 2;

impl Session {
    /// The namespaces as this connection sees them now.
    #[must_use]
    pub fn view(&self, target: &Target) -> View {
        let gone = Status::INVALID_NAMESPACE.dnr();
        // What is wrong with the controller is so for every namespace.
        let otherwise = self.access(target, u32::MAX).err().unwrap_or(gone);
        let subsystem =
            self.controller(target).ok().and_then(|controller| target.subsystem_of(controller));
        let namespaces = subsystem
            .iter()
            .flat_map(|subsystem| subsystem.namespaces.keys())
            .map(|nsid| (*nsid, self.access(target, *nsid)))
            .collect();
        View { generation: target.generation(), namespaces, otherwise }
    }

    pub(super) fn access(&self, target: &Target, nsid: u32) -> Result<Access, Status> {
        let namespace = self.namespace(target, nsid)?;
        let controller = self.controller(target)?;
        Ok(Access {
            config: namespace.config,
            write_cache: controller.write_cache,
            excludes_reads: namespace.reservations.excludes(&controller.hostid, false),
            excludes_writes: namespace.reservations.excludes(&controller.hostid, true),
        })
    }

    /// Checks an I/O command by its entry.
    pub(super) fn plan_io(
        &mut self,
        access: Result<Access, Status>,
        sqe: &Sqe,
        transfer: Transfer,
    ) -> Plan {
        let checked = check_io(access, sqe, transfer);
        if sqe.fuse() == Fuse::Second {
            return self.plan_second(checked, sqe);
        }
        self.lacks_second();
        match sqe.fuse() {
            Fuse::First => match checked {
                Ok(plan @ Plan::Io(Io { operation: Operation::Compare, .. })) => {
                    let Plan::Io(io) = plan else { return plan };
                    self.fused = Some(Some(io));
                    plan
                }
                Ok(_) => self.refuse_first(Status::INVALID_FIELD.dnr()),
                Err(status) => self.refuse_first(status),
            },
            Fuse::No => checked.unwrap_or_else(Plan::Refuse),
            Fuse::Reserved | Fuse::Second => Plan::Refuse(Status::INVALID_FIELD.dnr()),
        }
    }

    /// A command comes that is no second one. A fused operation is two commands in a row (Base 3.4.2).
    pub(super) fn lacks_second(&mut self) {
        if let Some(Some(_)) = self.fused.take() {
            self.unpaired = Some(Unpaired::Ends(Status::FUSED_MISSING));
        }
    }

    /// Decides about the second command of a fused operation (Base 3.4.2, NVM 2.1.3).
    fn plan_second(&mut self, checked: Result<Plan, Status>, sqe: &Sqe) -> Plan {
        let invalid = Status::INVALID_FIELD.dnr();
        let first = match self.fused.take() {
            None => return Plan::Refuse(Status::FUSED_MISSING.dnr()),
            Some(None) => return Plan::Refuse(Status::FUSED_FAILED),
            Some(Some(first)) => first,
        };
        let (unpaired, status) = match checked {
            // It is not the other command of an operation that there is.
            _ if sqe.opcode != io::WRITE => {
                let why = checked.err().unwrap_or(invalid);
                (Unpaired::Ends(Status::FUSED_MISSING), why)
            }
            _ if (first.nsid, first.slba, first.blocks) != extent(sqe) => {
                (Unpaired::Ends(invalid), invalid)
            }
            Ok(plan) => return plan,
            // The Write fails, and does not affect how the Compare ends.
            Err(status) => (Unpaired::Alone, status),
        };
        self.unpaired = Some(unpaired);
        Plan::Refuse(status)
    }

    /// Refuses the first command of a fused operation: the second will be, too.
    fn refuse_first(&mut self, status: Status) -> Plan {
        self.fused = Some(None);
        Plan::Refuse(status)
    }

    /// The namespace of an I/O command, if the path leads there.
    pub(super) fn namespace<'a>(
        &self,
        target: &'a Target,
        nsid: u32,
    ) -> Result<&'a Namespace, Status> {
        let gone = Status::INVALID_NAMESPACE.dnr();
        let controller = self.controller(target)?;
        if !controller.csts.ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        let subsystem = target.subsystem_of(controller).ok_or(gone)?;
        let namespace = subsystem.namespaces.get(&nsid).ok_or(gone)?;
        match subsystem.ana_state(controller.port, namespace.config.ana_group) {
            AnaState::Optimized | AnaState::NonOptimized => Ok(namespace),
            AnaState::Inaccessible => Err(Status::ANA_INACCESSIBLE),
            AnaState::PersistentLoss => Err(Status::ANA_PERSISTENT_LOSS),
            AnaState::Change => Err(Status::ANA_TRANSITION),
        }
    }

    /// Dataset Management (NVM 3.2.3): the ranges to deallocate, if that is what is asked for.
    pub(super) fn dataset_management(
        &self,
        target: &Target,
        sqe: &Sqe,
        data: &[u8],
    ) -> Result<Vec<Range>, Status> {
        let config = self.namespace(target, sqe.nsid.get())?.config;
        // NR is zero's based, of 8 bits.
        let number = usize::from(sqe.cdw10.get().to_le_bytes()[0]) + 1;
        let (ranges, _) = data.as_chunks::<16>();
        // Some hosts, as Linux, send room for all ranges that could be.
        let ranges = ranges.get(..number).ok_or(Status::SGL_INVALID_LENGTH.dnr())?;
        if sqe.cdw11.get() & ATTRIBUTE_DEALLOCATE == 0 || !config.deallocate {
            return Ok(Vec::new());
        }
        ranges
            .iter()
            .map(|range| {
                // Context attributes, blocks, first block.
                let [_, _, _, _, n0, n1, n2, n3, slba @ ..] = *range;
                let blocks = u32::from_le_bytes([n0, n1, n2, n3]);
                let slba = u64::from_le_bytes(slba);
                in_range(slba, blocks, config.blocks)?;
                Ok(Range { slba, blocks })
            })
            .filter(|range| !matches!(range, Ok(Range { blocks: 0, .. })))
            .collect()
    }
}

/// Decides about an I/O command by its entry.
fn check_io(access: Result<Access, Status>, sqe: &Sqe, transfer: Transfer) -> Result<Plan, Status> {
    let cdw12 = sqe.cdw12.get();
    // Without a write cache every write is durable (Base 5.27.1.4).
    let fua = cdw12 & FUA != 0 || access.is_ok_and(|access| !access.write_cache);
    let (operation, is_write, has_data) = match sqe.opcode {
        io::READ => (Operation::Read, false, true),
        io::WRITE => (Operation::Write { fua }, true, true),
        io::COMPARE => (Operation::Compare, false, true),
        io::FLUSH => (Operation::Flush, true, false),
        io::WRITE_ZEROES => {
            let deallocate = cdw12 & DEAC != 0;
            (Operation::WriteZeroes { fua, deallocate }, true, false)
        }
        io::VERIFY => (Operation::Verify, false, false),
        io::DATASET_MANAGEMENT => (Operation::Deallocate, true, false),
        io::RESERVATION_REGISTER
        | io::RESERVATION_REPORT
        | io::RESERVATION_ACQUIRE
        | io::RESERVATION_RELEASE => {
            access?;
            return Ok(Plan::Execute);
        }
        _ => return Err(Status::INVALID_OPCODE.dnr()),
    };
    let access = access?;
    let config = &access.config;
    let excluded = if is_write { access.excludes_writes } else { access.excludes_reads };
    if excluded {
        return Err(Status::RESERVATION_CONFLICT);
    }
    if is_write && config.read_only && operation != Operation::Flush {
        return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
    }
    let mut request = Io {
        operation,
        nsid: sqe.nsid.get(),
        slba: 0,
        blocks: 0,
        block_shift: config.block_shift,
        fuse: sqe.fuse(),
    };
    match operation {
        Operation::Flush => return Ok(Plan::Io(request)),
        Operation::Deallocate => return Ok(Plan::Execute),
        _ => {}
    }
    (_, request.slba, request.blocks) = extent(sqe);
    in_range(request.slba, request.blocks, config.blocks)?;
    if request.fuse != Fuse::No && request.blocks > MAX_FUSED {
        return Err(Status::ATOMIC_WRITE_UNIT_EXCEEDED.dnr());
    }
    if has_data && u64::from(transfer.len()) != request.len() {
        return Err(Status::SGL_INVALID_LENGTH.dnr());
    }
    Ok(Plan::Io(request))
}

/// The blocks of a command: namespace, first one, how many.
fn extent(sqe: &Sqe) -> (u32, u64, u32) {
    (sqe.nsid.get(), sqe.cdw10_64(), (sqe.cdw12.get() & 0xffff) + 1)
}

fn in_range(slba: u64, blocks: u32, size: u64) -> Result<(), Status> {
    match slba.checked_add(u64::from(blocks)) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Status::LBA_OUT_OF_RANGE.dnr()),
    }
}
