//! Memory that endpoints have registered, or pin in pipes, for their peers to read.

use std::rc::Rc;

use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl};
use shunt_sys::reach::may_trace;
use shunt_wire::agent::{EndpointId, ExportId, Exported, LANES, RegionId, Reply};
use shunt_wire::reason::Reason;

use super::export::Export;
use super::{Answer, Endpoint, Outcome, Rejection, State};
use crate::held::{Held, Passed, Thing};

/// What a reader relies on: nobody can cut the memory short.
const LASTING: SealFlags = SealFlags::SHRINK;
/// What a program relies on that has asked for memory to lend: who gets the descriptor cannot write to it.
const PUBLISHED: SealFlags = LASTING.union(SealFlags::SEAL).union(SealFlags::FUTURE_WRITE);

/// What a reader can rely on; `None`, what it cannot.
fn sound(what: Exported, thing: Thing) -> Option<Held> {
    let (fd, seals) = match (what, thing) {
        (Exported::Asked, Thing::Memory(fd)) => (fd, PUBLISHED),
        (Exported::Found, Thing::Memory(fd)) => (fd, LASTING),
        // Not a FIFO of a file system, which may let others wait.
        (Exported::Pipes { .. }, Thing::Pipe(fd)) => (fd, SealFlags::empty()),
        _ => return None,
    };
    let is_read = fcntl_getfl(&fd).is_ok_and(|mode| mode & OFlags::RWMODE == OFlags::RDONLY);
    let is_sealed = || fcntl_get_seals(&fd).is_ok_and(|has| has.contains(seals));
    (is_read && (seals.is_empty() || is_sealed())).then_some(fd)
}

impl State {
    pub(super) fn export(
        &mut self,
        me: EndpointId,
        what: Exported,
        passed: &mut Passed,
    ) -> Outcome {
        let count = if matches!(what, Exported::Pipes { .. }) { LANES } else { 1 };
        let things: Vec<_> = (0..count).map_while(|_| passed.take()).collect();
        if things.len() < count {
            return Err(Rejection::Misconduct("an Export without memory"));
        }
        let fds = things.into_iter().map(|thing| sound(what, thing).map(Rc::new));
        let fds = fds.collect::<Option<Vec<_>>>().ok_or(Rejection::Misconduct(
            "memory that others could change, or that could be cut short",
        ))?;
        let export = self.new_id();
        let most = self.limits.exports_per_endpoint;
        let is_hosts = self.host.is_some();
        let endpoint = self.endpoints.get_mut(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        // Of the programs of a host's agent it is not known who may reach into whom.
        let is_asked = what == Exported::Asked;
        let is_private = !is_asked && (is_hosts || !may_trace(endpoint.pid, endpoint.pid));
        if is_private || endpoint.exports.len() >= most {
            return Err(Rejection::Refused(Reason::Refused));
        }
        endpoint.exports.insert(export, Export { what, fds });
        Ok(Answer::bare(Reply::Exported { export }))
    }

    pub(super) fn import(
        &self,
        me: EndpointId,
        (region, slot): (RegionId, u32),
        export: ExportId,
        passed: &mut Passed,
    ) -> Outcome {
        let held = passed.take();
        let known = self.regions.get(&region).ok_or(Rejection::Refused(Reason::Refused))?;
        let holds_it = |socket| self.is_held_by(known, slot, socket);
        if !known.has_party(me) && !held.as_ref().is_some_and(holds_it) {
            return Err(Rejection::Refused(Reason::Refused));
        }
        let reader = self.endpoints.get(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        // Also its own, where a program talks to itself.
        let of_party = |party| {
            let owner = self.endpoints.get(&party)?;
            Some((owner, owner.exports.get(&export)?))
        };
        // A child of a party, which was forked later, is none, and nobody here knows whose child it is. It has said for which
        // connection its pipes are, and nobody but the other end of that is led to them.
        let of_relative = || {
            let mut all = self.endpoints.values();
            all.find_map(|owner| Some((owner, owner.exports.get(&export)?)))
        };
        let is_shown = |owner: &Endpoint, export: &Export| match export.what {
            // Of the programs of a host's agent it is not known who may reach into whom.
            Exported::Asked => self.host.is_none() && reaches(reader, owner),
            Exported::Found => reaches(reader, owner),
            // A pipe's reader can be held up by its writer, too.
            what @ Exported::Pipes { .. } => {
                what == Exported::Pipes { region, slot }
                    && reaches(reader, owner)
                    && reaches(owner, reader)
            }
        };
        let fds = known
            .parties()
            .find_map(of_party)
            .filter(|(_, export)| export.what == Exported::Asked)
            .or_else(|| of_relative().filter(|(owner, export)| is_shown(owner, export)))
            .map(|(_, export)| export.fds.iter().map(Rc::clone).collect())
            .ok_or(Rejection::Refused(Reason::Refused))?;
        Ok(Answer { reply: Reply::Imported, fds })
    }

    pub(super) fn unexport(&mut self, me: EndpointId, export: ExportId) -> Outcome {
        let endpoint = self.endpoints.get_mut(&me).ok_or(Rejection::Refused(Reason::Internal))?;
        match endpoint.exports.remove(&export) {
            Some(_) => Ok(Answer::bare(Reply::Done)),
            None => Err(Rejection::Refused(Reason::Refused)),
        }
    }
}

/// True when a program could reach into the other one without our help.
fn reaches(reader: &Endpoint, owner: &Endpoint) -> bool {
    // Their ids are theirs as long as they live, which is asked afterwards.
    may_trace(reader.pid, owner.pid) && [reader, owner].iter().all(|end| end.lives())
}
