//! What becomes of commands when they come: those for stores go there ([`super::block_io`]), all others are the site's.

use shunt_nvme::controller::Transfer;
use shunt_nvme::subsystem::{Io, Plan, Reply, Unpaired};
use shunt_nvme::transport::Command;
use shunt_nvme::wire::fabrics::ConnectData;
use shunt_nvme::wire::{Fuse, Nqn, Sqe, Status};

use super::conn::{Conn, State};
use super::context::Context;
use super::link::Data;
use super::task::Task;
use crate::site::Namespace;
use crate::store::{Blocks, Request};

impl Conn {
    /// A command has come.
    pub(super) fn command(
        &mut self,
        command: Command,
        sqe: &Sqe,
        transfer: Transfer,
        context: &mut Context,
    ) {
        if self.state != State::Open {
            // It is not answered: the host sends it again elsewhere, or when the target is back.
            self.link.place(command, Data::Dropped);
            return;
        }
        self.heard = true;
        let (plan, unpaired) = context.site.plan(&mut self.session, sqe, transfer);
        if let Some(unpaired) = unpaired {
            self.unpair(unpaired, context);
        }
        match plan {
            Plan::Refuse(status) => self.refuse(command, sqe, status, context),
            Plan::Io(io) => {
                self.tasks.note(command, Task::Store(io, *sqe));
                match io.fuse {
                    Fuse::First => self.fused.begin(command),
                    Fuse::Second => self.fused.join(command),
                    Fuse::No | Fuse::Reserved => {}
                }
                let unasked = matches!(transfer, Transfer::InCapsule(_));
                self.begin(command, &io, unasked, context);
            }
            Plan::Execute => match transfer {
                Transfer::InCapsule(len) | Transfer::FromHost(len) => {
                    self.link.place(command, Data::Bytes(vec![0; len as usize]));
                    self.tasks.note(command, Task::Whole(*sqe, transfer));
                    self.link.queue.receive(command);
                }
                Transfer::None | Transfer::ToHost(_) => {
                    self.whole(command, sqe, transfer, &[], context);
                }
            },
        }
    }

    fn refuse(&mut self, command: Command, sqe: &Sqe, status: Status, context: &mut Context) {
        context.site.failed(&self.session, sqe, status);
        self.answer(command, status, context);
    }

    /// The last first command of a fused operation gets no second one.
    pub(super) fn unpair(&mut self, unpaired: Unpaired, context: &mut Context) {
        let Some((first, has_data)) = self.fused.unpair() else { return };
        match (unpaired, self.tasks.get(first)) {
            (Unpaired::Ends(status), _) => self.answer(first, status, context),
            (Unpaired::Alone, Some(Task::Store(io, sqe))) => {
                self.tasks.note(first, Task::Store(Io { fuse: Fuse::No, ..io }, sqe));
                if has_data {
                    self.received(first, context);
                }
            }
            // It has ended.
            (Unpaired::Alone, _) => {}
        }
    }

    /// A command whose data is there, and which is not for a store.
    pub(super) fn whole(
        &mut self,
        command: Command,
        sqe: &Sqe,
        transfer: Transfer,
        data: &[u8],
        context: &mut Context,
    ) {
        let reply = context.site.execute(&mut self.session, sqe, transfer, data);
        reply.apply(&mut self.link.queue);
        match reply {
            Reply::Done { status, result, data } => {
                self.give(command, (status, result), data);
            }
            Reply::Connected { result, authenticate, .. } => {
                self.connected(data, authenticate, context);
                self.give(command, (Status::SUCCESS, result), Vec::new());
            }
            Reply::Authenticated { data } => {
                self.ticket.connected();
                self.give(command, (Status::SUCCESS, 0), data);
            }
            Reply::Deallocate { io, ranges } => {
                let blocks = |range: &shunt_nvme::subsystem::Range| Blocks {
                    first: range.slba,
                    count: u64::from(range.blocks),
                };
                let request = Request::Discard(ranges.iter().map(blocks).collect());
                self.tasks.note(command, Task::Store(io, *sqe));
                self.submit(command, &io, request, Vec::new(), context);
            }
            Reply::Later => {}
            Reply::Disconnect => {
                self.give(command, (Status::SUCCESS, 0), Vec::new());
                self.state = State::Flushing;
            }
        }
        if self.session.has_failed() {
            self.state = State::Flushing;
        }
    }

    /// Connect has succeeded.
    fn connected(&mut self, data: &[u8], authenticate: bool, context: &mut Context) {
        if let Ok(data) = <ConnectData as zerocopy::FromBytes>::read_from_bytes(data)
            && let (Ok(nqn), Ok(host)) =
                (Nqn::from_field(&data.subnqn), Nqn::from_field(&data.hostnqn))
        {
            self.names = Some((nqn, host));
            self.look(context);
        }
        // A host that has to prove who it is has its place when it has.
        if !authenticate {
            self.ticket.connected();
        }
    }

    /// Answers, with data of this thread's own.
    fn give(&mut self, command: Command, (status, result): (Status, u64), data: Vec<u8>) {
        let len = u32::try_from(data.len()).unwrap_or(0);
        self.link.place(command, Data::Bytes(data));
        self.link.queue.respond(command, status, result, len);
    }

    /// Looks what there is for this host.
    fn look(&mut self, context: &Context) {
        let Some((nqn, host)) = &self.names else { return };
        self.view = context.site.view(nqn, host);
        if self.view.namespaces.values().any(|namespace| namespace.grant) {
            self.link.allow_grants();
        }
    }

    pub(super) fn namespace(&mut self, nsid: u32, context: &Context) -> Option<&Namespace> {
        if context.site.is_stale(&self.view) {
            self.look(context);
        }
        self.view.namespaces.get(&nsid)
    }

    /// Aborts a command, if it waits for memory or for data of the host: nothing of it has been done then, but that
    /// a part of its data may be in its place already. True if so.
    pub(super) fn abort(&mut self, cid: u16, context: &mut Context) -> bool {
        let Some(command) = self.link.queue.find(cid) else { return false };
        let is_fused = match self.tasks.get(command) {
            Some(Task::Store(io, _)) => io.fuse != Fuse::No,
            Some(Task::Whole(..)) => false,
            // Its answer is on its way.
            None => return false,
        };
        let is_hungry = self.hungry.iter().any(|(hungry, _)| *hungry == command);
        // What a store has to do it has no data here any more.
        let waits = is_hungry || !matches!(self.link.data(command), Data::None);
        if is_fused || !waits {
            return false;
        }
        self.hungry.retain(|(hungry, _)| *hungry != command);
        self.answer(command, Status::ABORT_REQUESTED, context);
        true
    }
}
