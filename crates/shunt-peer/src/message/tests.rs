use proptest::prelude::*;
use shunt_far::Halt;
use shunt_far::lane::{End, PIECE, Stand};
use shunt_far::link::Position;
use shunt_far::message::Words;
use shunt_verbs::value::{Gid, Mtu, PacketNumber, PairNumber, PeerPair, Remote, RemoteKey};

use super::*;

fn hello() -> Hello {
    Hello {
        incarnation: 0x0102_0304_0506_0708,
        ring: 0x0004_0000,
        slots: 32,
        messages: 256,
        device: Device::Ready,
        name: "db1".into(),
    }
}

fn group() -> Group {
    let mut gid = [0; 16];
    (gid[0], gid[15]) = (0xfe, 7);
    let (number, first_packet) = (PairNumber(0x00a1_a2a3), PacketNumber::new(0x00b1_b2b3));
    Group {
        group: 0xc1c2_c3c4,
        pair: PeerPair { gid: Gid(gid), number, first_packet, mtu: Mtu::B4096 },
    }
}

const PLACE: Place = Place { group: 0x0102_0304, slot: 0x00ff, generation: 0x1112_1314 };
const REGION: Region = Region {
    at: Remote { address: 0x2122_2324_2526_2728, key: RemoteKey(0x3132_3334) },
    length: 0x0004_0000,
};

const MEASURABLE: Measurable =
    Measurable { group: 0x4142_4344, wake_up: 0x5152_5354, region: REGION };

fn lane() -> Lane {
    let (client, server) = ("10.0.0.1:40000", "[fd00::2]:80");
    Lane {
        place: PLACE,
        client: client.parse().unwrap(),
        server: server.parse().unwrap(),
        region: REGION,
    }
}

/// One of each kind.
fn all() -> Vec<Message> {
    let stand = Stand {
        received: 1 << 40,
        marks: 3,
        ring_end: 1 << 39,
        own_marks: 5,
        own_at: 1 << 41,
        own_end: u64::MAX,
    };
    let halt = |slot| Halt { slot, generation: 7, stand };
    vec![
        Message::Hello(hello()),
        Message::Addresses(vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()]),
        Message::Listeners(vec!["0.0.0.0:80".parse().unwrap(), "[fd00::1]:81".parse().unwrap()]),
        Message::Offer(group()),
        Message::Accept(group()),
        Message::Refuse(9, Refusal::Memory),
        Message::Open(lane()),
        Message::Opened(PLACE, REGION),
        Message::NotOpened(PLACE, Refusal::Unknown),
        Message::Halted(Halted { group: 5, halts: vec![halt(0), halt(255)] }),
        Message::Gone(0xffff_ffff),
        Message::Ping(1 << 40),
        Message::Bye(Bye::Ends),
        Message::Rest(PLACE, rest()),
        Message::Device(Device::None),
        Message::Measure(MEASURABLE, Token([0x61; 16])),
        Message::Measurable(MEASURABLE),
        Message::NotMeasurable(5, Refusal::Busy),
        Message::Judged(Judgement::Slower),
        Message::Failed(5),
        Message::Renew(renewal()),
        Message::Renewed(renewal()),
        Message::Resume(Resume { own: 1 << 63, far: 0, heard: 258 }),
    ]
}

fn renewal() -> Renewal {
    let Group { group, pair } = group();
    let heard = Words { prod: 1 << 40, marks: 3, state: 1 << 24, ..Words::default() };
    let ring = REGION.at;
    let position = |slot, has_left| Position { slot, generation: 7, heard, has_left, ring };
    Renewal { group, pair, positions: vec![position(0, false), position(255, true)] }
}

fn rest() -> Rest {
    let end = End { marks: 3, mark_at: [1 << 33, 5], closed: 2 };
    Rest { at: 1 << 32, base: 1 << 57, bytes: b"ab".to_vec(), end: Some(end) }
}

#[test]
fn golden_bytes() {
    #[rustfmt::skip]
    let expected: [&[u8]; 9] = [
        &[
            1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 4, 0, 0, 0, 32, 1, 0, 1, 3, b'd', b'b', b'1',
        ],
        &[
            4, 0xc1, 0xc2, 0xc3, 0xc4, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7,
            0, 0xa1, 0xa2, 0xa3, 0, 0xb1, 0xb2, 0xb3, 5,
        ],
        &[
            7, 1, 2, 3, 4, 0, 0xff, 0x11, 0x12, 0x13, 0x14,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1, 0x9c, 0x40,
            0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 80,
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0, 4, 0, 0,
        ],
        &[
            10, 0, 0, 0, 5, 0, 2,
            0, 0, 0, 0, 0, 7, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 128, 0, 0, 0, 0,
            0, 0, 0, 5, 0, 0, 2, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255,
            0, 255, 0, 0, 0, 7, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 128, 0, 0, 0, 0,
            0, 0, 0, 5, 0, 0, 2, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255,
        ],
        &[
            14, 1, 2, 3, 4, 0, 0xff, 0x11, 0x12, 0x13, 0x14,
            0, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 2, b'a', b'b',
            1, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 2,
        ],
        &[
            16, 0x41, 0x42, 0x43, 0x44,
            0x61, 0x61, 0x61, 0x61, 0x61, 0x61, 0x61, 0x61, 0x61, 0x61, 0x61, 0x61, 0x61, 0x61, 0x61, 0x61,
            0x51, 0x52, 0x53, 0x54,
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0, 4, 0, 0,
        ],
        &[
            17, 0x41, 0x42, 0x43, 0x44, 0x51, 0x52, 0x53, 0x54,
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0, 4, 0, 0,
        ],
        &[
            21, 0xc1, 0xc2, 0xc3, 0xc4, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7,
            0, 0xa1, 0xa2, 0xa3, 0, 0xb1, 0xb2, 0xb3, 5, 0, 2,
            0, 0, 0, 0, 0, 7,
            0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
            0, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34,
            0, 255, 0, 0, 0, 7,
            0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
            1, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34,
        ],
        &[23, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2],
    ];
    let all = all();
    let some = [0, 3, 6, 9, 13, 15, 16, 20, 22].map(|at: usize| &all[at]);
    for (message, bytes) in some.into_iter().zip(expected) {
        assert_eq!(message.bytes(), bytes, "{message:?}");
    }
}

#[test]
fn every_kind_comes_back_and_no_part_of_it_is_one() {
    for message in all() {
        let bytes = message.bytes();
        assert_eq!(Message::parse(&bytes), Ok(message.clone()));
        for len in 0..bytes.len() {
            assert_eq!(Message::parse(&bytes[..len]), Err(Malformed::Short), "{message:?}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Message::parse(&longer), Err(Malformed::Long), "{message:?}");
    }
    for kind in [0, 24, 255] {
        assert_eq!(Message::parse(&[kind]), Err(Malformed::Kind));
    }
}

/// The same message with one byte changed.
fn with(message: &Message, at: usize, byte: u8) -> Result<Message, Malformed> {
    let mut bytes = message.bytes();
    bytes[at] = byte;
    Message::parse(&bytes)
}

#[test]
fn impossible_fields_are_refused() {
    let value = Err(Malformed::Value);
    let [hello, _, _, offer, _, refuse, open, opened, ..] = &all()[..] else { unreachable!() };
    // A ring that is no power of two, and none; no places, and too many; too few messages.
    assert_eq!(with(hello, 12, 1), value);
    assert_eq!(with(hello, 10, 0), value);
    assert_eq!(with(hello, 14, 0), value);
    assert_eq!(with(hello, 13, 2), value);
    assert_eq!(with(hello, 15, 0).map(|_| ()), Err(Malformed::Value));
    assert_eq!(with(hello, 17, 2), value);
    // Names that would move a terminal's cursor, or are no text.
    assert_eq!(with(hello, 20, 0x1b), value);
    assert_eq!(with(hello, 20, 0xff), value);
    // Queue pairs and packets of more than 24 bits, MTUs that there are not.
    assert_eq!(with(offer, 21, 1), value);
    assert_eq!(with(offer, 25, 1), value);
    assert_eq!(with(offer, 29, 0), value);
    assert_eq!(with(offer, 29, 6), value);
    assert_eq!(with(refuse, 5, 0), value);
    // Places beyond the last one, ports that are none, ends of this host alone.
    assert_eq!(with(open, 5, 1), value);
    let mut at_zero = open.bytes();
    at_zero[27..29].fill(0);
    assert_eq!(Message::parse(&at_zero), value);
    assert_eq!(with(open, 23, 127), value);
    let mut beyond = opened.bytes();
    beyond[11..19].fill(0xff);
    assert_eq!(Message::parse(&beyond), value);
    let mut nothing = opened.bytes();
    nothing[23..27].fill(0);
    assert_eq!(Message::parse(&nothing), value);
    // The same of memory to measure with, and a judgement that there is not.
    let [.., measure, _, _, judged, _, _, _, resume] = &all()[..] else { unreachable!() };
    let mut nothing = measure.bytes();
    nothing[37..41].fill(0);
    assert_eq!(Message::parse(&nothing), value);
    assert_eq!(with(judged, 1, 4), value);
    // No number of one's own.
    assert_eq!(with(resume, 1, 0), value);
}

#[test]
fn addresses_are_those_by_which_hosts_are_reached() {
    for ip in ["127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255"] {
        let said = Message::Addresses(vec![ip.parse().unwrap()]);
        assert_eq!(Message::parse(&said.bytes()), Err(Malformed::Value), "{ip}");
    }
    for at in ["127.0.0.1:80", "224.0.0.1:80", "10.0.0.1:0"] {
        let said = Message::Listeners(vec![at.parse().unwrap()]);
        assert_eq!(Message::parse(&said.bytes()), Err(Malformed::Value), "{at}");
    }
}

#[test]
fn a_place_halts_once() {
    let halt = Halt { slot: 3, generation: 7, stand: Stand::default() };
    let twice = Message::Halted(Halted { group: 5, halts: vec![halt, halt] });
    assert_eq!(Message::parse(&twice.bytes()), Err(Malformed::Value));
    let mut twice = renewal();
    twice.positions[1] = twice.positions[0];
    assert_eq!(Message::parse(&Message::Renew(twice).bytes()), Err(Malformed::Value));
}

#[test]
fn lists_are_bounded() {
    for (kind, most) in [(2_u8, ADDRESSES), (3, LISTENERS)] {
        let more = u16::try_from(most + 1).unwrap().to_be_bytes();
        assert_eq!(Message::parse(&[kind, more[0], more[1]]), Err(Malformed::Many));
    }
    assert_eq!(Message::parse(&[10, 0, 0, 0, 5, 1, 1]), Err(Malformed::Many));
    let long = Message::Rest(PLACE, Rest { bytes: vec![7; PIECE], ..rest() }).bytes();
    assert!(long.len() <= LONGEST && Message::parse(&long).is_ok());
    let more = u16::try_from(PIECE + 1).unwrap().to_be_bytes();
    let longer = [&long[..27], &more, &long[29..]].concat();
    assert_eq!(Message::parse(&longer), Err(Malformed::Many));
    let ports = 1..=u16::try_from(LISTENERS).unwrap() + 9;
    let listeners = ports.map(|port| SocketAddr::new("10.0.0.1".parse().unwrap(), port));
    let bytes = Message::Listeners(listeners.collect()).bytes();
    assert_eq!(bytes.len(), LONGEST);
    let Ok(Message::Listeners(some)) = Message::parse(&bytes) else { panic!() };
    assert_eq!(some.len(), LISTENERS);
    let name = "ä".repeat(NAME);
    let long = Message::Hello(Hello { name, ..hello() });
    let Ok(Message::Hello(cut)) = Message::parse(&long.bytes()) else { panic!() };
    assert_eq!(cut.name, "ä".repeat(NAME / 2));
}

proptest! {
    #[test]
    fn bytes_and_values_are_the_same(
        which in 0_usize..22,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut bytes = all()[which].bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(message.bytes(), bytes);
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(message.bytes(), bytes);
        }
    }
}
