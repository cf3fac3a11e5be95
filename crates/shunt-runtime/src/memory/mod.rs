//! Memory that is sent from without copies: own, and the peers'.

pub mod exports;
pub mod found;
pub mod imports;
pub mod locking;
pub mod mapping;
pub mod windows;
