//! One controller: its Admin Queue, and what can be asked there. Calls wait for the answer.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shunt_nvme::host::Transfer;
use shunt_nvme::wire::discovery::{self, Record};
use shunt_nvme::wire::fabrics::{DYNAMIC_CONTROLLER, Property};
use shunt_nvme::wire::feature::fid;
use shunt_nvme::wire::identify::{self, cns};
use shunt_nvme::wire::log::{self, AnaDescriptor, GetLogPage, lid};
use shunt_nvme::wire::opcode::admin;
use shunt_nvme::wire::registers::{self, Configuration, ControllerStatus};
use shunt_nvme::wire::{Nqn, Sqe};
use zerocopy::FromBytes;

use crate::call::Caller;
use crate::error::Error;
use crate::link::Link;
use crate::memory::Data;
use crate::options::Options;
use crate::request::Namespace;

/// Commands of an Admin Queue.
const ADMIN_DEPTH: u16 = 32;
/// Data of a log page that is asked for at once.
const CHUNK: u32 = 4096;
/// Bytes of a page, which MDTS counts: those of CAP.MPSMIN 0.
const PAGE: u64 = 4096;
/// How often the discovery log may change while it is read.
const CHANGES: usize = 8;
/// Most entries of a discovery log that are read.
const MAX_RECORDS: u64 = 4096;
/// All namespaces, for commands that are not one's.
const ALL: u32 = u32::MAX;

/// Tags of commands that nobody waits for.
const KEEP_ALIVE: u64 = 0;
const EVENT: u64 = 1;
const ABORT: u64 = 2;

/// What a controller has said of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// CNTLID.
    pub cntlid: u16,
    /// Serial number.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// Most bytes of a command's data.
    pub max_transfer: u32,
    /// Most bytes of data in a capsule of an I/O queue.
    pub in_capsule: u32,
    /// Commands at once of an I/O queue, at most.
    pub max_depth: u16,
    /// It reports ANA states.
    pub has_ana: bool,
    /// A volatile write cache is present: what was written lasts after a flush.
    pub has_write_cache: bool,
    /// Compare.
    pub can_compare: bool,
    /// Dataset Management.
    pub can_discard: bool,
    /// Write Zeroes.
    pub can_write_zeroes: bool,
    /// Groups of its ANA log.
    ana_groups: u32,
    /// OAES.
    events: u32,
}

/// What a controller reports without being asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Namespaces have come, gone or changed.
    Namespaces,
    /// ANA states have changed.
    Ana,
    /// The discovery log has changed.
    Discovery,
    /// Something else: type, information and log page.
    Other(u32),
}

/// See the module's description. [`Controller::turn`] has to be called now and then: it answers
/// for the host's life.
#[derive(Debug)]
pub struct Controller {
    options: Arc<Options>,
    caller: Caller,
    attributes: Attributes,
    /// When the last Keep Alive was sent, and whether it was answered.
    kept: Instant,
    is_kept: bool,
    listens: bool,
}

impl Controller {
    /// Connects to one of the addresses, and enables a controller there.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn connect(options: &Arc<Options>, address: SocketAddr) -> Result<Self, Error> {
        let admin = (0, DYNAMIC_CONTROLLER);
        let (mut caller, cntlid) = Caller::connect(options, address, admin, ADMIN_DEPTH)?;
        let cap = caller.send("property", &Property::get(registers::CAP, true), Vec::new())?;
        let enable = u64::from(Configuration::ENABLE.0);
        caller.send("property", &Property::set(registers::CC, false, enable), Vec::new())?;
        // CAP.TO, in 500 ms.
        let patience = Duration::from_millis(500) * u32::from(cap.to_le_bytes()[3]).max(1);
        let until = Instant::now() + patience;
        loop {
            let get = Property::get(registers::CSTS, false);
            let csts = caller.send("property", &get, Vec::new())?;
            let csts = ControllerStatus(u32::try_from(csts & 0xffff_ffff).unwrap_or(0));
            if csts.ready() {
                break;
            }
            if csts.fatal() || until <= Instant::now() {
                return Err(Error::TimedOut(address, "the controller does not become ready"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let data = identify(&mut caller, cns::CONTROLLER, 0)?;
        let mut attributes = Attributes::of(&data, cap)?;
        attributes.cntlid = cntlid;
        let kept = Instant::now();
        let options = Arc::clone(options);
        Ok(Self { options, caller, attributes, kept, is_kept: true, listens: false })
    }

    /// What it has said of itself.
    #[must_use]
    pub const fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Where it is.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.caller.address
    }

    /// Its namespaces.
    ///
    /// # Errors
    /// Why they cannot be had.
    pub fn namespaces(&mut self) -> Result<Vec<Namespace>, Error> {
        let mut found = Vec::new();
        let mut after = 0;
        loop {
            let list = identify(&mut self.caller, cns::ACTIVE_NAMESPACES, after)?;
            let nsids = list.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
            // Ascending, so that this ends.
            let nsids: Vec<_> = nsids.take_while(|nsid| *nsid > 0).collect();
            for nsid in nsids.iter().copied().filter(|nsid| *nsid > after) {
                found.extend(self.namespace(nsid)?);
            }
            match nsids.last() {
                Some(last) if nsids.len() == 1024 && *last > after => after = *last,
                _ => return Ok(found),
            }
        }
    }

    /// One of them; `None` if it is not there.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub fn namespace(&mut self, nsid: u32) -> Result<Option<Namespace>, Error> {
        let data = identify(&mut self.caller, cns::NAMESPACE, nsid)?;
        let data = identify::Namespace::read_from_bytes(&data);
        let data = data.map_err(|_| Error::Senseless("Identify data"))?;
        if data.nsze.get() == 0 {
            return Ok(None);
        }
        // Not every controller of an older version has it.
        let descriptors = match identify(&mut self.caller, cns::NAMESPACE_DESCRIPTORS, nsid) {
            Ok(descriptors) => descriptors,
            Err(Error::Refused(..)) => Vec::new(),
            Err(e) => return Err(e),
        };
        Ok(Namespace::of(nsid, &data, &descriptors))
    }

    /// A log page, so many bytes of it.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub fn log_page(&mut self, page: u8, len: u32) -> Result<Vec<u8>, Error> {
        self.log(GetLogPage::sqe(page, ALL, 0, CHUNK), page, 0, len)
    }

    /// Part of a log page. `like` has the fields that all its commands have.
    fn log(&mut self, like: Sqe, page: u8, from: u64, len: u32) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let specific = like.cdw10.get() & 0x7f00;
        while bytes.len() < len as usize {
            let done = u32::try_from(bytes.len()).unwrap_or(len);
            let chunk = CHUNK.min(len - done).next_multiple_of(4);
            let mut sqe = GetLogPage::sqe(page, ALL, from + u64::from(done), chunk);
            sqe.cdw10 = (sqe.cdw10.get() | specific).into();
            let (_, part) = self.caller.receive("log page", &sqe, chunk)?;
            if part.len() < chunk as usize {
                return Err(Error::Senseless("log page"));
            }
            bytes.extend_from_slice(&part);
        }
        bytes.truncate(len as usize);
        Ok(bytes)
    }

    /// What a discovery controller knows: what this host may connect to.
    ///
    /// # Errors
    /// Why that cannot be had.
    pub fn discover(&mut self) -> Result<Vec<Record>, Error> {
        const HEADER: u32 = 1024;
        for _ in 0..CHANGES {
            let none = GetLogPage::sqe(lid::DISCOVERY, ALL, 0, CHUNK);
            let header = |bytes: &[u8]| {
                let header = discovery::Header::read_from_bytes(bytes);
                header.map_err(|_| Error::Senseless("discovery log"))
            };
            let before = header(&self.log(none, lid::DISCOVERY, 0, HEADER)?)?;
            let count = before.numrec.get();
            if count > MAX_RECORDS {
                return Err(Error::Senseless("discovery log"));
            }
            let len = u32::try_from(count).unwrap_or(0) * HEADER;
            let bytes = self.log(none, lid::DISCOVERY, u64::from(HEADER), len)?;
            let after = header(&self.log(none, lid::DISCOVERY, 0, HEADER)?)?;
            if before.genctr == after.genctr {
                let entries = bytes.chunks_exact(HEADER as usize);
                let entries = entries.filter_map(|e| discovery::Entry::read_from_bytes(e).ok());
                return Ok(entries.filter_map(|entry| Record::of(&entry)).collect());
            }
        }
        Err(Error::Senseless("discovery log, which changes all the time,"))
    }

    /// The states of its ANA groups; none without ANA.
    ///
    /// # Errors
    /// Why they cannot be had.
    pub fn ana(&mut self) -> Result<Vec<AnaDescriptor>, Error> {
        if !self.attributes.has_ana {
            return Ok(Vec::new());
        }
        for _ in 0..CHANGES {
            // RGO: without the namespaces, which Identify tells.
            let mut like = GetLogPage::sqe(lid::ANA, ALL, 0, CHUNK);
            like.cdw10 = (like.cdw10.get() | 1 << 8).into();
            let mut bytes = self.log(like, lid::ANA, 0, CHUNK)?;
            // As long as it says, and no longer: what is behind the end cannot be asked for.
            let groups = u32::from(u16::from_le_bytes([bytes[8], bytes[9]]));
            let len = 16 + groups.min(self.attributes.ana_groups) * 32;
            if len > CHUNK {
                bytes.extend(self.log(like, lid::ANA, u64::from(CHUNK), len - CHUNK)?);
                let header = self.log(like, lid::ANA, 0, 16)?;
                if bytes[..8] != header[..8] {
                    continue;
                }
            }
            let parsed = log::parse_ana(&bytes).ok_or(Error::Senseless("ANA log"))?;
            return Ok(parsed.1);
        }
        Err(Error::Senseless("ANA log, which changes all the time,"))
    }

    /// Asks for so many I/O queues; how many the controller gives.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn want_queues(&mut self, count: u16) -> Result<u16, Error> {
        let wanted = u32::from(count.max(1) - 1);
        let mut sqe = Sqe::new(admin::SET_FEATURES, 0);
        sqe.cdw10 = u32::from(fid::NUMBER_OF_QUEUES).into();
        sqe.cdw11 = (wanted | wanted << 16).into();
        let result = self.caller.send("number of queues", &sqe, Vec::new())?;
        let [s0, s1, c0, c1, ..] = result.to_le_bytes();
        let given = u16::from_le_bytes([s0, s1]).min(u16::from_le_bytes([c0, c1]));
        Ok(given.saturating_add(1))
    }

    /// Has the controller report what changes: [`Controller::turn`] returns it.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn listen(&mut self) -> Result<(), Error> {
        let wanted = identify::EVENT_NAMESPACE_ATTRIBUTE
            | identify::EVENT_ANA_CHANGE
            | identify::EVENT_DISCOVERY_CHANGE;
        let events = self.attributes.events & wanted;
        if events == 0 || self.listens {
            return Ok(());
        }
        let mut sqe = Sqe::new(admin::SET_FEATURES, 0);
        sqe.cdw10 = u32::from(fid::ASYNC_EVENT).into();
        sqe.cdw11 = events.into();
        self.caller.send("asynchronous events", &sqe, Vec::new())?;
        self.listens = true;
        self.request_event()
    }

    fn request_event(&mut self) -> Result<(), Error> {
        self.start(&Sqe::new(admin::ASYNC_EVENT, 0), EVENT)
    }

    fn start(&mut self, sqe: &Sqe, tag: u64) -> Result<(), Error> {
        let submitted = self.caller.link.submit(sqe, Transfer::None, Data::None, tag);
        submitted.map(|_| ()).map_err(|(e, _)| Error::Submit(e))
    }

    /// Asks for the end of a command of an I/O queue. It ends with *Command Abort Requested*, or as
    /// it would have ended, or not at all.
    pub(crate) fn abort(&mut self, qid: u16, cid: u16) -> Result<(), Error> {
        let mut sqe = Sqe::new(admin::ABORT, 0);
        sqe.cdw10 = (u32::from(qid) | u32::from(cid) << 16).into();
        self.start(&sqe, ABORT)
    }

    /// Sends a Keep Alive where it is due, and takes what has come.
    ///
    /// # Errors
    /// The connection is over, or the controller does not answer any more.
    pub fn turn(&mut self) -> Result<Vec<Notice>, Error> {
        let address = self.address();
        let lost = |e| Error::Io(address, e);
        self.caller.turn().map_err(lost)?;
        let mut notices = Vec::new();
        let ended = std::mem::take(&mut self.caller.ended);
        for ended in ended {
            let cqe = ended.completion.cqe;
            match ended.tag {
                KEEP_ALIVE if cqe.status().is_success() => self.is_kept = true,
                KEEP_ALIVE => return Err(Error::Refused("keep alive", cqe.status())),
                EVENT if cqe.status().is_success() => {
                    notices.push(Notice::of(cqe.result.get()));
                    self.request_event()?;
                }
                _ => {}
            }
        }
        // After what has come: a host that was stopped for a while has its answer already.
        let period = self.options.keep_alive;
        if !period.is_zero() {
            let since = self.kept.elapsed();
            if !self.is_kept && since >= period {
                return Err(Error::TimedOut(address, "keep alive"));
            }
            if self.is_kept && since >= period / 2 {
                self.start(&Sqe::new(admin::KEEP_ALIVE, 0), KEEP_ALIVE)?;
                (self.kept, self.is_kept) = (Instant::now(), false);
            }
        }
        if notices.contains(&Notice::Namespaces) {
            // Reading the list has the controller report the next change.
            self.log_page(lid::CHANGED_NAMESPACES, CHUNK)?;
        }
        self.caller.turn().map_err(lost)?;
        Ok(notices)
    }

    /// Its descriptor, and what to wait for there by poll(2).
    #[must_use]
    pub fn fd(&self) -> (BorrowedFd<'_>, i16) {
        (self.caller.link.fd(), self.caller.interest())
    }

    /// When [`Controller::turn`] is due, whatever comes.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        let period = self.options.keep_alive;
        let since = if self.is_kept { period / 2 } else { period };
        (!period.is_zero()).then(|| self.kept + since)
    }

    /// Makes an I/O queue, for so many commands at once.
    pub(crate) fn queue(&self, qid: u16, depth: u16) -> Result<Link, Error> {
        let (options, which) = (&self.options, (qid, self.attributes.cntlid));
        Ok(Caller::connect(options, self.address(), which, depth)?.0.link)
    }

    /// Shuts the controller down, and closes.
    pub fn shut_down(mut self) {
        let cc = Configuration::ENABLE.with_shutdown().0;
        let set = Property::set(registers::CC, false, u64::from(cc));
        // It is gone one way or the other.
        let _gone = self.caller.send("property", &set, Vec::new());
    }
}

fn identify(caller: &mut Caller, which: u8, nsid: u32) -> Result<Vec<u8>, Error> {
    const LEN: u32 = 4096;
    let mut sqe = Sqe::new(admin::IDENTIFY, nsid);
    sqe.cdw10 = u32::from(which).into();
    let (_, data) = caller.receive("identify", &sqe, LEN)?;
    if data.len() == LEN as usize { Ok(data) } else { Err(Error::Senseless("Identify data")) }
}

impl Attributes {
    fn of(data: &[u8], cap: u64) -> Result<Self, Error> {
        let data = identify::Controller::read_from_bytes(data);
        let data = data.map_err(|_| Error::Senseless("Identify data"))?;
        let entries = u32::from(registers::max_queue_entries(cap)) + 1;
        let max = match data.maxcmd.get() {
            0 => entries,
            commands => entries.min(u32::from(commands)),
        };
        // NLB has 16 bits, and blocks at least 512 bytes.
        let unlimited = 32 << 20;
        let max_transfer = match data.mdts {
            0 => unlimited,
            mdts => {
                let bytes = PAGE.checked_shl(u32::from(mdts)).unwrap_or(u64::MAX);
                u32::try_from(bytes).unwrap_or(unlimited).min(unlimited)
            }
        };
        let capsule = data.ioccsz.get().saturating_mul(16);
        let in_capsule = if data.icdoff.get() == 0 { capsule.saturating_sub(64) } else { 0 };
        Ok(Self {
            cntlid: data.cntlid.get(),
            serial: text(&data.sn),
            model: text(&data.mn),
            firmware: text(&data.fr),
            max_transfer,
            in_capsule,
            max_depth: u16::try_from(max).unwrap_or(u16::MAX),
            has_ana: data.cmic & 1 << 3 != 0,
            has_write_cache: data.vwc & 1 != 0,
            can_compare: data.oncs.get() & 1 != 0,
            can_discard: data.oncs.get() & 1 << 2 != 0,
            can_write_zeroes: data.oncs.get() & 1 << 3 != 0,
            ana_groups: data.nanagrpid.get().min(1024),
            events: data.oaes.get(),
        })
    }
}

impl Notice {
    /// From the result (Base 5.2.1).
    fn of(result: u64) -> Self {
        const NOTICE: u8 = 2;
        let [kind, information, page, ..] = result.to_le_bytes();
        match (kind & 7, information) {
            (NOTICE, 0x00) => Self::Namespaces,
            (NOTICE, 0x03) => Self::Ana,
            (NOTICE, 0xf0) => Self::Discovery,
            _ => Self::Other(u32::from_le_bytes([kind, information, page, 0])),
        }
    }
}

/// The text of a padded field.
fn text(field: &[u8]) -> String {
    let text = String::from_utf8_lossy(field);
    let text = text.trim_matches([' ', '\0']);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// What the discovery services at an address know.
///
/// # Errors
/// Why that cannot be had.
pub fn discover(options: &Options) -> Result<Vec<Record>, Error> {
    let options = Arc::new(Options {
        subsystem: Nqn::discovery(),
        keep_alive: Duration::ZERO,
        ..options.clone()
    });
    let mut last = Error::Local(io::ErrorKind::InvalidInput.into());
    for address in &options.addresses {
        match Controller::connect(&options, *address).and_then(|mut c| {
            let records = c.discover();
            c.shut_down();
            records
        }) {
            Ok(records) => return Ok(records),
            Err(e) => last = e,
        }
    }
    Err(last)
}
