//! The agent's messages: golden bytes both ways, round trips, and hostile bytes.

use proptest::prelude::*;
use shunt_wire::agent::{
    Exported, FarBells, Interrupt, MAX_MESSAGE, Malformed, Reply, Request, decode, encode,
    stated_version,
};
use shunt_wire::reason::Reason;

fn bytes<T: serde::Serialize>(message: &T) -> Vec<u8> {
    encode(message, &mut [0; MAX_MESSAGE]).unwrap().to_vec()
}

/// Each message and its bytes. They change only together with `PROTOCOL_VERSION`.
#[test]
fn golden_requests() {
    let golden: &[(Request<'_>, &[u8])] = &[
        (
            Request::Hello { version: 1, program: "nginx", run: 300 },
            &[0, 1, 5, b'n', b'g', b'i', b'n', b'x', 0xac, 0x02],
        ),
        (Request::Tool { version: 1 }, &[1, 1]),
        (Request::Listen, &[2]),
        (Request::Unlisten { listener: 7 }, &[3, 7]),
        (Request::Connect { listener: 128 }, &[4, 0x80, 0x01]),
        (
            Request::Attach { region: 1 << 32, slot: 254 },
            &[5, 0x80, 0x80, 0x80, 0x80, 0x10, 0xfe, 1],
        ),
        (Request::Bells { region: 2, endpoint: 3 }, &[6, 2, 3]),
        (Request::Detach { region: 2 }, &[7, 2]),
        (Request::List, &[8]),
        (Request::Stats { run: 0 }, &[9, 0]),
        (Request::Status, &[10]),
        (Request::Export { what: Exported::Found }, &[11, 1]),
        (Request::Import { region: 2, slot: 9, export: 128 }, &[12, 2, 9, 0x80, 0x01]),
        (Request::Unexport { export: 7 }, &[13, 7]),
        (Request::Await, &[14]),
        (Request::Offer { record: 300, number: 5 }, &[15, 0xac, 0x02, 5]),
        (Request::Claim, &[16]),
        (Request::Fetch { region: 2, slot: 254 }, &[17, 2, 0xfe, 1]),
        (Request::Invite, &[18]),
        (Request::Arrive, &[19]),
        (Request::AddBell, &[20]),
        (Request::Bell { region: 2, slot: 254, endpoint: 3, vector: 63 }, &[21, 2, 0xfe, 1, 3, 63]),
        (Request::Ring { region: 2, endpoint: 128, vector: 7 }, &[22, 2, 0x80, 0x01, 7]),
        (Request::Capture { snap: 300, port: 6379 }, &[23, 0xac, 0x02, 0xeb, 0x31]),
        (Request::Captured, &[24]),
        (Request::Bequeath { listener: 128 }, &[26, 0x80, 0x01]),
        (Request::Mark { region: 128, slot: 3 }, &[27, 0x80, 0x01, 3]),
    ];
    for (message, packet) in golden {
        assert_eq!(bytes(message), *packet, "{message:?}");
        assert_eq!(decode::<Request<'_>>(packet).as_ref(), Ok(message));
    }
}

#[test]
fn golden_replies() {
    let bells = |interrupt| FarBells { home: 13, place: 14, interrupt };
    let register = Interrupt::Register { at: 15, peer: 16, vectors: 17 };
    let golden: &[(Reply, &[u8])] = &[
        (Reply::Welcome { endpoint: 1, memory: 2 }, &[0, 1, 2]),
        (Reply::Done, &[1]),
        (Reply::Listening { listener: 2 }, &[2, 2]),
        (Reply::Linked { region: 3 }, &[3, 3]),
        (Reply::Attached { endpoint: 4, pidfd: true }, &[4, 4, 1]),
        (Reply::Bells, &[5]),
        (Reply::Report { len: 1000 }, &[6, 0xe8, 0x07]),
        (Reply::Refused { reason: Reason::Remote }, &[7, 0]),
        (Reply::Refused { reason: Reason::Refused }, &[7, 19]),
        (Reply::Exported { export: 5 }, &[8, 5]),
        (Reply::Imported, &[9]),
        (Reply::Claimed { endpoint: 1, region: 2, slot: 3, generation: 4 }, &[10, 1, 2, 3, 4]),
        (Reply::Fetched, &[11]),
        (Reply::ListeningShared { listener: 6, table: 7 }, &[12, 6, 7]),
        (Reply::LinkedShared { region: 8, table: 9, at: 10 }, &[13, 8, 9, 10]),
        (
            Reply::AttachedShared { endpoint: 11, at: 12, bells: bells(register) },
            &[14, 11, 12, 13, 14, 2, 15, 16, 17],
        ),
        (Reply::BellsShared { bells: bells(Interrupt::Nobody) }, &[15, 13, 14, 0]),
        (Reply::BellsShared { bells: bells(Interrupt::Eventfds) }, &[15, 13, 14, 1]),
        (Reply::Invited, &[16]),
        (Reply::Added { vector: 63 }, &[17, 63]),
        (Reply::Bell, &[18]),
        (Reply::Capturing { place: 3 }, &[19, 3]),
        (Reply::LinkedToKernel { region: 8, table: 9, at: 10 }, &[20, 8, 9, 10]),
    ];
    for (message, packet) in golden {
        assert_eq!(bytes(message), *packet, "{message:?}");
        assert_eq!(decode::<Reply>(packet).as_ref(), Ok(message));
    }
}

#[test]
fn malformed_packets() {
    let request = |packet: &'static [u8]| decode::<Request<'_>>(packet);
    for packet in [&b""[..], &[2, 0], &[25], &[4], &[0, 1, 5, b'n'], &[0, 1, 1, 0xff, 0]] {
        assert_eq!(request(packet), Err(Malformed), "{packet:?}");
    }
    assert_eq!(decode::<Reply>(&[7, 99]), Err(Malformed));
    assert_eq!(encode(&Request::Connect { listener: u64::MAX }, &mut [0; 4]), Err(Malformed));
}

#[test]
fn the_longest_hello_fits() {
    let program = "x".repeat(64);
    let hello = Request::Hello { version: u32::MAX, program: &program, run: u64::MAX };
    assert!(bytes(&hello).len() < 128);
}

#[test]
fn a_version_is_read_from_messages_of_any_shape() {
    assert_eq!(stated_version(&bytes(&Request::Tool { version: 9 })), Some(9));
    let hello = Request::Hello { version: 200, program: "p", run: 1 };
    assert_eq!(stated_version(&bytes(&hello)), Some(200));
    assert_eq!(stated_version(&[0, 77, 0xff, 0xff, 0xff]), Some(77));
    assert_eq!(stated_version(&bytes(&Request::Connect { listener: 5 })), None);
    assert_eq!(stated_version(&[]), None);
    assert_eq!(stated_version(&[0]), None);
}

fn requests() -> impl Strategy<Value = (u8, u64, u64, u32, String)> {
    (0..27_u8, any::<u64>(), any::<u64>(), any::<u32>(), "\\PC{0,64}")
}

fn request((kind, a, b, c, text): &(u8, u64, u64, u32, String)) -> Request<'_> {
    match kind {
        0 => Request::Hello { version: *c, program: text, run: *a },
        1 => Request::Tool { version: *c },
        2 => Request::Listen,
        3 => Request::Unlisten { listener: *a },
        4 => Request::Connect { listener: *a },
        5 => Request::Attach { region: *a, slot: *c },
        6 => Request::Bells { region: *a, endpoint: *b },
        7 => Request::Detach { region: *a },
        8 => Request::List,
        9 => Request::Stats { run: *a },
        10 => Request::Export {
            what: [Exported::Asked, Exported::Found, Exported::Pipes { region: *a, slot: *c }]
                [*c as usize % 3],
        },
        11 => Request::Import { region: *a, slot: 3, export: *b },
        12 => Request::Unexport { export: *a },
        13 => Request::Await,
        14 => Request::Offer { record: *c, number: *a },
        15 => Request::Claim,
        16 => Request::Fetch { region: *a, slot: *c },
        17 => Request::Invite,
        18 => Request::Arrive,
        19 => Request::AddBell,
        20 => Request::Bell { region: *a, slot: *c, endpoint: *b, vector: c.to_le_bytes()[1] },
        21 => Request::Ring { region: *a, endpoint: *b, vector: c.to_le_bytes()[0] },
        22 => Request::Capture { snap: *c, port: 6379 },
        23 => Request::Captured,
        24 => Request::Bequeath { listener: *a },
        25 => Request::Mark { region: *a, slot: *c },
        _ => Request::Status,
    }
}

fn replies() -> impl Strategy<Value = Reply> {
    let reason = (0..Reason::ALL.len()).prop_map(|i| Reason::ALL[i]);
    prop_oneof![
        (any::<u64>(), any::<u64>())
            .prop_map(|(endpoint, memory)| Reply::Welcome { endpoint, memory }),
        Just(Reply::Done),
        any::<u64>().prop_map(|listener| Reply::Listening { listener }),
        any::<u64>().prop_map(|region| Reply::Linked { region }),
        (any::<u64>(), any::<bool>())
            .prop_map(|(endpoint, pidfd)| Reply::Attached { endpoint, pidfd }),
        Just(Reply::Bells),
        Just(Reply::Bell),
        any::<u8>().prop_map(|vector| Reply::Added { vector }),
        any::<u32>().prop_map(|len| Reply::Report { len }),
        reason.prop_map(|reason| Reply::Refused { reason }),
        any::<u64>().prop_map(|export| Reply::Exported { export }),
        Just(Reply::Imported),
        (any::<[u64; 2]>(), any::<[u32; 2]>()).prop_map(
            |([endpoint, region], [slot, generation])| {
                Reply::Claimed { endpoint, region, slot, generation }
            }
        ),
        Just(Reply::Fetched),
        (any::<u64>(), any::<u64>())
            .prop_map(|(listener, table)| Reply::ListeningShared { listener, table }),
        (any::<u64>(), any::<u64>(), any::<u64>())
            .prop_map(|(region, table, at)| Reply::LinkedShared { region, table, at }),
        (any::<u64>(), any::<u64>(), far_bells())
            .prop_map(|(endpoint, at, bells)| Reply::AttachedShared { endpoint, at, bells }),
        far_bells().prop_map(|bells| Reply::BellsShared { bells }),
        Just(Reply::Invited),
        any::<u8>().prop_map(|place| Reply::Capturing { place }),
        (any::<u64>(), any::<u64>(), any::<u64>())
            .prop_map(|(region, table, at)| Reply::LinkedToKernel { region, table, at }),
    ]
}

fn far_bells() -> impl Strategy<Value = FarBells> {
    let interrupt =
        prop_oneof![
            Just(Interrupt::Nobody),
            Just(Interrupt::Eventfds),
            (any::<[u16; 2]>(), any::<u8>())
                .prop_map(|([at, peer], vectors)| Interrupt::Register { at, peer, vectors }),
        ];
    (any::<u64>(), any::<u32>(), interrupt).prop_map(|(home, place, interrupt)| FarBells {
        home,
        place,
        interrupt,
    })
}

proptest! {
    #[test]
    fn requests_survive(parts in requests()) {
        let message = request(&parts);
        let packet = bytes(&message);
        prop_assert!(packet.len() <= MAX_MESSAGE);
        prop_assert_eq!(decode::<Request<'_>>(&packet), Ok(message));
    }

    #[test]
    fn a_message_cut_short_or_with_a_tail_is_malformed(parts in requests(), tail in 0..4_usize) {
        let packet = bytes(&request(&parts));
        prop_assert_eq!(decode::<Request<'_>>(&packet[..packet.len() - 1]), Err(Malformed));
        let longer = [packet.as_slice(), &vec![0; tail + 1]].concat();
        prop_assert_eq!(decode::<Request<'_>>(&longer), Err(Malformed));
    }

    #[test]
    fn replies_survive(message in replies()) {
        let packet = bytes(&message);
        prop_assert_eq!(decode::<Reply>(&packet), Ok(message));
    }

    #[test]
    fn any_bytes_are_a_message_or_malformed(packet in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = decode::<Request<'_>>(&packet);
        let _ = decode::<Reply>(&packet);
        let _ = stated_version(&packet);
    }
}
