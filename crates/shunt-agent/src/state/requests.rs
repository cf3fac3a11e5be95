//! The requests that each kind of client may make.

use shunt_shm::capture::Wish;
use shunt_wire::agent::{EndpointId, Reply, Request};
use shunt_wire::reason::Reason;
use shunt_wire::version::SPOKEN;

use super::{Answer, Misconduct, Outcome, Peer, Rejection, Role, State};
use crate::held::Passed;
use crate::party::Party;
use crate::report;

impl State {
    /// Answers one request of the client in `role`.
    ///
    /// # Errors
    /// When the client is to be dropped.
    pub fn handle(
        &mut self,
        role: &mut Role,
        peer: Peer<'_>,
        request: &Request<'_>,
        passed: &mut Passed,
    ) -> Result<Answer, Misconduct> {
        let outcome = match (*role, request) {
            (Role::Nobody, Request::Hello { version, program, run }) => {
                self.hello(role, peer, (*version, *run), program, passed)
            }
            (Role::Nobody, Request::Tool { version }) => tool(role, *version),
            (Role::Endpoint(me), request) => self.for_endpoint(me, request, passed),
            (Role::Tool, Request::List) => {
                report::list(self, self.limits.listed, self.shown_to(peer))
            }
            (Role::Tool, Request::Stats { run }) => report::stats(self, *run, self.shown_to(peer)),
            (Role::Tool, Request::Capture { snap, port }) => {
                self.capture(role, Wish { snap: *snap, port: *port }, self.shown_to(peer))
            }
            (Role::Capture { place, .. }, Request::Captured) => self.captured(place),
            (Role::Tool, Request::Explain { port, other }) => {
                report::explain(self, (*port, *other), self.shown_to(peer))
            }
            (Role::Tool, Request::Status) => report::status(self, self.shown_to(peer)),
            _ => Err(Rejection::Misconduct("a request that is not for it to make")),
        };
        let unused = !passed.is_empty();
        match outcome {
            Err(Rejection::Misconduct(what)) => Err(Misconduct(what)),
            _ if unused => Err(Misconduct("descriptors that no request asks for")),
            Ok(answer) => Ok(answer),
            Err(Rejection::Refused(reason)) => Ok(Answer::refused(reason)),
        }
    }

    /// Whose programs a tool is shown: of an agent for the host, root sees all, and others their own.
    fn shown_to(&self, peer: Peer<'_>) -> Option<Party> {
        (self.host.is_some() && !peer.origin.is_hosts_root).then_some(peer.origin.party)
    }

    fn for_endpoint(
        &mut self,
        me: EndpointId,
        request: &Request<'_>,
        passed: &mut Passed,
    ) -> Outcome {
        if let Some(outcome) = self.answer_remote(me, request, passed) {
            return outcome;
        }
        match *request {
            Request::Listen => self.listen(me, passed).map(|answer| self.listening(answer)),
            Request::Unlisten { listener } => self.unlisten(me, listener),
            Request::Bequeath { listener } => self.bequeath(me, listener),
            Request::Connect { listener } => self.connect(me, listener),
            Request::Attach { region, slot } => self.attach(me, region, slot, passed),
            Request::Bells { region, endpoint } => self.bells(me, region, endpoint),
            Request::Detach { region } => self.detach(me, region),
            Request::Export { what } => self.export(me, what, passed),
            Request::Import { region, slot, export } => {
                self.import(me, (region, slot), export, passed)
            }
            Request::Unexport { export } => self.unexport(me, export),
            Request::Await => self.await_clients(me, passed),
            Request::Offer { record, number } => self.offer(me, (record, number), passed),
            Request::Claim => self.claim(me, passed),
            Request::Fetch { region, slot } => self.fetch(me, region, slot, passed),
            Request::AddBell => self.add_bell(me, passed),
            Request::Bell { region, slot, endpoint, vector } => {
                self.bell(me, (region, slot), (endpoint, vector), passed)
            }
            _ => Err(Rejection::Misconduct("a request that is not for a library to make")),
        }
    }
}

fn tool(role: &mut Role, version: u32) -> Outcome {
    if !SPOKEN.contains(&version) {
        return Err(Rejection::Refused(Reason::VersionMismatch));
    }
    *role = Role::Tool;
    Ok(Answer::bare(Reply::Done))
}
