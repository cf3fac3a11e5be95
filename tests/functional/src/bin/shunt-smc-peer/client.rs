//! The client: connections one after another, the first of which makes the link, then all of them
//! at once.

mod line;
mod tcp;

use std::error::Error;
use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::net::{AddressFamily, SocketType, connect, socket};
use shunt_smc::link::{self, Cause, Own, Settings};
use shunt_smc::wire::cdc::{Cdc, KIND};
use shunt_smc::wire::clc::{Diagnosis, Host, Proposal};
use shunt_smc::wire::llc::{Llc, Reason};
use shunt_smc::wire::{Eid, LINK_MESSAGE, RmbSize};
use shunt_smc::{Handshake, Link};
use shunt_sys::bpf::{Answer, SmcMarks};
use shunt_sys::{cgroup, sockinfo};
use shunt_verbs::port::{Pair, Port};
use shunt_verbs::value::PacketNumber;

use super::wire::{PATIENCE, Wire};
use line::{Line, Ready};
pub use tcp::{greeted, plain};

/// How to connect.
#[derive(Args)]
pub struct Options {
    /// Where to.
    to: SocketAddr,
    /// By which device.
    #[arg(long, default_value = "rxe0")]
    device: String,
    /// In which group.
    #[arg(long)]
    eid: String,
    /// Connections.
    #[arg(short = 'n', default_value_t = 1)]
    connections: u32,
    /// Bytes of each one, in each direction.
    #[arg(short = 'b', default_value_t = 100_000)]
    bytes: u64,
    /// Most links of a link group that are proposed: with one no other is offered.
    #[arg(long, default_value_t = 2)]
    links: u8,
    /// When all bytes are back, keep the connections until this file is there.
    #[arg(long)]
    hold: Option<PathBuf>,
    /// Then abort them.
    #[arg(long)]
    abort: bool,
    /// End with an urgent byte, and expect one.
    #[arg(long)]
    urgent: bool,
    /// Size of each ring: 16 KiB, or so many powers of two more.
    #[arg(long, default_value_t = 0)]
    ring: u8,
    /// Ask a server that was not heard for so many seconds.
    #[arg(long, default_value_t = 30)]
    quiet: u64,
}

/// The client.
struct Client {
    wire: Wire,
    size: RmbSize,
    settings: Settings,
    link: Option<Link>,
    /// The server's first message on the link has come.
    is_confirming: bool,
    lines: Vec<Line>,
    began: Instant,
    is_down: Option<Cause>,
}

/// Runs it.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let group = File::open(cgroup::root().ok_or("no control groups")?)?;
    let marks = SmcMarks::attach(group.as_fd(), 16)?;
    let wire = Wire::open(&options.device)?;
    let mut client = Client {
        wire,
        size: RmbSize::of_exponent(options.ring).ok_or("an impossible size")?,
        settings: Settings { answer: PATIENCE, quiet: Duration::from_secs(options.quiet) },
        link: None,
        is_confirming: false,
        lines: Vec::new(),
        began: Instant::now(),
        is_down: None,
    };
    for number in 1..=options.connections {
        let stream = reach(options.to, &marks)?;
        match stream {
            (stream, Answer::Smc) => client.agree(stream, number, options)?,
            (stream, answer) => {
                println!("{number}: tcp, as the server's answer is {answer:?}");
                tcp::exchange(stream, number.into(), options.bytes)?;
            }
        }
    }
    let done = client.exchange(options);
    if done.is_err() {
        client.lines.iter_mut().for_each(|line| line.end(true, false));
    }
    // Else the server keeps the link group for half a minute.
    done.and(client.leave())
}

/// Connects with a marked SYN.
fn reach(to: SocketAddr, marks: &SmcMarks) -> Result<(TcpStream, Answer), Box<dyn Error>> {
    let socket: OwnedFd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    let cookie = sockinfo::cookie(&socket)?;
    // Whatever is likely to be in no other option.
    let decoy = std::process::id().wrapping_mul(0x9e37_79b9) ^ u32::try_from(cookie & 0xffff)?;
    marks.mark(cookie, decoy)?;
    connect(&socket, &to)?;
    let answer = marks.answer(cookie).ok_or("a socket that is not marked")?;
    marks.withdraw(cookie);
    Ok((socket.into(), answer))
}

impl Client {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn host(&self) -> Host {
        let gid = self.wire.device.gid();
        let [.., a, b, c, d] = gid.0;
        let mac = std::fs::read_to_string("/sys/class/net/eth0/address").unwrap_or_default();
        let mut digits = mac.trim().split(':').map(|pair| u8::from_str_radix(pair, 16));
        let mac = std::array::from_fn(|_| digits.next().and_then(Result::ok).unwrap_or(0));
        let [m, n, ..] = [a ^ c, b ^ d];
        let id = [m, n, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]];
        Host { id, gid, mac }
    }

    /// Proposes on a new connection, and goes on until the server has said yes or no.
    fn agree(
        &mut self,
        stream: TcpStream,
        number: u32,
        options: &Options,
    ) -> Result<(), Box<dyn Error>> {
        let host = self.host();
        let proposal = Proposal {
            host,
            gid: host.gid,
            eids: vec![Eid::new(&options.eid).ok_or("an impossible EID")?],
            release: 1,
            max_connections: 255,
            max_links: options.links,
        };
        stream.set_nonblocking(true)?;
        let handshake = Handshake::propose(proposal, "shunt", self.now());
        self.lines.push(Line::new(stream, handshake, number, options.bytes));
        self.until("an agreement", |client| client.lines.last().is_none_or(Line::is_agreed))?;
        if let Some(line) = self.lines.pop_if(|line| line.declined.is_some()) {
            let (why, is_peers) = line.declined.unwrap_or((Diagnosis::INTERNAL, false));
            let says = if is_peers { "the server" } else { "the client" };
            println!("{number}: tcp, as {says} says {why}");
            line.stream.set_nonblocking(false)?;
            tcp::exchange(line.stream, number.into(), options.bytes)?;
        }
        Ok(())
    }

    /// Moves all bytes there and back.
    fn exchange(&mut self, options: &Options) -> Result<(), Box<dyn Error>> {
        self.until("all bytes", |client| client.lines.iter().all(Line::is_back))?;
        if let Some(hold) = &options.hold {
            println!("held");
            while !hold.exists() {
                self.turn()?;
                thread::sleep(Duration::from_millis(5));
            }
        }
        for line in &mut self.lines {
            line.end(options.abort, options.urgent);
        }
        self.until("the end", |client| client.lines.iter().all(Line::is_over))?;
        for line in &self.lines {
            let first = if line.is_first { ", with a first contact" } else { "" };
            println!("{}: smc-r, {} bytes back{first}", line.number, line.back());
        }
        Ok(())
    }

    /// Withdraws the rings, and has the server delete the link.
    fn leave(mut self) -> Result<(), Box<dyn Error>> {
        let now = self.now();
        let Some(link) = &mut self.link else { return Ok(()) };
        self.lines.iter().for_each(|line| line.withdraw(link, now));
        self.until("no rings", |client| client.lines.iter().all(|line| line.is_withdrawn))?;
        let now = self.now();
        if let Some(link) = &mut self.link {
            link.leave(Reason::PROGRAM, now);
        }
        self.until("the link's end", |client| client.is_down.is_some())?;
        if self.is_down != Some(Cause::Left) {
            return Err(format!("the link is down: {:?}", self.is_down).into());
        }
        println!("left");
        Ok(())
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<(), Box<dyn Error>> {
        let until = Instant::now() + PATIENCE * 4;
        while !is_so(self) {
            if Instant::now() > until {
                return Err(format!("in vain for {what}").into());
            }
            if !self.turn()? {
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// One look at all that may have come, and all that may be sent. True if something has come.
    fn turn(&mut self) -> Result<bool, Box<dyn Error>> {
        let mut has_come = self.serve()?;
        for at in 0..self.lines.len() {
            let now = self.now();
            match self.lines[at].talk(now)? {
                Some(Ready::Accepted) => self.get_ready(at, now)?,
                Some(Ready::Agreed) | None => {}
            }
            self.lines[at].stream_bytes(&mut self.wire)?;
            // The kernel waits 2 s for the answer to a key, and bytes of many connections take
            // longer.
            has_come |= self.serve()?;
        }
        Ok(has_come)
    }

    /// Takes messages, and sends those about the link. True if there were any.
    fn serve(&mut self) -> Result<bool, Box<dyn Error>> {
        let now = self.now();
        let came = self.wire.poll()?;
        came.iter().try_for_each(|message| self.hear(message, now))?;
        self.follow_link(now)?;
        Ok(!came.is_empty())
    }

    fn hear(&mut self, message: &[u8], now: Duration) -> Result<(), Box<dyn Error>> {
        if message.first() != Some(&KIND) {
            tell_of_test("the server answers", message);
            let link = self.link.as_mut().ok_or("a message on no link")?;
            link.receive(message, now);
            return Ok(());
        }
        let message = Cdc::parse(message)?;
        if let Some(link) = &mut self.link {
            link.heard(now);
        }
        let line = self.lines.iter_mut().find(|line| line.number == message.token);
        line.map_or(Ok(()), |line| line.hear(&message))
    }

    /// The server has accepted.
    fn get_ready(&mut self, at: usize, now: Duration) -> Result<(), Box<dyn Error>> {
        let (host, first) = (self.host(), self.first_packet());
        let line = &mut self.lines[at];
        line.prepare(&self.wire, self.size, host, first)?;
        let Some(accept) = line.accept else { return Ok(()) };
        if accept.first_contact.is_some() {
            let own = Own { host, pair: self.wire.number(), id: [1, 2, 3, 4] };
            self.link = Some(Link::new(own, &accept, self.settings, now));
            self.wire.receive_from(&accept.end)?;
            line.is_first = true;
            line.confirm(now);
            return Ok(());
        }
        match self.link.as_mut().filter(|link| link.is_that_of(&accept)) {
            Some(link) if link.has_ring(accept.end.rmb) => line.announce(link, now),
            Some(_) => line.handshake.decline(Diagnosis::KEY),
            None => line.handshake.decline(Diagnosis::OUT_OF_STEP),
        }
        Ok(())
    }

    fn first_packet(&self) -> PacketNumber {
        PacketNumber::new(self.wire.number().0.wrapping_mul(0x9e37_79b9) >> 8)
    }

    fn follow_link(&mut self, now: Duration) -> Result<(), Box<dyn Error>> {
        let first = self.first_packet();
        let Some(link) = &mut self.link else { return Ok(()) };
        link.tick(now);
        while let Some(event) = link.event() {
            match event {
                link::Event::Confirm => {
                    self.wire.send_from(first)?;
                    link.activate();
                    self.is_confirming = true;
                }
                link::Event::Announced { key, is_taken } => {
                    let line = self.lines.iter_mut().find(|line| line.has_key(key));
                    line.ok_or("a key of no ring")?.is_announced(is_taken, now);
                }
                link::Event::Withdrawn(key) => {
                    let line = self.lines.iter_mut().find(|line| line.has_key(key));
                    line.ok_or("a key of no ring")?.is_withdrawn = true;
                }
                link::Event::Forgotten(key) => {
                    let line = self.lines.iter().find(|line| line.writes_into(key));
                    if line.is_some_and(|line| !line.is_over()) {
                        return Err("a ring is gone that is in use".into());
                    }
                }
                link::Event::Down(cause) => self.is_down = Some(cause),
            }
        }
        while self.wire.can_send() {
            let Some(message) = link.outgoing() else { break };
            assert!(message.len() == LINK_MESSAGE, "a client says nothing that is longer");
            tell_of_test("answered the server", &message);
            self.wire.send(&message)?;
        }
        if self.is_confirming {
            self.is_confirming = false;
            self.lines.iter_mut().for_each(|line| line.handshake.established());
        }
        match self.is_down {
            Some(cause) if cause != Cause::Left => Err(cause.to_string().into()),
            _ => Ok(()),
        }
    }
}

/// Says so where a message is the answer to a TEST LINK.
fn tell_of_test(what: &str, message: &[u8]) {
    if matches!(Llc::parse(message), Ok(Llc::TestLink(test)) if test.is_answer) {
        println!("{what}");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.wire.pair.fail();
    }
}
