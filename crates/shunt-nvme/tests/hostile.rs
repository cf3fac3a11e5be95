//! Peers that break the rules: each byte of each PDU changed, and bytes at random. Each leads to a
//! named violation, to a refusal, or to a right result; none to a panic.

mod common;

use common::{Memory, Random, connect_data, give, take};
use shunt_nvme::{
    controller, host,
    transport::{Command, Next},
    wire::{
        CapsuleCmd, CapsuleResp, CommonHeader, Cqe, H2cData, IcReq, IcResp, PduType, R2t, Receiver,
        Rules, Sgl, Sqe, Status, TermReq, Violation,
        fabrics::Connect,
        opcode::io,
        pdu::{LAST_PDU, SUCCESS},
    },
};
use std::collections::HashMap;
use zerocopy::{FromBytes, IntoBytes};

/// A controller's queue after a Connect, with what it does for a well-meaning store.
struct Controller {
    queue: controller::Queue,
    memory: Memory,
    /// How much memory each command has.
    room: HashMap<Command, usize>,
    commands: Vec<Sqe>,
    data: Vec<Vec<u8>>,
}

impl Controller {
    fn new() -> Self {
        Self {
            queue: controller::Queue::new(controller::Limits::default()),
            memory: Memory::new(),
            room: HashMap::new(),
            commands: Vec::new(),
            data: Vec::new(),
        }
    }

    fn connected() -> Self {
        let mut controller = Self::new();
        controller.receive(IcReq::new(0, 0, 0).as_bytes()).unwrap();
        let connect = Connect { recfmt: 0, qid: 1, sqsize: 7, no_flow_control: true, kato: 0 };
        let mut pdu = CapsuleCmd::new(connect.sqe(), 1024, &RULES).as_bytes().to_vec();
        pdu.extend(connect_data(1));
        controller.receive(&pdu).unwrap();
        take(&mut controller.queue, &controller.memory, usize::MAX);
        controller.commands.clear();
        controller.data.clear();
        controller
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let mut rest = bytes;
        while !rest.is_empty() && self.queue.next() != Next::Closed {
            rest = give(&mut self.queue, &mut self.memory, rest)?;
            while let Some(event) = self.queue.poll() {
                match event {
                    controller::Event::Command { command, sqe, transfer } => {
                        self.commands.push(sqe);
                        let len = usize::try_from(transfer.len()).unwrap();
                        self.memory.insert(command, vec![0; len]);
                        self.room.insert(command, len);
                        match transfer {
                            controller::Transfer::FromHost(_) => self.queue.receive(command),
                            controller::Transfer::InCapsule(_) => {}
                            other => {
                                self.queue.respond(command, Status::SUCCESS, 0, other.len());
                            }
                        }
                    }
                    controller::Event::Received(command) => {
                        self.data.push(self.memory[&command].clone());
                        if !self.commands.is_empty() && self.commands[0].fctype() == Some(1) {
                            self.queue.connected(8, true, false);
                        }
                        self.queue.respond(command, Status::SUCCESS, 0, 0);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Nothing was placed beside a command's memory, which would have grown then.
    fn assert_inside(&self) {
        let kept = self.memory.iter().all(|(command, memory)| self.room[command] == memory.len());
        assert!(kept, "data beside the memory of its command");
    }

    fn sent(&mut self) -> Vec<u8> {
        take(&mut self.queue, &self.memory, usize::MAX)
    }
}

const RULES: Rules = Rules { max_data: u32::MAX, ..Rules::initial(Receiver::Controller) };
const TO_HOST: Rules = Rules { max_data: u32::MAX, ..Rules::initial(Receiver::Host) };

fn write(cid: u16, sgl: Sgl) -> Sqe {
    let mut sqe = Sqe::new(io::WRITE, 1);
    sqe.cid = cid.into();
    sqe.sgl = sgl;
    sqe
}

/// The violation's terminate request, as the last thing that is sent.
fn assert_terminated(sent: &[u8], receiver: Receiver, violation: Violation) {
    let kind = match receiver {
        Receiver::Controller => PduType::H2cTermReq,
        Receiver::Host => PduType::C2hTermReq,
    };
    let (fes, fei) = violation.fatal();
    let expected = TermReq::new(receiver, violation, 0);
    // Its place is not known from the end, as the header at fault follows.
    let found = (0..sent.len().saturating_sub(23)).any(|at| {
        let header = TermReq::ref_from_bytes(&sent[at..at + 24]).unwrap();
        header.header.pdu_type == kind as u8
            && header.header.hlen == 24
            && (header.fes.get(), header.fei.get()) == (fes as u16, fei)
            && usize::try_from(header.header.plen.get()).unwrap() == sent.len() - at
    });
    assert!(found, "{violation}: {expected:?} not in {sent:02x?}");
}

#[test]
fn every_byte_of_every_pdu_to_a_controller() {
    let in_capsule = {
        let mut pdu =
            CapsuleCmd::new(write(5, Sgl::in_capsule(64)), 64, &RULES).as_bytes().to_vec();
        pdu.extend([0x77; 64]);
        pdu
    };
    let command = CapsuleCmd::new(write(5, Sgl::transport(512)), 0, &RULES).as_bytes().to_vec();
    // The tag of the first command after Connect: its place was used once.
    let tag = 1 << 10;
    let data = {
        let mut pdu = H2cData::new(5, tag, 0, 512, true, &RULES).as_bytes().to_vec();
        pdu.extend([0x77; 512]);
        pdu
    };
    let termination =
        TermReq::new(Receiver::Controller, Violation::EmptyR2t, 0).as_bytes().to_vec();
    let ic = IcReq::new(0, 0, 0).as_bytes().to_vec();
    // PDUs before, the PDU, bytes of its header.
    let cases: [(&[u8], &[u8], usize); 5] = [
        (&[], &ic, 128),
        (&[], &in_capsule, 72),
        (&[], &command, 72),
        (&command, &data, 24),
        (&[], &termination, 24),
    ];
    for (number, (before, pdu, header)) in cases.into_iter().enumerate() {
        let mut violations = 0;
        for at in 0..header {
            for change in [0x01, 0x04, 0x80, 0xff] {
                let mut controller =
                    if number == 0 { Controller::new() } else { Controller::connected() };
                controller.receive(before).unwrap();
                let mut changed = pdu.to_vec();
                changed[at] ^= change;
                match controller.receive(&changed) {
                    Err(violation) => {
                        violations += 1;
                        assert_eq!(controller.queue.violation(), Some(violation));
                        assert_eq!(controller.queue.next(), Next::Closed);
                        assert_terminated(&controller.sent(), Receiver::Host, violation);
                    }
                    Ok(()) => {
                        // What was placed is what was sent, whatever else has changed.
                        for data in &controller.data {
                            assert!(data.iter().all(|byte| *byte == 0x77), "{number}, byte {at}");
                        }
                        controller.sent();
                    }
                }
            }
        }
        // The common header alone brings some.
        assert!(violations >= 8, "case {number}: {violations}");
    }
}

/// A host's queue with a read (512 bytes) and a write in flight.
fn waiting_host() -> (host::Queue, Memory, [u16; 2]) {
    let mut queue = host::Queue::new(host::Config::default());
    let mut memory = Memory::new();
    take(&mut queue, &memory, usize::MAX);
    give(&mut queue, &mut memory, IcResp::new(0, 0, 4096).as_bytes()).unwrap();
    let read = queue.submit(&Sqe::new(io::READ, 1), host::Transfer::ToHost(512)).unwrap();
    let write = queue.submit(&Sqe::new(io::WRITE, 1), host::Transfer::ToController(512)).unwrap();
    memory.insert(read, vec![0; 512]);
    memory.insert(write, vec![0x55; 512]);
    take(&mut queue, &memory, usize::MAX);
    while queue.poll().is_some() {}
    let cids = [queue.cid(read).unwrap(), queue.cid(write).unwrap()];
    (queue, memory, cids)
}

#[test]
fn every_byte_of_every_pdu_to_a_host() {
    let (_, _, [read, write]) = waiting_host();
    let data = {
        let flags = LAST_PDU | SUCCESS;
        let pdu = shunt_nvme::wire::C2hData::new(read, 0, 512, flags, &TO_HOST);
        let mut pdu = pdu.as_bytes().to_vec();
        pdu.extend([0x77; 512]);
        pdu
    };
    let response = CapsuleResp::new(Cqe::new(write, Status::SUCCESS, 0, 0), &TO_HOST);
    let r2t = R2t::new(write, 9, 0, 512, &TO_HOST);
    let termination = TermReq::new(Receiver::Host, Violation::EmptyR2t, 0);
    let cases: [(&[u8], usize); 4] = [
        (&data, 24),
        (response.as_bytes(), 24),
        (r2t.as_bytes(), 24),
        (termination.as_bytes(), 24),
    ];
    for (number, (pdu, header)) in cases.into_iter().enumerate() {
        let mut violations = 0;
        for at in 0..header {
            for change in [0x01, 0x04, 0x80, 0xff] {
                let (mut queue, mut memory, _) = waiting_host();
                let mut changed = pdu.to_vec();
                changed[at] ^= change;
                let mut rest = changed.as_slice();
                let result = loop {
                    if rest.is_empty() || queue.next() == Next::Closed {
                        break Ok(());
                    }
                    match give(&mut queue, &mut memory, rest) {
                        Ok(left) => rest = left,
                        Err(violation) => break Err(violation),
                    }
                };
                let sent = take(&mut queue, &memory, usize::MAX);
                let mut completed = 0;
                while let Some(event) = queue.poll() {
                    completed += u32::from(matches!(event, host::Event::Completed { .. }));
                }
                assert!(completed <= 1);
                if let Err(violation) = result {
                    violations += 1;
                    assert_eq!(queue.next(), Next::Closed);
                    assert_terminated(&sent, Receiver::Controller, violation);
                    assert_eq!(queue.lose().len(), 2);
                }
            }
        }
        assert!(violations >= 8, "case {number}: {violations}");
    }
}

/// Rules of transfers, one by one.
#[test]
fn transfers() {
    let command = CapsuleCmd::new(write(5, Sgl::transport(512)), 0, &RULES).as_bytes().to_vec();
    let tag = 1 << 10;
    let pdu = PduType::H2cData;
    let cases = [
        (H2cData::new(5, 2 << 10, 0, 512, true, &RULES), Violation::UnknownTransfer(2 << 10)),
        (H2cData::new(5, tag | 3, 0, 512, true, &RULES), Violation::UnknownTransfer(tag | 3)),
        (H2cData::new(6, tag, 0, 512, true, &RULES), Violation::UnknownCommand(pdu)),
        (H2cData::new(5, tag, 4, 508, true, &RULES), Violation::DataSequence(pdu)),
        (H2cData::new(5, tag, 0, 516, true, &RULES), Violation::DataRange(pdu)),
        (H2cData::new(5, tag, 0, 508, true, &RULES), Violation::LastFlag(pdu)),
        (H2cData::new(5, tag, 0, 512, false, &RULES), Violation::LastFlag(pdu)),
        (H2cData::new(5, tag, 0, 0x8_0000, true, &RULES), Violation::TooMuchData(pdu)),
    ];
    for (data, violation) in cases {
        let mut controller = Controller::connected();
        controller.receive(&command).unwrap();
        assert_eq!(controller.receive(data.as_bytes()), Err(violation));
    }
    let pdu = PduType::R2t;
    let (_, _, [read, write]) = waiting_host();
    let cases = [
        (R2t::new(write, 9, 0, 513, &TO_HOST), Violation::DataRange(pdu)),
        (R2t::new(write, 9, 4, 508, &TO_HOST), Violation::DataSequence(pdu)),
        (R2t::new(write, 9, 0, 0, &TO_HOST), Violation::EmptyR2t),
        (R2t::new(read, 9, 0, 512, &TO_HOST), Violation::UnknownCommand(pdu)),
        (R2t::new(write ^ 1 << 12, 9, 0, 512, &TO_HOST), Violation::UnknownCommand(pdu)),
    ];
    for (r2t, violation) in cases {
        let (mut queue, mut memory, _) = waiting_host();
        let result = give(&mut queue, &mut memory, r2t.as_bytes());
        assert_eq!(result.map(<[u8]>::len), Err(violation));
    }
    // Two R2Ts at once, where MAXR2T allows one.
    let (mut queue, mut memory, _) = waiting_host();
    let half = R2t::new(write, 9, 0, 256, &TO_HOST);
    give(&mut queue, &mut memory, half.as_bytes()).unwrap();
    let half = R2t::new(write, 9, 256, 256, &TO_HOST);
    let result = give(&mut queue, &mut memory, half.as_bytes());
    assert_eq!(result.map(<[u8]>::len), Err(Violation::TooManyR2t));
}

/// A host that doesn't read its responses makes the controller stop, not grow.
#[test]
fn responses_that_are_not_read() {
    let mut controller = Controller::connected();
    let mut flush = Sqe::new(io::FLUSH, 1);
    let mut commands = 0;
    while controller.queue.next() != Next::Blocked {
        flush.cid = u16::try_from(commands % 60000).unwrap().into();
        controller.receive(CapsuleCmd::new(flush, 0, &RULES).as_bytes()).unwrap();
        commands += 1;
        assert!(commands < 100_000);
    }
    assert_eq!(controller.sent().len(), commands * 24);
    assert!(matches!(controller.queue.next(), Next::Header { .. }));
}

/// A response while the host still owes data: the data goes nowhere, the response comes after it,
/// and the memory is not written to any more.
#[test]
fn answered_before_the_data() {
    let mut queue = Controller::connected();
    let command = CapsuleCmd::new(write(5, Sgl::transport(512)), 0, &RULES);
    queue.receive(command.as_bytes()).unwrap();
    let r2t = R2t::read_from_bytes(&queue.sent()).unwrap();
    let handle = queue.queue.find(5).unwrap();
    queue.queue.respond(handle, Status::ABORT_REQUESTED, 0, 0);
    assert_eq!(queue.sent(), []);
    for (offset, last) in [(0, false), (256, true)] {
        let mut pdu =
            H2cData::new(5, r2t.ttag.get(), offset, 256, last, &RULES).as_bytes().to_vec();
        pdu.extend([0x77; 256]);
        queue.receive(&pdu).unwrap();
    }
    assert_eq!(queue.memory[&handle], [0; 512]);
    let response = CapsuleResp::read_from_bytes(&queue.sent()).unwrap();
    assert_eq!(response.cqe.status(), Status::ABORT_REQUESTED);
    assert_eq!(queue.queue.outstanding(), 0);
}

/// PDUs that are taken by machines which have not ended their connections yet.
const HOSTILE: u32 = 1_000_000;

/// A PDU with some good fields.
fn half_good(random: &mut Random) -> Vec<u8> {
    let len = 1 + random.below(200);
    let mut bytes = random.bytes(len.max(24));
    if !random.one_in(10) {
        let kind = PduType::ALL[random.below(9)];
        let header = CommonHeader::new(kind, bytes[1], 0, &RULES);
        bytes[..8].copy_from_slice(header.as_bytes());
        bytes[1] = random.bytes(1)[0] & 0x0c;
        bytes[3] = 24;
        let small = u32::try_from(random.below(200)).unwrap();
        bytes[4..8].copy_from_slice(&small.to_le_bytes());
        // Few identifiers and offsets, so that some fit.
        for field in bytes[8..24].iter_mut() {
            *field &= random.bytes(1)[0] & random.bytes(1)[0] & 0x0f;
        }
    }
    bytes
}

/// One that is right, but for a few bytes; those of its kind that come after others make sense then.
fn nearly_good(random: &mut Random, good: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = good[random.below(good.len())].clone();
    for _ in 0..random.below(3) {
        // In the header, mostly.
        let at = if random.one_in(4) { random.below(bytes.len()) } else { random.below(24) };
        bytes[at] ^= random.bytes(1)[0];
    }
    bytes
}

fn hostile(random: &mut Random, good: &[Vec<u8>]) -> Vec<u8> {
    if random.one_in(4) { half_good(random) } else { nearly_good(random, good) }
}

/// PDUs that a host may send, once it is connected, and some that it may not.
fn good_for_controller() -> Vec<Vec<u8>> {
    let with = |head: &[u8], data: usize| [head, &vec![0x77; data]].concat();
    let capsule = |cid, sgl, data: u32| {
        let pdu = CapsuleCmd::new(write(cid, sgl), data, &RULES);
        with(pdu.as_bytes(), data as usize)
    };
    let mut good = vec![
        capsule(5, Sgl::transport(512), 0),
        capsule(6, Sgl::transport(4096), 0),
        capsule(7, Sgl::in_capsule(512), 512),
        CapsuleCmd::new(Sqe::new(io::FLUSH, 1), 0, &RULES).as_bytes().to_vec(),
    ];
    // Their data, whole and in parts, and more or less of it than was asked for.
    for (cid, slot) in [(5, 0), (6, 1)] {
        for generation in 1..4 {
            for (offset, len) in [(0, 512), (0, 4096), (0, 256), (256, 256), (256, 512), (0, 516)] {
                for last in [true, false] {
                    let tag = generation << 10 | slot;
                    let pdu = H2cData::new(cid, tag, offset, len, last, &RULES);
                    good.push(with(pdu.as_bytes(), len as usize));
                }
            }
        }
    }
    good
}

/// PDUs that a controller may send to the host of [`waiting_host`].
fn good_for_host() -> Vec<Vec<u8>> {
    let (_, _, [read, write]) = waiting_host();
    let response =
        |cid| CapsuleResp::new(Cqe::new(cid, Status::SUCCESS, 0, 0), &TO_HOST).as_bytes().to_vec();
    let mut good = vec![response(write), response(read)];
    for (offset, len, flags) in [
        (0, 512, LAST_PDU | SUCCESS),
        (0, 256, 0),
        (256, 256, LAST_PDU),
        (0, 516, LAST_PDU),
        (256, 512, 0),
    ] {
        let pdu = shunt_nvme::wire::C2hData::new(read, offset, len, flags, &TO_HOST);
        good.push([pdu.as_bytes(), &vec![0x77; len as usize]].concat());
    }
    for (offset, len) in [(0, 512), (0, 256), (256, 256), (256, 512), (0, 516)] {
        good.push(R2t::new(write, 9, offset, len, &TO_HOST).as_bytes().to_vec());
    }
    good
}

#[test]
fn a_million_pdus_to_a_controller() {
    let good = good_for_controller();
    let (mut taken, mut ended, mut seed) = (0, 0, 0);
    while taken < HOSTILE {
        seed += 1;
        let mut random = Random(seed);
        let mut controller =
            if random.one_in(8) { Controller::new() } else { Controller::connected() };
        for _ in 0..64 {
            taken += 1;
            let result = controller.receive(&hostile(&mut random, &good));
            // Bounded, whatever comes: the machine, and what it has to send.
            controller.assert_inside();
            assert!(controller.queue.outstanding() <= 8);
            assert!(controller.sent().len() <= 64 << 10);
            if let Err(violation) = result {
                assert_eq!(controller.queue.violation(), Some(violation));
                ended += 1;
                break;
            }
        }
    }
    // Neither are all refused at once, nor is everything taken.
    assert!((taken / 64..taken / 2).contains(&ended), "{taken} {ended}");
}

#[test]
fn a_million_pdus_to_a_host() {
    let good = good_for_host();
    let (mut taken, mut ended, mut seed) = (0, 0, 0);
    while taken < HOSTILE {
        seed += 1;
        let mut random = Random(seed);
        let (mut host, mut memory, _) = waiting_host();
        let mut completed = 0;
        for _ in 0..64 {
            taken += 1;
            let bytes = hostile(&mut random, &good);
            let mut rest = bytes.as_slice();
            while !rest.is_empty() && host.next() != Next::Closed {
                match give(&mut host, &mut memory, rest) {
                    Ok(left) => rest = left,
                    Err(_) => break,
                }
            }
            while let Some(event) = host.poll() {
                completed += usize::from(matches!(event, host::Event::Completed { .. }));
            }
            assert!(memory.values().all(|memory| memory.len() == 512), "data beside the memory");
            assert!(take(&mut host, &memory, usize::MAX).len() <= 4096);
            if host.next() == Next::Closed {
                ended += 1;
                break;
            }
        }
        // Each command ends once.
        assert_eq!(completed + host.lose().len(), 2);
    }
    assert!((taken / 64..taken - taken / 64).contains(&ended), "{taken} {ended}");
}
