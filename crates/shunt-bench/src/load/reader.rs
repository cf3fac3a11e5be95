//! Receiving: copied by recv(2), or looked at in place.

use std::io::{self, Read};

use clap::{Args, ValueEnum};
use shunt_api::{Piece, Released, Room};

use super::socket::Socket;

/// Room for bytes that are copied.
const COPIED: usize = 64 * 1024;

/// How a receiver comes to its bytes, and what it does with them.
#[derive(Args, Clone, Copy, Debug)]
pub struct Reading {
    /// How bytes are received.
    #[arg(long, value_enum, default_value_t = How::Copy)]
    how: How,
    /// Add all bytes up.
    #[arg(long)]
    sum: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// By recv(2).
    Copy,
    /// Where they are (`shunt_recv_borrow`).
    Borrow,
}

/// A receiver.
pub struct Reader {
    reading: Reading,
    copied: Vec<u8>,
    room: Room,
    sum: u64,
}

impl Reader {
    /// With room for at least so many bytes.
    pub fn new(reading: Reading, least: usize) -> Self {
        let len = least.max(COPIED);
        let (copied, borrowed) = if reading.how == How::Copy { (len, 1) } else { (0, len) };
        Self { reading, copied: vec![0; copied], room: Room::new(borrowed), sum: 0 }
    }

    /// Receives some bytes: how many; 0 at the end.
    pub fn next(&mut self, socket: &mut Socket) -> io::Result<usize> {
        if self.reading.how == How::Copy {
            let n = socket.read(&mut self.copied)?;
            if self.reading.sum {
                self.sum = self.sum.wrapping_add(sum(&self.copied[..n]));
            }
            return Ok(n);
        }
        loop {
            let borrowed = self.room.borrow(socket)?;
            let n = borrowed.len();
            if self.reading.sum {
                let all = borrowed.pieces().map(|piece| sum_of(&piece));
                self.sum = all.fold(self.sum, u64::wrapping_add);
            }
            if borrowed.release(n)? == Released::Whole {
                return Ok(n);
            }
        }
    }

    /// What the bytes add up to.
    pub const fn sum(&self) -> u64 {
        self.sum
    }
}

/// The sum of all words, and of the bytes that are left.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let words = words.iter().map(|word| u64::from_ne_bytes(*word));
    words.chain(rest.iter().map(|b| u64::from(*b))).fold(0, u64::wrapping_add)
}

/// The same of bytes that are somebody else's to change.
fn sum_of(piece: &Piece<'_>) -> u64 {
    piece.blocks().fold(sum(&piece.rest()), |all, block| all.wrapping_add(sum(&block)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_takes_all_bytes() {
        assert_eq!(sum(&[1; 8]), u64::from_ne_bytes([1; 8]));
        assert_eq!(sum(&[0, 0, 0, 0, 0, 0, 0, 0, 5, 6]), 11);
    }
}
