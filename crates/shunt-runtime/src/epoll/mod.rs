//! Epoll instances that watch shunted connections.
//!
//! The program's epoll instance stays a real one: descriptors that are the kernel's are registered
//! in it as the program asked, with the program's own data. A shunted connection is registered with
//! data of ours (a [`tag`]) so that only its end is heard from the kernel; its readiness is found
//! here, from the completion queue of the instance's vector. The doorbells of the vector are in the
//! kernel's set, too, so that one epoll_wait(2) sleeps for everything.

pub mod call;
pub mod control;
mod fd_map;
pub mod instance;
mod kernel;
pub mod nested;
pub mod out;
pub mod ready;
pub mod reentrancy;
pub mod state;
pub mod table;
mod tags;
pub mod tell;
pub mod wait;

pub use table::{all, get};
pub use tags::{Ours, WATCHES, tag, untag};
