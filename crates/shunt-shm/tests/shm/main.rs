//! The shared structures as their users see them, and as a hostile peer leaves them.
#![cfg_attr(
    not(feature = "sim"),
    allow(clippy::disallowed_types, reason = "those of `sync` are core's then")
)]
#![cfg(not(loom))]

mod arena;
mod capture;
mod cq;
mod doorbell;
mod ivshmem;
mod lock;
mod memfd;
mod region;
mod registry;
mod ring;
mod source;
mod table;

use shunt_wire::addr::{Addr, FourTuple};

/// `127.0.0.1:port`.
fn v4(port: u16) -> Addr {
    Addr::from(std::net::SocketAddr::from(([127, 0, 0, 1], port)))
}

/// `[::1]:port`.
fn v6(port: u16) -> Addr {
    Addr::from(std::net::SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port)))
}

/// A connection from `port` to port 80.
fn tuple(port: u16) -> FourTuple {
    FourTuple { local: v4(80), peer: v4(port) }
}
