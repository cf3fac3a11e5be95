//! Both ends of a connection with memory for their commands, and a wire between them.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod fabric;

use shunt_nvme::{
    controller, host,
    transport::{Command, DataRange, Next, Piece},
    wire::{Nqn, Violation, digest, fabrics},
};
use std::collections::HashMap;
use zerocopy::IntoBytes;

/// A generator of numbers from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    pub fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes.chunks_mut(8).for_each(|chunk| {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        });
        bytes
    }
}

pub type Memory = HashMap<Command, Vec<u8>>;

/// What the two kinds of queues have in common.
pub trait End {
    fn next(&self) -> Next;
    fn header(&mut self, bytes: &[u8]) -> Result<usize, Violation>;
    fn data(&mut self, len: u32, crc: Option<u32>) -> Result<(), Violation>;
    fn data_digest(&self) -> bool;
    fn pieces(&self) -> Vec<Piece<'_>>;
    fn sent(&mut self, bytes: usize);
}

macro_rules! end {
    ($queue:ty) => {
        impl End for $queue {
            fn next(&self) -> Next {
                self.next()
            }
            fn header(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
                self.header(bytes)
            }
            fn data(&mut self, len: u32, crc: Option<u32>) -> Result<(), Violation> {
                self.data(len, crc)
            }
            fn data_digest(&self) -> bool {
                self.data_digest()
            }
            fn pieces(&self) -> Vec<Piece<'_>> {
                self.pieces().collect()
            }
            fn sent(&mut self, bytes: usize) {
                self.sent(bytes);
            }
        }
    };
}

end!(controller::Queue);
end!(host::Queue);

fn range(range: &DataRange) -> std::ops::Range<usize> {
    let offset = usize::try_from(range.offset).unwrap();
    offset..offset + usize::try_from(range.len).unwrap()
}

/// Takes up to `max` bytes of what an end has to send.
pub fn take(end: &mut impl End, memory: &Memory, max: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in end.pieces() {
        if bytes.len() >= max {
            break;
        }
        match piece {
            Piece::Bytes(header) => bytes.extend_from_slice(header),
            Piece::Data(data) => bytes.extend_from_slice(&memory[&data.command][range(&data)]),
            Piece::Digest { range: data, skip } => {
                let digest = digest::crc32c(&memory[&data.command][range(&data)]);
                bytes.extend_from_slice(&digest.to_le_bytes()[skip..]);
            }
        }
    }
    bytes.truncate(max);
    end.sent(bytes.len());
    bytes
}

/// Gives received bytes to an end, one step: what is left of them then.
pub fn give<'a>(
    end: &mut impl End,
    memory: &mut Memory,
    bytes: &'a [u8],
) -> Result<&'a [u8], Violation> {
    match end.next() {
        Next::Header { .. } => {
            let taken = end.header(bytes)?;
            Ok(&bytes[taken..])
        }
        Next::Data(data) => {
            let len = bytes.len().min(usize::try_from(data.len).unwrap());
            let (now, rest) = bytes.split_at(len);
            let to = memory.entry(data.command).or_default();
            let start = usize::try_from(data.offset).unwrap();
            if to.len() < start + len {
                to.resize(start + len, 0);
            }
            to[start..start + len].copy_from_slice(now);
            let crc = end.data_digest().then(|| digest::crc32c(now));
            end.data(u32::try_from(len).unwrap(), crc)?;
            Ok(rest)
        }
        Next::Discard { len } => {
            let len = bytes.len().min(usize::try_from(len).unwrap());
            end.data(u32::try_from(len).unwrap(), None)?;
            Ok(&bytes[len..])
        }
        Next::Blocked | Next::Closed => Ok(bytes),
    }
}

pub fn nqn(text: &str) -> Nqn {
    Nqn::new(text).unwrap()
}

pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:1";
pub const DISK: &str = "nqn.2026-11.io.shunt:disk";

/// Connect's data.
pub fn connect_data(cntlid: u16) -> Vec<u8> {
    fabrics::ConnectData::new([7; 16], cntlid, &nqn(DISK), &nqn(HOST)).as_bytes().to_vec()
}
