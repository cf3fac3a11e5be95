//! I/O commands: what becomes a request to the caller's store.

use super::{
    reply::Plan,
    request::{Io, MAX_FUSED, Operation, Range},
    session::Session,
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
        // Base 3.4.2: a fused operation is two commands in a row.
        let first = self.fused.take();
        if first.is_some() && sqe.fuse() != Fuse::Second {
            self.orphan = true;
        }
        let checked = check_io(access, sqe, transfer);
        match sqe.fuse() {
            Fuse::No => checked.unwrap_or_else(Plan::Refuse),
            Fuse::Reserved => Plan::Refuse(Status::INVALID_FIELD.dnr()),
            Fuse::First => match checked {
                Ok(plan @ Plan::Io(Io { operation: Operation::Compare, .. })) => {
                    let Plan::Io(io) = plan else { return plan };
                    self.fused = Some(Some(io));
                    plan
                }
                Ok(_) => self.refuse_first(Status::INVALID_FIELD.dnr()),
                Err(status) => self.refuse_first(status),
            },
            Fuse::Second => match (first, checked) {
                (None, _) => Plan::Refuse(Status::FUSED_MISSING.dnr()),
                (Some(None), _) => Plan::Refuse(Status::FUSED_FAILED),
                (Some(Some(first)), Ok(Plan::Io(second)))
                    if matches!(second.operation, Operation::Write { .. })
                        && (first.nsid, first.slba, first.blocks)
                            == (second.nsid, second.slba, second.blocks) =>
                {
                    Plan::Io(second)
                }
                // The first one fails with it: the caller ends it with `FUSED_FAILED`.
                (Some(Some(_)), checked) => {
                    Plan::Refuse(checked.err().unwrap_or(Status::INVALID_FIELD.dnr()))
                }
            },
        }
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
    request.slba = sqe.cdw10_64();
    request.blocks = (cdw12 & 0xffff) + 1;
    in_range(request.slba, request.blocks, config.blocks)?;
    if request.fuse != Fuse::No && request.blocks > MAX_FUSED {
        return Err(Status::ATOMIC_WRITE_UNIT_EXCEEDED.dnr());
    }
    if has_data && u64::from(transfer.len()) != request.len() {
        return Err(Status::SGL_INVALID_LENGTH.dnr());
    }
    Ok(Plan::Io(request))
}

fn in_range(slba: u64, blocks: u32, size: u64) -> Result<(), Status> {
    match slba.checked_add(u64::from(blocks)) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Status::LBA_OUT_OF_RANGE.dnr()),
    }
}
