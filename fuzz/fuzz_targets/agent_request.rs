//! Any packet that a program sends to the agent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shunt_wire::agent::{MAX_MESSAGE, Request, decode, encode, stated_version};

fuzz_target!(|packet: &[u8]| {
    let _ = stated_version(packet);
    if let Ok(request) = decode::<Request>(packet) {
        let mut buffer = vec![0; packet.len().max(MAX_MESSAGE)];
        let again = encode(&request, &mut buffer).expect("what was decoded fits again");
        // Numbers may have come in a longer form than need be, never in a shorter one.
        assert!(again.len() <= packet.len());
        assert_eq!(decode::<Request>(again), Ok(request));
    }
});
