//! What a thread may be in the middle of: signals, cancellation, locks.

pub mod futexes;
pub mod handlers;
pub mod installing;
pub mod mutex;
pub mod signals;
