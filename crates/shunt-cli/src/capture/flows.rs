//! Connections as packets of TCP: events of senders become the packets that TCP would have carried.
//!
//! The programs at both ends report the events of a connection; this file takes them in the order
//! of their times. Sequence numbers count the bytes of each direction from the first one that a
//! capture sees. Acknowledgements are made up, as receivers report nothing. So is a handshake,
//! where a capture first sees a connection.
//!
//! The events of a connection wait until it goes through shared memory, or until both of its ends
//! are seen. A connection that stays on kernel TCP is not shown, as half of it would be missing.

use std::collections::HashMap;
use std::net::SocketAddr;

use shunt_shm::capture::{Event, flag};
use shunt_wire::addr::Addr;

use crate::list::filter::{Entry, Filter};

/// Most events, and bytes, that are held back of a connection.
const MOST_HELD: usize = 256;
const MOST_HELD_BYTES: usize = 1 << 20;
/// Connections that are kept in mind; of more those go that have ended.
const MOST_FLOWS: usize = 65_536;

/// A program whose bytes are captured.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program {
    /// Its process, as the agent counts.
    pub pid: u64,
    /// Its name.
    pub name: String,
    /// Its network namespace.
    pub network: u64,
}

/// The programs, by their endpoints.
pub type Programs = HashMap<u64, Program>;

/// An event, its bytes as far as they were kept, and the endpoint that it comes from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// What was done.
    pub event: Event,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whose it is.
    pub from: u64,
}

/// TCP's flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "as TCP has them")]
pub struct Flags {
    /// Begins a direction.
    pub syn: bool,
    /// There is an acknowledgment number.
    pub ack: bool,
    /// There are bytes.
    pub psh: bool,
    /// Ends a direction.
    pub fin: bool,
    /// Ends the connection.
    pub rst: bool,
}

/// A packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// When, in nanoseconds since 1970.
    pub at: u64,
    /// The link group.
    pub link: u64,
    /// From where.
    pub source: SocketAddr,
    /// To where.
    pub destination: SocketAddr,
    /// Number of its first byte.
    pub sequence: u32,
    /// Number of the next byte that the sender expects.
    pub acknowledgment: u32,
    /// TCP's.
    pub flags: Flags,
    /// Bytes that it carried.
    pub len: u32,
    /// Those that were kept.
    pub bytes: Vec<u8>,
    /// What cannot be told from the packet.
    pub comment: Option<&'static str>,
}

const MADE_UP: &str = "made by shunt: the kernel's own handshake is not captured";
const WAS_THERE: &str = "made by shunt: the connection was there before the capture, or the bytes before were not captured";
const OVER_TCP: &str = "over kernel TCP, where tcpdump sees it, too";
const UNSEEN: &str =
    "over kernel TCP, which has moved the bytes from a pipe: they are not captured";

/// Which connections are shown.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// By conditions.
    pub filter: Filter,
    /// Of this link group alone.
    pub link: Option<u64>,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default)]
struct Direction {
    /// Bytes before the first one that is seen.
    base: Option<u64>,
    /// The next byte, counted from there.
    next: u64,
    has_ended: bool,
    /// The sender's endpoint, and the use of its record.
    from: Option<u64>,
    generation: Option<u32>,
}

/// Numbers of TCP begin anew after 2^32.
#[allow(clippy::cast_possible_truncation, reason = "as TCP's numbers do")]
const fn number(bytes: u64) -> u32 {
    bytes.wrapping_add(1) as u32
}

#[derive(Debug, Default)]
struct Flow {
    directions: [Direction; 2],
    /// Both have sent something.
    has_spoken: [bool; 2],
    is_shown: Option<bool>,
    held: Vec<Seen>,
    has_begun: bool,
    has_ended: bool,
}

type Key = (u64, Addr, Addr);

/// All connections that were seen.
#[derive(Debug, Default)]
pub struct Flows {
    known: HashMap<Key, Flow>,
}

/// The connection's name, and which direction of it that is. The same loopback addresses name other connections elsewhere.
fn key(event: &Event, network: u64) -> (Key, usize) {
    let (from, to) = (event.tuple.local, event.tuple.peer);
    let network = if from.is_loopback() { network } else { 0 };
    if from <= to { ((network, from, to), 0) } else { ((network, to, from), 1) }
}

impl Flows {
    /// What an event comes to.
    pub fn take(&mut self, seen: Seen, programs: &Programs, wanted: &Wanted) -> Vec<Packet> {
        let network = programs.get(&seen.from).map_or(0, |program| program.network);
        let (key, direction) = key(&seen.event, network);
        if self.known.len() >= MOST_FLOWS && !self.known.contains_key(&key) {
            self.known.retain(|_, flow| !flow.has_ended);
            if self.known.len() >= MOST_FLOWS {
                self.known.clear();
            }
        }
        let flow = self.known.entry(key).or_default();
        if flow.is_another(&seen, direction) {
            *flow = Flow::default();
        }
        flow.notes(&seen, direction, programs);
        let mut packets = Vec::new();
        let Some(is_shown) = flow.decide(&seen.event, direction, programs, wanted) else {
            flow.hold(seen);
            return packets;
        };
        let held = std::mem::take(&mut flow.held);
        if is_shown {
            for seen in held.iter().chain([&seen]) {
                let (_, direction) = self::key(&seen.event, network);
                flow.emit(seen, direction, &mut packets);
            }
        }
        // Its link group was not known before.
        for packet in &mut packets {
            packet.link = seen.event.link;
        }
        packets
    }

    /// Connections that would be shown had they come to shared memory: one end sent over kernel TCP, and nothing was seen of the
    /// other one.
    pub fn left_on_tcp(&self, programs: &Programs, wanted: &Wanted) -> usize {
        let is_left = |flow: &&Flow| {
            flow.held.first().is_some_and(|Seen { event, from, .. }| {
                let direction = usize::from(flow.directions[0].from != Some(*from));
                flow.is_wanted(event, direction, programs, wanted)
            })
        };
        self.known.values().filter(is_left).count()
    }
}

impl Flow {
    /// True when the addresses name another connection by now.
    fn is_another(&self, seen: &Seen, direction: usize) -> bool {
        let Direction { from, generation, .. } = self.directions[direction];
        from == Some(seen.from) && generation.is_some_and(|known| known != seen.event.generation)
    }

    fn notes(&mut self, seen: &Seen, direction: usize, programs: &Programs) {
        let own = &mut self.directions[direction];
        own.from = Some(seen.from);
        own.generation = Some(seen.event.generation);
        self.has_spoken[direction] = true;
        if programs.contains_key(&seen.event.peer) {
            self.directions[1 - direction].from.get_or_insert(seen.event.peer);
        }
    }

    /// Whether it is shown; `None`: that is not known yet.
    fn decide(
        &mut self,
        event: &Event,
        direction: usize,
        programs: &Programs,
        wanted: &Wanted,
    ) -> Option<bool> {
        if self.is_shown.is_none()
            && (event.flags & flag::TCP == 0 || self.has_spoken == [true, true])
        {
            self.is_shown = Some(self.is_wanted(event, direction, programs, wanted));
        }
        self.is_shown
    }

    /// Whether the conditions hold for one of its ends.
    fn is_wanted(
        &self,
        event: &Event,
        direction: usize,
        programs: &Programs,
        wanted: &Wanted,
    ) -> bool {
        let program =
            |direction: usize| self.directions[direction].from.and_then(|from| programs.get(&from));
        let (own, other) = (program(direction), program(1 - direction));
        let view = |(local, own): (Addr, Option<&Program>),
                    (peer, other): (Addr, Option<&Program>)| {
            wanted.filter.takes_entry(&Entry {
                local: &local.to_string(),
                peer: &peer.to_string(),
                pids: [own, other].map(|program| program.and_then(|p| u32::try_from(p.pid).ok())),
                programs: [own, other].map(|program| program.map(|p| p.name.as_str())),
                mode: Some("shunt"),
                reason: None,
            })
        };
        let ends = ((event.tuple.local, own), (event.tuple.peer, other));
        (view(ends.0, ends.1) || view(ends.1, ends.0))
            && wanted.link.is_none_or(|link| link == event.link)
    }

    fn hold(&mut self, seen: Seen) {
        let bytes: usize = self.held.iter().map(|seen| seen.bytes.len()).sum();
        if self.held.len() < MOST_HELD && bytes + seen.bytes.len() <= MOST_HELD_BYTES {
            self.held.push(seen);
        }
    }

    fn emit(&mut self, seen: &Seen, direction: usize, packets: &mut Vec<Packet>) {
        let Seen { event, bytes, .. } = seen;
        let other = 1 - direction;
        let own = &mut self.directions[direction];
        let base = *own.base.get_or_insert(event.offset);
        let before = event.offset.wrapping_sub(base);
        if self.has_ended {
            return;
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            handshake(event, packets);
        }
        let acknowledged = number(self.directions[other].next);
        let packet = |flags, sequence, acknowledgment| Packet {
            at: event.at,
            link: event.link,
            source: event.tuple.local.into(),
            destination: event.tuple.peer.into(),
            sequence,
            acknowledgment,
            flags,
            len: 0,
            bytes: Vec::new(),
            comment: None,
        };
        let ack = Flags { ack: true, ..Flags::default() };
        let own = &mut self.directions[direction];
        if event.len > 0 {
            own.next = own.next.max(before.wrapping_add(event.len.into()));
            packets.push(Packet {
                len: event.len,
                bytes: bytes.clone(),
                comment: match event.flags {
                    flags if flags & flag::UNSEEN != 0 => Some(UNSEEN),
                    flags if flags & flag::TCP != 0 => Some(OVER_TCP),
                    _ => None,
                },
                ..packet(Flags { psh: true, ..ack }, number(before), acknowledged)
            });
        }
        if event.flags & flag::RST != 0 {
            let sequence = number(own.next);
            packets.push(packet(Flags { rst: true, ..ack }, sequence, acknowledged));
            self.has_ended = true;
        } else if event.flags & flag::FIN != 0 && !own.has_ended {
            own.has_ended = true;
            own.next = own.next.max(before);
            let sequence = number(own.next);
            // It counts as a byte.
            own.next += 1;
            let after = number(own.next);
            packets.push(packet(Flags { fin: true, ..ack }, sequence, acknowledged));
            if self.directions[other].has_ended {
                let last = packet(ack, acknowledged, after);
                packets.push(Packet {
                    source: last.destination,
                    destination: last.source,
                    comment: Some(MADE_UP),
                    ..last
                });
                self.has_ended = true;
            }
        }
    }
}

/// The packets of a handshake before the first event.
fn handshake(first: &Event, packets: &mut Vec<Packet>) {
    let (local, peer) = (first.tuple.local.into(), first.tuple.peer.into());
    let is_client = first.flags & flag::CLIENT != 0;
    let (client, server) = if is_client { (local, peer) } else { (peer, local) };
    let packet = |source, destination, flags, numbers: (u32, u32)| Packet {
        at: first.at,
        link: first.link,
        source,
        destination,
        sequence: numbers.0,
        acknowledgment: numbers.1,
        flags,
        len: 0,
        bytes: Vec::new(),
        comment: Some(if first.offset > 0 { WAS_THERE } else { MADE_UP }),
    };
    let (syn, ack) =
        (Flags { syn: true, ..Flags::default() }, Flags { ack: true, ..Flags::default() });
    packets.push(packet(client, server, syn, (0, 0)));
    packets.push(packet(server, client, Flags { syn: true, ..ack }, (0, 1)));
    packets.push(packet(client, server, ack, (1, 1)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunt_wire::addr::FourTuple;

    const CLIENT: u64 = 1;
    const SERVER: u64 = 2;

    fn programs() -> Programs {
        let program = |pid, name: &str| Program { pid, name: name.to_owned(), network: 5 };
        HashMap::from([(CLIENT, program(10, "curl")), (SERVER, program(20, "nginx"))])
    }

    fn tuple() -> FourTuple {
        let addr = |text: &str| Addr::from(text.parse::<SocketAddr>().unwrap());
        FourTuple { local: addr("127.0.0.1:5000"), peer: addr("127.0.0.1:80") }
    }

    fn sent(from: u64, offset: u64, text: &str, flags: u32) -> Seen {
        let is_client = from == CLIENT;
        let event = Event {
            at: 7,
            offset,
            tuple: if is_client { tuple() } else { tuple().reversed() },
            flags: flags | if is_client { flag::CLIENT } else { 0 },
            len: u32::try_from(text.len()).unwrap(),
            peer: if is_client { SERVER } else { CLIENT },
            link: 9,
            pid: 1,
            generation: 1,
        };
        Seen { event, bytes: text.as_bytes().to_vec(), from }
    }

    fn taken(flows: &mut Flows, filter: &str, seen: Vec<Seen>) -> Vec<Packet> {
        let words: Vec<_> = filter.split(' ').map(str::to_owned).collect();
        let wanted = Wanted { filter: Filter::parse(&words).unwrap(), link: None };
        seen.into_iter().flat_map(|seen| flows.take(seen, &programs(), &wanted)).collect()
    }

    fn told(packets: &[Packet]) -> Vec<(u16, u32, u32, String)> {
        let flags = |f: Flags| {
            let all = [(f.syn, 'S'), (f.fin, 'F'), (f.rst, 'R'), (f.psh, 'P'), (f.ack, '.')];
            all.iter().filter(|(is, _)| *is).map(|(_, c)| *c).collect()
        };
        packets
            .iter()
            .map(|p| (p.source.port(), p.sequence, p.acknowledgment, flags(p.flags)))
            .collect()
    }

    fn row(port: u16, sequence: u32, acknowledgment: u32, flags: &str) -> (u16, u32, u32, String) {
        (port, sequence, acknowledgment, flags.to_owned())
    }

    #[test]
    fn a_connection_becomes_what_tcp_would_have_carried() {
        let seen = vec![
            sent(CLIENT, 0, "GET", 0),
            sent(SERVER, 0, "hello", 0),
            sent(CLIENT, 3, "more", 0),
            sent(SERVER, 5, "", flag::FIN),
            sent(CLIENT, 7, "", flag::FIN),
        ];
        let packets = taken(&mut Flows::default(), "", seen);
        let expected = [
            row(5000, 0, 0, "S"),
            row(80, 0, 1, "S."),
            row(5000, 1, 1, "."),
            row(5000, 1, 1, "P."),
            row(80, 1, 4, "P."),
            row(5000, 4, 6, "P."),
            row(80, 6, 8, "F."),
            row(5000, 8, 7, "F."),
            row(80, 7, 9, "."),
        ];
        assert_eq!(told(&packets), expected);
        assert_eq!(packets[4].bytes, b"hello");
        assert!(packets.iter().all(|p| p.link == 9 && p.at == 7));
    }

    #[test]
    fn a_connection_that_was_there_counts_from_the_first_byte_that_is_seen() {
        let seen = vec![
            sent(SERVER, 1 << 33, "ab", 0),
            sent(CLIENT, 77, "c", 0),
            sent(SERVER, (1 << 33) + 2, "d", 0),
        ];
        let packets = taken(&mut Flows::default(), "", seen);
        // The handshake is the client's also where the server is seen first.
        assert_eq!(
            told(&packets)[..3],
            [row(5000, 0, 0, "S"), row(80, 0, 1, "S."), row(5000, 1, 1, ".")]
        );
        assert_eq!(packets[0].comment, Some(WAS_THERE));
        assert_eq!(
            told(&packets)[3..],
            [row(80, 1, 1, "P."), row(5000, 1, 3, "P."), row(80, 3, 2, "P.")]
        );
    }

    #[test]
    fn bytes_that_were_not_captured_leave_a_gap_and_numbers_begin_anew() {
        let seen =
            vec![sent(CLIENT, 0, "a", 0), sent(CLIENT, 101, "b", 0), sent(CLIENT, 1 << 32, "c", 0)];
        let packets = taken(&mut Flows::default(), "", seen);
        assert_eq!(
            told(&packets)[3..],
            [row(5000, 1, 1, "P."), row(5000, 102, 1, "P."), row(5000, 1, 1, "P.")]
        );
    }

    #[test]
    fn what_goes_over_tcp_is_held_back_until_the_connection_is_shunted() {
        let flows = &mut Flows::default();
        let request = sent(CLIENT, 0, "GET", flag::TCP);
        assert_eq!(taken(flows, "", vec![request.clone()]), []);
        let packets = taken(flows, "", vec![sent(SERVER, 0, "ok", 0)]);
        assert_eq!(told(&packets)[3..], [row(5000, 1, 1, "P."), row(80, 1, 4, "P.")]);
        assert_eq!((packets[3].comment, packets[4].comment), (Some(OVER_TCP), None));
        // Both ends over TCP are a whole connection, too.
        let both = vec![request, sent(SERVER, 0, "ok", flag::TCP)];
        assert_eq!(taken(&mut Flows::default(), "", both).len(), 5);
    }

    #[test]
    fn connections_that_stay_on_tcp_are_counted() {
        let flows = &mut Flows::default();
        assert_eq!(taken(flows, "", vec![sent(SERVER, 0, "220 hello", flag::TCP)]), []);
        let left = |flows: &Flows, filter: &str, link| {
            let words: Vec<_> = filter.split(' ').map(str::to_owned).collect();
            let wanted = Wanted { filter: Filter::parse(&words).unwrap(), link };
            flows.left_on_tcp(&programs(), &wanted)
        };
        for (filter, count) in
            [("program nginx", 1), ("port 80", 1), ("dport 5000", 1), ("port 81", 0)]
        {
            assert_eq!(left(flows, filter, None), count, "{filter}");
        }
        assert_eq!(left(flows, "", Some(8)), 0);
        // The other end is seen after all.
        assert_eq!(taken(flows, "", vec![sent(CLIENT, 0, "EHLO", 0)]).len(), 5);
        assert_eq!(left(flows, "", None), 0);
    }

    #[test]
    fn a_reset_ends_it_and_the_same_addresses_begin_anew() {
        let flows = &mut Flows::default();
        let seen = vec![
            sent(CLIENT, 0, "a", 0),
            sent(CLIENT, 1, "", flag::RST),
            sent(SERVER, 0, "late", 0),
        ];
        let packets = taken(flows, "", seen);
        assert_eq!(told(&packets)[4..], [row(5000, 2, 1, "R.")]);
        let mut next = sent(CLIENT, 0, "b", 0);
        next.event.generation = 2;
        assert_eq!(told(&taken(flows, "", vec![next]))[0], row(5000, 0, 0, "S"));
    }

    #[test]
    fn a_filter_means_both_ends() {
        let seen = || vec![sent(CLIENT, 0, "a", 0), sent(SERVER, 0, "b", 0)];
        for filter in [
            "program nginx",
            "program curl",
            "pid 10",
            "pid 20",
            "port 80",
            "sport 5000",
            "dst 127.0.0.1",
        ] {
            assert_eq!(taken(&mut Flows::default(), filter, seen()).len(), 5, "{filter}");
        }
        for filter in ["program wrk", "port 81", "not program curl", "pid 1"] {
            assert_eq!(taken(&mut Flows::default(), filter, seen()), [], "{filter}");
        }
        let other = Wanted { link: Some(8), ..Wanted::default() };
        assert_eq!(Flows::default().take(sent(CLIENT, 0, "a", 0), &programs(), &other), []);
    }
}
