//! An agent in memory that machines share, while another machine writes anything into the control area, the homes and the regions,
//! between any of its steps.
#![no_main]

use std::os::fd::OwnedFd;
use std::sync::Arc;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use shunt_agent::ivshmem::victim::Victim;
use shunt_fuzz::{AnyAddr, AnyTuple};
use shunt_shm::ivshmem::{EXTENT, MEMBERS, offset};
use shunt_shm::memfd::create_sealed;

const EXTENTS: usize = 5;
const LEN: usize = EXTENTS * EXTENT;

/// What another machine writes. Names are small, so that they meet.
#[derive(Arbitrary, Debug)]
enum Write {
    Member { index: u8, name: u8, gone: u8, beat: u8, peer: u32, vectors: u32, home: u8 },
    Extent { index: u8, owner: u8, holders: u64, name: u8, endpoint: u8, len: u64, kind: u8 },
    Addresses { extent: u8, count: u32, first: [u8; 16] },
    Endpoint { extent: u8, place: u16, id: u8, pending: u32, vectors: u32 },
    Summary { extent: u8, word: u8, bits: u64 },
    Listener { extent: u8, place: u8, id: u8, ip: [u8; 16], port: u32 },
    Section { extent: u8, side: bool, tuple: AnyTuple, state: u32 },
    RegionName { extent: u8, name: u8 },
    Anything { at: u32, bytes: Vec<u8> },
}

#[derive(Arbitrary, Debug)]
enum Step {
    Write(Write),
    Turn,
    Connect { me: u8 },
    Attach { me: u8, region: u8, slot: u8, tuple: AnyTuple },
    Bells { me: u8, of: u8 },
    Publish { listener: u8, addr: AnyAddr },
    Withdraw { listener: u8 },
    End { me: u8 },
    Retire,
}

thread_local! {
    static MEMORY: Arc<OwnedFd> = Arc::new(create_sealed("fuzz", LEN).unwrap());
}

/// Puts words, each with its length in bytes, to a place.
fn put(memory: &OwnedFd, at: usize, words: &[(u64, usize)]) {
    let mut all = Vec::new();
    for (word, len) in words {
        all.extend(&word.to_ne_bytes()[..*len]);
    }
    let room = LEN.saturating_sub(at);
    all.truncate(room);
    rustix::io::pwrite(memory, &all, at as u64).unwrap();
}

fn write(memory: &OwnedFd, what: &Write) {
    let extent = |index: u8| offset(usize::from(index) % EXTENTS);
    match what {
        Write::Member { index, name, gone, beat, peer, vectors, home } => {
            let at = 4096 + usize::from(*index) % MEMBERS * 64;
            let (name, gone, beat) = ((*name).into(), (*gone).into(), (*beat).into());
            let peer = u64::from(*peer);
            let words = [(name, 8), (gone, 8), (beat, 8), (0, 8), (peer, 4)];
            put(memory, at, &words);
            put(memory, at + 36, &[((*vectors).into(), 4), ((*home).into(), 4)]);
        }
        Write::Extent { index, owner, holders, name, endpoint, len, kind } => {
            let at = 8192 + usize::from(*index) % EXTENTS * 64;
            let [owner, name, endpoint, kind] = [*owner, *name, *endpoint, *kind].map(u64::from);
            let words = [(owner, 8), (*holders, 8), (name, 8), (endpoint, 8), (*len, 8), (kind, 4)];
            put(memory, at, &words);
        }
        Write::Addresses { extent: at, count, first } => {
            put(memory, extent(*at) + 8, &[((*count).into(), 4)]);
            rustix::io::pwrite(memory, first, (extent(*at) + 4096) as u64).unwrap();
            put(memory, extent(*at), &[((*count).into(), 8)]);
        }
        Write::Endpoint { extent: at, place, id, pending, vectors } => {
            let at = extent(*at) + 8192 + usize::from(*place) % 1024 * 16;
            let words = [((*id).into(), 8), ((*pending).into(), 4), ((*vectors).into(), 4)];
            put(memory, at, &words);
        }
        Write::Summary { extent: at, word, bits } => {
            put(memory, extent(*at) + 16 + usize::from(*word) % 16 * 8, &[(*bits, 8)]);
        }
        Write::Listener { extent: at, place, id, ip, port } => {
            let base = extent(*at);
            let at = base + 24_576 + usize::from(*place) % 60 * 64;
            put(memory, at, &[((*id).into(), 8)]);
            rustix::io::pwrite(memory, ip, (at + 8) as u64).unwrap();
            put(memory, at + 24, &[((*port).into(), 4)]);
            put(memory, base, &[(u64::from(*id) << 8 | u64::from(*place), 8)]);
        }
        Write::Section { extent: at, side, tuple, state } => {
            let region = shunt_shm::region::Region::map_device(memory, extent(*at));
            if let Ok(region) = region {
                let side = [shunt_shm::region::Side::Client, shunt_shm::region::Side::Server]
                    [usize::from(*side)];
                let setup = &region.view().section(0, side).setup;
                setup.set_tuple(&(*tuple).into());
                setup.state.store(*state, shunt_shm::sync::Ordering::Relaxed);
            }
        }
        Write::RegionName { extent: at, name } => {
            let words = [(0x5348_554e_545f_4c47, 8), ((*name).into(), 8)];
            put(memory, extent(*at), &words);
        }
        Write::Anything { at, bytes } => {
            let at = *at as usize % LEN;
            let inside = &bytes[..bytes.len().min(LEN - at)];
            rustix::io::pwrite(memory, inside, at as u64).unwrap();
        }
    }
}

fuzz_target!(|steps: Vec<Step>| {
    MEMORY.with(|memory| {
        // As fresh, as far as it is looked at before it is wiped.
        rustix::io::pwrite(&**memory, &[0; 16384], 0).unwrap();
        let Some(mut agent) = Victim::join(memory, LEN) else { return };
        for step in &steps {
            match step {
                Step::Write(what) => write(memory, what),
                Step::Turn => {
                    let most = 64 * (1024 + 2 * 60 * 64);
                    assert!(agent.turn() <= most, "what is heard is bounded");
                }
                Step::Connect { me } => agent.connect((*me).into()),
                Step::Attach { me, region, slot, tuple } => {
                    let at = ((*region).into(), (*slot).into());
                    agent.attach((*me).into(), at, &(*tuple).into());
                }
                Step::Bells { me, of } => agent.ask_for_bells((*me).into(), (*of).into()),
                Step::Publish { listener, addr } => {
                    agent.publish((*listener).into(), (*addr).into())
                }
                Step::Withdraw { listener } => agent.withdraw((*listener).into()),
                Step::End { me } => agent.end((*me).into()),
                Step::Retire => agent.retire(),
            }
        }
        let _ = agent.describe();
    });
});
