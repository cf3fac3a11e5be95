//! Commands on their way to the controller.

use super::{Queue, Slot, Transfer};
use crate::{
    transport::{Command, DataRange, Mark, Outbox},
    wire::{CapsuleCmd, Sgl, Sqe},
};
use core::fmt;
use zerocopy::IntoBytes;

/// Why a command was not submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// ICResp has not come.
    NotReady,
    /// As many commands as the queue has places are in flight.
    Full,
    /// The connection is over.
    Closed,
    /// In-capsule data of no bytes, or of more than 32 bits can count with its header.
    DataLength,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotReady => "the connection is not initialized yet",
            Self::Full => "the queue is full",
            Self::Closed => "the connection is over",
            Self::DataLength => "in-capsule data has an impossible length",
        })
    }
}

impl core::error::Error for SubmitError {}

/// Bits of a command identifier that say the place.
const SLOT_BITS: u32 = 12;

/// The identifier of a command: its place, and the lowest bits of its generation.
pub(super) const fn identifier(command: Command) -> u16 {
    let [low, high, ..] = command.generation.to_le_bytes();
    u16::from_le_bytes([low, high]) << SLOT_BITS | command.slot
}

impl Queue {
    /// Sends a command. Its CID and SGL are set here.
    ///
    /// # Errors
    ///
    /// Nothing was sent.
    pub fn submit(&mut self, sqe: &Sqe, transfer: Transfer) -> Result<Command, SubmitError> {
        if self.framing.is_closed() {
            return Err(SubmitError::Closed);
        }
        if self.negotiated.is_none() {
            return Err(SubmitError::NotReady);
        }
        let in_capsule = match transfer {
            Transfer::InCapsule(len) if len == 0 || len > u32::MAX - 256 => {
                return Err(SubmitError::DataLength);
            }
            Transfer::InCapsule(len) => len,
            _ => 0,
        };
        let rules = self.to_controller;
        let data_entries = if in_capsule > 0 { Outbox::data_entries(&rules) } else { 0 };
        let slot = Slot {
            transfer,
            moved: 0,
            last: false,
            success: false,
            damaged: false,
            sent: false,
            open_r2ts: 0,
            unsent: data_entries,
            capsule_entries: if rules.data_digest && in_capsule > 0 {
                3
            } else {
                1 + u8::from(in_capsule > 0)
            },
            done: None,
        };
        let command = self.slots.insert(slot).ok_or(SubmitError::Full)?;
        let mut sqe = *sqe;
        sqe.cid = identifier(command).into();
        sqe.sgl = match transfer {
            Transfer::None => Sgl::transport(0),
            Transfer::InCapsule(len) => Sgl::in_capsule(len),
            Transfer::ToController(len) | Transfer::ToHost(len) => Sgl::transport(len),
        };
        let pdu = CapsuleCmd::new(sqe, in_capsule, &rules);
        let end = Mark::Capsule(command);
        let mark = if in_capsule > 0 { Mark::None } else { end };
        self.out.head(pdu.as_bytes(), pdu.header.pdo, &rules, Some(command), mark);
        if in_capsule > 0 {
            self.out.data(DataRange { command, offset: 0, len: in_capsule }, &rules, end);
        }
        Ok(command)
    }

    /// Takes a command back of which nothing was sent. False if it is on its way or over.
    pub fn withdraw(&mut self, command: Command) -> bool {
        let Some(slot) = self.slots.get(command) else { return false };
        let withdrawn = !slot.sent && self.out.withdraw(command, slot.capsule_entries.into());
        if withdrawn {
            self.slots.remove(command);
        }
        withdrawn
    }

    /// The identifier of a command in flight, for an Abort on the Admin Queue.
    #[must_use]
    pub fn cid(&self, command: Command) -> Option<u16> {
        self.slots.get(command).map(|_| identifier(command))
    }
}
