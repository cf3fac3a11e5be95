//! What is said, and noted, of a connection whose link has failed.

/// Where one end of a connection stood when its link failed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stand {
    /// Bytes of the far program that the local one was told of, or took if it had left the ring before.
    pub received: u64,
    /// Marks of the far program that the local one was told of.
    pub marks: u32,
    /// Where the far program's last stretch in the ring ended.
    pub ring_end: u64,
    /// Marks that the local program had set; no byte behind a later one goes over TCP before both agents have settled it.
    pub own_marks: u32,
    /// Where the last one of these is.
    pub own_at: u64,
    /// The local program has ended its direction, behind so many bytes in the ring; `u64::MAX`: it has not.
    pub own_end: u64,
}

impl Stand {
    /// That of an end which has not been opened.
    pub const UNOPENED: Self =
        Self { received: 0, marks: 0, ring_end: 0, own_marks: 0, own_at: 0, own_end: u64::MAX };
}

/// What was agreed on when the link had failed.
#[derive(Debug)]
pub(super) struct Agreed {
    /// Where the local program's direction goes on.
    pub(super) goes_on_at: u64,
    /// Where the far program's direction leaves the ring, if it does not end there.
    pub(super) leaves_at: u64,
    /// Where its rest begins.
    pub(super) begins_at: u64,
    /// It has ended behind bytes that have not come.
    pub(super) lacks: bool,
    /// How far its rest has come; `None`: to the end.
    pub(super) rest: Option<u64>,
}
