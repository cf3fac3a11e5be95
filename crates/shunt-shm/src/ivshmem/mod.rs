//! What lies where in the memory of an ivshmem device, which machines share.
//!
//! The memory is cut into *extents* of one length. The first one is the control area: who is a *member*, and to whom
//! each extent belongs. Every member has a *home*, an extent in which it publishes its listeners and endpoints and is
//! told of what waits for it. All other extents hold link groups' regions.
//!
//! Geometry is a function of constants and of the memory's length, so there is none to lie about; an extent is taken by
//! one compare-exchange, so nobody who is killed leaves anything half done; memory that is zero is valid. Nothing that
//! is read here is trusted: indices are bounded by their type's constants, and names are compared with private copies.
//! `docs/ivshmem-layout.md` has the layout.

mod control;
mod extent;
mod extents;
mod home;
mod member;
mod members;
mod registers;

pub use control::{Control, VERSION};
pub use extent::{EXTENT, Extent, Kind, offset};
pub use home::{
    ADDRESSES, ENDPOINTS, FAR_VECTORS, Home, LISTENERS, Published, far_vector, table_offset,
};
pub use member::{MEMBERS, Member, MemberId};
pub use registers::Registers;

/// The interrupt vector by which a machine's agent is told, of news of the members and of rings. The others lead to
/// endpoints' own doorbells: see [`Home::interrupt_of`].
pub const TO_AGENT: u8 = 0;
