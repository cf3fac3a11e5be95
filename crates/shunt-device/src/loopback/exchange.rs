//! What the loopback device asks of its fabric.

use std::os::fd::OwnedFd;

use shunt_engine::ports::{DeviceError, Gid, Token};

/// How the tokens of a fabric's ends become file descriptors. Each end has an exchange of its own,
/// to which its doorbell is known.
///
/// Whoever implements it decides who may see which DMB; a token is a name, not a secret.
pub trait Exchange {
    /// The fabric's name.
    ///
    /// # Errors
    /// [`DeviceError::Gone`].
    fn gid(&self) -> Result<Gid, DeviceError>;

    /// Gives the memory of a DMB a token that no DMB of this fabric ever had.
    ///
    /// # Errors
    /// [`DeviceError::NoResources`], [`DeviceError::Gone`].
    fn publish(&self, memory: OwnedFd) -> Result<Token, DeviceError>;

    /// Takes a DMB of this end back: nobody finds it any more.
    ///
    /// # Errors
    /// [`DeviceError::UnknownToken`], [`DeviceError::Gone`].
    fn withdraw(&self, token: Token) -> Result<(), DeviceError>;

    /// Finds a DMB of any end.
    ///
    /// # Errors
    /// [`DeviceError::UnknownToken`] also for what is not this end's to use, else
    /// [`DeviceError::NoResources`], [`DeviceError::Gone`].
    fn look_up(&self, token: Token) -> Result<Found, DeviceError>;
}

/// A DMB as an exchange hands it over. Both come from a peer: the device checks the memory.
#[derive(Debug)]
pub struct Found {
    /// Its memory.
    pub memory: OwnedFd,
    /// The doorbell of its owner.
    pub bell: OwnedFd,
}
