//! The peer of a connection, as one of which this process has the doorbells.

use shunt_wire::agent::EndpointId;
use shunt_wire::reason::Reason;

use crate::conn::Sock;
use crate::control::peer::Peer;
use crate::system::abi;

/// The endpoint at the other end, with its doorbells.
///
/// # Errors
/// Why they are not to be had.
pub fn acquaint(sock: &Sock, endpoint: EndpointId) -> Result<&'static Peer, Reason> {
    let place = || Some((sock.record().slot(), abi::borrow(sock.descriptor()?)));
    sock.link().ok_or(Reason::PeerGone)?.acquaint(endpoint, place)
}
