//! Any packet on the control socket of an ivshmem server, from tools or from the next server.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shunt_ivshmem::control::{Request, Said};

fuzz_target!(|packet: &[u8]| {
    if let Some(request) = Request::parse(packet) {
        assert_eq!(request.text().as_bytes(), packet);
    }
    if let Some(said) = Said::parse(packet) {
        assert_eq!(Said::parse(said.text().as_bytes()), Some(said));
    }
});
