//! Memory that endpoints have registered, for their peers to read.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl};
use shunt_sys::fds::Fds;
use shunt_sys::reach::may_trace;
use shunt_wire::agent::{EndpointId, ExportId, RegionId, Reply};
use shunt_wire::reason::Reason;

use super::{Answer, Endpoint, No, Outcome, State};

/// What a reader relies on: nobody can cut the memory short.
const LASTING: SealFlags = SealFlags::SHRINK;
/// What a program relies on that has asked for memory to lend: who gets the descriptor cannot write to it.
const PUBLISHED: SealFlags = LASTING.union(SealFlags::SEAL).union(SealFlags::FUTURE_WRITE);

/// Memory that an endpoint has registered.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) memory: Rc<OwnedFd>,
    /// It is the program's own, which has not asked for it to be shown.
    found: bool,
}

impl State {
    pub(super) fn export(&mut self, me: EndpointId, found: bool, fds: &mut Fds) -> Outcome {
        let memory = fds.take().ok_or(No::Misconduct("an Export without memory"))?;
        let seals = if found { LASTING } else { PUBLISHED };
        let is_sealed = fcntl_get_seals(&memory).is_ok_and(|has| has.contains(seals));
        let is_read =
            fcntl_getfl(&memory).is_ok_and(|mode| mode & OFlags::RWMODE == OFlags::RDONLY);
        if !is_sealed || !is_read {
            return Err(No::Misconduct(
                "memory that others could change, or that could be cut short",
            ));
        }
        let export = self.new_id();
        let most = self.limits.exports_per_endpoint;
        let is_hosts = self.host.is_some();
        let endpoint = self.endpoints.get_mut(&me).ok_or(No::Refused(Reason::Internal))?;
        // Of the programs of a host's agent it is not known who may reach into whom.
        let is_private = found && (is_hosts || !may_trace(endpoint.pid, endpoint.pid));
        if is_private || endpoint.exports.len() >= most {
            return Err(No::Refused(Reason::Refused));
        }
        endpoint.exports.insert(export, Export { memory: Rc::new(memory), found });
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
        let reader = self.endpoints.get(&me).ok_or(No::Refused(Reason::Internal))?;
        // Also its own, where a program talks to itself.
        let memory = known
            .parties()
            .filter_map(|party| {
                let owner = self.endpoints.get(&party)?;
                Some((owner, owner.exports.get(&export)?))
            })
            .find(|(owner, export)| !export.found || reaches(reader, owner))
            .map(|(_, export)| Rc::clone(&export.memory))
            .ok_or(No::Refused(Reason::Refused))?;
        Ok(Answer { reply: Reply::Imported, fds: vec![memory] })
    }

    pub(super) fn unexport(&mut self, me: EndpointId, export: ExportId) -> Outcome {
        let endpoint = self.endpoints.get_mut(&me).ok_or(No::Refused(Reason::Internal))?;
        match endpoint.exports.remove(&export) {
            Some(_) => Ok(Answer::bare(Reply::Done)),
            None => Err(No::Refused(Reason::Refused)),
        }
    }
}

/// True when a program could reach into the other one without our help.
fn reaches(reader: &Endpoint, owner: &Endpoint) -> bool {
    // Their ids are theirs as long as they live, which is asked afterwards.
    may_trace(reader.pid, owner.pid) && [reader, owner].iter().all(|end| end.lives())
}
