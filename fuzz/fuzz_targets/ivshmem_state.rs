//! Any state that a server of another make or version could hand over: what is taken for sound must be.
#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use shunt_ivshmem::Limits;
use shunt_ivshmem::message::Attached;
use shunt_ivshmem::snapshot::Snapshot;

/// Enough for every notice of a state that fits the fuzzer's input.
const MOST: usize = 1 << 20;

fuzz_target!(|text: &[u8]| {
    let Ok(snapshot) = Snapshot::parse(text) else { return };
    let text = snapshot.text().expect("it was text before");
    assert_eq!(Snapshot::parse(&text).as_ref(), Ok(&snapshot));
    let now = Instant::now();
    let mut state = snapshot.state(Limits::default(), now);
    let joined = state.join(now);
    let peers: Vec<_> = state.peers().collect();
    for id in &peers {
        let mut left = MOST;
        while let Some(message) = state.front(*id) {
            if let Attached::Bell(of, vector) = message.attached {
                assert!(peers.contains(&of) && vector < state.vectors());
            }
            state.sent(*id, now);
            left -= 1;
            assert!(left > 0, "there is no end to what {id} is told");
        }
        assert_eq!(state.counts(*id).0, 0);
    }
    for id in peers {
        state.leave(id, now);
    }
    assert!(joined.is_err() || state.join(now) == Ok(0), "all IDs are free again");
});
