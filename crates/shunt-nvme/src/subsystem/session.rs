//! One connection of a target.

use super::{
    controller::Controller,
    reply::{Plan, Reply},
    request::Io,
    target::Target,
    view::{Access, View},
};
use crate::{
    auth,
    controller::Transfer,
    wire::{
        Direction, Sqe, Status,
        fabrics::{Authentication, fctype},
        opcode::{admin, io},
        reservation::{Fields, Keys},
    },
};
use core::time::Duration;
use zerocopy::FromBytes;

/// What a call needs from the outside.
pub struct Context<'a> {
    /// The time: a duration since a start of the caller's choice.
    pub now: Duration,
    /// Fills bytes that no peer can guess.
    pub random: &'a mut dyn FnMut(&mut [u8]),
}

/// One connection: before Connect, or a queue of a controller.
#[derive(Debug)]
pub struct Session {
    pub(super) port: u16,
    pub(super) cntlid: u16,
    pub(super) qid: Option<u16>,
    pub(super) auth: Option<auth::Responder>,
    /// The first command of a fused operation, `Some(None)` if it was refused.
    pub(super) fused: Option<Option<Io>>,
    pub(super) unpaired: Option<Unpaired>,
}

/// What becomes of the first command of a fused operation whose second one is not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unpaired {
    /// It ends with this status.
    Ends(Status),
    /// It is carried out as if it were no part of an operation.
    Alone,
}

/// The most data that a command other than reads, writes and compares has.
const MAX_SMALL: u32 = 8192;

impl Session {
    /// A connection to the port with this number.
    #[must_use]
    pub const fn new(port: u16) -> Self {
        Self { port, cntlid: 0, qid: None, auth: None, fused: None, unpaired: None }
    }

    /// The controller's identifier, and the queue's, after Connect.
    #[must_use]
    pub fn queue(&self) -> Option<(u16, u16)> {
        self.qid.map(|qid| (self.cntlid, qid))
    }

    /// What becomes of the first command of a fused operation, where that is decided by the command that
    /// [`Session::plan`] was just called for. To be asked after each call.
    pub const fn unpaired(&mut self) -> Option<Unpaired> {
        self.unpaired.take()
    }

    pub(super) fn controller<'a>(&self, target: &'a Target) -> Result<&'a Controller, Status> {
        self.qid.ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())?;
        target.controllers.get(&self.cntlid).ok_or(Status::SQ_DELETION)
    }

    pub(super) fn controller_mut<'a>(
        &self,
        target: &'a mut Target,
    ) -> Result<&'a mut Controller, Status> {
        self.qid.ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())?;
        target.controllers.get_mut(&self.cntlid).ok_or(Status::SQ_DELETION)
    }

    /// What a command takes.
    pub fn plan(&mut self, target: &Target, sqe: &Sqe, transfer: Transfer) -> Plan {
        let access = self.access(target, sqe.nsid.get());
        self.plan_with(access, sqe, transfer)
    }

    /// The same against a view, which has to be of the target's generation.
    pub fn plan_in(&mut self, view: &View, sqe: &Sqe, transfer: Transfer) -> Plan {
        self.plan_with(view.access(sqe.nsid.get()), sqe, transfer)
    }

    fn plan_with(&mut self, access: Result<Access, Status>, sqe: &Sqe, transfer: Transfer) -> Plan {
        let is_io = self.qid.is_some_and(|qid| qid > 0) && sqe.fctype().is_none();
        if is_io && self.auth.as_ref().is_some_and(|auth| !auth.is_authenticated()) {
            return Plan::Refuse(Status::AUTHENTICATION_REQUIRED.dnr());
        }
        let plan = if is_io {
            self.plan_io(access, sqe, transfer)
        } else {
            // It is no second command (Base 3.4.2).
            self.lacks_second();
            Plan::Execute
        };
        if plan == Plan::Execute
            && sqe.direction() == Direction::ToController
            && transfer.len() > MAX_SMALL
        {
            return Plan::Refuse(Status::INVALID_FIELD.dnr());
        }
        plan
    }

    /// Does a command that [`Session::plan`] has called [`Plan::Execute`], with the host's data.
    /// `transfer` is where the command's data is, as the transport has said.
    pub fn execute(
        &mut self,
        target: &mut Target,
        sqe: &Sqe,
        transfer: Transfer,
        data: &[u8],
        context: &mut Context<'_>,
    ) -> Reply {
        let reply =
            self.dispatch(target, sqe, transfer, data, context).unwrap_or_else(Reply::refusal);
        self.heard(target, context.now);
        // What changes how I/O commands are planned, on this connection or others.
        let is_io = self.qid.is_some_and(|qid| qid > 0);
        if sqe.fctype() == Some(fctype::PROPERTY_SET)
            || sqe.fctype().is_none() && (is_io || sqe.opcode == admin::SET_FEATURES)
        {
            target.changed();
        }
        if let Reply::Done { status, .. } = &reply
            && !status.is_success()
        {
            self.failed(target, sqe, *status);
        }
        reply
    }

    /// Commands have come on this connection: the host is there. [`Session::execute`] says so by
    /// itself; the caller does for others, at least twice a second.
    pub fn heard(&self, target: &mut Target, now: Duration) {
        if let Ok(controller) = self.controller_mut(target) {
            controller.keep_alive(now);
        }
    }

    /// Notes a command that has failed in the controller's error log: the caller's for those that
    /// its store has failed.
    pub fn failed(&self, target: &mut Target, sqe: &Sqe, status: Status) {
        let qid = self.qid.unwrap_or(0);
        if let Ok(controller) = self.controller_mut(target) {
            controller.failed(qid, sqe, status);
        }
    }

    fn dispatch(
        &mut self,
        target: &mut Target,
        sqe: &Sqe,
        transfer: Transfer,
        data: &[u8],
        context: &mut Context<'_>,
    ) -> Result<Reply, Status> {
        // Base 8.13: nothing else before authentication. The transport refuses it, too.
        let authenticating = self.auth.as_ref().is_some_and(|auth| !auth.is_authenticated());
        match sqe.fctype() {
            Some(fctype::CONNECT) => self.connect(target, sqe, data, context),
            Some(fctype::AUTHENTICATION_SEND) => self.authentication_send(sqe, data),
            Some(fctype::AUTHENTICATION_RECEIVE) => {
                self.authentication_receive(target, sqe, transfer, context)
            }
            Some(fctype::DISCONNECT) => self.disconnect(target),
            _ if authenticating => Err(Status::AUTHENTICATION_REQUIRED.dnr()),
            // Base 6.5, 6.6: on the Admin Queue.
            Some(fctype::PROPERTY_GET | fctype::PROPERTY_SET) if self.qid != Some(0) => {
                Err(Status::INVALID_FIELD.dnr())
            }
            Some(fctype::PROPERTY_GET) => self.property_get(target, sqe),
            Some(fctype::PROPERTY_SET) => self.property_set(target, sqe),
            Some(_) => Err(Status::INVALID_OPCODE.dnr()),
            None if self.qid == Some(0) => self.admin(target, sqe, transfer, data),
            None => self.execute_io(target, sqe, transfer, data),
        }
    }

    fn execute_io(
        &self,
        target: &mut Target,
        sqe: &Sqe,
        transfer: Transfer,
        data: &[u8],
    ) -> Result<Reply, Status> {
        let nsid = sqe.nsid.get();
        if sqe.opcode == io::DATASET_MANAGEMENT {
            let ranges = self.dataset_management(target, sqe, data)?;
            if ranges.is_empty() {
                return Ok(Reply::success());
            }
            let io = Io {
                operation: super::Operation::Deallocate,
                nsid,
                slba: 0,
                blocks: 0,
                block_shift: self.namespace(target, nsid)?.config.block_shift,
                fuse: sqe.fuse(),
            };
            return Ok(Reply::Deallocate { io, ranges });
        }
        self.namespace(target, nsid)?;
        let controller = self.controller(target)?;
        let (hostid, cntlid, limit) = (controller.hostid, self.cntlid, target.limits.registrants);
        let gone = Status::INVALID_NAMESPACE.dnr();
        let name = controller.subsystem.clone().ok_or(gone)?;
        let subsystem = target.subsystems.get_mut(&name).ok_or(gone)?;
        let reservations = &mut subsystem.namespaces.get_mut(&nsid).ok_or(gone)?.reservations;
        let fields = Fields::of(sqe);
        let short = Status::SGL_INVALID_LENGTH.dnr();
        match sqe.opcode {
            io::RESERVATION_REGISTER => {
                let (keys, _) = Keys::read_from_prefix(data).map_err(|_| short)?;
                reservations.register(hostid, cntlid, fields, &keys, limit)?;
            }
            io::RESERVATION_ACQUIRE => {
                let (keys, _) = Keys::read_from_prefix(data).map_err(|_| short)?;
                reservations.acquire(hostid, fields, &keys)?;
            }
            io::RESERVATION_RELEASE => {
                // One key; some hosts send room for two.
                let key = data.first_chunk::<8>().ok_or(short)?;
                reservations.release(hostid, fields, u64::from_le_bytes(*key))?;
            }
            io::RESERVATION_REPORT => {
                // EDS: hosts have identifiers of 128 bits.
                if sqe.cdw11.get() & 1 == 0 {
                    return Err(Status::HOST_IDENTIFIER_INCONSISTENT.dnr());
                }
                let mut report = reservations.report();
                let asked = (u64::from(sqe.cdw10.get()) + 1) * 4;
                let len = asked.min(u64::from(transfer.len())).min(report.len() as u64);
                report.truncate(usize::try_from(len).unwrap_or(0));
                return Ok(Reply::data(report));
            }
            _ => return Err(Status::INVALID_OPCODE.dnr()),
        }
        let told = reservations.notifications();
        for (host, what) in told {
            target.reservation_changed(&name, nsid, host, what);
        }
        Ok(Reply::success())
    }

    fn authentication_send(&mut self, sqe: &Sqe, data: &[u8]) -> Result<Reply, Status> {
        let fields = Authentication::of(sqe);
        let auth = self.auth.as_mut().ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())?;
        let whole = usize::try_from(fields.len).is_ok_and(|len| len == data.len());
        if !fields.is_nvme() || !whole {
            return Err(Status::INVALID_FIELD.dnr());
        }
        auth.receive(data);
        if auth.is_authenticated() {
            return Ok(Reply::Authenticated { data: Vec::new() });
        }
        Ok(Reply::success())
    }

    fn authentication_receive(
        &mut self,
        target: &Target,
        sqe: &Sqe,
        transfer: Transfer,
        context: &mut Context<'_>,
    ) -> Result<Reply, Status> {
        let fields = Authentication::of(sqe);
        let auth = self.auth.as_mut().ok_or(Status::COMMAND_SEQUENCE_ERROR.dnr())?;
        if !fields.is_nvme() || fields.len != transfer.len() {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let message = auth.send(context.random);
        let room = fields.len.min(target.limits.authentication_message);
        if message.len() as u64 > u64::from(room) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if auth.is_authenticated() {
            return Ok(Reply::Authenticated { data: message });
        }
        Ok(Reply::data(message))
    }

    /// Disconnect ends an I/O queue (Base 6.4).
    fn disconnect(&self, target: &mut Target) -> Result<Reply, Status> {
        let Some(qid) = self.qid.filter(|qid| *qid > 0) else {
            return Err(Status::INVALID_QUEUE_TYPE.dnr());
        };
        let cntlid = self.cntlid;
        let notices = self.controller_mut(target)?.queue_closed(cntlid, qid);
        target.notices.extend(notices);
        Ok(Reply::Disconnect)
    }

    /// True if the peer's authentication has failed: the connection is to be closed when the
    /// response is sent.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.auth.as_ref().is_some_and(auth::Responder::has_failed)
    }

    /// The connection is closed. With that of its Admin Queue a controller ends.
    pub fn closed(&mut self, target: &mut Target) {
        match self.qid.take() {
            Some(0) => target.end(self.cntlid),
            Some(qid) => {
                if let Some(controller) = target.controllers.get_mut(&self.cntlid) {
                    let notices = controller.queue_closed(self.cntlid, qid);
                    target.notices.extend(notices);
                }
            }
            None => {}
        }
    }
}
