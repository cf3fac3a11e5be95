//! A connection's name in the setup of a slot, written by this side or by a hostile peer.
#![no_main]

use std::net::SocketAddr;

use libfuzzer_sys::fuzz_target;
use shunt_fuzz::{AnyTuple, Shared};
use shunt_shm::region::Side;
use shunt_wire::addr::{Addr, FourTuple};

fuzz_target!(|input: (AnyTuple, Vec<u8>)| {
    let (tuple, bytes) = (FourTuple::from(input.0), input.1);
    let shared = Shared::get();
    let setup = &shared.view().section(2, Side::Server).setup;
    setup.set_tuple(&tuple);
    assert_eq!(setup.tuple(), tuple);
    shared.peer.write(shared.offset_of(setup), &bytes[..bytes.len().min(size_of_val(setup))]);
    let forged = setup.tuple();
    assert_eq!(forged.reversed().reversed(), forged);
    let _ = (forged.hash64(), forged.reversed().hash64());
    for addr in [forged.local, forged.peer] {
        let _ = (addr.is_loopback(), addr.is_unspecified(), addr.is_v4(), addr.to_string());
        // Both forms of an address name the same.
        assert_eq!(Addr::from(SocketAddr::from(addr)), addr);
    }
});
