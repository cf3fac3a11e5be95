//! Completion queues, arm words and lanes under a peer that writes what it likes into them.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use shunt_fuzz::Shared;
use shunt_shm::cq::ENTRIES;
use shunt_shm::doorbell::{AWAKE, ON_BELL, ON_FUTEX, arm, arm_bell, take, take_bells, vectors};
use shunt_shm::region::{LANES, Side, queue_place};
use shunt_wire::agent::MAX_VECTORS;

#[derive(Arbitrary, Debug)]
enum Op {
    Push {
        code: u32,
        conn: usize,
    },
    Pop {
        code: u32,
        places: u32,
    },
    Arm(u32),
    Disarm(u32),
    ArmWord(u8),
    TakeWord,
    Claim {
        client: bool,
        endpoint: u64,
    },
    /// Which lane, where in it, and what.
    Scribble(usize, u16, u64),
    ScribbleWord(u32),
}

fuzz_target!(|script: Vec<Op>| {
    let shared = Shared::get();
    let view = shared.view();
    let ctl = &view.section(1, Side::Server).ctl;
    let (word, bells) = (&ctl.rx_arm, &ctl.rx_bells);
    for op in script {
        match op {
            Op::Push { code, conn } => {
                if let Some((lane, vector)) = queue_place(code) {
                    let vector = view.lane(lane).vector(vector);
                    vector.queue.push(&vector.arm, conn);
                    assert!(conn >= ENTRIES || !vector.queue.is_empty());
                }
            }
            Op::Pop { code, places } => {
                if let Some((lane, vector)) = queue_place(code) {
                    let queue = &view.lane(lane).vector(vector).queue;
                    let mut seen = [false; ENTRIES];
                    let place_of =
                        |conn: usize| places.rotate_left(u32::try_from(conn).unwrap_or(0));
                    queue.pop_all(place_of, |conn| {
                        assert!(!std::mem::replace(&mut seen[conn], true), "{conn} popped twice");
                    });
                    assert!(queue.is_empty());
                }
            }
            Op::Arm(code) => {
                if let Some((lane, vector)) = queue_place(code) {
                    view.lane(lane).vector(vector).arm.arm();
                }
            }
            Op::Disarm(code) => {
                if let Some((lane, vector)) = queue_place(code) {
                    view.lane(lane).vector(vector).arm.disarm();
                }
            }
            Op::ArmWord(vector) => {
                match vector {
                    0 => assert_eq!(arm(word, ON_FUTEX) & ON_FUTEX, ON_FUTEX),
                    _ => assert_eq!(arm_bell(word, bells, vector.into()) & ON_BELL, ON_BELL),
                }
            }
            Op::TakeWord => {
                let asked = take_bells(take(word), bells);
                assert!(vectors(asked).all(|vector| vector < MAX_VECTORS));
                assert_eq!(take(word), AWAKE);
            }
            Op::Claim { client, endpoint } => {
                let side = if client { Side::Client } else { Side::Server };
                let lane = view.claim_lane(side, endpoint);
                assert!(lane.is_none_or(|lane| lane < LANES && (lane == 0) == client));
            }
            Op::Scribble(lane, at, bits) => {
                let vector = view.lane(lane).vector(at.into());
                let words = size_of_val(vector) / 8;
                let at = shared.offset_of(vector) + (usize::from(at) / 64 % words * 8) as u64;
                shared.peer.write(at, &bits.to_ne_bytes());
            }
            Op::ScribbleWord(bits) => {
                shared.peer.write(shared.offset_of(word), &bits.to_ne_bytes())
            }
        }
    }
});
