//! Memory that is sent from without copies: own, and the peers'.

pub mod address_limit;
pub mod discovered_memory;
pub mod exports;
pub mod imports;
pub mod locking;
pub mod mapping;
pub mod mappings;
