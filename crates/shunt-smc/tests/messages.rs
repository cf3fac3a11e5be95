//! Messages in bytes: as the kernel lays them out, and back.

mod common;

use common::{accept, contact, eid, end, host, proposal};
use proptest::prelude::*;
use shunt_smc::wire::cdc::{Cdc, Cursor, Producer, State};
use shunt_smc::wire::clc::{
    self, Accept, Confirm, Decline, Diagnosis, End, FirstContact, Host, Kind, Proposal,
};
use shunt_smc::wire::llc::{
    AddLink, ConfirmLink, ConfirmRkey, DeleteLink, DeleteRkey, Llc, Reason, RequestAddLink,
    TestLink, Token,
};
use shunt_smc::wire::{Eid, LONGEST_LINK_MESSAGE, Malformed, RmbSize};
use shunt_verbs::value::{Gid, Mtu, PacketNumber, PairNumber, Remote, RemoteKey};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let (pairs, rest) = digits.as_chunks::<2>();
    assert!(rest.is_empty());
    pairs
        .iter()
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// `struct smc_clc_msg_proposal`, `smc_clc_msg_smcd`, `smc_clc_v2_extension`, two EIDs, trailer
/// (`smc_clc.h`).
const PROPOSAL: &str = "
    e2d4c3d9 01 00bc 22
    0202525400770002 00000000000000000000ffff0a4d0002 525400770002 0000
    0000000000000000 0000 001c 000000 0000000000 0000000000000000000000000000000000000000
    02 00 00 10 0000 0000 00000000000000000000ffff0a4d0002 20 02 0000 000000000000000000000000
    5348554e54202020202020202020202020202020202020202020202020202020
    4f54484552202020202020202020202020202020202020202020202020202020
    e2d4c3d9";

/// `struct smcr_clc_msg_accept_confirm`, EID, `smc_clc_first_contact_ext_v2x`, trailer.
const ACCEPT: &str = "
    e2d4c3d9 02 00a0 28
    0303525400770003 00000000000000000000ffff0a4d0003 525400770003
    000013 00000007 01 00000007 03 00 00007f0007000000 00 123456
    5348554e54202020202020202020202020202020202020202020202020202020 0000000000000000
    80 21 0000 7365727665722020202020202020202020202020202020202020202020202020
    20 02 0000 00000000 0000000000000000
    e2d4c3d9";

#[test]
fn a_proposal_lies_as_the_kernel_lays_it() {
    assert_eq!(proposal().bytes(), bytes(PROPOSAL));
    assert_eq!(Proposal::parse(&bytes(PROPOSAL)), Ok(proposal()));
    // One EID: the kernel's client sends as many bytes.
    let one = Proposal { eids: vec![eid("SHUNT")], ..proposal() };
    assert_eq!(one.bytes().len(), 156);
}

#[test]
fn a_proposal_with_parts_of_version_1_is_one() {
    // SMC-R of both versions: an IPv4 prefix stands in front of the extension.
    let mut with = bytes(PROPOSAL);
    with[7] = 0x20;
    with[6] += 8;
    with[51] += 8;
    with.splice(80..80, bytes("0a4d0000 18 0000 00"));
    assert_eq!(Proposal::parse(&with), Ok(proposal()));
}

#[test]
fn an_accept_lies_as_the_kernel_lays_it() {
    assert_eq!(accept().bytes(), bytes(ACCEPT));
    assert_eq!(Accept::parse(&bytes(ACCEPT)), Ok(accept()));
    let later = Accept { first_contact: None, ..accept() };
    assert_eq!(later.bytes().len(), 108);
    // Linux before 6.6 has a shorter part for first contacts, in release 0.
    let mut old = bytes(ACCEPT);
    old[105] = 0x20;
    old.drain(140..156);
    old[6] -= 16;
    let contact = FirstContact { release: 0, max_connections: 0, max_links: 0, ..contact() };
    assert_eq!(Accept::parse(&old), Ok(Accept { first_contact: Some(contact), ..accept() }));
}

#[test]
fn a_confirm_lies_as_the_kernel_lays_it() {
    let end = End { mtu: Mtu::B1024, ..end(2, 5, RmbSize::of_exponent(2).unwrap()) };
    let contact = Some((contact(), vec![host(2).gid]));
    let confirm = Confirm { end, eid: eid("SHUNT"), first_contact: contact };
    let expected = bytes(
        "e2d4c3d9 03 00b4 28
        0202525400770002 00000000000000000000ffff0a4d0002 525400770002
        000012 00000005 01 00000005 23 00 00007f0005000000 00 123456
        5348554e54202020202020202020202020202020202020202020202020202020 0000000000000000
        80 21 0000 7365727665722020202020202020202020202020202020202020202020202020
        20 02 0000 00000000 0000000000000000
        01 000000 00000000000000000000ffff0a4d0002
        e2d4c3d9",
    );
    assert_eq!(confirm.bytes(), expected);
    assert_eq!(Confirm::parse(&expected), Ok(confirm));
}

#[test]
fn a_decline_has_a_form_of_either_version() {
    let id = host(3).id;
    let decline = Decline { id, diagnosis: Diagnosis::NO_DEVICE, is_out_of_step: false };
    let expected = bytes(
        "e2d4c3d9 04 002c 20 0303525400770003 03030000 20 000000
        00000000 00000000 00000000 00000000 e2d4c3d9",
    );
    assert_eq!(decline.bytes(), expected);
    assert_eq!(Decline::parse(&expected), Ok(decline));
    let short = "e2d4c3d9 04 001c 10 0303525400770003 03030000 00 000000 e2d4c3d9";
    assert_eq!(Decline::parse(&bytes(short)), Ok(decline));
    let mixed = "e2d4c3d9 04 001c 20 0303525400770003 03030000 00 000000 e2d4c3d9";
    assert_eq!(Decline::parse(&bytes(mixed)), Err(Malformed::Length));
}

/// `smc_llc.c`, each in 44 bytes.
#[test]
fn messages_about_links_lie_as_the_kernel_lays_them() {
    let ring = |key| Remote { address: 0x7f01_0203_0405, key: RemoteKey(key) };
    let golden = [
        (
            Llc::ConfirmLink(ConfirmLink {
                is_answer: true,
                is_plain: true,
                mac: host(2).mac,
                gid: host(2).gid,
                pair: PairNumber(0x12),
                link: 1,
                id: [1, 2, 3, 4],
                max_links: 2,
                max_connections: 32,
            }),
            "21 2c00 83 525400770002 00000000000000000000ffff0a4d0002 000012 01 01020304 02 20",
        ),
        (
            Llc::AddLink(AddLink {
                is_answer: true,
                is_rejected: true,
                mac: host(3).mac,
                gid: host(3).gid,
                pair: PairNumber(0x13),
                link: 2,
                mtu: Some(Mtu::B1024),
                first_packet: PacketNumber::new(0x0a_0b0c),
            }),
            "22 2c00 c0 525400770003 0000 00000000000000000000ffff0a4d0003 000013 02 03 0a0b0c",
        ),
        (
            Llc::DeleteLink(DeleteLink {
                is_answer: false,
                is_all: true,
                is_orderly: true,
                link: 0,
                reason: Reason::PROGRAM,
            }),
            "24 2c00 60 00 00030000",
        ),
        (
            Llc::RequestAddLink(RequestAddLink { is_answer: false, gids: vec![host(2).gid] }),
            "25 2c00 00 0000000000000000000000000000000000000000 01 000000 00000000000000000000ffff0a4d0002",
        ),
        (
            Llc::ConfirmRkey(ConfirmRkey {
                others: vec![Token { link: 2, rmb: ring(9) }],
                is_answer: true,
                is_refused: true,
                may_retry: true,
                rmb: ring(8),
            }),
            "26 2c00 b0 01 00000008 00007f0102030405 02 00000009 00007f0102030405",
        ),
        (
            Llc::TestLink(TestLink { is_answer: true, data: *b"0123456789abcdef" }),
            "27 2c00 80 30313233343536373839616263646566",
        ),
        (
            Llc::DeleteRkey(DeleteRkey {
                is_answer: false,
                unknown: 0,
                keys: vec![RemoteKey(8), RemoteKey(9)],
            }),
            "29 2c00 00 02 00 0000 00000008 00000009",
        ),
        (
            Llc::DeleteRkey(DeleteRkey { is_answer: true, unknown: 1, keys: vec![] }),
            "29 2c00 a0 00 01 0000",
        ),
    ];
    for (message, hex) in golden {
        let mut expected = bytes(hex);
        expected.resize(44, 0);
        assert_eq!(message.bytes(), expected, "{message:?}");
        assert_eq!(Llc::parse(&expected), Ok(message.clone()));
        // The length as a big-endian kernel has it.
        expected.swap(1, 2);
        assert_eq!(Llc::parse(&expected), Ok(message.clone()));
        assert_eq!(Llc::parse(&expected[..43]), Err(Malformed::Length));
        expected[1..3].copy_from_slice(&[0x2b, 0]);
        assert_eq!(Llc::parse(&expected), Err(Malformed::Length));
    }
}

#[test]
fn an_answer_to_many_keys_names_none() {
    let mut answer = DeleteRkey { is_answer: true, unknown: 0, keys: vec![] };
    let mut long = Llc::DeleteRkey(answer.clone()).bytes();
    long[4] = 255;
    assert_eq!(Llc::parse(&long), Ok(Llc::DeleteRkey(answer.clone())));
    long[3] = 0;
    assert_eq!(Llc::parse(&long), Err(Malformed::Length));
    answer.is_answer = false;
    answer.keys = vec![RemoteKey(1); 255];
    let bytes = Llc::DeleteRkey(answer.clone()).bytes();
    assert!(bytes.len() <= LONGEST_LINK_MESSAGE);
    assert_eq!(Llc::parse(&bytes), Ok(Llc::DeleteRkey(answer)));
}

/// `struct smc_cdc_msg` (`smc_cdc.h`).
#[test]
fn a_message_about_a_connection_lies_as_the_kernel_lays_it() {
    let message = Cdc {
        number: 0x0102,
        token: 0x0304_0506,
        produced: Cursor { wraps: 1, count: 0x2000 },
        consumed: Cursor { wraps: 2, count: 0x10 },
        producer: Producer { is_blocked: true, is_urgent: true, ..Producer::default() },
        state: State { is_finished: true, is_aborted: true, ..State::default() },
    };
    let mut expected = bytes("fe 2c 0102 03040506 0000 0001 00002000 0000 0002 00000010 a0 a0");
    expected.resize(44, 0);
    assert_eq!(message.bytes()[..], expected);
    assert_eq!(Cdc::parse(&expected), Ok(message));
    expected[24] = 0xf8;
    let all = Producer {
        is_blocked: true,
        is_urgent_pending: true,
        is_urgent: true,
        wants_update: true,
        is_failover: true,
    };
    assert_eq!(Cdc::parse(&expected).unwrap().producer, all);
    assert_eq!(Cdc::parse(&expected[..43]), Err(Malformed::Length));
    expected[1] = 45;
    assert_eq!(Cdc::parse(&expected), Err(Malformed::Length));
    expected[0] = 0x21;
    assert_eq!(Cdc::parse(&expected), Err(Malformed::Kind(0x21)));
}

/// What is wrong with a good message whose byte at a place is another one.
fn changed<T>(
    good: Vec<u8>,
    parse: impl Fn(&[u8]) -> Result<T, Malformed>,
) -> impl Fn(usize, u8) -> Option<Malformed> {
    move |at, byte| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        parse(&bytes).err()
    }
}

#[test]
fn what_cannot_be_is_no_message() {
    let accept = changed(accept().bytes(), Accept::parse);
    assert_eq!(accept(0, 0), Some(Malformed::EyeCatcher));
    assert_eq!(accept(159, 0), Some(Malformed::EyeCatcher));
    assert_eq!(accept(4, 3), Some(Malformed::Kind(3)));
    assert_eq!(accept(7, 0x18), Some(Malformed::Version(1)));
    assert_eq!(accept(7, 0x29), Some(Malformed::Field("kind of SMC")));
    assert_eq!(accept(45, 0), Some(Malformed::Field("index of the ring")));
    assert_eq!(accept(50, 0x00), Some(Malformed::Field("MTU")));
    assert_eq!(accept(50, 0x06), Some(Malformed::Field("MTU")));
    assert_eq!(accept(64, b'a'), Some(Malformed::Field("EID")));
    let mut high = bytes(ACCEPT);
    high[52..60].fill(0xff);
    assert_eq!(Accept::parse(&high), Err(Malformed::Field("address of the ring")));
    let mut long = bytes(ACCEPT);
    long.splice(156..156, [0; 4]);
    assert_eq!(Accept::parse(&long), Err(Malformed::Length));
    let proposal = changed(bytes(PROPOSAL), Proposal::parse);
    assert_eq!(proposal(7, 0x12), Some(Malformed::Version(1)));
    assert_eq!(proposal(7, 0x26), Some(Malformed::Version(2)));
    assert_eq!(proposal(51, 0x1b), Some(Malformed::Field("place of the extension")));
    assert_eq!(proposal(50, 0xff), Some(Malformed::Field("place of the extension")));
    for count in [0, 9] {
        assert_eq!(proposal(80, count), Some(Malformed::Field("number of EIDs")));
    }
    assert_eq!(proposal(80, 3), Some(Malformed::Length));
    let mut first = [0; clc::HEADER];
    first.copy_from_slice(&bytes(PROPOSAL)[..8]);
    assert_eq!(clc::header(&first), Ok((Kind::Proposal, 188)));
    for length in [[0, 11], [0x10, 0]] {
        first[5..7].copy_from_slice(&length);
        assert_eq!(clc::header(&first), Err(Malformed::Length));
    }
}

#[test]
fn the_second_ring_of_an_rmb_lies_behind_the_first() {
    let first = end(3, 1, RmbSize::SMALLEST);
    let third = End { index: 3, ..first };
    assert_eq!(third.ring().address, first.rmb.address + 32_768);
    assert_eq!((first.ring(), third.ring().key), (first.rmb, first.rmb.key));
}

fn a_host() -> impl Strategy<Value = Host> {
    any::<([u8; 8], [u8; 16], [u8; 6])>().prop_map(|(id, gid, mac)| Host { id, gid: Gid(gid), mac })
}

fn an_eid() -> impl Strategy<Value = Eid> {
    "[A-Z0-9][A-Z0-9.-]{0,31}".prop_map(|text| eid(&text))
}

fn an_mtu() -> impl Strategy<Value = Mtu> {
    prop::sample::select(vec![Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096])
}

fn an_end() -> impl Strategy<Value = End> {
    let numbers =
        (0..1_u32 << 24, any::<u32>(), 0..u64::MAX / 2, any::<u32>(), 1_u8.., any::<u32>());
    (a_host(), numbers, 0_u8..16, an_mtu()).prop_map(|(host, numbers, size, mtu)| {
        let (pair, packet, address, key, index, token) = numbers;
        End {
            host,
            pair: PairNumber(pair),
            first_packet: PacketNumber::new(packet),
            mtu,
            rmb: Remote { address, key: RemoteKey(key) },
            index,
            size: RmbSize::of_exponent(size).unwrap(),
            token,
        }
    })
}

fn a_contact() -> impl Strategy<Value = FirstContact> {
    any::<(bool, [u8; 32], u8, u8)>().prop_flat_map(
        |(is_direct, name, max_connections, max_links)| {
            (0_u8..16).prop_map(move |release| FirstContact {
                is_direct,
                release,
                name,
                max_connections,
                max_links,
            })
        },
    )
}

proptest! {
    #[test]
    fn proposals_come_back(
        host in a_host(), gid: [u8; 16], eids in prop::collection::vec(an_eid(), 1..=8),
        release in 0_u8..16, max_connections: u8, max_links: u8,
    ) {
        let gid = Gid(gid);
        let proposal = Proposal { host, gid, eids, release, max_connections, max_links };
        prop_assert_eq!(Proposal::parse(&proposal.bytes()), Ok(proposal));
    }

    #[test]
    fn accepts_and_confirms_come_back(
        end in an_end(), eid in an_eid(), contact in prop::option::of(a_contact()),
        gids in prop::collection::vec(any::<[u8; 16]>(), 0..=8),
    ) {
        let accept = Accept { end, eid, first_contact: contact };
        prop_assert_eq!(Accept::parse(&accept.bytes()), Ok(accept));
        let gids: Vec<_> = gids.into_iter().map(Gid).collect();
        let first_contact = contact.map(|contact| (contact, gids));
        let confirm = Confirm { end, eid, first_contact };
        prop_assert_eq!(Confirm::parse(&confirm.bytes()), Ok(confirm));
    }

    #[test]
    fn any_bytes_are_a_message_or_none(mut bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0_usize..12) {
        // Most of them would fail at once.
        let kinds = [1_u8, 2, 3, 4, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x29, 0xfe];
        if kind < 4 && bytes.len() >= 12 {
            let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
            bytes[..4].copy_from_slice(&clc::EYE_CATCHER);
            bytes[4] = kinds[kind];
            bytes[5..7].copy_from_slice(&length);
            bytes[7] |= 0x20;
            let end = bytes.len() - 4;
            bytes[end..].copy_from_slice(&clc::EYE_CATCHER);
        } else if bytes.len() > 3 {
            bytes[..3].copy_from_slice(&[kinds[kind], 44, 0]);
        }
        let _ = (Proposal::parse(&bytes), Accept::parse(&bytes), Confirm::parse(&bytes));
        let _ = Decline::parse(&bytes);
        if let Ok(message) = Llc::parse(&bytes) {
            prop_assert_eq!(Llc::parse(&message.bytes()), Ok(message));
        }
        if let Ok(message) = Cdc::parse(&bytes) {
            prop_assert_eq!(Cdc::parse(&message.bytes()), Ok(message));
        }
    }
}
