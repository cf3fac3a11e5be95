//! A registry with any bytes in it: what a library would read if the agent were not to be trusted.
#![no_main]

use std::cell::OnceCell;
use std::fs::File;
use std::os::unix::fs::FileExt;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use shunt_fuzz::{AnyAddr, Hostile};
use shunt_shm::memfd;
use shunt_shm::registry::Registry;
use shunt_wire::addr::Addr;

#[derive(Arbitrary, Debug)]
struct Input {
    to: AnyAddr,
    /// Where behind the header, and what.
    scribbles: Vec<(u16, Vec<u8>)>,
}

thread_local! {
    static REGISTRY: OnceCell<(Registry, Hostile)> = const { OnceCell::new() };
}

/// A registry of the same length that can be written to.
fn make() -> (Registry, Hostile) {
    let (_, original) = Registry::create().expect("memory for a registry");
    let original = File::from(original);
    let len = memfd::size(&original).expect("its length");
    let mut header = [0; HEADER as usize];
    original.read_exact_at(&mut header, 0).expect("its header");
    let fd = memfd::create_sealed("hostile", len).expect("as much memory again");
    let peer = Hostile::from(fd.try_clone().expect("a descriptor"));
    peer.write(0, &header);
    (Registry::map(&fd).expect("a registry"), peer)
}

/// Length of the header (see `docs/shm-abi.md`).
const HEADER: u64 = 64;

fuzz_target!(|input: Input| {
    REGISTRY.with(|registry| {
        let (registry, peer) = registry.get_or_init(make);
        for (at, bytes) in &input.scribbles {
            peer.write(HEADER + u64::from(*at), bytes);
        }
        let to = Addr::from(input.to);
        if let Some(found) = registry.find(&to, |_| true) {
            assert_ne!(found.listener, 0);
            assert_eq!(found.addr.port, to.port);
            assert!(found.addr.ip == to.ip || found.addr.is_unspecified());
        }
        assert!(registry.find(&to, |_| false).is_none());
    });
});
