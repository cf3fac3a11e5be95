//! A network namespace whose loopback device has a congestion control of its own. The system's setting stays as it is.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::net::sockopt::tcp_congestion;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::namespaces::{self, ip};
use crate::failure::{Context, Failure, Result};
use crate::machine;

/// The namespace.
#[derive(Debug)]
pub struct Loopback(PathBuf);

impl Loopback {
    /// Makes it: its routes name the congestion control (`congctl` in ip-route(8)), which needs no setting of the system's.
    ///
    /// # Errors
    /// [`Failure::Skipped`] without the privilege, where kernel TCP has this congestion control already, and where the kernel has not
    /// got it.
    pub fn with(congestion_control: &'static str) -> Result<Self> {
        if machine::congestion_control() == congestion_control {
            return Err(Failure::Skipped("kernel TCP has it here already".into()));
        }
        let name = namespaces::add(congestion_control)?;
        for to in ["127.0.0.0/8", "127.0.0.1"] {
            let route = ["local", to, "dev", "lo", "src", "127.0.0.1", "table", "local"];
            let begin = ["-n", &name, "route", "replace"];
            ip(&[&begin[..], &route, &["congctl", congestion_control]].concat())?;
        }
        let path = namespaces::path(congestion_control);
        match found(path.clone())? {
            found if found == congestion_control => Ok(Self(path)),
            found => Err(Failure::Skipped(format!("connections there have {found}"))),
        }
    }

    /// Where it can be opened.
    #[must_use]
    pub fn namespace(&self) -> &Path {
        &self.0
    }
}

/// What a connection in a namespace has.
fn found(namespace: PathBuf) -> Result<String> {
    let look = move || {
        let namespace = std::fs::File::open(namespace)?;
        let network = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), network)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        Ok::<_, std::io::Error>(tcp_congestion(&socket)?)
    };
    // A thread goes there, and does not come back.
    let found = std::thread::spawn(look).join();
    found.map_err(|_| Failure::failed("a look at a namespace"))?.context("a look at a namespace")
}
