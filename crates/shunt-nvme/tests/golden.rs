//! Bytes of PDUs, both ways. "TCP" is the NVMe/TCP Transport Specification 1.0, "Base" the NVMe Base
//! Specification 2.0.
//!
//! The layouts are those of `include/linux/nvme-tcp.h` and `include/linux/nvme.h`, and of SPDK's
//! `nvme_spec.h` and `nvmf_spec.h`. The numbers of sections name where the specifications speak of
//! them; they have not been compared with the text of the specifications yet.

use core::net::SocketAddr;
use shunt_nvme::wire::{
    CapsuleCmd, CapsuleResp, CommonHeader, Cqe, Direction, H2cData, IcReq, IcResp, Nqn, PduType,
    R2t, Receiver, Rules, Sgl, SglKind, Sqe, Status, TermReq, Violation,
    discovery::{self, Record, SubsystemType},
    fabrics::{Authentication, Connect, ConnectData, Property},
    identify,
    log::{self, AnaDescriptor, AnaState, GetLogPage},
    pdu::{DDGSTF, HDGSTF, LAST_PDU, MAX_TERM_LEN, SUCCESS},
    registers, reservation,
    violation::FatalStatus,
};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes from hexadecimal digits, blanks apart.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter_map(|c| c.to_digit(16)).map(|d| u8::try_from(d).unwrap()).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn rules(receiver: Receiver, digests: bool, alignment: u8) -> Rules {
    Rules {
        receiver,
        header_digest: digests,
        data_digest: digests,
        alignment,
        max_data: 128 * 1024,
    }
}

const PLAIN: Rules = Rules { max_data: 128 * 1024, ..Rules::initial(Receiver::Controller) };
const TO_HOST: Rules = Rules { max_data: 128 * 1024, ..Rules::initial(Receiver::Host) };

/// TCP 3.6.2.2: type 00h, HLEN and PLEN 128; PFV 0, HPDA, DGST, MAXR2T.
#[test]
fn icreq() {
    let mut golden = hex("00 00 80 00 80000000 0000 07 03 0f000000");
    golden.resize(128, 0);
    let pdu = IcReq::new(7, 3, 15);
    assert_eq!(pdu.as_bytes(), golden);
    let pdu = IcReq::ref_from_bytes(&golden).unwrap();
    let layout = pdu.header.check(&Rules::initial(Receiver::Controller)).unwrap();
    assert_eq!((layout.pdu, layout.head_len, layout.data_len), (PduType::IcReq, 128, 0));
    assert_eq!((pdu.hpda, pdu.dgst, pdu.maxr2t.get(), pdu.check()), (7, 3, 15, Ok(())));
    assert_eq!(IcReq::new(32, 0, 0).check(), Err(Violation::Alignment(32)));
    golden[8] = 1;
    let newer = IcReq::ref_from_bytes(&golden).unwrap().check();
    assert_eq!(newer, Err(Violation::FormatVersion(1)));
    assert_eq!(Violation::FormatVersion(1).fatal(), (FatalStatus::UnsupportedParameter, 8));
}

/// TCP 3.6.2.3: type 01h; PFV 0, CPDA, DGST, MAXH2CDATA: at least 4,096 and in dwords.
#[test]
fn icresp() {
    let mut golden = hex("01 00 80 00 80000000 0000 03 01 00000200");
    golden.resize(128, 0);
    assert_eq!(IcResp::new(3, 1, 128 * 1024).as_bytes(), golden);
    let pdu = IcResp::ref_from_bytes(&golden).unwrap();
    assert_eq!(pdu.header.check(&Rules::initial(Receiver::Host)).unwrap().pdu, PduType::IcResp);
    assert_eq!(pdu.check(3), Ok(()));
    assert_eq!(pdu.check(2), Err(Violation::DigestNotRequested));
    assert_eq!(IcResp::new(0, 0, 4095).check(0), Err(Violation::MaxH2cData(4095)));
    assert_eq!(IcResp::new(0, 0, 4098).check(0), Err(Violation::MaxH2cData(4098)));
}

/// TCP 3.6.2.4, 3.6.2.5: FES at 8, FEI at 10, the header at fault behind the header; the whole is
/// no longer than 152 bytes.
#[test]
fn termination() {
    let pdu = TermReq::new(Receiver::Host, Violation::DataOffset(PduType::CapsuleCmd), 72);
    assert_eq!(pdu.as_bytes(), hex("03 00 18 00 60000000 0100 03000000 00000000000000000000"));
    assert_eq!(pdu.status(), Some(FatalStatus::InvalidHeaderField));
    let pdu = TermReq::new(Receiver::Controller, Violation::HeaderDigest(0x1122_3344), 500);
    assert_eq!(pdu.as_bytes(), hex("02 00 18 00 98000000 0300 44332211 00000000000000000000"));
    let rules = Rules::initial(Receiver::Controller);
    assert_eq!(pdu.header.check(&rules).unwrap().data_len, 128);
    let mut long = pdu.header;
    long.plen = (MAX_TERM_LEN + 1).into();
    assert_eq!(long.check(&rules), Err(Violation::PduLength(PduType::H2cTermReq)));
}

/// TCP 3.6.2.6, Base 3.3.3.1: a Read without data in the capsule.
#[test]
fn command_capsule() {
    let mut sqe = Sqe::new(0x02, 1);
    sqe.cid = 0x1234.into();
    sqe.sgl = Sgl::transport(4096);
    sqe.set_cdw10_64(0x1_0000_0008);
    sqe.cdw12 = 7.into();
    let golden = hex("04 00 48 00 48000000
         02 40 3412 01000000 00000000 00000000 0000000000000000
         0000000000000000 00100000 000000 5a
         08000000 01000000 07000000 00000000 00000000 00000000");
    assert_eq!(CapsuleCmd::new(sqe, 0, &PLAIN).as_bytes(), golden);
    let pdu = CapsuleCmd::ref_from_bytes(&golden).unwrap();
    assert_eq!((pdu.sqe.direction(), pdu.sqe.cdw10_64()), (Direction::ToHost, 0x1_0000_0008));
    assert_eq!(pdu.sqe.sgl.kind(), SglKind::Transport);
    let layout = pdu.header.check(&PLAIN).unwrap();
    assert_eq!((layout.head_len, layout.data_len, layout.data_digest), (72, 0, false));
}

/// TCP 3.6.2.1, 3.6.2.6: digests and CPDA move the data; PLEN counts digests and padding.
#[test]
fn command_capsule_with_data() {
    let mut sqe = Sqe::new(0x01, 1);
    sqe.sgl = Sgl::in_capsule(512);
    for (digests, alignment, head) in [
        (false, 0, "04 00 48 48 48020000"),
        (true, 0, "04 03 48 4c 50020000"),
        (true, 3, "04 03 48 50 54020000"),
        (false, 31, "04 00 48 80 80020000"),
    ] {
        let rules = rules(Receiver::Controller, digests, alignment);
        let pdu = CapsuleCmd::new(sqe, 512, &rules);
        assert_eq!(pdu.header.as_bytes(), hex(head));
        let layout = pdu.header.check(&rules).unwrap();
        assert_eq!((layout.head_len, layout.data_len), (usize::from(pdu.header.pdo), 512));
        assert_eq!((layout.header_digest, layout.data_digest), (digests, digests));
    }
    assert_eq!(sqe.sgl.kind(), SglKind::InCapsule { offset: 0 });
    assert_eq!(sqe.sgl.as_bytes(), hex("0000000000000000 00020000 000000 01"));
}

/// TCP 3.6.2.7, Base 3.3.3.2: status code at bit 1 of the last word.
#[test]
fn response_capsule() {
    let cqe = Cqe::new(0x1234, Status::LBA_OUT_OF_RANGE.dnr(), 0x55, 9);
    let golden = hex("05 00 18 00 18000000 5500000000000000 0900 0000 3412 0081");
    assert_eq!(CapsuleResp::new(cqe, &TO_HOST).as_bytes(), golden);
    let pdu = CapsuleResp::ref_from_bytes(&golden).unwrap();
    assert_eq!(pdu.cqe.status(), Status::LBA_OUT_OF_RANGE.dnr());
    assert!(pdu.cqe.status().is_dnr());
    assert_eq!(pdu.cqe.status().to_string(), "LBA Out of Range (080h, do not retry)");
    let digest = CapsuleResp::new(cqe, &rules(Receiver::Host, true, 0));
    assert_eq!(digest.header.as_bytes(), hex("05 01 18 00 1c000000"));
}

/// TCP 3.6.2.8: CCCID, TTAG, DATAO, DATAL; LAST_PDU is bit 2.
#[test]
fn h2c_data() {
    let golden = hex("06 04 18 18 18100000 3412 7856 00200000 00100000 00000000");
    let pdu = H2cData::new(0x1234, 0x5678, 0x2000, 0x1000, true, &PLAIN);
    assert_eq!(pdu.as_bytes(), golden);
    let pdu = H2cData::ref_from_bytes(&golden).unwrap();
    let layout = pdu.header.check(&PLAIN).unwrap();
    assert_eq!((pdu.check(&layout), pdu.is_last()), (Ok(()), true));
    let mut other = *pdu;
    other.datal = 0xfff.into();
    assert_eq!(other.check(&layout), Err(Violation::PduLength(PduType::H2cData)));
}

/// TCP 3.6.2.9: CCCID, DATAO, DATAL; SUCCESS is bit 3, and goes with LAST_PDU only.
#[test]
fn c2h_data() {
    let golden = hex("07 0c 18 18 18020000 0100 0000 00000000 00020000 00000000");
    let pdu = shunt_nvme::wire::C2hData::new(1, 0, 512, LAST_PDU | SUCCESS, &TO_HOST);
    assert_eq!(pdu.as_bytes(), golden);
    let layout = pdu.header.check(&TO_HOST).unwrap();
    assert_eq!(pdu.check(&layout), Ok(()));
    let pdu = shunt_nvme::wire::C2hData::new(1, 0, 512, SUCCESS, &TO_HOST);
    assert_eq!(pdu.check(&layout), Err(Violation::SuccessFlag));
}

/// TCP 3.6.2.10: CCCID, TTAG, R2TO, R2TL.
#[test]
fn r2t() {
    let golden = hex("09 00 18 00 18000000 3412 0200 00000100 00000200 00000000");
    assert_eq!(R2t::new(0x1234, 2, 0x1_0000, 0x2_0000, &TO_HOST).as_bytes(), golden);
    let pdu = R2t::ref_from_bytes(&golden).unwrap();
    assert_eq!(pdu.header.check(&TO_HOST).unwrap().data_len, 0);
}

/// TCP 3.6.2.1: each field of the common header, and the error that it leads to.
#[test]
fn common_header() {
    let good = H2cData::new(0, 0, 0, 64, true, &rules(Receiver::Controller, true, 1)).header;
    let rules = rules(Receiver::Controller, true, 1);
    let check = |change: fn(&mut CommonHeader)| {
        let mut header = good;
        change(&mut header);
        header.check(&rules).unwrap_err()
    };
    assert!(good.check(&rules).is_ok());
    let pdu = PduType::H2cData;
    assert_eq!(check(|h| h.pdu_type = 8), Violation::UnknownType(8));
    assert_eq!(check(|h| h.pdu_type = 7), Violation::Unexpected(PduType::C2hData));
    assert_eq!(check(|h| h.flags &= !HDGSTF), Violation::DigestFlags(pdu));
    assert_eq!(check(|h| h.flags &= !DDGSTF), Violation::DigestFlags(pdu));
    assert_eq!(check(|h| h.hlen = 25), Violation::HeaderLength(pdu));
    assert_eq!(check(|h| h.pdo = 24), Violation::DataOffset(pdu));
    assert_eq!(check(|h| h.pdo = 36), Violation::DataOffset(pdu));
    assert_eq!(check(|h| h.plen = 0.into()), Violation::PduLength(pdu));
    assert_eq!(check(|h| h.plen = 36.into()), Violation::PduLength(pdu));
    assert_eq!(check(|h| h.plen = 0xffff_ffff.into()), Violation::TooMuchData(pdu));
    let fatal = [
        (Violation::UnknownType(8), (FatalStatus::InvalidHeaderField, 0)),
        (Violation::DigestFlags(pdu), (FatalStatus::InvalidHeaderField, 1)),
        (Violation::HeaderLength(pdu), (FatalStatus::InvalidHeaderField, 2)),
        (Violation::DataOffset(pdu), (FatalStatus::InvalidHeaderField, 3)),
        (Violation::PduLength(pdu), (FatalStatus::InvalidHeaderField, 4)),
        (Violation::Unexpected(pdu), (FatalStatus::SequenceError, 0)),
        (Violation::HeaderDigest(7), (FatalStatus::HeaderDigest, 7)),
        (Violation::DataRange(pdu), (FatalStatus::DataOutOfRange, 0)),
        (Violation::TooMuchData(pdu), (FatalStatus::LimitExceeded, 0)),
    ];
    for (violation, expected) in fatal {
        assert_eq!(violation.fatal(), expected, "{violation}");
    }
}

/// Base 6.3: RECFMT, QID, SQSIZE, CATTR, KATO at 40; HOSTID, CNTLID, SUBNQN, HOSTNQN in the data.
#[test]
fn connect() {
    let connect = Connect { recfmt: 0, qid: 3, sqsize: 127, no_flow_control: true, kato: 120_000 };
    let sqe = connect.sqe();
    let golden = hex("7f 40 0000 01 000000 00000000 00000000 0000000000000000
         0000000000000000 00040000 000000 01
         0000 0300 7f00 04 00 c0d40100 00000000 00000000 00000000");
    assert_eq!(sqe.as_bytes(), golden);
    assert_eq!(Connect::of(&sqe), connect);
    assert_eq!((sqe.fctype(), sqe.direction()), (Some(1), Direction::ToController));
    let subnqn = Nqn::new("nqn.2026-11.io.shunt:disk").unwrap();
    let hostnqn = Nqn::new("nqn.2014-08.org.nvmexpress:uuid:1").unwrap();
    let data = ConnectData::new([7; 16], 0xffff, &subnqn, &hostnqn);
    let bytes = data.as_bytes();
    assert_eq!(bytes.len(), 1024);
    assert_eq!(&bytes[..18], hex("07070707070707070707070707070707 ffff"));
    assert_eq!(&bytes[256..282], b"nqn.2026-11.io.shunt:disk\0");
    assert_eq!(&bytes[512..520], b"nqn.2014");
}

/// Base 6.5, 6.6: ATTRIB at 40, OFST at 44, VALUE at 48. Base 6.1, 6.2: SPSP0, SPSP1, SECP, TL.
#[test]
fn properties_and_authentication() {
    let set = Property::set(registers::CC, false, 0x0046_0001);
    assert_eq!(&set.as_bytes()[40..56], hex("00000000 14000000 01004600 00000000"));
    let value = Property { offset: 0x14, wide: false, value: 0x0046_0001 };
    assert_eq!(Property::of(&set), Some(value));
    let get = Property::get(registers::CAP, true);
    assert_eq!((get.fctype(), get.direction()), (Some(4), Direction::None));
    assert_eq!(&get.as_bytes()[40..48], hex("01000000 00000000"));
    let send = Authentication::send(8);
    assert_eq!(&send.as_bytes()[40..48], hex("00 01 01 e9 08000000"));
    assert!(Authentication::of(&send).is_nvme());
}

/// Base 3.1.3: fields of CAP, CC and CSTS.
#[test]
fn properties() {
    assert_eq!(registers::capabilities(1023, 30), 0x0000_0020_1e01_03ff);
    assert_eq!(registers::Configuration::ENABLE.0, 0x0046_0001);
    assert_eq!(registers::Configuration::ENABLE.with_shutdown().0, 0x0046_4001);
    assert!(registers::ControllerStatus(0x9).ready());
    assert!(registers::ControllerStatus(0x9).shutdown_complete());
}

/// Base 5.17.2: sizes, and offsets of fields that hosts look at.
#[test]
fn identify_structures() {
    assert_eq!(size_of::<identify::Controller>(), 4096);
    assert_eq!(size_of::<identify::Namespace>(), 4096);
    assert_eq!(size_of::<identify::IndependentNamespace>(), 4096);
    assert_eq!(size_of::<identify::NvmController>(), 4096);
    let mut controller = identify::Controller::zeroed();
    controller.cntlid = 0x0102.into();
    controller.oacs = 0x0304.into();
    controller.kas = 0x0506.into();
    controller.anatt = 7;
    controller.nanagrpid = 0x0809.into();
    controller.sqes = 0x66;
    controller.nn = 0x0a.into();
    controller.vwc = 0x0b;
    controller.acwu = 0x0c.into();
    controller.sgls = 0x0d.into();
    controller.mnan = 0x0e.into();
    controller.subnqn[0] = 0x0f;
    controller.ioccsz = 0x10.into();
    controller.dctype = 0x11;
    controller.ofcs = 0x12.into();
    let bytes = controller.as_bytes();
    for (at, value) in [
        (78, 2),
        (79, 1),
        (256, 4),
        (320, 6),
        (342, 7),
        (348, 9),
        (512, 0x66),
        (516, 0x0a),
        (525, 0x0b),
        (532, 0x0c),
        (536, 0x0d),
        (540, 0x0e),
        (768, 0x0f),
        (1792, 0x10),
        (1804, 0x12),
        (1806, 0x11),
    ] {
        assert_eq!(bytes[at], value, "byte {at}");
    }
    let mut namespace = identify::Namespace::zeroed();
    namespace.nmic = 1;
    namespace.nacwu = 2.into();
    namespace.npwg = 3.into();
    namespace.anagrpid = 4.into();
    namespace.nguid[0] = 5;
    namespace.eui64[0] = 6;
    namespace.lbaf[0].lbads = 12;
    let bytes = namespace.as_bytes();
    for (at, value) in [(30, 1), (38, 2), (64, 3), (92, 4), (104, 5), (120, 6), (130, 12)] {
        assert_eq!(bytes[at], value, "byte {at}");
    }
    assert_eq!(namespace.format().lbads, 12);
    let list = identify::namespace_list([1, 2, 5].into_iter(), 1);
    assert_eq!(&list[..12], hex("02000000 05000000 00000000"));
    let uuid = [9; 16];
    let descriptors = identify::descriptors(&[(3, &uuid), (4, &[0])]);
    assert_eq!(&descriptors[..6], hex("03 10 0000 0909"));
    assert_eq!(&descriptors[20..26], hex("04 01 0000 00 00"));
    let parsed: Vec<_> = identify::parse_descriptors(&descriptors).collect();
    assert_eq!(parsed, [(3, uuid.as_slice()), (4, &[0])]);
}

/// Base 5.16: NUMD in two halves, zero's based; LPO.
#[test]
fn get_log_page() {
    let sqe = GetLogPage::sqe(log::lid::DISCOVERY, 0, 1024, 0x5_0000);
    assert_eq!(&sqe.as_bytes()[40..56], hex("7000ff3f 01000000 00040000 00000000"));
    let page = GetLogPage::of(&sqe);
    assert_eq!((page.lid, page.len, page.offset), (0x70, 0x5_0000, 1024));
}

/// Base 5.16.1.13: change count, groups; of each group ID, namespaces, change count, state.
#[test]
fn ana_log() {
    let groups =
        [AnaDescriptor { group: 1, state: AnaState::NonOptimized as u8, namespaces: vec![1, 3] }];
    let bytes = log::ana(9, &groups, false);
    let golden = hex("0900000000000000 0100 000000000000
         01000000 02000000 0900000000000000 02 000000000000000000000000000000 01000000 03000000");
    assert_eq!(bytes, golden);
    assert_eq!(log::parse_ana(&bytes), Some((9, groups.to_vec())));
    for end in 0..bytes.len() {
        assert_eq!(log::parse_ana(&bytes[..end]), None);
    }
    assert_eq!(log::ana(9, &groups, true).len(), 48);
}

/// Base 5.16.1.23: entries of 1,024 bytes behind a header of the same size.
#[test]
fn discovery_log() {
    let record = |kind, address: &str| Record {
        kind,
        subnqn: Nqn::new(discovery_name(kind)).unwrap(),
        address: address.parse::<SocketAddr>().unwrap(),
        portid: 1,
        max_admin_queue: 128,
    };
    fn discovery_name(kind: SubsystemType) -> &'static str {
        if kind == SubsystemType::Nvm {
            "nqn.2026-11.io.shunt:disk"
        } else {
            shunt_nvme::wire::nqn::DISCOVERY
        }
    }
    let records = [
        record(SubsystemType::Nvm, "192.0.2.1:4420"),
        record(SubsystemType::Referral, "[2001:db8::1]:8009"),
        record(SubsystemType::CurrentDiscovery, "192.0.2.1:8009"),
    ];
    let log = discovery::log(5, &records);
    assert_eq!(log.len(), 4096);
    assert_eq!(&log[..18], hex("0500000000000000 0300000000000000 0000"));
    let first = &log[1024..2048];
    assert_eq!(&first[..12], hex("03 01 02 06 0100 ffff 8000 0000"));
    assert_eq!(&first[32..40], b"4420    ");
    assert_eq!(&first[256..267], b"nqn.2026-11");
    assert_eq!(&first[512..523], b"192.0.2.1  ");
    for (number, record) in records.iter().enumerate() {
        let at = 1024 * (number + 1);
        let entry = discovery::Entry::ref_from_bytes(&log[at..at + 1024]).unwrap();
        assert_eq!(Record::of(entry).as_ref(), Some(record));
    }
}

/// Base 7.5: generation, type, registrants; of each controller, holder, key and host.
#[test]
fn reservation_status() {
    let rtype = Some(reservation::Type::ExclusiveAccess);
    let status = reservation::extended_status(3, rtype, &[(1, true, 0xabcd, [5; 16])]);
    assert_eq!(status.len(), 128);
    assert_eq!(&status[..10], hex("03000000 02 0100 0000 00"));
    assert_eq!(
        &status[64..96],
        hex("0100 01 0000000000 cdab000000000000 05050505050505050505050505050505")
    );
}

/// Base 5.16.1.24: count, type, pages that follow, namespace.
#[test]
fn reservation_notification() {
    let kind = reservation::Notification::ReservationReleased;
    let mut page = log::ReservationPage::new(0x0102_0304_0506_0708, kind, 0x0a0b_0c0d);
    page.available = 7;
    assert_eq!(page.as_bytes().len(), 64);
    assert_eq!(page.as_bytes()[..16], hex("0807060504030201 02 07 0000 0d0c0b0a"));
    assert_eq!(page.as_bytes()[16..], [0; 48]);
    assert_eq!(log::ReservationPage::empty().as_bytes(), [0; 64]);
    use reservation::Notification::{RegistrationPreempted, ReservationPreempted};
    let types = [RegistrationPreempted, kind, ReservationPreempted];
    assert_eq!(types.map(|kind| (kind as u8, kind.mask())), [(1, 2), (2, 4), (3, 8)]);
}
