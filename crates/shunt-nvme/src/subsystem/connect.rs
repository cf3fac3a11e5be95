//! Connect (Base 6.3).

use super::{
    controller::Controller,
    reply::Reply,
    session::{Context, Session},
    target::Target,
};
use crate::{
    auth,
    wire::{
        Nqn, Sqe, Status,
        fabrics::{
            AUTHENTICATION_REQUIRED, Connect, ConnectData, DYNAMIC_CONTROLLER, connect_field,
        },
        nqn,
    },
};
use zerocopy::FromBytes;

/// A refusal: the status, and the field at fault.
type Refusal = (Status, u32);

const fn invalid(field: u32) -> Refusal {
    (Status::CONNECT_INVALID_PARAMETERS.dnr(), field)
}

const INVALID_HOST: Refusal = (Status::CONNECT_INVALID_HOST.dnr(), connect_field::HOSTNQN);

impl Session {
    pub(super) fn connect(
        &mut self,
        target: &mut Target,
        sqe: &Sqe,
        data: &[u8],
        context: &mut Context<'_>,
    ) -> Result<Reply, Status> {
        if self.qid.is_some() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        let data = ConnectData::ref_from_bytes(data).map_err(|_| Status::INVALID_FIELD.dnr())?;
        let connect = Connect::of(sqe);
        let connected = match connect.qid {
            0 => self.connect_admin(target, &connect, data, context),
            _ => self.connect_io(target, &connect, data),
        };
        // Base 6.3: the result of a refusal is the place of the field at fault.
        let (status, field) = match connected {
            Ok(reply) => return Ok(reply),
            Err(refusal) => refusal,
        };
        Ok(Reply::Done { status, result: u64::from(field), data: Vec::new() })
    }

    fn connect_admin(
        &mut self,
        target: &mut Target,
        connect: &Connect,
        data: &ConnectData,
        context: &mut Context<'_>,
    ) -> Result<Reply, Refusal> {
        let (subnqn, hostnqn) = check(target, connect, data)?;
        // Controllers are made on demand, so the host takes any.
        if data.cntlid.get() != DYNAMIC_CONTROLLER {
            return Err(invalid(connect_field::CNTLID));
        }
        let is_discovery = subnqn.as_str() == nqn::DISCOVERY;
        let mut responder = None;
        if !is_discovery {
            let subsystem = target.subsystems.get(&subnqn).ok_or(invalid(connect_field::SUBNQN))?;
            if !subsystem.config.hosts.allow(&hostnqn) {
                return Err(INVALID_HOST);
            }
            responder = responder_for(target, &subnqn, &hostnqn);
        }
        let cntlid = target.free_cntlid().ok_or((Status::CONNECT_CONTROLLER_BUSY, 0))?;
        let name = (!is_discovery).then_some(subnqn);
        let mut controller = Controller::new(name, hostnqn, data.hostid, self.port, connect.kato);
        controller.keep_alive(context.now);
        target.controllers.insert(cntlid, controller);
        Ok(self.joined(cntlid, connect, responder))
    }

    fn connect_io(
        &mut self,
        target: &mut Target,
        connect: &Connect,
        data: &ConnectData,
    ) -> Result<Reply, Refusal> {
        let (subnqn, hostnqn) = check(target, connect, data)?;
        let cntlid = data.cntlid.get();
        let controller = target.controllers.get(&cntlid).ok_or(invalid(connect_field::CNTLID))?;
        if controller.subsystem.as_ref() != Some(&subnqn) {
            return Err(invalid(connect_field::SUBNQN));
        }
        if controller.host != hostnqn {
            return Err(INVALID_HOST);
        }
        if controller.hostid != data.hostid {
            return Err(invalid(connect_field::HOSTID));
        }
        if !controller.csts.ready() {
            return Err((Status::COMMAND_SEQUENCE_ERROR.dnr(), 0));
        }
        if connect.qid > target.limits.io_queues || controller.queues.contains(&connect.qid) {
            return Err(invalid(connect_field::QID));
        }
        let responder = responder_for(target, &subnqn, &hostnqn);
        if let Some(controller) = target.controllers.get_mut(&cntlid) {
            controller.queues.insert(connect.qid);
        }
        Ok(self.joined(cntlid, connect, responder))
    }

    fn joined(
        &mut self,
        cntlid: u16,
        connect: &Connect,
        responder: Option<auth::Responder>,
    ) -> Reply {
        self.cntlid = cntlid;
        self.qid = Some(connect.qid);
        self.auth = responder;
        let authenticate = self.auth.is_some();
        let flag = if authenticate { AUTHENTICATION_REQUIRED } else { 0 };
        Reply::Connected {
            // Checked against the limit.
            depth: connect.sqsize.saturating_add(1),
            io_queue: connect.qid > 0,
            flow_control: !connect.no_flow_control,
            authenticate,
            result: u64::from(u32::from(cntlid) | flag),
        }
    }
}

/// What holds for every Connect.
fn check(target: &Target, connect: &Connect, data: &ConnectData) -> Result<(Nqn, Nqn), Refusal> {
    if connect.recfmt != 0 {
        return Err((Status::CONNECT_INCOMPATIBLE_FORMAT.dnr(), connect_field::RECFMT));
    }
    if connect.sqsize == 0 || connect.sqsize >= target.limits.queue_depth {
        return Err(invalid(connect_field::SQSIZE));
    }
    let subnqn = Nqn::from_field(&data.subnqn).map_err(|_| invalid(connect_field::SUBNQN))?;
    let hostnqn = Nqn::from_field(&data.hostnqn).map_err(|_| invalid(connect_field::HOSTNQN))?;
    Ok((subnqn, hostnqn))
}

/// The authentication that a host of a subsystem has to go through.
fn responder_for(target: &Target, subnqn: &Nqn, hostnqn: &Nqn) -> Option<auth::Responder> {
    let keys = target.subsystems.get(subnqn)?.config.hosts.keys(hostnqn)?;
    Some(auth::Responder::new(
        hostnqn.clone(),
        subnqn.clone(),
        keys.host.clone(),
        keys.controller.clone(),
    ))
}
