//! What the engine asks of the world: the SMC-D device.
//!
//! Names and meanings are those of the kernel's `struct smcd_ops` (`include/net/smc.h`), with the
//! attach and detach operations of the loopback-ISM series.

use core::fmt;

/// Names a device's fabric: two ends can talk when their devices are of one fabric.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Gid(pub u64);

/// Names a registered DMB in its fabric.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u64);

/// Why a device operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceError {
    /// No DMB has this token, or it is not this end's to use.
    UnknownToken,
    /// The offset and length do not lie inside the DMB.
    OutOfBounds,
    /// No memory or no descriptor is left.
    NoResources,
    /// The device has no such operation (attach on a device that can only move).
    Unsupported,
    /// The fabric (the agent, the other VM) is gone.
    Gone,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownToken => "no DMB has this token",
            Self::OutOfBounds => "outside the DMB",
            Self::NoResources => "out of memory or descriptors",
            Self::Unsupported => "not supported by this device",
            Self::Gone => "the fabric is gone",
        })
    }
}

impl core::error::Error for DeviceError {}

/// An SMC-D device.
pub trait Device {
    /// A mapped DMB, own or attached.
    type Dmb;

    /// The fabric's name.
    fn query_gid(&self) -> Gid;

    /// Makes a DMB of `len` bytes that peers may move data into, or attach.
    ///
    /// # Errors
    /// [`DeviceError::NoResources`], [`DeviceError::Gone`].
    fn register_dmb(&self, len: usize) -> Result<(Token, Self::Dmb), DeviceError>;

    /// Ends a DMB of this end.
    ///
    /// # Errors
    /// [`DeviceError::UnknownToken`].
    fn unregister_dmb(&self, token: Token) -> Result<(), DeviceError>;

    /// True when [`Self::attach_dmb`] works: the sender's sndbuf then *is* the peer's RMB.
    fn support_attach(&self) -> bool;

    /// Maps a peer's DMB.
    ///
    /// # Errors
    /// [`DeviceError::UnknownToken`], [`DeviceError::Unsupported`], [`DeviceError::NoResources`].
    fn attach_dmb(&self, token: Token) -> Result<Self::Dmb, DeviceError>;

    /// Unmaps it.
    ///
    /// # Errors
    /// [`DeviceError::UnknownToken`].
    fn detach_dmb(&self, token: Token) -> Result<(), DeviceError>;

    /// Copies `data` into the peer's DMB at `offset`; afterwards, when `signal` is set, the peer's
    /// owner is told. Bytes are visible there before the signal is.
    ///
    /// # Errors
    /// [`DeviceError::UnknownToken`], [`DeviceError::OutOfBounds`].
    fn move_data(
        &self,
        token: Token,
        offset: usize,
        data: &[u8],
        signal: bool,
    ) -> Result<(), DeviceError>;

    /// Tells the owner of a peer's DMB to look, without moving anything.
    ///
    /// # Errors
    /// [`DeviceError::UnknownToken`].
    fn signal(&self, token: Token) -> Result<(), DeviceError>;
}
