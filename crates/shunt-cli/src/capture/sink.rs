//! The destination of packets: a pcapng file, or lines of text.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness, PcapError};
use shunt_sys::stdio;

use super::flows::Packet;
use super::packet;

/// The interface of all link groups.
pub const INTERFACE: &str = "shunt";

/// Times are in nanoseconds: 10^-9 seconds.
const NANOSECONDS: u8 = 9;

/// What was lost, as the reports at the end have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// Sends that did not fit into a program's ring.
    pub sends: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Times that a program's ring had something that made no sense.
    pub damaged: u64,
}

/// Where packets go.
pub enum Sink {
    /// Lines on standard output.
    Text,
    /// A pcapng file: each link group is an interface.
    File(Box<Pcap>),
}

/// A pcapng file.
pub struct Pcap {
    writer: PcapNgWriter<BufWriter<Box<dyn Write>>>,
    snap: u32,
    /// Of link groups: the interface, and how many packets it has.
    links: HashMap<u64, (u32, u64)>,
}

fn plain(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

impl Pcap {
    /// Begins the file.
    ///
    /// # Errors
    /// Those of writing.
    pub fn new(to: Box<dyn Write>, snap: u32) -> io::Result<Self> {
        let application = concat!("shunt ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            // The crate writes a statistics block's time as one number, whose high half comes first in this order alone.
            endianness: Endianness::Big,
            options: vec![SectionHeaderOption::UserApplication(Cow::Borrowed(application))],
            ..SectionHeaderBlock::default()
        };
        let writer = PcapNgWriter::with_section_header(BufWriter::new(to), section);
        let mut file = Self { writer: writer.map_err(plain)?, snap, links: HashMap::new() };
        file.add_interface(INTERFACE, "connections in shared memory")?;
        Ok(file)
    }

    fn add_interface(&mut self, name: &str, description: &str) -> io::Result<()> {
        use InterfaceDescriptionOption::{IfDescription, IfName, IfTsResol};
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::RAW,
            snaplen: self.snap,
            options: vec![
                IfName(Cow::Borrowed(name)),
                IfDescription(Cow::Borrowed(description)),
                IfTsResol(NANOSECONDS),
            ],
        };
        self.writer.write_pcapng_block(interface).map(|_| ()).map_err(plain)
    }

    fn write(&mut self, packet: &Packet) -> io::Result<()> {
        let next = u32::try_from(self.links.len() + 1).unwrap_or(u32::MAX);
        if !self.links.contains_key(&packet.link) {
            let name = link_name(packet.link);
            self.add_interface(&name, "a link group: a pair of programs")?;
            self.links.insert(packet.link, (next, 0));
        }
        let (interface_id, count) = self.links.entry(packet.link).or_default();
        *count += 1;
        let (data, original_len) = packet::encode(packet);
        let comment = packet.comment.map(|text| EnhancedPacketOption::Comment(Cow::Borrowed(text)));
        let block = EnhancedPacketBlock {
            interface_id: *interface_id,
            timestamp: Duration::from_nanos(packet.at),
            original_len,
            data: Cow::Owned(data),
            options: comment.into_iter().collect(),
        };
        self.writer.write_pcapng_block(block).map(|_| ()).map_err(plain)
    }

    fn end(&mut self, lost: Lost, now: u64) -> io::Result<()> {
        use InterfaceStatisticsOption::{IsbIfDrop, IsbIfRecv};
        let total = self.links.values().map(|(_, count)| count).sum::<u64>();
        let of_links = self.links.values().map(|(id, count)| (*id, vec![IsbIfRecv(*count)]));
        // Programs lose what they send, not link groups.
        let first = (0, vec![IsbIfRecv(total), IsbIfDrop(lost.sends)]);
        let mut all: Vec<_> = of_links.chain([first]).collect();
        all.sort_by_key(|(id, _)| *id);
        for (interface_id, options) in all {
            let block = InterfaceStatisticsBlock { interface_id, timestamp: now, options };
            self.writer.write_pcapng_block(block).map_err(plain)?;
        }
        Ok(())
    }
}

/// The interface of a link group.
pub fn link_name(link: u64) -> String {
    format!("link-{link}")
}

impl Sink {
    /// Writes a packet.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&mut self, packet: &Packet) -> io::Result<()> {
        match self {
            Self::Text => stdio::Output.write_all(line(packet).as_bytes()),
            Self::File(file) => file.write(packet),
        }
    }

    /// Sees to it that readers get what was written.
    ///
    /// # Errors
    /// Those of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        match self {
            // Nothing is held back; whether it is open is found out.
            Self::Text => stdio::Output.write(&[]).map(drop),
            Self::File(file) => file.writer.get_mut().flush(),
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// Those of writing.
    pub fn end(&mut self, lost: Lost, now: u64) -> io::Result<()> {
        if let Self::File(file) = self {
            file.end(lost, now)?;
        }
        self.flush()
    }
}

/// A packet as tcpdump(8) shows it, with the time of day in UTC.
fn line(packet: &Packet) -> String {
    let (seconds, nanos) = (packet.at / 1_000_000_000, packet.at % 1_000_000_000);
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    let Packet { source, destination, sequence, acknowledgment, flags, len, .. } = packet;
    let version = if source.is_ipv4() { "IP" } else { "IP6" };
    let named =
        [(flags.syn, 'S'), (flags.fin, 'F'), (flags.rst, 'R'), (flags.psh, 'P'), (flags.ack, '.')];
    let letters: String = named.iter().filter(|(is, _)| *is).map(|(_, letter)| letter).collect();
    let mut out = format!(
        "{hours:02}:{minutes:02}:{:02}.{nanos:09} {version} {}.{} > {}.{}: Flags [{letters}]",
        seconds % 60,
        source.ip(),
        source.port(),
        destination.ip(),
        destination.port(),
    );
    let _ = match len {
        0 => write!(out, ", seq {sequence}"),
        _ => write!(out, ", seq {sequence}:{}", sequence.wrapping_add(*len)),
    };
    if flags.ack {
        let _ = write!(out, ", ack {acknowledgment}");
    }
    let _ = writeln!(out, ", length {len}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::flows::Flags;
    use pcap_file::pcapng::{Block, PcapNgReader};
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn packet(link: u64) -> Packet {
        Packet {
            at: 86_399_000_000_007,
            link,
            source: "127.0.0.1:80".parse().unwrap(),
            destination: "[::1]:81".parse().unwrap(),
            sequence: 5,
            acknowledgment: 6,
            flags: Flags { psh: true, ack: true, ..Flags::default() },
            len: 3,
            bytes: b"abc".to_vec(),
            comment: Some("a comment"),
        }
    }

    #[test]
    fn a_file_has_an_interface_for_each_link_and_counts() {
        let memory = Memory::default();
        let mut sink = Sink::File(Box::new(Pcap::new(Box::new(memory.clone()), 100).unwrap()));
        for link in [7, 8, 7] {
            sink.write(&packet(link)).unwrap();
        }
        sink.end(Lost { sends: 9, bytes: 1, damaged: 0 }, 0x1_0000_0002).unwrap();
        let bytes = memory.0.lock().unwrap().clone();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let (mut names, mut packets, mut statistics) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(block) = reader.next_block() {
            match block.unwrap().into_owned() {
                Block::InterfaceDescription(b) => names.push(b),
                Block::EnhancedPacket(b) => {
                    packets.push((b.interface_id, b.timestamp, b.options.len()));
                }
                Block::InterfaceStatistics(b) => statistics.push((b.interface_id, b.options)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(names.len(), 3);
        assert!(
            names.iter().all(|b| b.options.contains(&InterfaceDescriptionOption::IfTsResol(9)))
        );
        assert!(names[1].options.contains(&InterfaceDescriptionOption::IfName("link-7".into())));
        let at = Duration::from_nanos(86_399_000_000_007);
        assert_eq!(packets, [(1, at, 1), (2, at, 1), (1, at, 1)]);
        use InterfaceStatisticsOption::{IsbIfDrop, IsbIfRecv};
        let expected = [
            (0, vec![IsbIfRecv(3), IsbIfDrop(9)]),
            (1, vec![IsbIfRecv(2)]),
            (2, vec![IsbIfRecv(1)]),
        ];
        assert_eq!(statistics, expected);
    }

    #[test]
    fn a_line_is_as_tcpdump_has_it() {
        let expected =
            "23:59:59.000000007 IP 127.0.0.1.80 > ::1.81: Flags [P.], seq 5:8, ack 6, length 3\n";
        assert_eq!(line(&packet(1)), expected);
    }
}
