//! How many connections the programs have, and beside what they are measured.

use crate::contender::Contender;

/// Connections of each program.
pub const CONNECTIONS: [u32; 4] = [1, 8, 32, 100];

/// Kernel TCP, its accelerator, default settings, and no spinning.
pub const CONTENDERS: [Contender; 4] =
    [Contender::Tcp, Contender::Sockmap, Contender::Attach, Contender::Never];

/// `1 connection`, `8 connections`.
pub fn connections_text(connections: u32) -> String {
    format!("{connections} connection{}", if connections == 1 { "" } else { "s" })
}
