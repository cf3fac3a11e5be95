//! The states of a thread that a call has to respect: signals, cancellation, locks.

pub mod across_forks;
pub mod few;
pub mod futexes;
pub mod handlers;
pub mod installing;
pub mod kept;
pub mod mutex;
pub mod placing;
pub mod sections;
pub mod signals;
