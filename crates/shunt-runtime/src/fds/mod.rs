//! The program's descriptors, and the library's own.

pub mod fd_table;
pub mod own_fds;
pub mod owner;
pub mod stdio;
pub mod unconnected;
