//! What commands that have begun wait for.

use shunt_nvme::controller::Transfer;
use shunt_nvme::subsystem::Io;
use shunt_nvme::transport::Command;
use shunt_nvme::wire::Sqe;

/// What becomes of a command when its data is there, or its store is done.
#[derive(Clone, Debug)]
pub(super) enum Task {
    /// It is looked at when its data is whole.
    Whole(Box<Sqe>, Transfer),
    /// It is for a store.
    Store(Io, Box<Sqe>),
}

/// The first command of a fused operation, and the second, when it has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fused {
    pub first: (Command, bool),
    /// Its data is there, says the flag of either.
    pub second: Option<(Command, bool)>,
}
