//! The handlers of the hooked functions, by what they are about. They translate: what is decided about a call is the
//! runtime's.

pub mod around;
pub mod epoll;
pub mod fd;
pub mod loader;
pub mod process;
pub mod raw;
pub mod sockopt;
pub mod stream;
pub mod vectors;
