//! The doorbells of another endpoint, as this process rings them.

use std::os::fd::{AsFd, OwnedFd};

use shunt_shm::doorbell;
use shunt_shm::ivshmem::{Home, Registers, TO_AGENT, far_vector};
use shunt_sys::fds::{Fds, close};
use shunt_wire::agent::{FarBells, Interrupt};
use shunt_wire::reason::Reason;

use crate::control::bells::{self, COMMON, Kept};
use crate::fds::own_fds::{OwnFd, adopt};

/// One doorbell for each completion vector of the endpoint.
#[derive(Debug)]
pub enum Doorbells {
    /// Of a process of this machine: eventfds.
    Here(Kept),
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
    /// Those of a process of this machine, of which its first one has come, if there is room for it: the others follow when
    /// they are first rung.
    #[must_use]
    pub fn here(mut fds: Fds) -> Self {
        Self::with_first(fds.take())
    }

    /// The same, with that one, if it has come.
    #[must_use]
    pub fn with_first(bell: Option<OwnedFd>) -> Self {
        let kept = Kept::default();
        match bell {
            Some(bell) if bells::are_enough() => close(bell),
            Some(bell) => {
                if let Ok(bell) = adopt(bell) {
                    kept.keep(COMMON, bell);
                }
            }
            None => {}
        }
        Self::Here(kept)
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

    /// Rings that of a completion vector. False: it is not here.
    pub fn ring(&self, vector: usize) -> bool {
        match self {
            Self::Here(kept) => kept.ring(vector),
            Self::Far { home, place, machine } => {
                let vector = far_vector(vector);
                let own = home.interrupt_of(*place, vector);
                // Whom it was told before, and who has not looked yet, needs no interrupt.
                if !own.is_some_and(|own| machine.interrupt(own)) && home.notify(*place, vector) {
                    machine.interrupt(TO_AGENT);
                }
                true
            }
        }
    }
}

impl Doorbells {
    /// Takes up that of a completion vector.
    pub fn keep(&self, vector: usize, bell: OwnFd) {
        if let Self::Here(kept) = self {
            kept.keep(vector, bell);
        }
    }

    /// As [`Kept::give_back_idle`].
    pub fn give_back_idle(&self) -> bool {
        matches!(self, Self::Here(kept) if kept.give_back_idle())
    }

    /// As [`Kept::forget_ringing`].
    pub fn forget_ringing(&self) {
        if let Self::Here(kept) = self {
            kept.forget_ringing();
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
