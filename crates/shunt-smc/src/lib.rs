//! SMC-R version 2 as the Linux kernel speaks it, the client's part of it, without I/O.
//!
//! A client of a kernel's `AF_SMC` server: both ends have marked SYN and SYN-ACK with a TCP option,
//! agree over TCP on a queue pair and on rings, and from then on write into each other's memory.
//! The crate has no sockets, no devices, no threads and no clock: bytes, messages and points in
//! time come in, messages to send and events come out. So the caller posts the requests
//! (`shunt-verbs`), and hands over messages as they complete.
//!
//! | Module | Purpose |
//! |---|---|
//! | [`wire`] | Messages: checked views and values |
//! | [`handshake`] | One connection's agreement over TCP: proposal, accept, confirm, decline |
//! | [`link`] | A queue pair that connections share: it is confirmed, tested and deleted; keys of rings |
//! | [`connection`] | One connection's rings: cursors, windows, urgent bytes, ends |
//!
//! A peer is not trusted. A message has to be well formed, and possible after the earlier ones; one
//! that is not ends the connection, or the link, with a named reason. A peer that keeps the rules
//! can choose the bytes of its streams and nothing else.
//!
//! A client has one link per link group. It rejects a second one, as Linux' own clients do where
//! neither host has a second port. Neither SMC-D nor version 1 is spoken: version 1 needs addresses
//! of RoCE version 1, which an emulated device (rxe) has not.
//!
//! Linux 6.12's `net/smc` was followed, which names RFC 7609 and *SMC Version 2* (IBM, third
//! edition) as its sources. Each rule names the kernel's file, or the RFC's section.

#![forbid(unsafe_code)]

pub mod connection;
pub mod handshake;
pub mod link;
pub mod wire;

pub use connection::Connection;
pub use handshake::Handshake;
pub use link::Link;
