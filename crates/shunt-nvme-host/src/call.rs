//! Commands on a connection of which the caller waits for the answer.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shunt_nvme::auth::{AuthenticationError, Group, Initiator, Step};
use shunt_nvme::host::{Config, Transfer};
use shunt_nvme::wire::fabrics::{AUTHENTICATION_REQUIRED, Authentication, Connect, ConnectData};
use shunt_nvme::wire::{Cqe, Sqe};
use zerocopy::IntoBytes;

use crate::error::Error;
use crate::link::{Ended, Link};
use crate::memory::Data;
use crate::options::Options;
use crate::socket;

/// AUTHREQ: bits 17 (authentication) and 18 (with a secure channel) of Connect's result.
const AUTHENTICATION: u64 = AUTHENTICATION_REQUIRED as u64 | 1 << 18;
/// Room for a message of the authentication.
const MESSAGE: u32 = 4096;

/// The tag of the command whose answer is waited for. Others have others.
const CALL: u64 = u64::MAX;

/// One connection to a controller: a queue that was connected to.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) address: SocketAddr,
    pub(crate) link: Link,
    /// Commands that are over and were not waited for.
    pub(crate) ended: Vec<Ended>,
    timeout: Duration,
}

impl Caller {
    /// Makes queue `qid` of a controller. Says which controller it is.
    pub(crate) fn connect(
        options: &Arc<Options>,
        address: SocketAddr,
        (qid, cntlid): (u16, u16),
        depth: u16,
    ) -> Result<(Self, u16), Error> {
        let timeout = options.connect_timeout;
        let failed = |e| Error::Io(address, e);
        let socket = TcpStream::connect_timeout(&address, timeout).map_err(failed)?;
        let config = Config {
            header_digest: options.header_digest,
            data_digest: options.data_digest,
            depth,
            ..Config::default()
        };
        let link = Link::new(socket, config, options.grant && qid > 0).map_err(failed)?;
        let mut caller = Self { address, link, ended: Vec::new(), timeout };
        caller.until("initialization", |caller| caller.link.negotiated().is_some())?;
        let milliseconds = u32::try_from(options.keep_alive.as_millis()).unwrap_or(u32::MAX);
        let connect = Connect {
            recfmt: 0,
            qid,
            // Flow control is off: so many entries are so many commands. The least is two of them.
            sqsize: depth.max(2) - 1,
            no_flow_control: true,
            kato: if qid == 0 && !options.is_discovery() { milliseconds } else { 0 },
        };
        let identity = &options.identity;
        let data = ConnectData::new(identity.id, cntlid, &options.subsystem, &identity.nqn);
        let result = caller.send("connect", &connect.sqe(), data.as_bytes().to_vec())?;
        if result & AUTHENTICATION != 0 || identity.controller_key.is_some() {
            caller.authenticate(options, qid)?;
        }
        let [low, high, ..] = result.to_le_bytes();
        Ok((caller, u16::from_le_bytes([low, high])))
    }

    fn authenticate(&mut self, options: &Options, qid: u16) -> Result<(), Error> {
        let identity = &options.identity;
        let key = identity.key.clone().ok_or(Error::KeyNeeded)?;
        let groups = vec![
            Group::Null,
            Group::Ffdhe2048,
            Group::Ffdhe3072,
            Group::Ffdhe4096,
            Group::Ffdhe6144,
            Group::Ffdhe8192,
        ];
        let (host, subsystem) = (identity.nqn.clone(), options.subsystem.clone());
        let other = identity.controller_key.clone();
        let mut initiator = Initiator::new(host, subsystem, key, other, groups, qid);
        let mut missing = None;
        let mut random = |bytes: &mut [u8]| {
            missing = fill_random(bytes).err().or(missing.take());
        };
        loop {
            match initiator.step().map_err(Error::Authentication)? {
                Step::Done => break,
                Step::Send(message) => {
                    let len = u32::try_from(message.len()).unwrap_or(0);
                    self.send("authentication", &Authentication::send(len), message)?;
                }
                Step::Receive => {
                    let sqe = Authentication::receive(MESSAGE);
                    let (_, message) = self.receive("authentication", &sqe, MESSAGE)?;
                    initiator.receive(&message, &mut random);
                }
            }
        }
        missing.map_or(Ok(()), |e| Err(Error::Local(e)))
    }

    /// A command that sends data in its capsule, or nothing. Its result.
    pub(crate) fn send(
        &mut self,
        what: &'static str,
        sqe: &Sqe,
        data: Vec<u8>,
    ) -> Result<u64, Error> {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let transfer = if len > 0 { Transfer::InCapsule(len) } else { Transfer::None };
        Ok(self.call(what, sqe, transfer, data.into())?.0.result.get())
    }

    /// A command that receives data, at most so much: its result, and what came.
    pub(crate) fn receive(
        &mut self,
        what: &'static str,
        sqe: &Sqe,
        len: u32,
    ) -> Result<(u64, Vec<u8>), Error> {
        let room = vec![0; len as usize];
        let (cqe, data) = self.call(what, sqe, Transfer::ToHost(len), room.into())?;
        Ok((cqe.result.get(), data))
    }

    fn call(
        &mut self,
        what: &'static str,
        sqe: &Sqe,
        transfer: Transfer,
        data: Data,
    ) -> Result<(Cqe, Vec<u8>), Error> {
        self.link.submit(sqe, transfer, data, CALL).map_err(|(e, _)| Error::Submit(e))?;
        let is_over = |ended: &Ended| ended.tag == CALL;
        self.until(what, |caller| caller.ended.iter().any(is_over))?;
        let place = self.ended.iter().position(is_over);
        let ended = place.map(|place| self.ended.remove(place));
        let Ended { completion, data, .. } = ended.ok_or(Error::Senseless("response"))?;
        let status = completion.cqe.status();
        if !status.is_success() {
            return Err(Error::Refused(what, status));
        }
        if completion.damaged {
            return Err(Error::Senseless("data"));
        }
        let Data::Bytes(mut bytes) = data else { return Ok((completion.cqe, Vec::new())) };
        bytes.truncate(completion.received as usize);
        Ok((completion.cqe, bytes))
    }

    /// Goes on until something is so.
    fn until(&mut self, what: &'static str, is_so: impl Fn(&Self) -> bool) -> Result<(), Error> {
        let address = self.address;
        let until = Instant::now() + self.timeout;
        loop {
            let went = self.turn();
            // A controller that refuses a host answers, and closes the connection behind that.
            if is_so(self) {
                return Ok(());
            }
            went.map_err(|e| Error::Io(address, e))?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut(address, what));
            }
            let ready = socket::wait([(self.link.fd(), self.interest())], left);
            ready.map_err(Error::Local)?;
        }
    }

    /// Sends what there is to be sent, and takes what has come.
    ///
    /// # Errors
    /// The connection is over.
    pub(crate) fn turn(&mut self) -> io::Result<()> {
        self.link.flush()?;
        self.link.receive(&mut self.ended)?;
        self.link.flush()
    }

    /// What to wait for by poll(2).
    pub(crate) fn interest(&self) -> i16 {
        if self.link.is_sent() { libc::POLLIN } else { libc::POLLIN | libc::POLLOUT }
    }
}

fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let n = rustix::rand::getrandom(&mut *rest, rustix::rand::GetRandomFlags::empty())?;
        rest = &mut rest[n..];
    }
    Ok(())
}

impl From<AuthenticationError> for Error {
    fn from(error: AuthenticationError) -> Self {
        Self::Authentication(error)
    }
}
