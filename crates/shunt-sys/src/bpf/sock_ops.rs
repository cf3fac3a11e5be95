//! Common parts of programs that are called for sockets: the socket's cookie, and options of TCP.

use super::insn::{Assembler, FRAME, R0, R1, R2, R3, R4, R6};
use super::ops;

pub(super) mod helper {
    pub const MAP_LOOKUP: i32 = 1;
    pub const MAP_UPDATE: i32 = 2;
    pub const SOCKET_COOKIE: i32 = 46;
    pub const SET_OPTION: i32 = 49;
    pub const SET_CALL_FLAGS: i32 = 59;
    pub const LOAD_OPTION: i32 = 142;
    pub const STORE_OPTION: i32 = 143;
    pub const RESERVE_OPTION: i32 = 144;
}

/// The program is asked for options.
pub(super) const CALL_FOR_OPTIONS: i32 = 1 << 6;
/// The option is looked for in the SYN that is being answered.
pub(super) const IN_SYN: i32 = 1;

pub(super) const SYN: i32 = 0x02;
pub(super) const ACK: i32 = 0x10;

impl Assembler {
    /// `R0` = the cookie of the socket, which is also put on the stack.
    pub(super) fn cookie(self, place: i16) -> Self {
        self.copy(R1, R6).call(helper::SOCKET_COOKIE).store_wide(FRAME, place, R0)
    }

    /// `R0` = the value under the key on the stack, 0: the map has none.
    pub(super) fn find(self, map: u32, key: i16) -> Self {
        self.set_map(R1, map).copy(R2, FRAME).plus(R2, key.into()).call(helper::MAP_LOOKUP)
    }

    /// `R0` = the length of the option that is like the one on the stack, which it replaces; or an
    /// error.
    pub(super) fn load_option(self, place: i16, room: i32, flags: i32) -> Self {
        self.option(place, room, flags).call(helper::LOAD_OPTION)
    }

    /// Sends the option on the stack.
    pub(super) fn store_option(self, place: i16, length: i32) -> Self {
        self.option(place, length, 0).call(helper::STORE_OPTION)
    }

    fn option(self, place: i16, length: i32, flags: i32) -> Self {
        self.copy(R1, R6).copy(R2, FRAME).plus(R2, place.into()).set(R3, length).set(R4, flags)
    }

    /// Makes room for options.
    pub(super) fn reserve(self, length: i32) -> Self {
        self.copy(R1, R6).set(R2, length).set(R3, 0).call(helper::RESERVE_OPTION)
    }

    pub(super) fn set_call_flags(self) -> Self {
        self.copy(R1, R6).call(helper::SET_CALL_FLAGS)
    }

    /// The program is asked for options of this socket.
    pub(super) fn begin_calls(self) -> Self {
        self.load(R2, R6, ops::CALL_FLAGS).with(R2, CALL_FOR_OPTIONS).set_call_flags()
    }

    /// It is asked for no more.
    pub(super) fn stop_calls(self) -> Self {
        self.load(R2, R6, ops::CALL_FLAGS).keep(R2, !CALL_FOR_OPTIONS).set_call_flags()
    }

    /// `R2` = which of SYN and ACK the packet has.
    pub(super) fn packet(self) -> Self {
        self.load(R2, R6, ops::TCP_FLAGS).keep(R2, SYN | ACK)
    }
}
