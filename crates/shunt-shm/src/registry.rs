//! The registry: which addresses have a listener that runs under Shunt.
//!
//! The agent writes it, the libraries of one party map it read-only, so that connect(2) to anything else costs
//! one look and no message. An open-addressing table by port; each entry has a sequence word that is
//! odd while the agent changes it. Of listeners of other parties it says nothing, but to which networks
//! connections are offered ([`Scope`]).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use shunt_wire::addr::Addr;
use shunt_wire::agent::ListenerId;

use crate::memfd::{self, Map};
use crate::reach;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

pub mod life;

const ENTRIES: usize = 2048;
const PROBES: usize = 64;
const MAGIC: u64 = 0x5348_554e_545f_5247; // "SHUNT_RG"

/// Networks that a registry can name.
pub const NETWORKS: usize = 64;

#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    /// [`Scope`].
    scope: AtomicU32,
    /// Counts the memories of other machines that the agent has joined.
    memory: AtomicU32,
    networks: [NetworkWords; NETWORKS],
    /// [`Registry::wake_ups`].
    wake_ups: [AtomicU32; 2],
    /// [`Registry::agent`].
    agent: AtomicU32,
}

/// A [`Network`]; the length is one more than it is, 0: the place is empty.
#[repr(C)]
struct NetworkWords {
    ip: [AtomicU64; 2],
    len: AtomicU32,
}

/// For whom the agent is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Scope {
    /// One user.
    User = 0,
    /// The host; connections between parties are marked, so they are offered and claimed.
    Marked = 1,
    /// The host; but connections cannot be marked.
    Unmarked = 2,
}

/// A network: an address, and how many bits of it count. IPv4 networks are kept in their mapped form, so theirs are 96 more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// An address in it.
    pub ip: [u8; 16],
    /// Up to 128.
    pub len: u8,
}

impl Network {
    /// True for an address in it.
    #[must_use]
    pub fn holds(&self, ip: &[u8; 16]) -> bool {
        reach::holds(&self.ip, self.len, ip)
    }
}

#[repr(C, align(64))]
struct Entry {
    seq: AtomicU32,
    /// Port and more ([`reach`]).
    port: AtomicU32,
    ip: [AtomicU64; 2],
    listener: AtomicU64,
    netns: AtomicU64,
}

const LEN: usize = size_of::<Header>() + ENTRIES * size_of::<Entry>();

/// One listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listing {
    /// Its name; not 0.
    pub listener: ListenerId,
    /// Its address, possibly unspecified.
    pub addr: Addr,
    /// `IPV6_V6ONLY` is set.
    pub v6only: bool,
    /// Bits of the address that count. Fewer than [`reach::WHOLE`]: it stands for the servers of a network; with port 0 for those at every port.
    pub bits: u8,
    /// `SO_NETNS_COOKIE` of the socket, 0 where the kernel has none.
    pub netns: u64,
}

impl Listing {
    /// True where it stands for several servers.
    #[must_use]
    pub const fn is_wide(&self) -> bool {
        reach::is_wide(&self.addr, self.bits)
    }

    /// How well it names `to`; 0: not at all. A specific address beats a network, a network with more bits one with fewer, and each of them
    /// an unspecified address, as in the kernel.
    fn rank(&self, to: &Addr) -> u32 {
        if self.is_wide() {
            let is_there = reach::is_there_for(&self.addr, self.bits, to);
            return if is_there { 2 + u32::from(self.bits) } else { 0 };
        }
        let any = self.addr.is_unspecified()
            && if self.addr.is_v4() { to.is_v4() } else { !(to.is_v4() && self.v6only) };
        match self.addr.port == to.port {
            true if self.addr.ip == to.ip => u32::MAX,
            true if any => 1,
            _ => 0,
        }
    }
}

fn halves(ip: [u8; 16]) -> [u64; 2] {
    let n = u128::from_ne_bytes(ip);
    #[allow(clippy::cast_possible_truncation, reason = "two halves")]
    [n as u64, (n >> 64) as u64]
}

fn whole(h: [u64; 2]) -> [u8; 16] {
    (u128::from(h[0]) | u128::from(h[1]) << 64).to_ne_bytes()
}

fn home(port: u16) -> usize {
    usize::from(port).wrapping_mul(0x9e37) % ENTRIES
}

/// The agent's side.
#[derive(Debug)]
pub struct RegistryWriter {
    registry: Arc<Registry>,
    keeper: Option<life::Keeper>,
}

/// A mapped registry.
#[derive(Debug)]
pub struct Registry {
    map: Map,
}

impl Registry {
    /// Makes a registry; returns the writer and the read-only descriptor for the libraries.
    ///
    /// # Errors
    /// Those of [`memfd::create_published`].
    pub fn create() -> io::Result<(RegistryWriter, OwnedFd)> {
        let (map, fd) = memfd::create_published("shunt-registry", LEN)?;
        let registry = Arc::new(Self { map });
        registry.header().magic.store(MAGIC, Ordering::Release);
        Ok((RegistryWriter { registry, keeper: None }, fd))
    }

    /// Maps a registry to read it.
    ///
    /// # Errors
    /// `EINVAL` when it is not a registry, else those of [`Map::new`].
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        let registry = Self { map: Map::new(fd, LEN, false)? };
        if registry.header().magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(registry)
    }

    /// One in which nobody is listed.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn empty() -> io::Result<Self> {
        Ok(Self { map: Map::empty(LEN)? })
    }

    fn header(&self) -> &Header {
        // SAFETY: the map is LEN bytes long, of which the first are the header; atomics only.
        unsafe { self.map.base().cast().as_ref() }
    }

    fn entry(&self, index: usize) -> &Entry {
        let at = size_of::<Header>() + (index % ENTRIES) * size_of::<Entry>();
        // SAFETY: the index is taken modulo ENTRIES, so it lies in the map; atomics only.
        unsafe { self.map.base().byte_add(at).cast().as_ref() }
    }

    fn read(e: &Entry) -> Option<Listing> {
        // A seqlock (the agent is the one writer). A reader that keeps losing gives up: the
        // connection then stays on TCP, which is always right.
        for _ in 0..64 {
            let seq = e.seq.load(Ordering::Acquire);
            if seq & 1 == 1 {
                core::hint::spin_loop();
                continue;
            }
            let port = e.port.load(Ordering::Relaxed);
            let ip = [e.ip[0].load(Ordering::Relaxed), e.ip[1].load(Ordering::Relaxed)];
            let (port, v6only, bits) = reach::of_word(port);
            let listing = Listing {
                listener: e.listener.load(Ordering::Relaxed),
                addr: Addr { ip: whole(ip), port },
                v6only,
                bits,
                netns: e.netns.load(Ordering::Relaxed),
            };
            fence(Ordering::Acquire);
            if e.seq.load(Ordering::Relaxed) == seq {
                return (listing.listener != 0).then_some(listing);
            }
        }
        None
    }

    /// For whom the agent is there.
    #[must_use]
    pub fn scope(&self) -> Scope {
        match self.header().scope.load(Ordering::Relaxed) {
            1 => Scope::Marked,
            2 => Scope::Unmarked,
            _ => Scope::User,
        }
    }

    /// Which of the memories that it has joined the agent shares with other machines just now: of another one, listeners'
    /// tables are others.
    #[must_use]
    pub fn memory(&self) -> u32 {
        self.header().memory.load(Ordering::Acquire)
    }

    /// What a wake-up takes on this machine, in nanoseconds, as the agent has measured it when it started: that of a futex,
    /// and that of an eventfd. 0: it is not known.
    #[must_use]
    pub fn wake_ups(&self) -> [u32; 2] {
        self.header().wake_ups.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// A word on which threads can sleep, and which changes when the agent ends, however it does: see [`life`].
    #[must_use]
    pub fn agent(&self) -> &AtomicU32 {
        &self.header().agent
    }

    /// True for an address to which connections may lead to another party of this host.
    #[must_use]
    pub fn may_lead_elsewhere(&self, to: &Addr) -> bool {
        self.header().networks.iter().any(|words| {
            let len = words.len.load(Ordering::Relaxed).checked_sub(1);
            len.and_then(|len| u8::try_from(len).ok()).is_some_and(|len| {
                let ip = whole([&words.ip[0], &words.ip[1]].map(|w| w.load(Ordering::Relaxed)));
                Network { ip, len }.holds(&to.ip)
            })
        })
    }

    /// The listener that a connection to `to` reaches, in any of the namespaces; `pick` says whether
    /// a candidate will do. A specific address beats a network, and that an unspecified one.
    pub fn find(&self, to: &Addr, mut pick: impl FnMut(&Listing) -> bool) -> Option<Listing> {
        let mut best = (0, None);
        // Networks whose every port is meant have port 0.
        for start in [home(to.port), home(0)] {
            for i in 0..PROBES {
                let e = self.entry(start + i);
                if e.seq.load(Ordering::Acquire) == 0 {
                    break;
                }
                let Some(l) = Self::read(e) else { continue };
                let rank = l.rank(to);
                if rank > best.0 && pick(&l) {
                    best = (rank, Some(l));
                }
            }
        }
        best.1
    }
}

impl life::Owned for Registry {
    fn word(&self) -> &AtomicU32 {
        self.agent()
    }
}

impl RegistryWriter {
    fn write(e: &Entry, l: Option<&Listing>) {
        let seq = e.seq.load(Ordering::Relaxed);
        e.seq.store(seq.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        match l {
            Some(l) => {
                let port = reach::word(l.addr.port, l.v6only, l.bits);
                e.port.store(port, Ordering::Relaxed);
                for (word, half) in e.ip.iter().zip(halves(l.addr.ip)) {
                    word.store(half, Ordering::Relaxed);
                }
                e.netns.store(l.netns, Ordering::Relaxed);
                e.listener.store(l.listener, Ordering::Relaxed);
            }
            None => e.listener.store(0, Ordering::Relaxed),
        }
        // 0 means "never used" and ends a probe, so it is skipped when the counter wraps.
        let next = seq.wrapping_add(2);
        e.seq.store(if next == 0 { 2 } else { next }, Ordering::Release);
    }

    /// Says for whom the agent is there, and to which networks connections are offered: as many as there is room for.
    pub fn set_scope(&mut self, scope: Scope, networks: &[Network]) {
        let header = self.registry.header();
        header.scope.store(scope as u32, Ordering::Relaxed);
        for (i, words) in header.networks.iter().enumerate() {
            words.len.store(0, Ordering::Relaxed);
            let Some(network) = networks.get(i) else { continue };
            for (word, half) in words.ip.iter().zip(halves(network.ip)) {
                word.store(half, Ordering::Relaxed);
            }
            words.len.store(u32::from(network.len) + 1, Ordering::Release);
        }
    }

    /// Has readers hear of the end of this process ([`Registry::agent`]). It takes a thread, which sleeps.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn tell_of_our_end(&mut self) -> io::Result<()> {
        self.keeper = Some(life::Keeper::new(Arc::clone(&self.registry))?);
        Ok(())
    }

    /// Says what a wake-up takes ([`Registry::wake_ups`]).
    pub fn set_wake_ups(&mut self, nanos: [u32; 2]) {
        for (word, nanos) in self.registry.header().wake_ups.iter().zip(nanos) {
            word.store(nanos, Ordering::Relaxed);
        }
    }

    /// Says which memory is shared with other machines.
    pub fn set_memory(&mut self, number: u32) {
        self.registry.header().memory.store(number, Ordering::Release);
    }

    /// Publishes a listener; `false` when there is no room near its port's place.
    pub fn publish(&mut self, l: &Listing) -> bool {
        let start = home(l.addr.port);
        for i in 0..PROBES {
            let e = self.registry.entry(start + i);
            if e.listener.load(Ordering::Relaxed) == 0 {
                Self::write(e, Some(l));
                return true;
            }
        }
        false
    }

    /// Takes a listener out.
    pub fn remove(&mut self, listener: ListenerId) {
        for index in 0..ENTRIES {
            let e = self.registry.entry(index);
            if e.listener.load(Ordering::Relaxed) == listener {
                Self::write(e, None);
            }
        }
    }
}
