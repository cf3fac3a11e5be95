//! How to reach a subsystem, and as whom.

use std::net::SocketAddr;
use std::time::Duration;

use shunt_nvme::auth::Secret;
use shunt_nvme::wire::{Nqn, NqnError, nqn};

/// Where nvme-cli keeps the host's name and identifier.
const NAME_FILE: &str = "/etc/nvme/hostnqn";
const ID_FILE: &str = "/etc/nvme/hostid";

/// Who the host is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its name.
    pub nqn: Nqn,
    /// HOSTID.
    pub id: [u8; 16],
    /// Its key for DH-HMAC-CHAP.
    pub key: Option<Secret>,
    /// The controller's key: it has to prove who it is, too.
    pub controller_key: Option<Secret>,
}

impl Identity {
    /// That of this machine, as nvme-cli keeps it in `/etc/nvme`; a random one where it has none.
    #[must_use]
    pub fn of_machine() -> Self {
        let read = |file| std::fs::read_to_string(file).ok();
        let name = read(NAME_FILE).and_then(|text| Nqn::new(text.trim()).ok());
        let id = read(ID_FILE).and_then(|text| uuid(text.trim()));
        let id = id.or_else(|| name.as_ref().and_then(in_name)).unwrap_or_else(random);
        let nqn = name.or_else(|| named(id).ok());
        let nqn = nqn.unwrap_or_else(Nqn::discovery);
        Self { nqn, id, key: None, controller_key: None }
    }

    /// One of this name. Its identifier is made of the name: the UUID in it, if there is one.
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn named(name: &str) -> Result<Self, NqnError> {
        let nqn = Nqn::new(name)?;
        let id = in_name(&nqn).unwrap_or_else(|| spread(name));
        Ok(Self { nqn, id, key: None, controller_key: None })
    }
}

fn named(id: [u8; 16]) -> Result<Nqn, NqnError> {
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (a, b, c) = (&hex[..8], &hex[8..12], &hex[12..16]);
    let (d, e) = (&hex[16..20], &hex[20..]);
    Nqn::new(&format!("nqn.2014-08.org.nvmexpress:uuid:{a}-{b}-{c}-{d}-{e}"))
}

/// The UUID in a name.
fn in_name(name: &Nqn) -> Option<[u8; 16]> {
    uuid(name.as_str().rsplit_once("uuid:")?.1)
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let mut id = [0; 16];
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != id.len() || !rest.is_empty() {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(pairs) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(id)
}

/// An identifier made of a name (FNV-1a), as a version 8 UUID.
fn spread(name: &str) -> [u8; 16] {
    let hash = name.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    marked(hash.to_be_bytes(), 0x80)
}

fn random() -> [u8; 16] {
    let mut id = [0; 16];
    // Without entropy all hosts of this machine would be one: so they are, then.
    let _short = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
    marked(id, 0x40)
}

/// With version and variant of a UUID (RFC 9562 section 4).
fn marked(mut id: [u8; 16], version: u8) -> [u8; 16] {
    id[6] = id[6] & 0x0f | version;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// How to reach a subsystem.
#[derive(Clone, Debug)]
pub struct Options {
    /// Addresses of one subsystem: a path each.
    pub addresses: Vec<SocketAddr>,
    /// Its name.
    pub subsystem: Nqn,
    /// Who the host is.
    pub identity: Identity,
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// The controller may read data in place where both ends run under Shunt: it can then read all
    /// of the [`crate::Buffers`], or of the guest's memory, that the data is in.
    pub grant: bool,
    /// Commands at once on a queue; the controller may allow fewer.
    pub depth: u16,
    /// KATO: the controller gives a host up of which it has not heard for so long; and the host a
    /// controller that does not answer for so long. Zero: neither.
    pub keep_alive: Duration,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// How long a command may take before it is aborted; after the same time once more its
    /// connection is given up.
    pub command_timeout: Duration,
    /// How long to wait before connecting again, the first time; then twice as long, up to 16 times.
    pub reconnect_delay: Duration,
    /// How long commands wait for a path before they fail. `None`: for ever.
    pub give_up: Option<Duration>,
}

impl Options {
    /// The defaults, as this machine's host.
    #[must_use]
    pub fn new(addresses: Vec<SocketAddr>, subsystem: Nqn) -> Self {
        Self {
            addresses,
            subsystem,
            identity: Identity::of_machine(),
            header_digest: false,
            data_digest: false,
            grant: true,
            depth: 128,
            keep_alive: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            command_timeout: Duration::from_secs(30),
            reconnect_delay: Duration::from_millis(100),
            give_up: Some(Duration::from_secs(600)),
        }
    }

    /// For the discovery service at an address.
    #[must_use]
    pub fn discovery(address: SocketAddr) -> Self {
        Self::new(vec![address], Nqn::discovery())
    }

    /// True for a discovery service.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.subsystem.as_str() == nqn::DISCOVERY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities() {
        let name = "nqn.2014-08.org.nvmexpress:uuid:2f6c9c1e-5d5a-4d29-9b1c-6a3f8a1a2b3c";
        let one = Identity::named(name).unwrap();
        assert_eq!(one.id[..4], [0x2f, 0x6c, 0x9c, 0x1e]);
        assert_eq!(named(one.id).unwrap().as_str(), name);
        let (a, b) = (spread("nqn.2024-01.org.example:a"), spread("nqn.2024-01.org.example:b"));
        assert_ne!(a, b);
        assert_eq!((a[6] >> 4, a[8] >> 6), (8, 2));
        assert_ne!(random(), random());
        assert_eq!(uuid("2f6c9c1e-5d5a-4d29-9b1c-6a3f8a1a2b"), None);
        assert_eq!(uuid("zf6c9c1e-5d5a-4d29-9b1c-6a3f8a1a2b3c"), None);
        assert!(Identity::named("host").is_err());
    }
}
