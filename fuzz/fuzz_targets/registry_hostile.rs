//! A registry with any bytes in it: what a library would read if the agent were not to be trusted.
#![no_main]

use std::cell::OnceCell;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use shunt_fuzz::{AnyAddr, Hostile};
use shunt_shm::memfd;
use shunt_shm::registry::Registry;
use shunt_wire::addr::Addr;

#[derive(Arbitrary, Debug)]
struct Input {
    to: AnyAddr,
    /// Where from the start of the port's entries on, and what.
    scribbles: Vec<(u16, Vec<u8>)>,
}

thread_local! {
    static REGISTRY: OnceCell<(Registry, Hostile)> = const { OnceCell::new() };
}

/// A registry of the same length that can be written to.
fn make() -> (Registry, Hostile) {
    let (_, original) = Registry::create().expect("memory for a registry");
    let len = memfd::size(&original).expect("its length");
    let fd = memfd::create_sealed("hostile", len).expect("as much memory again");
    let mut magic = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&std::fs::File::from(original), &mut magic, 0)
        .expect("the header");
    let fd = std::fs::File::from(fd);
    std::os::unix::fs::FileExt::write_all_at(&fd, &magic, 0).expect("a header");
    let registry = Registry::map(&fd).expect("a registry");
    (registry, std::os::fd::OwnedFd::from(fd).into())
}

fuzz_target!(|input: Input| {
    REGISTRY.with(|registry| {
        let (registry, peer) = registry.get_or_init(make);
        for (at, bytes) in &input.scribbles {
            peer.write(64 + u64::from(*at), bytes);
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
