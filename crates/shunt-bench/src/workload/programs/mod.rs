//! Programs of the distribution beside those that have rows by themselves: servers in the shapes of
//! many runtimes, with few and with many connections.

mod connections;
mod http;
mod numbers;
mod postgres;

pub(super) use connections::{CONNECTIONS, CONTENDERS};

use super::row::Row;

/// All of them.
pub fn rows() -> Vec<Row> {
    let all = [postgres::rows(), http::rows(), numbers::rows()];
    all.into_iter().flatten().map(|row| row.contenders(&CONTENDERS)).collect()
}
