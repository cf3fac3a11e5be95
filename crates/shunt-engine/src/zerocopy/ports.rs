//! What the rules ask of the world: the program's memory, the peer's, pipes, the time, and the direction's lock.

use shunt_shm::grants::Grants;
use shunt_shm::ring::Span;
use shunt_shm::zerocopy::Open;

use crate::pinning::Pin;

/// Bytes lie in registered memory that the peer has not mapped, or could be pinned in pipes that it has not got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unknown;

/// Registered memory in which bytes of the program's lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registered {
    /// Its name, if peers can have it.
    pub name: Option<u64>,
    /// Offset of the bytes in it.
    pub from: usize,
}

/// The program's memory, as a process knows it.
pub trait Memory {
    /// The registered memory in which all of these bytes lie.
    fn registered(&self, address: usize, len: usize) -> Option<Registered>;

    /// Which private memory is pinned.
    fn policy(&self) -> Pin;

    /// The name of the connection's pipes, if this process has them.
    fn pipes(&self) -> Option<u64>;
}

/// The time, for grants that are held too long.
pub trait Clock {
    /// Now, in units of 1024 ns; never 0.
    fn now(&self) -> u32;

    /// The same, and all who wait look again now and then: nobody tells them that a grant is overdue.
    fn arise(&self) -> u32;

    /// How long a grant may stay unread, in nanoseconds.
    fn timeout(&self) -> u64;
}

/// What makes a grant.
pub trait Lender: Memory + Clock {
    /// The entries of the direction.
    fn entries(&self) -> &Grants;

    /// Puts up to `len` bytes of private memory into a pipe, without waiting: how many.
    fn pin(&self, lane: usize, address: usize, len: usize) -> Option<usize>;

    /// A test may come in here.
    #[inline(always)]
    fn reaches(&self, _: Moment) {}
}

/// What takes grants back.
pub trait Restorer {
    /// The entries of the direction.
    fn entries(&self) -> &Grants;

    /// Copies granted bytes of registered memory to their place in the ring. False when they are not to be had: the memory is a
    /// relative's that is gone.
    fn restore(&self, open: &Open, place: Span) -> bool;

    /// What reads back from the pipes. `None` when they are a relative's, or no memory is left.
    fn pipes(&self) -> Option<impl Scratch>;
}

/// Moments at which tests stop, interrupt and end threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Bytes are in a pipe, and no entry tells of them.
    Pinned,
    /// An entry is shown, and no cursor covers it.
    Granted,
}

/// What a sender reads from its own pipes to take back what is pinned there.
pub trait Scratch {
    /// Reads all that is left in a pipe: how many bytes.
    fn read(&mut self, lane: usize) -> usize;

    /// Copies so many of those as `place` has, from the `from`th on, to that place in the ring.
    fn put(&self, from: usize, place: Span);
}

/// What takes back grants that are overdue, for those who wait for numbers.
pub trait Collector: Clock + Restorer {
    /// Takes the lock of the sending direction, and calls `step` with it; not in a handler above a call that has it.
    fn locked(&self, step: impl FnOnce());
}

/// Where granted bytes are in the receiver's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bytes<M, P> {
    /// Mapped here.
    Mapped(M),
    /// In one of these.
    Piped(P),
}

/// Where bytes go that are read from a pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// To these places in the ring.
    Ring(Span),
    /// To the program's places, after the first so many bytes of the look.
    Program(usize),
}

impl To {
    /// The same after so many bytes.
    #[must_use]
    pub fn after(self, n: usize) -> Self {
        match self {
            Self::Ring(span) => Self::Ring(span.split(n).1),
            Self::Program(at) => Self::Program(at + n),
        }
    }
}

/// How a read from a pipe comes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piped {
    /// So many bytes, at least one.
    Bytes(usize),
    /// None are there.
    Nothing,
    /// A signal handler ran.
    Interrupted,
    /// The place for them is none.
    BadPlace,
}

/// A look at granted bytes: the peer's memory as this process has it, and the program's places.
pub trait Borrower {
    /// Bytes that are mapped here.
    type Mapped: Copy;
    /// Pipes of the peer's.
    type Pipes: Copy;

    /// The entries of the direction.
    fn entries(&self) -> &Grants;

    /// Where `len` bytes are, `from` in the memory of this name, if the connection has it and it is so long.
    fn find(&self, region: u64, from: u64, len: u64) -> Option<Bytes<Self::Mapped, Self::Pipes>>;

    /// Maps memory that the peer offers. False when it is not to be had.
    fn take_up(&self, region: u64) -> bool;

    /// Copies bytes that are mapped to the program's places after the first `at` of the look.
    fn copy_mapped(&self, at: usize, bytes: Self::Mapped, len: usize);

    /// Copies bytes of the ring to those places.
    fn copy_ring(&self, at: usize, span: Span);

    /// The same with bytes that were read from a pipe to the ring.
    fn copy_pulled(&self, at: usize, span: Span);

    /// Reads up to `len` bytes from a pipe, without waiting.
    fn read_pipe(&self, from: (Self::Pipes, usize), to: To, len: usize) -> Piped;

    /// Has the processor fetch what lies at this offset in the ring, and the entry of this number, without waiting for them.
    fn fetch_ahead(&self, _at: usize, _number: u32) {}

    /// Waits a little for a sender that reads its pipes itself. False when it takes too long since the first time.
    fn waits(&self, since: &mut Option<u64>) -> bool;

    /// Does something of which the thread is not to be cancelled in the middle, and that is to leave `errno` as it is.
    fn uncancelled<T>(&self, what: impl FnOnce() -> T) -> T;

    /// Does a copy from a pipe of so many bytes, and notes how long it takes.
    fn timed<T>(&self, len: usize, what: impl FnOnce() -> T) -> T;
}

/// The program's list of places.
pub trait Lending {
    /// Bytes that are mapped here.
    type Mapped: Copy;

    /// Nothing was told so far.
    fn begin(&mut self);

    /// Tells of bytes that are mapped. False when there is no room left.
    fn tell_mapped(&mut self, bytes: Self::Mapped, len: usize) -> bool;

    /// Tells of bytes at this offset in the ring.
    fn tell_ring(&mut self, at: usize, len: usize) -> bool;
}
