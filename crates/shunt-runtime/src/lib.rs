//! The engine in a process: what `libshunt.so` has beneath its hooks.
//!
//! Files import each other in one direction only (`tests/layers`). From the bottom up:
//!
//! | Where | What |
//! |---|---|
//! | [`system`] | The kernel and libc, from behind the hooks |
//! | [`threads`], [`fds`], [`calls`] | What threads hold, and what descriptors stand for |
//! | [`control`] | The agent, endpoint, link groups, doorbells, listeners |
//! | [`conn`] | A process's part of a connection |
//! | [`epoll`]: what is watched | Instances and their states; how they are told |
//! | [`memory`] | Memory that is granted |
//! | [`stream`] | The calls that move bytes, as the engine's ports; the handshake on their way |
//! | [`epoll`]: waiting, [`poll_set`], [`select`] | Readiness; epoll, poll and select |
//! | [`processes`] | Fork, exec, relatives; the end of connections |
//! | [`descriptors`] | Calls that close, duplicate or control a descriptor |
//! | [`fallback`], [`loader`], [`panics`] | Where the library steps back, or has failed; what the dynamic loader finds |
//! | [`establish`] | Making connections: socket, listen, accept, connect |
//!
//! What a lower layer has a higher one do is a [`callback`], connected at start-up.
#![cfg(target_os = "linux")]

pub mod activity;
pub mod callback;
pub mod calls;
pub mod conn;
pub mod contain;
pub mod control;
pub mod descriptors;
pub mod epoll;
pub mod establish;
pub mod fallback;
pub mod fds;
pub mod knobs;
pub mod loader;
pub mod memory;
pub mod panics;
pub mod points;
pub mod poll_set;
pub mod probes;
pub mod processes;
pub mod select;
pub mod stream;
pub mod system;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod threads;
