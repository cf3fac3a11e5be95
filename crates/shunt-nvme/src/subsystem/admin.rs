//! Properties, features, and the short Admin commands.

use super::{reply::Reply, session::Session, target::Target};
use crate::{
    controller::Transfer,
    wire::{
        Sqe, Status,
        fabrics::Property,
        feature::{self, Select, fid},
        identify::{EVENT_ANA_CHANGE, EVENT_DISCOVERY_CHANGE, EVENT_NAMESPACE_ATTRIBUTE},
        opcode::admin,
        registers,
        reservation::Notification,
    },
};

/// CAP.TO, in 500 ms.
const READY_TIMEOUT: u8 = 15;

/// Events that controllers of subsystems report, and those of discovery controllers.
pub(super) const EVENTS: u32 = EVENT_NAMESPACE_ATTRIBUTE | EVENT_ANA_CHANGE;
pub(super) const DISCOVERY_EVENTS: u32 = EVENT_DISCOVERY_CHANGE;

impl Session {
    /// Property Get (Base 6.5).
    pub(super) fn property_get(&self, target: &Target, sqe: &Sqe) -> Result<Reply, Status> {
        let controller = self.controller(target)?;
        let invalid = Status::INVALID_FIELD.dnr();
        let property = Property::of(sqe).ok_or(invalid)?;
        let value = match (property.offset, property.wide) {
            (registers::CAP, true) => {
                let mqes = target.limits.queue_depth - 1;
                registers::capabilities(mqes, READY_TIMEOUT)
            }
            (registers::VS, false) => u64::from(registers::VERSION),
            (registers::CC, false) => u64::from(controller.cc.0),
            (registers::CSTS, false) => u64::from(controller.csts.0),
            // NSSR and CRTO: not supported, and so zero.
            (registers::NSSR | registers::CRTO, false) => 0,
            _ => return Err(invalid),
        };
        Ok(Reply::result(value))
    }

    /// Property Set (Base 6.6).
    pub(super) fn property_set(&self, target: &mut Target, sqe: &Sqe) -> Result<Reply, Status> {
        let invalid = Status::INVALID_FIELD.dnr();
        let property = Property::of(sqe).ok_or(invalid)?;
        let cntlid = self.cntlid;
        let controller = self.controller_mut(target)?;
        match (property.offset, property.wide, u32::try_from(property.value)) {
            (registers::CC, false, Ok(value)) => {
                let notice = controller.configure(cntlid, value);
                target.notices.extend(notice);
                Ok(Reply::success())
            }
            _ => Err(invalid),
        }
    }

    /// Commands of the Admin Queue (Base 5).
    pub(super) fn admin(
        &self,
        target: &mut Target,
        sqe: &Sqe,
        transfer: Transfer,
        data: &[u8],
    ) -> Result<Reply, Status> {
        let cntlid = self.cntlid;
        if !self.controller(target)?.csts.ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        let is_discovery = self.controller(target)?.is_discovery();
        match sqe.opcode {
            // Every command restarts the timer.
            admin::KEEP_ALIVE => Ok(Reply::success()),
            admin::IDENTIFY => self.identify(target, sqe, transfer),
            admin::GET_LOG_PAGE => self.get_log_page(target, sqe, transfer),
            admin::ASYNC_EVENT => {
                let limit = target.limits.async_events;
                let controller = self.controller_mut(target)?;
                let notice = controller.request_event(cntlid, sqe.cid.get(), limit)?;
                target.notices.extend(notice);
                Ok(Reply::Later)
            }
            admin::GET_FEATURES => self.get_features(target, sqe, transfer),
            admin::SET_FEATURES => self.set_features(target, sqe, data),
            admin::ABORT if !is_discovery => {
                let [q0, q1, c0, c1] = sqe.cdw10.get().to_le_bytes();
                let (qid, cid) = (u16::from_le_bytes([q0, q1]), u16::from_le_bytes([c0, c1]));
                let controller = self.controller_mut(target)?;
                let notices = controller.abort(cntlid, sqe.cid.get(), (qid, cid))?;
                target.notices.extend(notices);
                Ok(Reply::Later)
            }
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// Get Features (Base 5.15).
    fn get_features(
        &self,
        target: &Target,
        sqe: &Sqe,
        transfer: Transfer,
    ) -> Result<Reply, Status> {
        let controller = self.controller(target)?;
        let invalid = Status::INVALID_FIELD.dnr();
        let cdw10 = sqe.cdw10.get();
        let id = cdw10.to_le_bytes()[0];
        let select = Select::of(cdw10).ok_or(invalid)?;
        let is_discovery = controller.is_discovery();
        // Current value, default value, capabilities.
        let (current, default, capabilities) = match id {
            fid::ASYNC_EVENT => (controller.async_config, 0, feature::CHANGEABLE),
            fid::KEEP_ALIVE => (controller.kato, 0, feature::CHANGEABLE),
            fid::HOST_IDENTIFIER => {
                // EXHID: identifiers have 128 bits.
                if sqe.cdw11.get() & 1 == 0 {
                    return Err(invalid);
                }
                if select == Select::Capabilities {
                    return Ok(Reply::result(0));
                }
                let mut data = controller.hostid.to_vec();
                data.truncate(usize::try_from(transfer.len()).unwrap_or(0));
                return Ok(Reply::data(data));
            }
            _ if is_discovery => return Err(invalid),
            fid::NUMBER_OF_QUEUES => {
                let queues = u32::from(target.limits.io_queues - 1);
                let value = queues | queues << 16;
                (value, value, feature::CHANGEABLE)
            }
            fid::VOLATILE_WRITE_CACHE if self.has_write_cache(target)? => {
                (u32::from(controller.write_cache), 1, feature::CHANGEABLE)
            }
            fid::ARBITRATION
            | fid::POWER_MANAGEMENT
            | fid::ERROR_RECOVERY
            | fid::WRITE_ATOMICITY => (0, 0, 0),
            // The threshold of no sensor: the largest.
            fid::TEMPERATURE_THRESHOLD => (0xffff, 0xffff, 0),
            fid::RESERVATION_MASK => {
                let mask = self.namespace(target, sqe.nsid.get())?.reservations.mask;
                (mask, 0, feature::CHANGEABLE | feature::NAMESPACE_SPECIFIC)
            }
            fid::RESERVATION_PERSISTENCE => {
                self.namespace(target, sqe.nsid.get())?;
                (0, 0, feature::NAMESPACE_SPECIFIC)
            }
            _ => return Err(invalid),
        };
        Ok(Reply::result(u64::from(match select {
            Select::Current => current,
            Select::Default | Select::Saved => default,
            Select::Capabilities => capabilities,
        })))
    }

    /// Set Features (Base 5.27).
    fn set_features(&self, target: &mut Target, sqe: &Sqe, data: &[u8]) -> Result<Reply, Status> {
        let invalid = Status::INVALID_FIELD.dnr();
        let (cdw10, value) = (sqe.cdw10.get(), sqe.cdw11.get());
        // SV: nothing is saved.
        if cdw10 & 1 << 31 != 0 {
            return Err(Status::FEATURE_NOT_SAVEABLE.dnr());
        }
        let cntlid = self.cntlid;
        let is_discovery = self.controller(target)?.is_discovery();
        match cdw10.to_le_bytes()[0] {
            fid::ASYNC_EVENT => {
                let known = if is_discovery { DISCOVERY_EVENTS } else { EVENTS };
                // Bits 7:0, of SMART warnings, are taken: none ever come.
                if value & !(known | 0xff) != 0 {
                    return Err(invalid);
                }
                let notice = self.controller_mut(target)?.want_events(cntlid, value);
                target.notices.extend(notice);
                Ok(Reply::success())
            }
            fid::KEEP_ALIVE => {
                self.controller_mut(target)?.kato = value;
                Ok(Reply::success())
            }
            fid::HOST_IDENTIFIER => {
                // Connect has set it; the same again is no change (Base 5.27.1.25).
                let hostid = data.first_chunk::<16>().filter(|_| value & 1 != 0);
                if hostid.ok_or(invalid)? != &self.controller(target)?.hostid {
                    return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
                }
                Ok(Reply::success())
            }
            _ if is_discovery => Err(invalid),
            fid::NUMBER_OF_QUEUES => {
                let (submission, completion) = (value & 0xffff, value >> 16);
                if submission == 0xffff || completion == 0xffff {
                    return Err(invalid);
                }
                let queues = u32::from(target.limits.io_queues - 1);
                Ok(Reply::result(u64::from(queues | queues << 16)))
            }
            fid::VOLATILE_WRITE_CACHE if self.has_write_cache(target)? => {
                self.controller_mut(target)?.write_cache = value & 1 != 0;
                Ok(Reply::success())
            }
            fid::RESERVATION_MASK => {
                if value & !Notification::MASKS != 0 {
                    return Err(invalid);
                }
                self.mask_reservations(target, sqe.nsid.get(), value)?;
                Ok(Reply::success())
            }
            fid::ARBITRATION
            | fid::POWER_MANAGEMENT
            | fid::TEMPERATURE_THRESHOLD
            | fid::ERROR_RECOVERY
            | fid::WRITE_ATOMICITY
            | fid::RESERVATION_PERSISTENCE => Err(Status::FEATURE_NOT_CHANGEABLE.dnr()),
            _ => Err(invalid),
        }
    }

    /// Sets the Reservation Notification Mask of a namespace, or of all: FFFFFFFFh.
    fn mask_reservations(&self, target: &mut Target, nsid: u32, mask: u32) -> Result<(), Status> {
        if nsid != u32::MAX {
            self.namespace(target, nsid)?;
        }
        let name = self.controller(target)?.subsystem.clone();
        let subsystem = name.and_then(|name| target.subsystems.get_mut(&name));
        let namespaces = subsystem.into_iter().flat_map(|subsystem| &mut subsystem.namespaces);
        for (_, namespace) in namespaces.filter(|(its, _)| nsid == u32::MAX || **its == nsid) {
            namespace.reservations.mask = mask;
        }
        Ok(())
    }

    /// True if a namespace of the subsystem has a volatile write cache.
    pub(super) fn has_write_cache(&self, target: &Target) -> Result<bool, Status> {
        let subsystem = target.subsystem_of(self.controller(target)?);
        Ok(subsystem.is_some_and(|subsystem| {
            subsystem.namespaces.values().any(|namespace| namespace.config.write_cache)
        }))
    }
}
