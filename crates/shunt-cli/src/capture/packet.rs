//! A packet as bytes: IPv4 or IPv6, and TCP.

use std::net::SocketAddr;

use etherparse::{IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, TcpHeader};

use super::flows::Packet;

/// Length of an IPv6 header and a TCP header.
pub const HEADERS: usize = Ipv6Header::LEN + TcpHeader::MIN_LEN;

const HOPS: u8 = 64;
/// As loopback connections have it.
const WINDOW: u16 = 65_483;

/// Its bytes, and its length before it was cut. Checksums are right where nothing was cut.
pub fn encode(packet: &Packet) -> (Vec<u8>, u32) {
    let Packet { source, destination, sequence, flags, .. } = packet;
    let mut tcp = TcpHeader::new(source.port(), destination.port(), *sequence, WINDOW);
    tcp.acknowledgment_number = packet.acknowledgment;
    (tcp.syn, tcp.ack, tcp.psh) = (flags.syn, flags.ack, flags.psh);
    (tcp.fin, tcp.rst) = (flags.fin, flags.rst);
    let is_whole = packet.bytes.len() == packet.len as usize;
    let segment = TcpHeader::MIN_LEN + packet.len as usize;
    let mut out = Vec::with_capacity(HEADERS + packet.bytes.len());
    let ip_len = match (source, destination) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => {
            let len = u16::try_from(segment).unwrap_or(u16::MAX - 20);
            let ends = (from.ip().octets(), to.ip().octets());
            let mut ip = Ipv4Header { protocol: IpNumber::TCP, ..Ipv4Header::default() };
            (ip.source, ip.destination, ip.time_to_live) = (ends.0, ends.1, HOPS);
            ip.total_len = len.saturating_add(20);
            ip.header_checksum = ip.calc_header_checksum();
            if is_whole {
                tcp.checksum = tcp.calc_checksum_ipv4(&ip, &packet.bytes).unwrap_or(0);
            }
            out.extend_from_slice(&ip.to_bytes());
            Ipv4Header::MIN_LEN
        }
        _ => {
            let address = |end: &SocketAddr| match end.ip() {
                std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                std::net::IpAddr::V6(ip) => ip.octets(),
            };
            let ip = Ipv6Header {
                traffic_class: 0,
                flow_label: Ipv6FlowLabel::default(),
                payload_length: u16::try_from(segment).unwrap_or(u16::MAX),
                next_header: IpNumber::TCP,
                hop_limit: HOPS,
                source: address(source),
                destination: address(destination),
            };
            if is_whole {
                tcp.checksum = tcp.calc_checksum_ipv6(&ip, &packet.bytes).unwrap_or(0);
            }
            out.extend_from_slice(&ip.to_bytes());
            Ipv6Header::LEN
        }
    };
    out.extend_from_slice(&tcp.to_bytes());
    out.extend_from_slice(&packet.bytes);
    (out, u32::try_from(ip_len + segment).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::flows::Flags;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    fn packet(from: &str, to: &str, len: usize) -> Packet {
        Packet {
            at: 1,
            link: 1,
            source: from.parse().unwrap(),
            destination: to.parse().unwrap(),
            sequence: 0xffff_fffe,
            acknowledgment: 7,
            flags: Flags { psh: true, ack: true, ..Flags::default() },
            len: u32::try_from(len).unwrap(),
            bytes: vec![b'x'; len],
            comment: None,
        }
    }

    #[test]
    fn headers_and_checksums_are_right() {
        for (from, to, header) in
            [("127.0.0.1:80", "127.0.0.2:5000", 20), ("[::1]:80", "[fe80::1]:5000", 40)]
        {
            for len in [0, 1, 32 * 1024] {
                let (bytes, whole) = encode(&packet(from, to, len));
                assert_eq!((bytes.len(), whole as usize), (header + 20 + len, header + 20 + len));
                let found = SlicedPacket::from_ip(&bytes).unwrap();
                let Some(TransportSlice::Tcp(tcp)) = found.transport else { panic!("no TCP") };
                let is_right = match found.net.unwrap() {
                    NetSlice::Ipv4(ip) => {
                        let ip = ip.header().to_header();
                        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                        tcp.to_header().calc_checksum_ipv4(&ip, tcp.payload()).unwrap()
                    }
                    NetSlice::Ipv6(ip) => {
                        let ip = ip.header().to_header();
                        tcp.to_header().calc_checksum_ipv6(&ip, tcp.payload()).unwrap()
                    }
                    NetSlice::Arp(_) => panic!("no IP"),
                };
                assert_eq!(tcp.checksum(), is_right, "{from} {len}");
                assert_eq!((tcp.sequence_number(), tcp.payload().len()), (0xffff_fffe, len));
                assert!(tcp.psh() && tcp.ack() && !tcp.syn() && !tcp.fin() && !tcp.rst());
            }
        }
    }

    #[test]
    fn what_was_cut_says_how_long_it_was() {
        let cut = Packet { bytes: b"abc".to_vec(), ..packet("127.0.0.1:80", "127.0.0.1:81", 1000) };
        let (bytes, whole) = encode(&cut);
        assert_eq!((bytes.len(), whole), (43, 1040));
        assert_eq!(u16::from_be_bytes([bytes[2], bytes[3]]), 1040);
    }
}
