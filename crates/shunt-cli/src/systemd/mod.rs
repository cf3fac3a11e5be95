//! systemd services: the manager's report on them, and drop-ins that give Shunt to a whole service.

mod calls;
mod drop_in;
mod enable;
mod manager;
mod plan;
mod program;
mod status;
mod unit;

pub use calls::lacking;
pub use drop_in::DIRECTORY;
pub use enable::{disable, enable};
pub use manager::show;
pub use program::environment_is_cleared;
pub use unit::{Unit, permits};
