//! What can go wrong with a controller.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use shunt_nvme::auth::AuthenticationError;
use shunt_nvme::host::SubmitError;
use shunt_nvme::wire::Status;

/// Why a controller cannot be had, or did not do what it was asked for.
#[derive(Debug)]
pub enum Error {
    /// The connection.
    Io(SocketAddr, io::Error),
    /// It took too long.
    TimedOut(SocketAddr, &'static str),
    /// A command was refused.
    Refused(&'static str, Status),
    /// The controller asks for a proof of who the host is, and there is no key.
    KeyNeeded,
    /// The proof.
    Authentication(AuthenticationError),
    /// The controller's answer makes no sense.
    Senseless(&'static str),
    /// Something of this process: a descriptor, a thread, memory.
    Local(io::Error),
    /// A command was not submitted.
    Submit(SubmitError),
    /// A queue of this number cannot be had.
    Queue(u16, Box<Error>),
    /// No path is up: what is wrong with one of them.
    Down(Arc<Error>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(address, e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                write!(f, "{address}: {e}: no target listens there; `shunt nvme target` starts one")
            }
            Self::Io(address, e) => write!(f, "{address}: {e}"),
            Self::TimedOut(address, what) => write!(f, "{address}: {what}: it took too long"),
            Self::Refused(what, status) => {
                let name = status.fabrics_name().unwrap_or("unknown");
                write!(f, "{what}: {name} ({:03x}h)", status.code())?;
                if *status == Status::CONNECT_INVALID_HOST.dnr() {
                    write!(f, ": the target's configuration must list this host's name")?;
                }
                Ok(())
            }
            Self::KeyNeeded => {
                f.write_str("the controller wants to know for sure who this host is: give the key")
            }
            Self::Authentication(e) => e.fmt(f),
            Self::Senseless(what) => write!(f, "the controller's {what} makes no sense"),
            Self::Local(e) => e.fmt(f),
            Self::Submit(e) => e.fmt(f),
            Self::Queue(qid, e) => write!(f, "queue {qid}: {e}"),
            Self::Down(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {}
