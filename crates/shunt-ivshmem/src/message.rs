//! What the server sends: 8 bytes each, a signed little-endian number, some with one descriptor
//! (QEMU's `docs/specs/ivshmem-spec`, *The ivshmem Client-Server Protocol*).

/// Names a client among all that are connected: the upper half of the doorbell register.
pub type PeerId = u16;

/// Names an interrupt vector of a peer.
pub type Vector = u16;

/// The version of the protocol, which is what is sent first.
pub const PROTOCOL_VERSION: i64 = 0;
/// What the shared memory comes with.
pub const MEMORY: i64 = -1;
/// How many IDs there are.
pub const MAX_PEERS: usize = 1 << 16;
/// Vectors that a device can ring: QEMU's heeds the lowest 8 bits of what is written to the doorbell
/// register.
pub const MAX_VECTORS: Vector = 256;
/// Length of a message.
pub const MESSAGE: usize = 8;

/// The descriptor that goes with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attached {
    /// None.
    Nothing,
    /// The shared memory's.
    Memory,
    /// The eventfd of a vector of a peer.
    Bell(PeerId, Vector),
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The number.
    pub number: i64,
    /// What goes with it.
    pub attached: Attached,
}

impl Message {
    /// One that is a number alone.
    #[must_use]
    pub const fn plain(number: i64) -> Self {
        Self { number, attached: Attached::Nothing }
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> [u8; MESSAGE] {
        self.number.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_as_the_specification_has_them() {
        assert_eq!(Message::plain(PROTOCOL_VERSION).bytes(), [0; 8]);
        assert_eq!(Message::plain(0x0102).bytes(), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Message::plain(MEMORY).bytes(), [0xff; 8]);
    }
}
