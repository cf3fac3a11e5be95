//! What the values of the file mean, and whether they can be.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::Duration;

use shunt_nvme::auth::Secret;
use shunt_nvme::subsystem::ANA_GROUPS;
use shunt_nvme::wire::Nqn;
use shunt_nvme::wire::nqn::{DISCOVERY, MAX_LEN};
use toml::Spanned;

use super::identity::{self, default_identity, default_serial};
use super::mistake::{Mistake, Source};
use super::raw;
use super::size::Size;
use super::values::{
    ANA_STATES, Ana, Backing, Config, FILE_THREADS, Host, Hosts, Key, Limits, MODEL, Namespace,
    Referral, Subsystem,
};
use crate::store::BlockSize;

/// Namespaces of a subsystem.
const MAX_NSID: u32 = 1024;
/// Threads of one kind.
const MAX_THREADS: usize = 1024;

type Checked<T> = Result<T, Mistake>;

pub(super) fn check(file: raw::File, source: &Source<'_>) -> Checked<Config> {
    let at = file.listen.span();
    let listen: Vec<_> = file.listen.into_inner();
    if listen.is_empty() {
        let what = "no address to listen at: name one, such as \"127.0.0.1:4420\"";
        return Err(source.mistake(&at, what));
    }
    let mut seen = Seen::new(source);
    for address in &listen {
        seen.once(address.get_ref().to_string(), &address.span(), "address")?;
    }
    let listen: Vec<_> = listen.into_iter().map(Spanned::into_inner).collect();
    let threads = file.threads.map(|n| threads(&n, source)).transpose()?;
    let limits = limits(&file.limits, source)?;
    let mut referrals = Vec::new();
    for referral in file.referral {
        let name = referral.nqn.map(|name| nqn(&name, source)).transpose()?;
        referrals.push(Referral { address: referral.address.into_inner(), nqn: name });
    }
    let mut seen = Seen::new(source);
    let mut subsystems = Vec::new();
    for found in file.subsystem {
        let name = &found.get_ref().nqn;
        seen.once(name.get_ref().clone(), &name.span(), "subsystem")?;
        subsystems.push(subsystem(found.into_inner(), &listen, source)?);
    }
    Ok(Config { listen, threads, limits, referrals, subsystems })
}

/// Names that may be used once.
struct Seen<'a> {
    source: &'a Source<'a>,
    lines: HashMap<String, Option<usize>>,
}

impl<'a> Seen<'a> {
    fn new(source: &'a Source<'a>) -> Self {
        Self { source, lines: HashMap::new() }
    }

    fn once(&mut self, name: String, at: &Range<usize>, what: &str) -> Checked<()> {
        let here = self.source.mistake(at, "").line();
        match self.lines.get(&name) {
            None => {
                self.lines.insert(name, here);
                Ok(())
            }
            Some(line) => {
                let line = line.unwrap_or_default();
                let what = format!("{what} {name} is in line {line} already: remove one of them");
                Err(self.source.mistake(at, what))
            }
        }
    }
}

fn threads(n: &Spanned<usize>, source: &Source<'_>) -> Checked<NonZeroUsize> {
    let possible = NonZeroUsize::new(*n.get_ref()).filter(|n| n.get() <= MAX_THREADS);
    let what = || format!("the number of threads must be from 1 to {MAX_THREADS}");
    possible.ok_or_else(|| source.mistake(&n.span(), what()))
}

/// A value within bounds, or the default.
fn bounded<T: Copy + PartialOrd + std::fmt::Display>(
    given: Option<&Spanned<T>>,
    usual: T,
    (least, most): (T, T),
    source: &Source<'_>,
) -> Checked<T> {
    let Some(given) = given else { return Ok(usual) };
    let value = *given.get_ref();
    if value < least || value > most {
        let what = format!("{value} cannot be: it must be from {least} to {most}");
        return Err(source.mistake(&given.span(), what));
    }
    Ok(value)
}

fn limits(raw: &raw::Limits, source: &Source<'_>) -> Checked<Limits> {
    let usual = Limits::default();
    let bytes = |given: &Option<Spanned<Size>>| {
        given.as_ref().map(|size| Spanned::new(size.span(), size.get_ref().0))
    };
    let (transfer, in_flight) = (bytes(&raw.transfer), bytes(&raw.in_flight));
    let in_capsule = bytes(&raw.in_capsule);
    let timeout = usual.connect_timeout.as_secs();
    let found = Limits {
        connections: bounded(raw.connections.as_ref(), usual.connections, (1, 1 << 20), source)?,
        unconnected: bounded(raw.unconnected.as_ref(), usual.unconnected, (1, 1 << 20), source)?,
        connect_timeout: Duration::from_secs(bounded(
            raw.connect_timeout.as_ref(),
            timeout,
            (1, 3600),
            source,
        )?),
        queues: bounded(raw.queues.as_ref(), usual.queues, (1, 1024), source)?,
        queue_depth: bounded(raw.queue_depth.as_ref(), usual.queue_depth, (2, 1024), source)?,
        transfer: u32::try_from(bounded(
            transfer.as_ref(),
            u64::from(usual.transfer),
            (4096, 16 << 20),
            source,
        )?)
        .unwrap_or(usual.transfer),
        in_capsule: u32::try_from(bounded(
            in_capsule.as_ref(),
            u64::from(usual.in_capsule),
            (0, 16 << 20),
            source,
        )?)
        .unwrap_or(usual.in_capsule),
        in_flight: bounded(in_flight.as_ref(), usual.in_flight, (1 << 20, 1 << 40), source)?,
    };
    if let Some(transfer) = transfer.filter(|_| !found.transfer.is_power_of_two()) {
        let what = "the longest transfer must be a power of two, such as \"1MiB\"";
        return Err(source.mistake(&transfer.span(), what));
    }
    let is_possible = found.in_capsule.is_multiple_of(16) && found.in_capsule <= found.transfer;
    if let Some(in_capsule) = in_capsule.filter(|_| !is_possible) {
        let what =
            "data in a capsule must be a multiple of 16, and no longer than the longest transfer";
        return Err(source.mistake(&in_capsule.span(), what));
    }
    // Where no more than that can be transferred, no more is in a capsule.
    Ok(Limits { in_capsule: found.in_capsule.min(found.transfer), ..found })
}

fn nqn(name: &Spanned<String>, source: &Source<'_>) -> Checked<Nqn> {
    let text = name.get_ref();
    if let Ok(name) = Nqn::new(text) {
        return Ok(name);
    }
    let what = format!(
        "{text:?} is no NVMe qualified name: it must look like nqn.2024-01.org.example:disk, with {MAX_LEN} \
         bytes at most"
    );
    Err(source.mistake(&name.span(), what))
}

fn ascii(text: &Spanned<String>, most: usize, what: &str, source: &Source<'_>) -> Checked<String> {
    let value = text.get_ref();
    let is_good = (1..=most).contains(&value.len())
        && value.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
    if is_good {
        return Ok(value.clone());
    }
    let what = format!("the {what} must have 1 to {most} characters of ASCII");
    Err(source.mistake(&text.span(), what))
}

fn subsystem(
    raw: raw::Subsystem,
    listen: &[SocketAddr],
    source: &Source<'_>,
) -> Checked<Subsystem> {
    let name = nqn(&raw.nqn, source)?;
    if name.as_str() == DISCOVERY {
        let what = "that is the discovery service's name, which is served anyway: choose another";
        return Err(source.mistake(&raw.nqn.span(), what));
    }
    let serial = raw.serial.map(|text| ascii(&text, 20, "serial number", source)).transpose()?;
    let model = raw.model.map(|text| ascii(&text, 40, "model", source)).transpose()?;
    let hosts = match raw.hosts {
        raw::Hosts::Any => Hosts::Any,
        raw::Hosts::Listed(list) => {
            let mut seen = Seen::new(source);
            let mut hosts = Vec::new();
            for found in list {
                seen.once(found.nqn.get_ref().clone(), &found.nqn.span(), "host")?;
                hosts.push(host(&found, source)?);
            }
            Hosts::Listed(hosts)
        }
    };
    let ana = ana_states(raw.ana, listen, source)?;
    let mut seen = Seen::new(source);
    let mut namespaces: Vec<Namespace> = Vec::new();
    for found in raw.namespace {
        let next = namespaces.iter().map(|namespace| namespace.nsid).max().unwrap_or(0) + 1;
        let at = found.get_ref().nsid.as_ref().map_or_else(|| found.span(), Spanned::span);
        let found = namespace(found.into_inner(), &at, (name.as_str(), next), source)?;
        seen.once(found.nsid.to_string(), &at, "namespace")?;
        namespaces.push(found);
    }
    namespaces.sort_by_key(|namespace| namespace.nsid);
    let serial = serial.unwrap_or_else(|| default_serial(name.as_str()));
    let model = model.unwrap_or_else(|| MODEL.to_owned());
    Ok(Subsystem { nqn: name, serial, model, hosts, ana, namespaces })
}

/// True if hosts can come in at an address.
fn is_reached(address: SocketAddr, listen: &[SocketAddr]) -> bool {
    listen.iter().any(|l| {
        (l.ip() == address.ip() || l.ip().is_unspecified())
            && (l.port() == address.port() || l.port() == 0)
    })
}

fn ana_states(raw: Vec<raw::Ana>, listen: &[SocketAddr], source: &Source<'_>) -> Checked<Vec<Ana>> {
    let mut seen = Seen::new(source);
    let mut states = Vec::new();
    for found in raw {
        let group = bounded(Some(&found.group), 1, (1, ANA_GROUPS), source)?;
        let named = ANA_STATES.iter().find(|(name, _)| name == found.state.get_ref());
        let Some((_, state)) = named.copied() else {
            let what = format!(
                "there is no ANA state {:?}: say one of {}",
                found.state.get_ref(),
                ANA_STATES.map(|(name, _)| name).join(", ")
            );
            return Err(source.mistake(&found.state.span(), what));
        };
        if let Some(at) = found.at.as_ref().filter(|at| !is_reached(*at.get_ref(), listen)) {
            let what =
                format!("hosts cannot come in at {}: name an address of `listen`", at.get_ref());
            return Err(source.mistake(&at.span(), what));
        }
        let at = found.at.map(Spanned::into_inner);
        let place = at.map_or_else(|| "everywhere".to_owned(), |at| format!("at {at}"));
        seen.once(format!("{group} {place}"), &found.group.span(), "the state of ANA group")?;
        states.push(Ana { group, at, state });
    }
    Ok(states)
}

fn host(raw: &raw::Host, source: &Source<'_>) -> Checked<Host> {
    let key = raw.key.as_ref().map(|text| secret(text, source)).transpose()?;
    let controller_key =
        raw.controller_key.as_ref().map(|text| secret(text, source)).transpose()?;
    if let (None, Some(given)) = (&key, &raw.controller_key) {
        let what =
            "a controller authenticates only to hosts that do so themselves: give a `key`, too";
        return Err(source.mistake(&given.span(), what));
    }
    Ok(Host { nqn: nqn(&raw.nqn, source)?, key, controller_key, grant: raw.grant })
}

fn secret(text: &Spanned<String>, source: &Source<'_>) -> Checked<Key> {
    // The text is a secret: it is not repeated.
    Secret::new(text.get_ref()).map(Key).map_err(|e| {
        let what = format!(
            "this is no DH-HMAC-CHAP secret: {e}; take one as `nvme gen-dhchap-key` makes it"
        );
        source.mistake(&text.span(), what)
    })
}

fn namespace(
    raw: raw::Namespace,
    at: &Range<usize>,
    (nqn, next): (&str, u32),
    source: &Source<'_>,
) -> Checked<Namespace> {
    let nsid = raw.nsid.map_or(next, Spanned::into_inner);
    if nsid == 0 || nsid > MAX_NSID {
        let what = format!("the number of a namespace must be from 1 to {MAX_NSID}, not {nsid}");
        return Err(source.mistake(at, what));
    }
    let block = match raw.block_size {
        None => BlockSize::default(),
        Some(size) => BlockSize::of(*size.get_ref()).ok_or_else(|| {
            let what = format!("blocks of {} bytes cannot be: say 512 or 4096", size.get_ref());
            source.mistake(&size.span(), what)
        })?,
    };
    let is_file = match raw.store.get_ref().as_str() {
        "file" => true,
        "memory" | "null" => false,
        other => {
            let what = format!("there is no store {other:?}: say \"null\", \"memory\" or \"file\"");
            return Err(source.mistake(&raw.store.span(), what));
        }
    };
    let of_files = [
        ("path", raw.path.as_ref().map(Spanned::span)),
        ("create", raw.create.as_ref().map(Spanned::span)),
        ("direct", raw.direct.as_ref().map(Spanned::span)),
        ("threads", raw.threads.as_ref().map(Spanned::span)),
        ("read-only", raw.read_only.as_ref().map(Spanned::span)),
    ];
    if let (false, Some((name, Some(at)))) = (is_file, of_files.iter().find(|(_, at)| at.is_some()))
    {
        let what = format!("`{name}` is for stores of files: say `store = \"file\"`, or remove it");
        return Err(source.mistake(at, what));
    }
    let store = match raw.store.get_ref().as_str() {
        "memory" => Backing::Memory,
        "null" => Backing::Null,
        _ => {
            let path = raw.path.ok_or_else(|| {
                let what = "a store in a file needs its `path` (also that of a block device)";
                source.mistake(&raw.store.span(), what)
            })?;
            let of_pool = raw.threads.map(|n| threads(&n, source)).transpose()?;
            Backing::File {
                path: path.into_inner(),
                create: raw.create.is_some_and(Spanned::into_inner),
                direct: raw.direct.is_some_and(Spanned::into_inner),
                threads: of_pool.unwrap_or(FILE_THREADS),
            }
        }
    };
    let size = raw.size.map(|size| fitting(&size, block, source)).transpose()?;
    if size.is_none() && !is_file {
        let what = format!("a store of kind {:?} needs a `size`", raw.store.get_ref());
        return Err(source.mistake(&raw.store.span(), what));
    }
    let mut identity = default_identity(nqn, nsid);
    let named = |text: &Spanned<String>, what: &str| {
        identity::parse(text.get_ref()).ok_or_else(|| {
            let what =
                format!("{:?} is no {what}: it must have 32 hexadecimal digits", text.get_ref());
            source.mistake(&text.span(), what)
        })
    };
    if let Some(text) = &raw.uuid {
        identity.uuid = named(text, "UUID")?;
    }
    identity.nguid = raw.nguid.as_ref().map(|text| named(text, "NGUID")).transpose()?;
    let read_only = raw.read_only.is_some_and(Spanned::into_inner);
    let ana_group = bounded(raw.ana_group.as_ref(), 1, (1, ANA_GROUPS), source)?;
    Ok(Namespace { nsid, store, size, block, identity, ana_group, read_only })
}

fn fitting(size: &Spanned<Size>, block: BlockSize, source: &Source<'_>) -> Checked<u64> {
    let Size(bytes) = *size.get_ref();
    let block = u64::from(block.bytes());
    if bytes > 0 && bytes.is_multiple_of(block) && i64::try_from(bytes).is_ok() {
        return Ok(bytes);
    }
    let below = bytes / block * block;
    let what = format!(
        "{bytes} bytes cannot be the size: it must be a multiple of the block size {block}, and not 0, such as {}",
        below.max(block)
    );
    Err(source.mistake(&size.span(), what))
}
