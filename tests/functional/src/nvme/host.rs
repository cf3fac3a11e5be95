//! A controller of a target, and its disks.

use std::io;
use std::net::SocketAddr;

use shunt_nvme::host::{Config, Transfer};
use shunt_nvme::wire::fabrics::{Connect, ConnectData, DYNAMIC_CONTROLLER, Property};
use shunt_nvme::wire::registers::{self, Configuration};
use shunt_nvme::wire::{Nqn, Sqe, Status, identify, opcode};
use zerocopy::{FromBytes, IntoBytes};

use super::queue::Queue;

/// How to connect.
#[derive(Clone, Debug)]
pub struct Way {
    /// Where to.
    pub to: SocketAddr,
    /// To which subsystem.
    pub nqn: String,
    /// As which host.
    pub host: String,
    /// Header and data digests.
    pub digests: (bool, bool),
    /// Commands at once.
    pub depth: u16,
}

/// What a namespace looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disk {
    /// Its number.
    pub nsid: u32,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of a block.
    pub block: u32,
}

/// A controller.
pub struct Host {
    way: Way,
    /// Its Admin Queue.
    pub admin: Queue,
    cntlid: u16,
    next_queue: u16,
}

fn failed(what: &str, status: Status) -> io::Error {
    io::Error::other(format!("{what}: {status} ({:?})", status.fabrics_name()))
}

impl Way {
    fn config(&self) -> Config {
        let (header_digest, data_digest) = self.digests;
        Config { header_digest, data_digest, depth: self.depth, ..Config::default() }
    }

    fn queue(&self, qid: u16, cntlid: u16) -> io::Result<(Queue, u16)> {
        let name = |text: &str| Nqn::new(text).map_err(|e| io::Error::other(e.to_string()));
        let mut queue = Queue::connect(self.to, self.config())?;
        // Flow control is off: so many entries are so many commands.
        let connect =
            Connect { recfmt: 0, qid, sqsize: self.depth - 1, no_flow_control: true, kato: 0 };
        let data = ConnectData::new([7; 16], cntlid, &name(&self.nqn)?, &name(&self.host)?);
        let data = data.as_bytes().to_vec();
        let transfer = Transfer::InCapsule(u32::try_from(data.len()).unwrap_or(0));
        let ended = queue.run(&connect.sqe(), transfer, data)?.completion.cqe;
        if !ended.status().is_success() {
            return Err(failed("connect", ended.status()));
        }
        let [low, high, ..] = ended.result.get().to_le_bytes();
        Ok((queue, u16::from_le_bytes([low, high])))
    }
}

impl Host {
    /// Connects and enables a controller.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn connect(way: &Way) -> io::Result<Self> {
        let (admin, cntlid) = way.queue(0, DYNAMIC_CONTROLLER)?;
        let mut host = Self { way: way.clone(), admin, cntlid, next_queue: 1 };
        let enable = Configuration::ENABLE.0;
        host.admin(&Property::set(registers::CC, false, u64::from(enable)), 0)?;
        Ok(host)
    }

    /// Another I/O queue.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn queue(&mut self) -> io::Result<Queue> {
        let (queue, _) = self.way.queue(self.next_queue, self.cntlid)?;
        self.next_queue += 1;
        Ok(queue)
    }

    /// A command of the Admin Queue, with so many bytes of data to come.
    ///
    /// # Errors
    /// Its status, or the connection's end.
    pub fn admin(&mut self, sqe: &Sqe, len: u32) -> io::Result<(u64, Vec<u8>)> {
        let transfer = if len > 0 { Transfer::ToHost(len) } else { Transfer::None };
        let ended = self.admin.run(sqe, transfer, vec![0; len as usize])?;
        let cqe = ended.completion.cqe;
        if cqe.status().is_success() {
            Ok((cqe.result.get(), ended.data))
        } else {
            Err(failed(&format!("command {:#04x}", sqe.opcode), cqe.status()))
        }
    }

    /// An Identify command.
    ///
    /// # Errors
    /// As [`Self::admin`].
    pub fn identify(&mut self, cns: u32, nsid: u32) -> io::Result<Vec<u8>> {
        let mut sqe = Sqe::new(opcode::admin::IDENTIFY, nsid);
        sqe.cdw10 = cns.into();
        Ok(self.admin(&sqe, 4096)?.1)
    }

    /// The namespaces.
    ///
    /// # Errors
    /// As [`Self::admin`].
    pub fn disks(&mut self) -> io::Result<Vec<Disk>> {
        let list = self.identify(2, 0)?;
        let nsids = list.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        nsids.take_while(|nsid| *nsid > 0).map(|nsid| self.disk(nsid)).collect()
    }

    /// One of them.
    ///
    /// # Errors
    /// As [`Self::admin`].
    pub fn disk(&mut self, nsid: u32) -> io::Result<Disk> {
        let data = self.identify(0, nsid)?;
        let namespace = identify::Namespace::read_from_bytes(&data);
        let namespace = namespace.map_err(|_| io::Error::other("no Identify data"))?;
        let block = 1 << namespace.format().lbads;
        Ok(Disk { nsid, blocks: namespace.nsze.get(), block })
    }
}
