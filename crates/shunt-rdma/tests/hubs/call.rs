//! A connection from a program of one host to one of the other, by a plan.

use std::rc::Rc;

use shunt_engine::handshake::proposals;
use shunt_shm::region::Side;
use shunt_shm::sync::Ordering;
use shunt_shm::table::{Place, Table, Ticket};
use shunt_verbs::fake::Random;
use shunt_wire::addr::{Addr, FourTuple};
use shunt_wire::agent::EndpointId;
use shunt_wire::clc::{Answer, Proposal};

use crate::end::{End, Tcp};
use crate::host::{Client, Host};

/// What is to happen, counted in steps of the connection.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes from the client, and from the server.
    pub bytes: [u64; 2],
    /// When the server looks whether its connection is proposed, for how long. `None`: it does not.
    pub looks_at: Option<u32>,
    /// When the client takes its proposal back, if it may still.
    pub withdraws_at: Option<u32>,
    /// Then it goes on over TCP; otherwise it closes.
    pub goes_on: bool,
    /// When it closes, whatever is on its way to it.
    pub closes_at: Option<u32>,
}

impl Plan {
    pub fn any(random: &mut Random) -> Self {
        let mut some = |most: usize| random.below(most);
        let bytes = [some(60_000), some(60_000)].map(|bytes| (bytes as u64).saturating_sub(10_000));
        let mut at = |often: usize, most: usize| {
            let is_at = some(10) < often;
            let step = u32::try_from(some(most)).unwrap();
            is_at.then_some(step)
        };
        let (looks_at, withdraws_at, closes_at) = (at(9, 50), at(4, 200), at(1, 300));
        Self { bytes, looks_at, withdraws_at, goes_on: random.chance(3000), closes_at }
    }
}

/// Steps for which a server looks for a proposal that may come.
const LOOKS: u32 = 400;
/// Most bytes of a step.
const PIECE: usize = 700;

/// How far the client's handshake is.
enum Stage {
    Proposed(Ticket),
    Settled,
}

pub struct Call<'a> {
    plan: Plan,
    step: u32,
    table: &'a Table,
    hosts: [&'a Host; 2],
    tuple: FourTuple,
    stage: Stage,
    from: Rc<Client>,
    slot: usize,
    /// The program that serves it, once it has found the proposal.
    endpoint: EndpointId,
    /// Its place is its own, and no agent's.
    is_withdrawn: bool,
    client: End<'a>,
    server: End<'a>,
    has_looked: bool,
    /// Its programs.
    are_killed: [bool; 2],
    /// Both directions came to their ends before it closed.
    is_whole: bool,
    /// It was in the ring, in both directions, at either end.
    pub was_in_ring: bool,
}

impl<'a> Call<'a> {
    /// Proposes it, where there is a place: to a server of the second host, whose proposals are in the table.
    pub fn propose(
        number: u32,
        plan: Plan,
        (from, hosts): (Rc<Client>, [&'a Host; 2]),
        table: &'a Table,
    ) -> Option<Self> {
        let host = hosts[0];
        let slot = from.take()?;
        let [local, peer] = host.addresses().map(Addr::from);
        let tuple = FourTuple { local, peer };
        let tcp = Tcp::default();
        let [mut client, server] = [(Side::Client, 0), (Side::Server, 1)]
            .map(|(side, at)| End::new(hosts[at], side, number, Rc::clone(&tcp)));
        client.is_at(&from.region, slot);
        let (mine, place) = (client.section(Side::Client), (from.name, slot));
        let ticket = proposals::post(table, place, mine, (from.endpoint, &tuple)).unwrap();
        host.is_told(&from);
        Some(Self {
            plan,
            step: 0,
            table,
            hosts,
            tuple,
            stage: Stage::Proposed(ticket),
            from,
            slot,
            endpoint: hosts[1].server.get(),
            is_withdrawn: false,
            client,
            server,
            has_looked: plan.looks_at.is_none(),
            are_killed: [false; 2],
            is_whole: false,
            was_in_ring: false,
        })
    }

    /// Both ends do something. True: something has come of it.
    pub fn step(&mut self, random: &mut Random) -> bool {
        self.step += 1;
        self.client_goes_on();
        self.server_looks();
        let mut moved = 0;
        let all = self.plan.bytes;
        for (end, all) in [&mut self.client, &mut self.server].into_iter().zip(all) {
            if !end.is_closed {
                moved += end.send(random.below(PIECE) as u64, all) + end.take();
            }
        }
        let is_through = |end: &End<'_>| end.has_ended && end.saw_end && !end.is_closed;
        self.was_in_ring |= self.client.is_in_ring() && self.server.is_in_ring();
        let is_through_there = is_through(&self.client);
        if !self.is_proposed() && (is_through_there || self.must_close()) {
            self.close(is_through_there);
        }
        if self.has_looked && is_through(&self.server) {
            self.server.close();
            moved += 1;
        }
        moved > 0
    }

    /// A program of the server's takes the proposal, and is killed before it has answered. False: it has not come yet.
    pub fn is_taken_for_nothing(&mut self) -> bool {
        let proposals = &self.hosts[1].proposals;
        let found = proposals.find(&self.tuple.reversed());
        let is_taken = found.is_some_and(|ticket| proposals.take(&ticket));
        if is_taken {
            self.kill_server(self.hosts[1]);
        }
        is_taken
    }

    /// Both ends go on with the handshake alone. True: they have agreed on the ring.
    pub fn agrees(&mut self) -> bool {
        self.client_goes_on();
        self.server_looks();
        !self.is_proposed()
    }

    /// The client's program is killed, if it is this one.
    pub fn kill_client(&mut self, client: &Rc<Client>) {
        if Rc::ptr_eq(&self.from, client) && !self.client.is_closed {
            (self.stage, self.are_killed[0]) = (Stage::Settled, true);
            self.client.is_killed();
        }
    }

    /// A host's server is killed, if it is this one's.
    pub fn kill_server(&mut self, host: &Host) {
        if std::ptr::eq(self.hosts[1], host) && !self.server.is_closed {
            (self.has_looked, self.are_killed[1]) = (true, true);
            self.server.is_killed();
        }
    }

    /// Both programs have closed.
    pub fn is_over(&self) -> bool {
        let is_over = self.client.is_closed && self.server.is_closed;
        if is_over {
            let (sent, taken) = (self.client.sent, self.client.taken);
            assert!(self.are_killed[1] || self.server.taken == sent, "{self:?}");
            assert!(!self.is_whole || self.server.sent == taken, "{self:?}");
            if self.is_whole && !self.are_killed[1] {
                assert_eq!([sent, taken], self.plan.bytes, "{self:?}");
            }
        }
        is_over
    }

    const fn is_proposed(&self) -> bool {
        matches!(self.stage, Stage::Proposed(_))
    }

    fn must_close(&self) -> bool {
        !self.client.is_closed && self.plan.closes_at.is_some_and(|at| self.step >= at)
    }

    /// The client closes; `is_whole`: behind the end of both directions.
    fn close(&mut self, is_whole: bool) {
        self.is_whole = is_whole;
        self.client.close();
        if self.is_withdrawn {
            self.from.free(self.slot);
        }
    }

    /// The client looks for an answer, or takes its proposal back.
    fn client_goes_on(&mut self) {
        let Stage::Proposed(ticket) = self.stage else { return };
        let answer = &self.client.section(Side::Server).setup.state;
        match Answer::from_code(answer.load(Ordering::Acquire)) {
            Some(Answer::Accepted) => {
                let mine = &self.client.section(Side::Client).setup.state;
                mine.store(Proposal::Active as u32, Ordering::Release);
                self.stage = Stage::Settled;
                self.client.is_linked();
                return;
            }
            // Its link has failed before it began: its place is its own.
            Some(Answer::Declined) => {
                (self.stage, self.is_withdrawn) = (Stage::Settled, true);
                return self.client.stays_on_tcp();
            }
            _ => {}
        }
        let is_through = self.client.has_ended && self.client.saw_end;
        let is_due = |at: Option<u32>| at.is_some_and(|at| self.step >= at);
        let gives_up = is_due(self.plan.withdraws_at) || is_due(self.plan.closes_at);
        if (is_through || gives_up || self.step > 4 * LOOKS) && self.table.take(&ticket) {
            let mine = &self.client.section(Side::Client).setup.state;
            mine.store(Proposal::Withdrawn as u32, Ordering::Release);
            (self.stage, self.is_withdrawn) = (Stage::Settled, true);
            self.hosts[0].is_told(&self.from);
            self.client.stays_on_tcp();
            if is_through || (gives_up && !self.plan.goes_on) {
                self.close(is_through);
            }
        }
    }

    /// The server looks whether its connection was proposed.
    fn server_looks(&mut self) {
        let Some(at) = self.plan.looks_at.filter(|at| !self.has_looked && self.step >= *at) else {
            return;
        };
        let (host, tuple) = (self.hosts[1], self.tuple.reversed());
        if let Some(ticket) = host.proposals.find(&tuple) {
            let Place { region, slot, generation } = ticket.place();
            let region = host.region(region);
            let theirs = region.view().section(slot, Side::Client);
            let found = (&host.proposals, &ticket);
            let taken = proposals::take(found, theirs, &tuple, Some, drop);
            if taken.is_some_and(|peer| peer.is_some()) {
                self.server.is_at(&region, slot);
                let mine = &self.server.section(Side::Server).setup;
                mine.generation.store(generation, Ordering::Relaxed);
                mine.endpoint.store(self.endpoint, Ordering::Relaxed);
                mine.state.store(Answer::Accepted as u32, Ordering::Release);
                self.server.is_linked();
                self.has_looked = true;
            }
        }
        self.has_looked |= self.step > at + LOOKS;
    }
}

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let handshake = (self.is_proposed(), self.is_withdrawn, self.has_looked);
        f.debug_struct("Call")
            .field("plan", &self.plan)
            .field("step", &self.step)
            .field("slot", &self.slot)
            .field("handshake", &handshake)
            .field("client", &self.client)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}
