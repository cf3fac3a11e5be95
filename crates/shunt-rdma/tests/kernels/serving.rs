//! The server, on a thread of its own.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use shunt_smc::wire::clc::{self, Confirm, Decline, Diagnosis, Proposal};
use shunt_smc::wire::llc::Llc;
use shunt_smc::wire::{LINK_MESSAGE, RmbSize};
use shunt_verbs::fake::FakePort;

use crate::scripted;
use crate::server::Kernel;
use crate::wait::until;

/// One connection, by its number.
struct Call {
    stream: Option<TcpStream>,
    /// What has come, and was not taken for a message.
    received: Vec<u8>,
    has_proposal: bool,
    /// Of the kernel's.
    line: Option<usize>,
    /// What it will accept, once the client knows its ring.
    accepts: Option<Proposal>,
    has_ended: bool,
}

struct State {
    listener: TcpListener,
    kernel: Kernel,
    eids: &'static [&'static str],
    calls: Vec<Call>,
    first_contacts: usize,
    is_silent: bool,
    /// Nothing comes over the link.
    is_link_held: bool,
}

pub struct Serving {
    pub at: SocketAddr,
    state: Arc<Mutex<State>>,
    must_end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    pub fn start(port: FakePort, eids: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = listener.local_addr().unwrap();
        let (calls, first_contacts, is_silent, is_link_held) = (Vec::new(), 0, false, false);
        let kernel = Kernel::new(port);
        let state =
            State { listener, kernel, eids, calls, first_contacts, is_silent, is_link_held };
        let (state, must_end) = (Arc::new(Mutex::new(state)), Arc::new(AtomicBool::new(false)));
        let (its, end) = (Arc::clone(&state), Arc::clone(&must_end));
        let thread = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                its.lock().unwrap().turn();
                thread::sleep(Duration::from_micros(100));
            }
        });
        Self { at, state, must_end, thread: Some(thread) }
    }

    fn with<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.state.lock().unwrap())
    }

    /// From now on it takes proposals, and does not answer.
    pub fn says_nothing(&self, is_silent: bool) {
        self.with(|state| state.is_silent = is_silent);
    }

    /// From now on nothing comes over the link, as where TCP is quicker; or what was held back comes.
    pub fn holds_link(&self, is_held: bool) {
        self.with(|state| state.is_link_held = is_held);
    }

    /// It breaks a rule on the link.
    pub fn fails_link(&self) {
        self.with(|state| state.kernel.send(&[0xff; LINK_MESSAGE]));
    }

    /// The client was told that a connection is accepted.
    pub fn has_accepted(&self, call: usize) -> bool {
        self.with(|state| {
            state.calls.get(call).is_some_and(|call| call.line.is_some() && call.accepts.is_none())
        })
    }

    /// The client has confirmed.
    pub fn is_confirmed(&self, call: usize) -> bool {
        self.with(|state| {
            state.line(call).is_some_and(|line| state.kernel.lines[line].connection.is_some())
        })
    }

    /// By which bytes of a connection are made.
    pub fn label(&self, call: usize) -> u32 {
        self.with(|state| {
            let line = state.calls.get(call).and_then(|call| call.line);
            line.map_or(0, |line| state.kernel.lines[line].end.token)
        })
    }

    /// Its program sends so many bytes.
    pub fn gives(&self, call: usize, bytes: u64) {
        until("an agreement", || self.is_confirmed(call));
        self.with(|state| {
            let line = state.line(call).unwrap();
            state.kernel.give(line, bytes);
        });
    }

    pub fn has_read(&self, call: usize) -> u64 {
        self.with(|state| state.line(call).map_or(0, |line| state.kernel.lines[line].read))
    }

    pub fn first_contacts(&self) -> usize {
        self.with(|state| state.first_contacts)
    }

    /// The other end has closed by a message.
    pub fn has_closed(&self, call: usize) -> bool {
        self.with(|state| {
            let line = state.line(call).unwrap();
            let state = state.kernel.lines[line].connection().peer_state();
            assert!(!state.is_aborted);
            state.is_closed
        })
    }

    /// Its program closes.
    pub fn closes(&self, call: usize) {
        self.with(|state| {
            let line = state.line(call).unwrap();
            state.kernel.lines[line].connection().close();
        });
    }

    pub fn has_proposal(&self, call: usize) -> bool {
        self.with(|state| state.calls.get(call).is_some_and(|call| call.has_proposal))
    }

    /// Bytes of the TCP connection that are none of the agreement's.
    pub fn rest(&self, call: usize) -> Vec<u8> {
        self.with(|state| {
            state.turn();
            state.calls[call].received.clone()
        })
    }

    /// The TCP connection has ended.
    pub fn has_lost(&self, call: usize) -> bool {
        self.with(|state| state.calls.get(call).is_some_and(|call| call.has_ended))
    }

    /// It ends the TCP connection.
    pub fn drops(&self, call: usize) {
        self.with(|state| state.calls[call].stream = None);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.must_end.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking(), "the server has failed");
    }
}

impl State {
    fn line(&self, call: usize) -> Option<usize> {
        self.calls.get(call)?.line
    }

    fn turn(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true).unwrap();
            self.calls.push(Call {
                stream: Some(stream),
                received: Vec::new(),
                has_proposal: false,
                line: None,
                accepts: None,
                has_ended: false,
            });
        }
        for call in 0..self.calls.len() {
            self.calls[call].receive();
            while let Some(message) = self.calls[call].message() {
                self.hear(call, &message);
            }
            self.accept(call);
        }
        if self.is_link_held {
            return;
        }
        self.kernel.turn();
        for line in 0..self.kernel.lines.len() {
            self.kernel.take(line, u32::MAX);
        }
    }

    fn hear(&mut self, call: usize, message: &[u8]) {
        if Decline::parse(message).is_ok() {
            self.calls[call].line = None;
            return;
        }
        if let Ok(confirm) = Confirm::parse(message) {
            let line = self.calls[call].line.expect("it was accepted");
            return self.kernel.confirm(line, &confirm.end);
        }
        let proposal = Proposal::parse(message).expect("a proposal");
        self.calls[call].has_proposal = true;
        if self.is_silent {
            return;
        }
        let has_one = |eid: &&str| proposal.eids.contains(&scripted::eid(eid));
        if self.eids.iter().any(has_one) {
            self.calls[call].line = Some(self.kernel.prepare(RmbSize::SMALLEST));
            self.calls[call].accepts = Some(proposal);
        } else {
            let (id, diagnosis) = (scripted::host(3).id, Diagnosis::NO_DEVICE);
            self.say(call, &Decline { id, diagnosis, is_out_of_step: false }.bytes());
        }
    }

    fn say(&mut self, call: usize, message: &[u8]) {
        self.calls[call].stream.as_mut().unwrap().write_all(message).unwrap();
    }

    /// Accepts, where the client has answered that it knows the ring (`af_smc.c`: `smcr_serv_conf_first_link`, `smc_listen_rdma_reg`).
    fn accept(&mut self, call: usize) {
        let Some(line) = self.calls[call].line else { return };
        let mut accept = self.kernel.accept(line);
        let knows = |llc: &Llc| matches!(llc, Llc::ConfirmRkey(ring) if ring.is_answer && ring.rmb.key == accept.end.rmb.key);
        let is_known = accept.first_contact.is_some()
            || self.is_link_held
            || self.kernel.llc.heard.iter().any(knows);
        let Some(proposal) = self.calls[call].accepts.take_if(|_| is_known) else { return };
        self.first_contacts += usize::from(accept.first_contact.is_some());
        if let Some(contact) = &mut accept.first_contact {
            contact.max_connections = proposal.max_connections;
            contact.max_links = proposal.max_links;
        }
        self.say(call, &accept.bytes());
    }
}

impl Call {
    fn receive(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let mut room = [0; 4096];
        match stream.read(&mut room) {
            Ok(0) => self.has_ended = true,
            Ok(came) => self.received.extend(&room[..came]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.has_ended = true,
        }
    }

    /// The next message of the agreement's, once it is whole.
    fn message(&mut self) -> Option<Vec<u8>> {
        let header = self.received.first_chunk()?;
        let (_, length) = clc::header(header).ok()?;
        (self.received.len() >= length).then(|| self.received.drain(..length).collect())
    }
}
