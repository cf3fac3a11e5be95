//! Any packet that something in the agent's place sends to a program.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shunt_wire::agent::{MAX_MESSAGE, Reply, decode, encode};

fuzz_target!(|packet: &[u8]| {
    if let Ok(reply) = decode::<Reply>(packet) {
        let mut buffer = [0; MAX_MESSAGE];
        let again = encode(&reply, &mut buffer).expect("every reply fits a message");
        // Numbers may have come in a longer form than need be, never in a shorter one.
        assert!(again.len() <= packet.len());
        assert_eq!(decode::<Reply>(again), Ok(reply));
    }
});
