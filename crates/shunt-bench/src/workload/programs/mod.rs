//! Programs of the distribution beside those that have rows by themselves: servers in the shapes of
//! many runtimes, with few and with many connections.

mod http;
mod numbers;
mod postgres;

use super::row::Row;
use crate::contender::Contender;

/// Connections of each program.
pub(super) const CONNECTIONS: [u32; 4] = [1, 8, 32, 100];

/// Kernel TCP, its accelerator, default settings, and no spinning.
pub(super) const CONTENDERS: [Contender; 4] =
    [Contender::Tcp, Contender::Sockmap, Contender::Attach, Contender::Never];

/// `1 connection`, `8 connections`.
fn connections_text(connections: u32) -> String {
    format!("{connections} connection{}", if connections == 1 { "" } else { "s" })
}

/// All of them.
pub fn rows() -> Vec<Row> {
    let all = [postgres::rows(), http::rows(), numbers::rows()];
    all.into_iter().flatten().map(|row| row.contenders(&CONTENDERS)).collect()
}
