//! The doorbells of another endpoint, as this process rings them.

use std::os::fd::{AsFd, OwnedFd};

use shunt_shm::doorbell;
use shunt_shm::ivshmem::{Home, Registers, TO_AGENT};
use shunt_sys::fds::{Fds, close};
use shunt_wire::agent::{FarBells, Interrupt};
use shunt_wire::reason::Reason;

use crate::fds::own_fds::{OwnFd, adopt};

/// One doorbell for each completion vector of the endpoint.
#[derive(Debug)]
pub enum Doorbells {
    /// Of a process of this machine: eventfds.
    Here(Vec<OwnFd>),
    /// Of a process of another machine: by an interrupt that leads to it, or by its agent, which rings it then.
    Far {
        /// Where the other machine finds what is rung.
        home: Home,
        /// The endpoint's place there.
        place: usize,
        /// How the machine is told to look.
        machine: Machine,
    },
}

/// How another machine is interrupted.
#[derive(Debug)]
pub enum Machine {
    /// Not at all: it looks for itself.
    Looks,
    /// By eventfds, one for each of its vectors.
    Eventfds(Vec<OwnFd>),
    /// By the doorbell register of this machine's device.
    Register {
        /// The registers.
        registers: Registers,
        /// Its ID.
        peer: u16,
        /// Its vectors.
        vectors: usize,
    },
}

fn own(fd: OwnedFd) -> Result<OwnFd, Reason> {
    adopt(fd).map_err(|_| Reason::NoResources)
}

fn all(mut fds: Fds) -> Result<Vec<OwnFd>, Reason> {
    core::iter::from_fn(|| fds.take()).map(own).collect()
}

impl Doorbells {
    /// Those of a process of this machine.
    ///
    /// # Errors
    /// [`Reason::NoResources`] when there are too many descriptors.
    pub fn here(fds: Fds) -> Result<Self, Reason> {
        all(fds).map(Self::Here)
    }

    /// Those of a process of another machine, with which `memory` is shared.
    ///
    /// # Errors
    /// [`Reason::NoResources`] when something cannot be mapped, or there are too many descriptors.
    pub fn far(memory: impl AsFd, bells: &FarBells, mut fds: Fds) -> Result<Self, Reason> {
        let at = usize::try_from(bells.home).map_err(|_| Reason::NoResources)?;
        let home = Home::map(memory, at).map_err(|_| Reason::NoResources)?;
        let machine = match bells.interrupt {
            Interrupt::Nobody => Machine::Looks,
            Interrupt::Eventfds => Machine::Eventfds(all(fds)?),
            Interrupt::Register { at, peer, vectors } => {
                let bar = fds.take().ok_or(Reason::NoResources)?;
                let registers = Registers::map(&bar, at.into());
                close(bar);
                let registers = registers.map_err(|_| Reason::NoResources)?;
                Machine::Register { registers, peer, vectors: vectors.into() }
            }
        };
        Ok(Self::Far { home, place: bells.place as usize, machine })
    }

    /// Rings that of a completion vector; one that the endpoint does not have is nobody's.
    pub fn ring(&self, vector: usize) {
        match self {
            Self::Here(bells) => {
                if let Some(bell) = bells.get(vector) {
                    doorbell::ring(bell.borrow());
                }
            }
            Self::Far { home, place, machine } => {
                let own = home.interrupt_of(*place, vector);
                if own.is_some_and(|own| machine.interrupt(own)) {
                    return;
                }
                // Whom it was told before, and who has not looked yet, needs no interrupt.
                if home.notify(*place, vector) {
                    machine.interrupt(TO_AGENT);
                }
            }
        }
    }
}

impl Machine {
    /// False when it cannot be done: nobody is interrupted, or not by this vector.
    fn interrupt(&self, vector: u8) -> bool {
        match self {
            Self::Looks => false,
            Self::Eventfds(eventfds) => {
                let eventfd = eventfds.get(usize::from(vector));
                eventfd.inspect(|eventfd| doorbell::interrupt(eventfd.borrow())).is_some()
            }
            Self::Register { registers, peer, vectors } => {
                let has = usize::from(vector) < *vectors;
                if has {
                    registers.ring(*peer, vector);
                }
                has
            }
        }
    }
}
