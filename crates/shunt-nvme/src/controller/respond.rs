//! What goes to the host.

use super::{Event, Queue, Transfer};
use crate::{
    transport::{Command, DataRange, Mark, Outbox},
    wire::{
        C2hData, CapsuleResp, Cqe, Status,
        pdu::{LAST_PDU, SUCCESS},
    },
};
use zerocopy::IntoBytes;

impl Queue {
    /// Ends a command, with the first `data_len` bytes of its memory for the host if it has
    /// succeeded and the host expects data. `data_len` is cut to what the host expects.
    ///
    /// The memory has to stay until [`Event::Sent`] if any data goes out. Without data the command
    /// is over at once, and its memory is needed no more. Data that the host was asked for and
    /// that has not come is thrown away when it does; the response waits for it.
    pub fn respond(&mut self, command: Command, status: Status, result: u64, data_len: u32) {
        let Some(slot) = self.slots.get_mut(command).filter(|slot| slot.answer.is_none()) else {
            return;
        };
        if slot.unsent > 0 {
            return;
        }
        let cid = slot.cid;
        let expected = match slot.transfer {
            Transfer::ToHost(len) if status.is_success() => len,
            _ => 0,
        };
        let total = data_len.min(expected);
        if slot.r2t.is_some() {
            slot.answer = Some((status, result));
            // What a PDU at hand still brings counts as come: `h2c_data` has added it.
            let served = slot.r2t.is_some_and(|r2t| r2t.next == r2t.end);
            self.framing.discard(command);
            if served {
                self.served(command);
            }
            return;
        }
        self.framing.discard(command);
        if total == 0 {
            self.finish(command, status, result);
            return;
        }
        // TCP 3.3.2: the response may be left out if it says nothing but success, and SQHD isn't
        // needed.
        let merged = self.flow.is_none() && status.bits() == 0 && result == 0;
        let chunk = self.limits.max_c2h_data.max(1);
        let mut offset = 0;
        let mut entries = 0;
        while offset < total {
            let len = chunk.min(total - offset);
            let is_last = offset + len == total;
            let flags = match (is_last, merged) {
                (true, true) => LAST_PDU | SUCCESS,
                (true, false) => LAST_PDU,
                _ => 0,
            };
            let pdu = C2hData::new(cid, offset, len, flags, &self.to_host);
            self.out.head(pdu.as_bytes(), pdu.header.pdo, &self.to_host, None, Mark::None);
            self.out.data(DataRange { command, offset, len }, &self.to_host, Mark::None);
            entries += Outbox::data_entries(&self.to_host);
            offset += len;
        }
        if !merged {
            self.answer(cid, status, result);
        }
        // The host may use the identifier again as soon as it has the response.
        self.cids.set(cid, None);
        if let Some(slot) = self.slots.get_mut(command) {
            slot.unsent = entries;
        }
    }

    /// An open R2T is served but for bytes that are on their way to nowhere.
    fn served(&mut self, command: Command) {
        let Some(slot) = self.slots.get_mut(command) else { return };
        let Some(r2t) = slot.r2t.take() else { return };
        self.in_flight -= r2t.len;
        if let Some((status, result)) = slot.answer.take() {
            self.finish(command, status, result);
        }
        self.ask();
    }

    /// Ends a command that has no data to send.
    pub(super) fn finish(&mut self, command: Command, status: Status, result: u64) {
        if let Some(slot) = self.slots.remove(command) {
            self.cids.set(slot.cid, None);
            self.answer(slot.cid, status, result);
        }
    }

    /// Queues a response.
    pub(super) fn answer(&mut self, cid: u16, status: Status, result: u64) {
        if self.framing.is_closed() {
            return;
        }
        let unused = core::mem::take(&mut self.sqhd);
        let sqhd = self.flow.map_or(unused, |(head, _)| head);
        let pdu = CapsuleResp::new(Cqe::new(cid, status, result, sqhd), &self.to_host);
        self.out.head(pdu.as_bytes(), 0, &self.to_host, None, Mark::None);
    }

    /// `bytes` of the pieces were handed to the socket.
    pub fn sent(&mut self, bytes: usize) {
        let mut left = bytes;
        while let Some(sent) = self.out.advance(&mut left) {
            let Some(command) = sent.data_of else { continue };
            let Some(slot) = self.slots.get_mut(command) else { continue };
            slot.unsent -= 1;
            if slot.unsent == 0 {
                self.slots.remove(command);
                self.events.push_back(Event::Sent(command));
            }
        }
    }
}
