//! Memory that endpoints have registered, for their peers to read.

use std::rc::Rc;

use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl};
use shunt_sys::fds::Fds;
use shunt_wire::agent::{EndpointId, ExportId, RegionId, Reply};
use shunt_wire::reason::Reason;

use super::{Answer, No, Outcome, State};

/// What a reader relies on: nobody can cut the memory short, and who gets the descriptor cannot write to it.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::SEAL).union(SealFlags::FUTURE_WRITE);

impl State {
    pub(super) fn export(&mut self, me: EndpointId, fds: &mut Fds) -> Outcome {
        let memory = fds.take().ok_or(No::Misconduct("an Export without memory"))?;
        let is_sealed = fcntl_get_seals(&memory).is_ok_and(|seals| seals.contains(SEALS));
        let is_read =
            fcntl_getfl(&memory).is_ok_and(|mode| mode & OFlags::RWMODE == OFlags::RDONLY);
        if !is_sealed || !is_read {
            return Err(No::Misconduct(
                "memory that others could change, or that could be cut short",
            ));
        }
        let export = self.new_id();
        let most = self.limits.exports_per_endpoint;
        let endpoint = self.endpoints.get_mut(&me).ok_or(No::Refused(Reason::Internal))?;
        if endpoint.exports.len() >= most {
            return Err(No::Refused(Reason::Refused));
        }
        endpoint.exports.insert(export, Rc::new(memory));
        Ok(Answer::bare(Reply::Exported { export }))
    }

    pub(super) fn import(
        &self,
        me: EndpointId,
        (region, slot): (RegionId, u32),
        export: ExportId,
        fds: &mut Fds,
    ) -> Outcome {
        let held = fds.take();
        let known = self.regions.get(&region).ok_or(No::Refused(Reason::Refused))?;
        let holds_it = |socket| self.is_held_by(known, slot, socket);
        if !known.has_party(me) && !held.is_some_and(holds_it) {
            return Err(No::Refused(Reason::Refused));
        }
        // Also its own, where a program talks to itself.
        let memory = known
            .parties()
            .filter_map(|party| self.endpoints.get(&party)?.exports.get(&export))
            .next()
            .ok_or(No::Refused(Reason::Refused))?;
        Ok(Answer { reply: Reply::Imported, fds: vec![Rc::clone(memory)] })
    }

    pub(super) fn unexport(&mut self, me: EndpointId, export: ExportId) -> Outcome {
        let endpoint = self.endpoints.get_mut(&me).ok_or(No::Refused(Reason::Internal))?;
        match endpoint.exports.remove(&export) {
            Some(_) => Ok(Answer::bare(Reply::Done)),
            None => Err(No::Refused(Reason::Refused)),
        }
    }
}
