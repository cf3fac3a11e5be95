//! What the suite needs to know of a back end beyond the port.

use std::io;
use std::time::Duration;

use shunt_engine::ports::{Device, DeviceError, Token};

/// A fabric under test, and what its ends' owners can do that the port leaves to them.
pub trait Rig: Sized {
    /// The device.
    type Device: Device<Dmb: Send + Sync> + Send + Sync;

    /// A fabric of its own.
    fn new() -> Self;

    /// One more end of it.
    fn end(&self) -> Self::Device;

    /// Copies the bytes at `offset` out of a mapped DMB. The suite stays inside.
    fn read(dmb: &<Self::Device as Device>::Dmb, offset: usize, into: &mut [u8]);

    /// Copies `data` into a mapped DMB. The suite stays inside.
    fn write(dmb: &<Self::Device as Device>::Dmb, offset: usize, data: &[u8]);

    /// Waits until this end is told to look, and takes the news. `false`: nothing came in time.
    fn told(end: &Self::Device, patience: Duration) -> bool;

    /// Tries to give the memory of a DMB another length, as anyone who holds it could. `None`: on
    /// this device nobody can try.
    fn resize(&self, token: Token, len: u64) -> Option<io::Result<()>>;

    /// The fabric dies: the agent is killed, the other machine stops.
    fn die(&self);
}

/// Long enough for whatever comes at all.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long the suite waits for what must not come.
pub const A_MOMENT: Duration = Duration::from_millis(20);

/// The DMB of a rig's device.
pub type DmbOf<R> = <<R as Rig>::Device as Device>::Dmb;

/// A new DMB that must be had.
pub fn register<D: Device>(end: &D, len: usize) -> (Token, D::Dmb) {
    match end.register_dmb(len) {
        Ok(registered) => registered,
        Err(e) => panic!("a DMB of {len} bytes: {e}"),
    }
}

/// A peer's DMB that must be attachable.
pub fn attach<D: Device>(end: &D, token: Token) -> D::Dmb {
    match end.attach_dmb(token) {
        Ok(dmb) => dmb,
        Err(e) => panic!("attaching {token:?}: {e}"),
    }
}

/// `len` bytes of a mapped DMB.
pub fn bytes<R: Rig>(dmb: &DmbOf<R>, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    R::read(dmb, offset, &mut bytes);
    bytes
}

/// Bytes that tell where they belong.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// That every operation on `token` answers that there is no such DMB.
pub fn assert_unknown<D: Device>(end: &D, token: Token) {
    let unknown = Err(DeviceError::UnknownToken);
    assert_eq!(end.move_data(token, 0, &[1], true), unknown, "move_data of {token:?}");
    assert_eq!(end.signal(token), unknown, "signal to {token:?}");
    assert_eq!(end.unregister_dmb(token), unknown, "unregister_dmb of {token:?}");
    assert_eq!(end.detach_dmb(token), unknown, "detach_dmb of {token:?}");
    let attached = end.attach_dmb(token).map(drop);
    if end.support_attach() {
        assert_eq!(attached, unknown, "attach_dmb of {token:?}");
    } else {
        assert_eq!(attached, Err(DeviceError::Unsupported), "attach_dmb of {token:?}");
    }
}
