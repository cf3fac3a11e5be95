//! Any value there and back, and any bytes through the checks.

mod common;

use common::{DISK, HOST, nqn};
use proptest::prelude::*;
use shunt_nvme::{
    auth::{Group, Initiator, Secret, Step},
    wire::{
        CapsuleCmd, CommonHeader, Cqe, H2cData, Layout, Nqn, PduType, Receiver, Rules, Sqe, Status,
        fabrics::{Authentication, Connect, Property},
        log::GetLogPage,
        pdu::LAST_PDU,
    },
};
use zerocopy::{FromBytes, IntoBytes};

fn any_rules(receiver: Receiver) -> impl Strategy<Value = Rules> {
    (any::<bool>(), any::<bool>(), 0..32_u8, 0..0x10_0000_u32).prop_map(
        move |(header_digest, data_digest, alignment, max_data)| Rules {
            receiver,
            header_digest,
            data_digest,
            alignment,
            max_data,
        },
    )
}

proptest! {
    /// A header that is made is one that is taken, and says the same length.
    #[test]
    fn headers(
        which in 0..9_usize,
        flags in any::<u8>(),
        data_len in 0..0x10_0000_u32,
        rules in any_rules(Receiver::Host),
    ) {
        let pdu = PduType::ALL[which];
        let rules = Rules { receiver: pdu.receiver(), ..rules };
        let has_data = matches!(pdu, PduType::CapsuleCmd | PduType::H2cData | PduType::C2hData);
        let data_len = if has_data { data_len.min(rules.max_data) } else { 0 };
        let header = CommonHeader::new(pdu, flags & 0xfc, data_len, &rules);
        let checked = header.check(&rules);
        if has_data && data_len == 0 && pdu != PduType::CapsuleCmd {
            prop_assert!(checked.is_err());
        } else {
            let Layout { head_len, data_len: len, data_digest, .. } = checked.unwrap();
            prop_assert_eq!(len, data_len);
            let digest = if data_digest { 4 } else { 0 };
            prop_assert_eq!(head_len + len as usize + digest, header.plen.get() as usize);
            prop_assert!(data_len == 0 || head_len % rules.alignment_bytes() == 0);
        }
    }

    /// Any header is refused, or describes a PDU of just its length and within its limits.
    #[test]
    fn any_header(bytes in any::<[u8; 8]>(), rules in any_rules(Receiver::Controller)) {
        let header = CommonHeader::ref_from_bytes(&bytes).unwrap();
        if let Ok(layout) = header.check(&rules) {
            let digest = if layout.data_digest { 4 } else { 0 };
            let total = layout.head_len + layout.data_len as usize + digest;
            prop_assert_eq!(total, header.plen.get() as usize);
            prop_assert!(layout.head_len <= 256 && layout.header_len <= layout.head_len);
            prop_assert!(layout.data_len <= rules.max_data.max(128));
        }
    }

    #[test]
    fn entries(bytes in any::<[u8; 32]>(), cid in any::<u16>(), result in any::<u64>()) {
        let mut whole = [0; 64];
        whole[..32].copy_from_slice(&bytes);
        let sqe = Sqe::read_from_bytes(&whole).unwrap();
        prop_assert_eq!(sqe.as_bytes(), whole);
        let pdu = CapsuleCmd::new(sqe, 0, &Rules::initial(Receiver::Controller));
        prop_assert_eq!(&pdu.as_bytes()[8..], whole);
        let status = Status::from_bits(u16::from_le_bytes([bytes[0], bytes[1]]));
        let cqe = Cqe::new(cid, status, result, 3);
        let again = Cqe::read_from_bytes(cqe.as_bytes()).unwrap();
        prop_assert_eq!((again.status(), again.cid.get(), again.result.get()), (status, cid, result));
    }

    #[test]
    fn commands(
        recfmt in any::<u16>(), qid in any::<u16>(), sqsize in any::<u16>(),
        no_flow_control in any::<bool>(), kato in any::<u32>(), value in any::<u64>(),
        len in 1..0x1000_0000_u32, lid in any::<u8>(),
    ) {
        let connect = Connect { recfmt, qid, sqsize, no_flow_control, kato };
        prop_assert_eq!(Connect::of(&connect.sqe()), connect);
        let property = Property { offset: kato, wide: no_flow_control, value };
        prop_assert_eq!(Property::of(&Property::set(kato, no_flow_control, value)), Some(property));
        let page = GetLogPage::of(&GetLogPage::sqe(lid, 0, value, len * 4));
        prop_assert_eq!((page.lid, page.offset, page.len), (lid, value, u64::from(len) * 4));
        prop_assert_eq!(Authentication::of(&Authentication::send(len)).len, len);
        let data = H2cData::new(qid, sqsize, kato, len, true, &Rules::initial(Receiver::Controller));
        let again = H2cData::read_from_bytes(data.as_bytes()).unwrap();
        prop_assert_eq!((again.cccid.get(), again.ttag.get()), (qid, sqsize));
        prop_assert_eq!((again.datao.get(), again.datal.get()), (kato, len));
        prop_assert_eq!(again.header.flags, LAST_PDU);
    }

    #[test]
    fn names(text in ".{0,240}", tail in "[a-z.:]{1,20}") {
        for name in [text.clone(), format!("nqn.2014-08.{text}"), format!("nqn.2014-08.a{tail}")] {
            if let Ok(nqn) = Nqn::new(&name) {
                prop_assert_eq!(nqn.as_str(), &name);
                prop_assert_eq!(Nqn::from_field(&nqn.field()), Ok(nqn));
            }
        }
    }
}

/// Base 8.13.5.4: the response to a challenge of the bytes 0 to 31 with the sequence number 5 in
/// transaction 7, as Python's hmac module computes it: by a key as it is, and by one that is
/// transformed with SHA-256.
#[test]
fn responses_to_a_challenge() {
    let mut challenge = vec![1, 1, 0, 0, 7, 0, 32, 0, 1, 0, 0, 0, 5, 0, 0, 0];
    challenge.extend(0..32);
    for (key, expected) in [
        (
            "DHHC-1:00:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQHMnzFi:",
            "a5629d6cb77b242452f6810f423a41f3e37fd5c7a2787852b2807b9b4a99ff63",
        ),
        (
            "DHHC-1:01:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgJvwX3v:",
            "76366b893c7e452e857d50fab5b87afb3d9d53ab95dee08b06246c477e731b60",
        ),
    ] {
        let key = Secret::new(key).unwrap();
        let mut host = Initiator::new(nqn(HOST), nqn(DISK), key, None, vec![Group::Null], 7);
        assert!(matches!(host.step(), Ok(Step::Send(_))));
        host.receive(&challenge, &mut |bytes| bytes.fill(0));
        let Ok(Step::Send(reply)) = host.step() else { panic!("no reply") };
        let response: String = reply[16..48].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(response, expected);
    }
}
