//! What is noted of a connection in [`Identity::flags`](shunt_shm::arena::Identity::flags).

pub use shunt_shm::arena::NUMBERED;

/// `O_NONBLOCK` is set on the open file description.
pub const NONBLOCK: u32 = 1;
/// `shutdown(SHUT_WR)` was called.
pub const SHUT_WR: u32 = 2;
/// `shutdown(SHUT_RD)` was called.
pub const SHUT_RD: u32 = 4;
/// The kernel socket has something to say (end of file, error): ask it when the ring is empty.
pub const KERNEL_HINT: u32 = 8;
/// This side wants its sending direction on TCP.
pub const WANT_TCP: u32 = 16;
/// This side takes nothing from the ring any more: the peer sends what is left over TCP.
pub const FROZEN: u32 = 64;
/// The program has set the size of a buffer before the connection was taken up.
pub const SIZED: u32 = 128;
/// The kernel socket had room when it was last asked, and nothing was sent over it since: good for one
/// answer, as somebody may send behind the library's back.
pub const HAD_ROOM: u32 = 256;
/// Bytes were sent over the kernel socket, or found no room there, since it last said that it had room for more.
pub const FILLS_KERNEL: u32 = 134_217_728;
/// The RST that the peer has announced was waited for: one that does not come is not waited for again.
pub const RESET_AWAITED: u32 = 512;
/// Nobody holds the peer's socket any more.
pub const ORPHANED: u32 = 1024;
/// `SO_ZEROCOPY` is set, as far as is known.
pub const ZEROCOPY: u32 = 4096;
/// The agent was asked for the other end: the connection was offered, or claimed.
pub const ASKED: u32 = 8192;
/// It was accepted, its other end was offered, and the agent is to be asked for it.
pub const TO_BE_CLAIMED: u32 = 32768;
/// The peer may be in another network namespace, where the kernel says nothing of its socket.
pub const ELSEWHERE: u32 = 16384;
/// What was granted was not read in time: the next send asks the kernel whether the peer is there.
pub const UNREAD: u32 = 65536;
/// The kernel is to send RST if the program is killed: [`crate::stream::doubt::end_loudly`].
pub const LOUD: u32 = 131_072;
/// The kernel's error queue may have something of its own to say.
pub const TELLS_ERRORS: u32 = 262_144;
/// An IPv6 socket, whatever its addresses: noted with the first call that is [`NUMBERED`].
pub const IS_V6: u32 = 524_288;
/// The peer was killed while bytes of ours lay unread in its ring, which TCP would have answered with RST.
pub const CUT_OFF: u32 = 1_048_576;
/// A call has failed with that.
pub const RESET_TOLD: u32 = 2_097_152;
/// The kernel has told a reset to a call that had moved bytes, and returned these: the next call fails with it.
pub const RESET_DUE: u32 = 67_108_864;
/// `O_APPEND` is set on the open file description, with which sendfile(2) and splice(2) have
/// nothing to do.
pub const APPENDS: u32 = 33_554_432;
/// The connection was promoted at least once.
pub const WAS_SHUNTED: u32 = 32;
/// There are bytes, and fewer than `SO_RCVLOWAT` says, of more of which nobody would tell.
pub const SHORT: u32 = 4_194_304;
/// `TCP_INQ` is set.
pub const INQ: u32 = 8_388_608;
/// Whether it is set is known.
pub const INQ_KNOWN: u32 = 16_777_216;
