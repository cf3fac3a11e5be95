//! What comes from the controller.

use super::{Completion, Event, Negotiated, Queue, Transfer, submit::identifier};
use crate::{
    transport::{Command, DataRange, Mark, Outbox, PeerTermination, Step, Target},
    wire::{
        C2hData, CapsuleResp, Cqe, H2cData, IcResp, Layout, PduType, R2t, Status, TermReq,
        Violation,
        init::{DATA_DIGEST, HEADER_DIGEST},
    },
};
use zerocopy::IntoBytes;

impl Queue {
    /// Takes received bytes of headers and digests; says how many.
    ///
    /// # Errors
    ///
    /// The controller broke a rule. The terminate request is in the outbox.
    pub fn header(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let result = self.framing.push(bytes).and_then(|(taken, step)| {
            self.step(step)?;
            Ok(taken)
        });
        result.inspect_err(|violation| self.terminate(*violation))
    }

    /// `len` bytes of data were placed. `crc` is their CRC32C, of use where
    /// [`Queue::data_digest`] is true: data without it counts as damaged.
    ///
    /// # Errors
    ///
    /// The controller broke a rule. The terminate request is in the outbox.
    pub fn data(&mut self, len: u32, crc: Option<u32>) -> Result<(), Violation> {
        let step = self.framing.data(len, crc);
        self.step(step).inspect_err(|violation| self.terminate(*violation))
    }

    fn step(&mut self, step: Step) -> Result<(), Violation> {
        match step {
            Step::More | Step::Data { target: Target::Discard, .. } => Ok(()),
            Step::Head(layout) => self.head(&layout),
            Step::Data { target: Target::Command { command, .. }, intact } => {
                self.data_complete(command, intact);
                Ok(())
            }
        }
    }

    fn head(&mut self, layout: &Layout) -> Result<(), Violation> {
        let is_first = self.negotiated.is_none();
        let mut target = Target::Discard;
        match layout.pdu {
            PduType::IcResp if is_first => {
                let response: IcResp = self.framing.view();
                self.initialized(&response)?;
            }
            PduType::C2hTermReq => {
                let request: TermReq = self.framing.view();
                self.events.push_back(Event::Terminated(PeerTermination {
                    status: request.status(),
                    information: request.fei.get(),
                }));
                self.framing.close();
                return Ok(());
            }
            PduType::CapsuleResp if !is_first => {
                let capsule: CapsuleResp = self.framing.view();
                self.response(&capsule.cqe)?;
            }
            PduType::C2hData if !is_first => {
                let data: C2hData = self.framing.view();
                target = self.c2h_data(&data, layout)?;
            }
            PduType::R2t if !is_first => {
                let r2t: R2t = self.framing.view();
                self.r2t(&r2t)?;
            }
            other => return Err(Violation::Unexpected(other)),
        }
        self.framing.proceed(layout, target);
        Ok(())
    }

    fn initialized(&mut self, response: &IcResp) -> Result<(), Violation> {
        let requested = if self.config.header_digest { HEADER_DIGEST } else { 0 }
            | if self.config.data_digest { DATA_DIGEST } else { 0 };
        response.check(requested)?;
        let negotiated = Negotiated {
            header_digest: response.dgst & HEADER_DIGEST != 0,
            data_digest: response.dgst & DATA_DIGEST != 0,
            alignment: response.cpda,
            max_h2c_data: response.maxh2cdata.get(),
        };
        let rules = &mut self.framing.rules;
        rules.header_digest = negotiated.header_digest;
        rules.data_digest = negotiated.data_digest;
        rules.alignment = self.config.alignment;
        // What a command expects is looked at for each PDU.
        rules.max_data = u32::MAX;
        self.to_controller.header_digest = negotiated.header_digest;
        self.to_controller.data_digest = negotiated.data_digest;
        self.to_controller.alignment = negotiated.alignment;
        self.negotiated = Some(negotiated);
        self.events.push_back(Event::Ready(negotiated));
        Ok(())
    }

    /// The command with an identifier that a controller may speak of: it was sent, and has had no
    /// response.
    fn find(&self, cid: u16, pdu: PduType) -> Result<Command, Violation> {
        let command = self.slots.at(cid % super::MAX_DEPTH).filter(|command| {
            identifier(*command) == cid
                && self.slots.get(*command).is_some_and(|slot| slot.sent && slot.done.is_none())
        });
        command.ok_or(Violation::UnknownCommand(pdu))
    }

    fn response(&mut self, cqe: &Cqe) -> Result<(), Violation> {
        let command = self.find(cqe.cid.get(), PduType::CapsuleResp)?;
        self.conclude(command, *cqe);
        Ok(())
    }

    /// The controller is done with a command. It is over when the outbox is, too.
    fn conclude(&mut self, command: Command, cqe: Cqe) {
        let Some(slot) = self.slots.get_mut(command) else { return };
        let received = if matches!(slot.transfer, Transfer::ToHost(_)) { slot.moved } else { 0 };
        let completion = Completion { cqe, received, damaged: slot.damaged };
        if slot.unsent > 0 {
            slot.done = Some(completion);
        } else {
            self.complete(command, completion);
        }
    }

    /// Checks data against its command (TCP 3.3.2, 3.6.2.9): in order, and no more than expected.
    fn c2h_data(&mut self, data: &C2hData, layout: &Layout) -> Result<Target, Violation> {
        data.check(layout)?;
        let command = self.find(data.cccid.get(), PduType::C2hData)?;
        let unknown = Violation::UnknownCommand(PduType::C2hData);
        let slot = self.slots.get_mut(command).ok_or(unknown)?;
        let Transfer::ToHost(expected) = slot.transfer else { return Err(unknown) };
        let offset = data.datao.get();
        if slot.last || offset != slot.moved {
            return Err(Violation::DataSequence(PduType::C2hData));
        }
        if layout.data_len > expected - offset {
            return Err(Violation::DataRange(PduType::C2hData));
        }
        slot.moved += layout.data_len;
        slot.last = data.is_last();
        slot.success = data.is_success();
        Ok(Target::Command { command, offset })
    }

    fn data_complete(&mut self, command: Command, intact: bool) {
        let Some(slot) = self.slots.get_mut(command) else { return };
        slot.damaged |= !intact;
        if slot.success {
            let cqe = Cqe::new(identifier(command), Status::SUCCESS, 0, 0);
            self.conclude(command, cqe);
        }
    }

    /// Sends what an R2T asks for (TCP 3.3.2, 3.6.2.10): in order, and no more than there is.
    fn r2t(&mut self, r2t: &R2t) -> Result<(), Violation> {
        let command = self.find(r2t.cccid.get(), PduType::R2t)?;
        let unknown = Violation::UnknownCommand(PduType::R2t);
        let slot = self.slots.get_mut(command).ok_or(unknown)?;
        let Transfer::ToController(total) = slot.transfer else { return Err(unknown) };
        let (mut offset, len) = (r2t.r2to.get(), r2t.r2tl.get());
        if len == 0 {
            return Err(Violation::EmptyR2t);
        }
        if offset != slot.moved {
            return Err(Violation::DataSequence(PduType::R2t));
        }
        if len > total - offset {
            return Err(Violation::DataRange(PduType::R2t));
        }
        if slot.open_r2ts > self.config.max_r2t {
            return Err(Violation::TooManyR2t);
        }
        slot.open_r2ts += 1;
        slot.moved += len;
        let rules = self.to_controller;
        let chunk = self.negotiated.map_or(0, |agreed| agreed.max_h2c_data).max(1);
        let (cid, tag, end) = (r2t.cccid.get(), r2t.ttag.get(), offset + len);
        while offset < end {
            let len = chunk.min(end - offset);
            let is_last = offset + len == end;
            let pdu = H2cData::new(cid, tag, offset, len, is_last, &rules);
            self.out.head(pdu.as_bytes(), pdu.header.pdo, &rules, None, Mark::None);
            let mark = if is_last { Mark::Transfer(command) } else { Mark::None };
            self.out.data(DataRange { command, offset, len }, &rules, mark);
            slot.unsent += Outbox::data_entries(&rules);
            offset += len;
        }
        Ok(())
    }
}
