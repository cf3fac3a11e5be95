//! What comes from the host.

use super::{Event, OpenR2t, Phase, Queue, Slot, Transfer};
use crate::{
    transport::{Command, Mark, PeerTermination, Step, Target},
    wire::{
        CapsuleCmd, Direction, H2cData, IcReq, IcResp, Layout, PduType, R2t, SglKind, Sqe, Status,
        TermReq, Violation,
        fabrics::{CONNECT_DATA_LEN, fctype},
        init::{DATA_DIGEST, HEADER_DIGEST},
    },
};
use zerocopy::IntoBytes;

/// Bits of a transfer tag that say the place; those above tell tags of one place apart.
const TAG_SLOT_BITS: u32 = 10;

/// The transfer tag of a command.
const fn transfer_tag(command: Command) -> u16 {
    let [low, high, ..] = command.generation.to_le_bytes();
    u16::from_le_bytes([low, high]) << TAG_SLOT_BITS | command.slot
}

impl Queue {
    /// Takes received bytes of headers and digests; says how many.
    ///
    /// # Errors
    ///
    /// The host broke a rule. The terminate request is in the outbox.
    pub fn header(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let result = self.framing.push(bytes).and_then(|(taken, step)| {
            self.step(step)?;
            Ok(taken)
        });
        result.inspect_err(|violation| self.terminate(*violation))
    }

    /// `len` bytes of data were placed, or thrown away. `crc` is their CRC32C, of use where
    /// [`Queue::data_digest`] is true: data without it counts as damaged.
    ///
    /// # Errors
    ///
    /// The host broke a rule. The terminate request is in the outbox.
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
        let is_first = self.phase == Phase::Initial;
        let target = match layout.pdu {
            PduType::IcReq if is_first => {
                let request: IcReq = self.framing.view();
                self.initialize(&request)?;
                Target::Discard
            }
            PduType::H2cTermReq => {
                let request: TermReq = self.framing.view();
                self.events.push_back(Event::Terminated(PeerTermination {
                    status: request.status(),
                    information: request.fei.get(),
                }));
                self.framing.close();
                return Ok(());
            }
            PduType::CapsuleCmd if !is_first => {
                let capsule: CapsuleCmd = self.framing.view();
                self.capsule(&capsule.sqe, layout)?
            }
            PduType::H2cData if !is_first => {
                let data: H2cData = self.framing.view();
                self.h2c_data(&data, layout)?
            }
            other => return Err(Violation::Unexpected(other)),
        };
        self.framing.proceed(layout, target);
        Ok(())
    }

    /// Negotiates: digests that both want, each end's alignment (TCP 3.6.2.2, 3.6.2.3).
    fn initialize(&mut self, request: &IcReq) -> Result<(), Violation> {
        request.check()?;
        let header_digest = self.limits.header_digest && request.dgst & HEADER_DIGEST != 0;
        let data_digest = self.limits.data_digest && request.dgst & DATA_DIGEST != 0;
        let digests = if header_digest { HEADER_DIGEST } else { 0 }
            | if data_digest { DATA_DIGEST } else { 0 };
        let response = IcResp::new(self.limits.alignment, digests, self.limits.max_h2c_data);
        self.out.head(response.as_bytes(), 0, &self.to_host, None, Mark::None);
        self.to_host.header_digest = header_digest;
        self.to_host.data_digest = data_digest;
        self.to_host.alignment = request.hpda;
        let rules = &mut self.framing.rules;
        rules.header_digest = header_digest;
        rules.data_digest = data_digest;
        rules.alignment = self.limits.alignment;
        rules.max_data = CONNECT_DATA_LEN;
        self.phase = Phase::Connect;
        Ok(())
    }

    fn capsule(&mut self, sqe: &Sqe, layout: &Layout) -> Result<Target, Violation> {
        if layout.data_len > self.in_capsule_limit(sqe) {
            return Err(Violation::TooMuchData(PduType::CapsuleCmd));
        }
        if let Some((head, size)) = &mut self.flow {
            *head = (*head + 1) % *size;
        }
        let cid = sqe.cid.get();
        let transfer = match self.admit(sqe, layout) {
            Ok(transfer) => transfer,
            Err(status) => {
                self.answer(cid, status, 0);
                return Ok(Target::Discard);
            }
        };
        let command = self
            .slots
            .insert(Slot {
                cid,
                transfer,
                requested: 0,
                r2t: None,
                wanted: false,
                damaged: false,
                answer: None,
                unsent: 0,
            })
            .ok_or(Violation::QueueOverflow)?;
        self.cids.set(cid, Some(command.slot));
        self.events.push_back(Event::Command { command, sqe: *sqe, transfer });
        Ok(Target::Command { command, offset: 0 })
    }

    /// Decides about a command by its entry alone: where its data is, or why it is refused.
    fn admit(&self, sqe: &Sqe, layout: &Layout) -> Result<Transfer, Status> {
        match (self.phase, sqe.fctype()) {
            (Phase::Ready, _)
            | (Phase::Connect, Some(fctype::CONNECT))
            | (
                Phase::Authentication,
                Some(
                    fctype::AUTHENTICATION_SEND
                    | fctype::AUTHENTICATION_RECEIVE
                    | fctype::DISCONNECT,
                ),
            ) => {}
            // Base 8.13: until the host is authenticated.
            (Phase::Authentication, _) => return Err(Status::AUTHENTICATION_REQUIRED.dnr()),
            // Base 3.3.1: before Connect.
            _ => return Err(Status::COMMAND_SEQUENCE_ERROR.dnr()),
        }
        if self.cids.get(sqe.cid.get()).is_some() {
            return Err(Status::CID_CONFLICT.dnr());
        }
        // TCP 3.3.2: commands use SGLs.
        if sqe.fctype().is_none() && sqe.flags >> 6 != 1 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let len = sqe.sgl.length.get();
        let direction = sqe.direction();
        let has_data = len > 0 && direction != Direction::None;
        if !has_data {
            // Data that no descriptor tells of.
            return if layout.data_len == 0 {
                Ok(Transfer::None)
            } else {
                Err(Status::SGL_INVALID_LENGTH.dnr())
            };
        }
        match (direction, sqe.sgl.kind()) {
            (Direction::ToController, SglKind::InCapsule { offset }) => {
                // ICDOFF is 0: data begins right behind the queue entry.
                if offset != 0 {
                    return Err(Status::SGL_INVALID_OFFSET.dnr());
                }
                if len != layout.data_len {
                    return Err(Status::SGL_INVALID_LENGTH.dnr());
                }
                Ok(Transfer::InCapsule(len))
            }
            (_, SglKind::Transport) if layout.data_len > 0 => Err(Status::SGL_INVALID_LENGTH.dnr()),
            // Base 5.17.2.1: beyond MDTS.
            (_, SglKind::Transport) if len > self.limits.max_transfer => {
                Err(Status::INVALID_FIELD.dnr())
            }
            (Direction::ToController, SglKind::Transport) => Ok(Transfer::FromHost(len)),
            (Direction::ToHost, SglKind::Transport) => Ok(Transfer::ToHost(len)),
            (Direction::Both, _) => Err(Status::INVALID_OPCODE.dnr()),
            _ => Err(Status::SGL_INVALID_TYPE.dnr()),
        }
    }

    /// Checks data against the R2T that asked for it (TCP 3.3.2, 3.6.2.8).
    fn h2c_data(&mut self, data: &H2cData, layout: &Layout) -> Result<Target, Violation> {
        data.check(layout)?;
        if layout.data_len > self.limits.max_h2c_data {
            return Err(Violation::TooMuchData(PduType::H2cData));
        }
        let tag = data.ttag.get();
        let unknown = Violation::UnknownTransfer(tag);
        let command = self.slots.at(tag & ((1 << TAG_SLOT_BITS) - 1)).ok_or(unknown)?;
        if transfer_tag(command) != tag {
            return Err(unknown);
        }
        let slot = self.slots.get_mut(command).ok_or(unknown)?;
        let r2t = slot.r2t.as_mut().ok_or(unknown)?;
        if data.cccid.get() != slot.cid {
            return Err(Violation::UnknownCommand(PduType::H2cData));
        }
        let offset = data.datao.get();
        if offset != r2t.next {
            return Err(Violation::DataSequence(PduType::H2cData));
        }
        if layout.data_len > r2t.end - r2t.next {
            return Err(Violation::DataRange(PduType::H2cData));
        }
        r2t.next += layout.data_len;
        if data.is_last() != (r2t.next == r2t.end) {
            return Err(Violation::LastFlag(PduType::H2cData));
        }
        if slot.answer.is_some() {
            self.discarded(command);
            return Ok(Target::Discard);
        }
        Ok(Target::Command { command, offset })
    }

    /// Data of an R2T comes for a command that has its answer: the answer goes out with the last.
    fn discarded(&mut self, command: Command) {
        let Some(slot) = self.slots.get_mut(command) else { return };
        let Some(r2t) = slot.r2t.filter(|r2t| r2t.next == r2t.end) else { return };
        slot.r2t = None;
        self.in_flight -= r2t.len;
        if let Some((status, result)) = slot.answer.take() {
            self.finish(command, status, result);
        }
        self.ask();
    }

    /// The data of a PDU is placed.
    fn data_complete(&mut self, command: Command, intact: bool) {
        let Some(slot) = self.slots.get_mut(command) else { return };
        slot.damaged |= !intact;
        if let Some(r2t) = slot.r2t {
            if r2t.next < r2t.end {
                return;
            }
            slot.r2t = None;
            self.in_flight -= r2t.len;
        }
        let (damaged, more) = (slot.damaged, slot.requested < slot.transfer.len());
        let is_capsule = matches!(slot.transfer, Transfer::InCapsule(_));
        if damaged {
            // TCP 3.5: a data digest error concerns the command alone.
            self.events.push_back(Event::Damaged(command));
            self.finish(command, Status::TRANSIENT_TRANSPORT_ERROR, 0);
        } else if more && !is_capsule {
            self.waiting.push_back(command);
        } else {
            self.events.push_back(Event::Received(command));
        }
        self.ask();
    }

    /// The caller has memory for the data of this command, which is asked for as soon as the limit
    /// of data in flight allows it.
    pub fn receive(&mut self, command: Command) {
        let Some(slot) = self.slots.get_mut(command) else { return };
        let is_new = matches!(slot.transfer, Transfer::FromHost(_)) && !slot.wanted;
        if is_new && slot.answer.is_none() {
            slot.wanted = true;
            self.waiting.push_back(command);
            self.ask();
        }
    }

    /// Sends R2Ts while the limit allows it, each command's data in order.
    pub(super) fn ask(&mut self) {
        let limit = self.limits.max_in_flight.max(1);
        while let Some(&command) = self.waiting.front() {
            let Some(slot) = self.slots.get_mut(command) else {
                self.waiting.pop_front();
                continue;
            };
            let offset = slot.requested;
            let len = (slot.transfer.len() - offset).min(limit);
            if self.in_flight > 0 && self.in_flight + len > limit || self.framing.is_closed() {
                return;
            }
            self.waiting.pop_front();
            slot.requested = offset + len;
            slot.r2t = Some(OpenR2t { next: offset, end: offset + len, len });
            self.in_flight += len;
            let pdu = R2t::new(slot.cid, transfer_tag(command), offset, len, &self.to_host);
            self.out.head(pdu.as_bytes(), 0, &self.to_host, None, Mark::None);
        }
    }
}
