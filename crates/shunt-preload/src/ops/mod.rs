//! The handlers of the hooked functions, by what they are about.

pub mod connections;
pub mod epoll;
pub mod fd;
pub mod inner;
pub mod loader;
pub mod memory;
pub mod poll;
pub mod process;
pub mod raw;
pub mod retreat;
pub mod signals;
pub mod sockopt;
pub mod stdio;
pub mod stream;
pub mod user;
pub mod vectors;
