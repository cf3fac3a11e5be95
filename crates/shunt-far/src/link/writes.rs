//! Which writes a posting takes.

use shunt_verbs::port::Region;
use shunt_verbs::value::{Piece, Remote};

use crate::lane::Posting;

/// Up to two pieces of a ring, and where they go.
pub(super) type Writes = [Option<(Piece, Remote)>; 2];

/// The writes of a posting: the same places here and there. `None`: they do not lie in the ring.
pub(super) fn writes(from: &impl Region, far: Remote, posting: &Posting) -> Option<Writes> {
    let mut writes = [None; 2];
    for (write, (at, len)) in writes.iter_mut().zip([posting.span.head, posting.span.tail]) {
        if len > 0 {
            let to = Remote { address: far.address.checked_add(at as u64)?, key: far.key };
            *write = Some((from.piece(at..at + len)?, to));
        }
    }
    Some(writes)
}
