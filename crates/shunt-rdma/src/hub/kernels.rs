//! Connections to servers that speak the kernel's SMC-R ([`crate::kernels`]).

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFd;
use shunt_far::kernel;
use shunt_far::worker::Name as LinkName;
use shunt_smc::handshake::Event;
use shunt_smc::wire::clc::{Accept, Diagnosis, End, Host, Proposal};
use shunt_sys::bpf::Answer as Spoken;
use shunt_verbs::port::Port;
use shunt_verbs::value::Gid;
use shunt_wire::agent::RegionId;
use shunt_wire::reason::Reason;
use tracing::{debug, info, warn};

use super::Hub;
use crate::kernels::agreement::{Agreement, Lost};
use crate::kernels::groups::{CONNECTIONS, Joined, Lane};
use crate::kernels::socket::Socket;
use crate::kernels::talk::{Declined, Made, Stage, Talk, is_made};
use crate::machine::Machine;
use crate::reach::Reach;

impl<P: Port + Clone + Send + 'static> Hub<P> {
    /// What tells of connections on their way.
    pub(super) fn kernel_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let talks = self.kernels.iter().flat_map(|kernels| kernels.talks.values());
        talks.map(|talk| PollFd::from_borrowed_fd(talk.fd(), talk.wants()))
    }

    /// When to look at them, whatever is told.
    pub(super) fn kernels_at(&self) -> Option<Duration> {
        let kernels = self.kernels.as_ref()?;
        let talks = kernels.talks.values().filter_map(Talk::deadline);
        let has_some = !kernels.talks.is_empty() || !kernels.declined.is_empty();
        let look_at = has_some.then_some(kernels.look_at);
        talks.chain(kernels.groups.idle_at()).chain(look_at).min()
    }

    /// The servers as a member of the memory: where there is a device.
    pub(super) fn see_to_kernels(&mut self, now: Duration) {
        let has_device = self.device().is_some();
        let workers = self.links.as_ref().map_or(0, crate::links::Links::workers);
        let Some(kernels) = &mut self.kernels else { return };
        if kernels.machine.is_none() && has_device && workers > 0 {
            self.member = self.member.wrapping_add(1).max(1);
            self.shared.memory.set_kernels(self.member);
            match Machine::join(&self.shared.memory, self.member, workers) {
                Ok(mut machine) => {
                    let at = &kernels.servers.at;
                    let one = |reach: &&Reach| !reach.is_wide();
                    let addresses = at.iter().filter(one).map(|it| SocketAddr::from(it.at).ip());
                    let addresses: Vec<IpAddr> =
                        addresses.collect::<BTreeSet<_>>().into_iter().collect();
                    machine.set_addresses(&addresses);
                    machine.set_listeners(at);
                    kernels.machine = Some(machine);
                }
                Err(error) => debug!("servers that speak SMC-R: {error}"),
            }
        } else if !has_device && let Some(machine) = kernels.machine.take() {
            self.retired.push((now + super::machines::RETIRED, machine));
        }
        for link in kernels.groups.take_idle(now) {
            if let Some(links) = &self.links {
                links.leave_kernel(link);
            }
        }
        self.talk(now);
    }
}

impl<P: Port + Clone + Send + 'static> Hub<P> {
    /// Programs have proposed connections in a region. False: it leads elsewhere.
    pub(super) fn kernels_proposed(&mut self, region: RegionId) -> bool {
        let Some(kernels) = &mut self.kernels else { return false };
        let passed = self.shared.take_passed();
        let marks = &kernels.servers.marks;
        let socket = |fd| Socket::new(fd, Some(Arc::clone(marks)));
        kernels.passed.extend(passed.into_iter().map(|(place, fd)| (place, socket(fd))));
        kernels.proposed(region)
    }

    /// Goes on with all connections on their way.
    fn talk(&mut self, now: Duration) {
        let Some(kernels) = &mut self.kernels else { return };
        let is_due = now >= kernels.look_at;
        if is_due {
            kernels.look_at = now + LOOK_AGAIN;
            kernels.see_to_declined(now);
        }
        for number in kernels.talks.keys().copied().collect::<Vec<_>>() {
            if is_due && self.talk_mut(number).is_some_and(|talk| !talk.is_wanted()) {
                self.is_lost(number, &Lost::Unwanted);
                continue;
            }
            self.connect(number, now);
            self.agree(number, now);
        }
    }

    /// Looks whether the kernel has made a connection, and what the server has answered to its SYN.
    fn connect(&mut self, number: u64, now: Duration) {
        let proposal = self.proposal();
        let Some(kernels) = &mut self.kernels else { return };
        let Some(talk) = kernels.talks.get_mut(&number) else { return };
        let Stage::Connecting(socket) = &talk.stage else { return };
        let made = is_made(socket.as_fd()).unwrap_or(Made::Never);
        if made == Made::No {
            return;
        }
        let answer = kernels.servers.marks.answer(socket.as_fd());
        let is_late = made == Made::Yes && answer == Spoken::Connecting;
        if is_late && talk.waits_for_answer(now) {
            return;
        }
        let Some(talk) = kernels.talks.get(&number) else { return };
        let is_taken = kernels.takes(talk);
        let speaks = made == Made::Yes && answer == Spoken::Smc;
        let proposal = proposal.filter(|_| speaks && is_taken);
        let Some(talk) = kernels.talks.remove(&number) else { return };
        let Some(proposal) = proposal else {
            let (reason, why) = said_by(answer, made);
            debug!("a connection to {} stays on TCP: {why}", talk.server);
            kernels.has_declined(talk.server, why.to_owned());
            if is_taken {
                kernels.declines(&talk, reason, now);
            } else {
                kernels.let_go(&talk.place);
            }
            return;
        };
        let talk = talk.agrees(|socket| Agreement::propose(socket, proposal, &host_name(), now));
        kernels.talks.insert(number, talk);
    }

    /// Goes on with what is said to a server.
    fn agree(&mut self, number: u64, now: Duration) {
        let Some(agreement) = self.agreement(number) else { return };
        let said = agreement.turn(now);
        while let Some(event) = self.agreement(number).and_then(Agreement::event) {
            match event {
                Event::Accepted(accept) => self.is_accepted(number, &accept),
                Event::Ready => return self.is_agreed(number),
                Event::Declined { diagnosis, is_peers, is_out_of_step } => {
                    let Some(talk) = self.talk_mut(number) else { return };
                    talk.declined = Some(Declined { diagnosis, is_peers, is_out_of_step });
                }
            }
        }
        match said {
            Err(why) => self.is_lost(number, &why),
            // The server must not read the program's bytes before the last of the agreement's.
            Ok(()) if self.talk_mut(number).is_some_and(|talk| talk.is_over()) => {
                self.stays(number, now);
            }
            Ok(()) => {}
        }
    }

    fn talk_mut(&mut self, number: u64) -> Option<&mut Talk> {
        self.kernels.as_mut()?.talks.get_mut(&number)
    }

    fn agreement(&mut self, number: u64) -> Option<&mut Agreement> {
        self.talk_mut(number)?.agreement()
    }

    fn decline(&mut self, number: u64, why: Diagnosis) {
        self.agreement(number).into_iter().for_each(|agreement| agreement.decline(why));
    }

    /// What this host proposes. `None`: it has no device.
    fn proposal(&self) -> Option<Proposal> {
        let host = self.host()?;
        let eids = self.kernels.as_ref()?.servers.eids.clone();
        let (release, max_connections, max_links) = (RELEASE, CONNECTIONS, LINKS);
        Some(Proposal { host, gid: host.gid, eids, release, max_connections, max_links })
    }

    /// This host, as servers know it. `None`: it has no device.
    fn host(&self) -> Option<Host> {
        Some(host_of(self.device()?.gid(), self.incarnation))
    }

    /// A server has accepted: a worker makes this host's end ready.
    fn is_accepted(&mut self, number: u64, accept: &Accept) {
        let host = self.host();
        let (Some(kernels), Some(links)) = (&mut self.kernels, &mut self.links) else { return };
        let Some(talk) = kernels.talks.get_mut(&number) else { return };
        let place = talk.place.clone();
        let lane = Lane { place: place.clone(), server: talk.server };
        talk.is_first = accept.first_contact.is_some();
        talk.at = match accept.first_contact {
            Some(_) => {
                let link = links.name_kernel();
                Some((link, kernels.groups.begin(link, accept.end, lane)))
            }
            None => match kernels.groups.join(accept, lane) {
                Joined::At(at) => Some(at),
                Joined::Later => return talk.waits = Some(*accept),
                Joined::None => None,
            },
        };
        match (talk.at, host) {
            (Some(at), Some(host)) => links.open_kernel(number, at, place, (host, *accept)),
            _ => self.decline(number, Diagnosis::OUT_OF_STEP),
        }
    }

    /// A link is up, or has ended: connections that were accepted on one that was coming go on.
    fn go_on(&mut self, now: Duration) {
        let talks = self.kernels.iter_mut().flat_map(|kernels| &mut kernels.talks);
        let waiting = talks.filter_map(|(number, talk)| Some((*number, talk.waits.take()?)));
        for (number, accept) in waiting.collect::<Vec<_>>() {
            self.is_accepted(number, &accept);
            self.agree(number, now);
        }
    }

    /// A worker has made a connection's end ready, or cannot.
    pub(super) fn kernel_opened(
        &mut self,
        number: u64,
        at: (LinkName, usize),
        opened: Result<End, Diagnosis>,
        now: Duration,
    ) {
        // One that is lost meanwhile is abandoned already.
        let Some(talk) = self.talk_mut(number).filter(|talk| talk.at == Some(at)) else { return };
        match opened {
            Ok(end) if talk.is_first => self.confirm(number, end, now),
            // The server is told of the ring first.
            Ok(end) => talk.end = Some(end),
            Err(why) => {
                let is_first = talk.is_first;
                talk.at = None;
                if let Some(kernels) = &mut self.kernels {
                    kernels.groups.leave(at, now);
                    if is_first {
                        kernels.groups.is_down(at.0);
                    }
                }
                if let Some(links) = &mut self.links {
                    links.closed();
                }
                self.remove_rest(at.0);
                self.decline(number, why);
                self.agree(number, now);
                self.go_on(now);
            }
        }
    }

    fn confirm(&mut self, number: u64, end: End, now: Duration) {
        if let Some(agreement) = self.agreement(number) {
            agreement.confirm(end, &[end.host.gid], now);
        }
        self.agree(number, now);
    }

    /// A worker tells of a link to a server.
    pub(super) fn kernel_told(&mut self, link: LinkName, told: &kernel::Event, now: Duration) {
        match *told {
            kernel::Event::Confirmed => {
                info!("link {link} to a server with SMC-R is up");
                self.kernels.iter_mut().for_each(|kernels| kernels.groups.is_up(link));
                for number in self.talks_on(link) {
                    self.agreement(number).into_iter().for_each(Agreement::established);
                    self.agree(number, now);
                }
                self.go_on(now);
            }
            kernel::Event::Announced { of, is_taken } => self.announced((link, of), is_taken, now),
            kernel::Event::Reset { of, why } => {
                let server =
                    self.kernels.iter_mut().find_map(|it| it.has_reset((link, of.slot), why));
                let server = server.map_or_else(String::new, |at| format!(" to {at}"));
                warn!("connection {} of link {link}{server} with SMC-R is reset: {why}", of.slot);
            }
            kernel::Event::Free(of) => self.is_vacant((link, of.slot), now),
            kernel::Event::Down(cause) => {
                info!("link {link} to a server with SMC-R has ended: {cause}");
                self.kernels.iter_mut().for_each(|kernels| kernels.groups.is_down(link));
                for number in self.talks_on(link) {
                    self.decline(number, Diagnosis::OUT_OF_STEP);
                    self.agree(number, now);
                }
                self.remove_rest(link);
                self.go_on(now);
            }
        }
    }

    /// Connections on their way that have a place on a link.
    fn talks_on(&self, link: LinkName) -> Vec<u64> {
        let talks = self.kernels.iter().flat_map(|kernels| &kernels.talks);
        let on_it = talks.filter(|(_, talk)| talk.at.is_some_and(|(of, _)| of == link));
        on_it.map(|(number, _)| *number).collect()
    }

    /// A server has taken note of a connection's ring, or refuses to.
    fn announced(&mut self, (link, of): (LinkName, kernel::Name), is_taken: bool, now: Duration) {
        let at = Some((link, of.slot));
        let found = self.kernels.iter().flat_map(|kernels| &kernels.talks);
        let found = found.filter(|(_, talk)| talk.at == at).find_map(|(number, talk)| {
            let end = talk.end.filter(|end| end.token == of.token)?;
            Some((*number, end))
        });
        match found {
            Some((number, end)) if is_taken => self.confirm(number, end, now),
            Some((number, _)) => {
                self.decline(number, Diagnosis::KEY);
                self.agree(number, now);
            }
            None => {}
        }
    }

    /// Both sides have agreed: the worker answers the program, and begins. The socket is the program's alone from now on.
    fn is_agreed(&mut self, number: u64) {
        let Some(kernels) = &mut self.kernels else { return };
        let Some(talk) = kernels.talks.remove(&number) else { return };
        if let (Some(at), Some(links)) = (talk.at, &self.links) {
            debug!("a connection to {} goes over SMC-R", talk.server);
            kernels.has_agreed(talk.server);
            links.attach_kernel(at, talk.use_);
        }
    }

    /// A connection stays on TCP.
    fn stays(&mut self, number: u64, now: Duration) {
        let Some(kernels) = &mut self.kernels else { return };
        let Some(talk) = kernels.talks.remove(&number) else { return };
        let Some(declined) = talk.declined else { return };
        debug!("a connection to {} stays on TCP: {declined}", talk.server);
        kernels.has_declined(talk.server, declined.to_string());
        if let (Some((link, _)), Some(links), true) =
            (talk.at, &self.links, declined.is_out_of_step)
        {
            links.fail_kernel(link);
        }
        self.no_place(&talk, declined.reason(), now);
    }

    /// Nothing can become of a connection: its program hears that it is reset.
    fn is_lost(&mut self, number: u64, why: &Lost) {
        let Some(kernels) = &mut self.kernels else { return };
        let Some(mut talk) = kernels.talks.remove(&number) else { return };
        if matches!(why, Lost::Unwanted) {
            debug!("a connection to {}: {why}", talk.server);
        } else {
            warn!("a connection to {} has failed: {why}", talk.server);
            kernels.has_failed(talk.server, why.to_string());
        }
        let Some(agreement) = talk.agreement() else {
            // Its place may be another connection's by now.
            return kernels.let_go(&talk.place);
        };
        agreement.cut();
        let now = self.now();
        self.no_place(&talk, Reason::SmcFailed, now);
    }

    /// A connection was not agreed upon: its program is told.
    fn no_place(&mut self, talk: &Talk, why: Reason, now: Duration) {
        if let (Some(at), Some(links)) = (talk.at, &self.links) {
            // Not before the worker has let go of its place.
            let Some(kernels) = &mut self.kernels else { return };
            let (place, bells) = (talk.place.clone(), Arc::clone(&kernels.bells));
            links.abandon_kernel(at, move || bells.decline(&place, why));
            kernels.await_end(talk, now);
            self.is_vacant(at, now);
        } else if let Some(kernels) = &mut self.kernels {
            kernels.declines(talk, why, now);
        }
    }

    /// A place in a link group is free.
    fn is_vacant(&mut self, at: (LinkName, usize), now: Duration) {
        let Some(kernels) = &mut self.kernels else { return };
        if let Some(lane) = kernels.groups.leave(at, now) {
            kernels.let_go(&lane.place);
            if let Some(links) = &mut self.links {
                links.closed();
            }
        }
        self.remove_rest(at.0);
    }

    /// Nothing is left of a link that has ended.
    fn remove_rest(&mut self, link: LinkName) {
        let Some(kernels) = &mut self.kernels else { return };
        if kernels.groups.take_rest(link)
            && let Some(links) = &mut self.links
        {
            links.remove_kernel(link);
        }
    }

    /// All processes that had a region are gone.
    pub(super) fn kernels_gone(&mut self, region: RegionId) {
        let Some(kernels) = &mut self.kernels else { return };
        kernels.passed.retain(|(of, _), _| *of != region);
        let talks = kernels.talks.iter().filter(|(_, talk)| talk.place.name == region);
        let talks: Vec<_> = talks.map(|(number, _)| *number).collect();
        let open = kernels.groups.lanes().filter(|(_, lane)| lane.place.name == region);
        let open: Vec<_> = open.map(|(at, _)| at).collect();
        for number in talks {
            self.is_lost(number, &Lost::Unwanted);
        }
        if let Some(links) = &self.links {
            open.into_iter().for_each(|at| links.end_kernel(at));
        }
        let Some(machine) = self.kernels.as_mut().and_then(|it| it.machine.as_mut()) else {
            return;
        };
        if let Some(held) = machine.held.get_mut(&region) {
            held.is_over = true;
            machine.let_go(region);
        }
    }
}

/// Why a connection whose SYN was marked is TCP.
const fn said_by(answer: Spoken, made: Made) -> (Reason, &'static str) {
    match (made, answer) {
        (Made::Never | Made::No, _) => (Reason::ShortLived, "it was not made"),
        (Made::Yes, Spoken::Echo) => {
            (Reason::SmcEchoed, "something sends SMC's option back, and does not speak it")
        }
        (Made::Yes, Spoken::None | Spoken::Connecting) => {
            (Reason::SmcUnspoken, "the server does not speak SMC")
        }
        (Made::Yes, Spoken::Smc) => {
            (Reason::SmcDeclined, "there is no device, or its program has gone")
        }
    }
}

/// Time between two looks whether programs still want their connections.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Release of version 2 (Linux 6.6).
const RELEASE: u8 = 1;
/// Links of a link group.
const LINKS: u8 = 1;

/// This host, as servers know it: by the MAC address that the device's address was made of, else by one that no card has.
fn host_of(gid: Gid, incarnation: u64) -> Host {
    let [.., a, b, c, d] = incarnation.to_be_bytes();
    // Locally administered (IEEE 802).
    let mac = [2, 0, a, b, c, d];
    let [.., m, n] = gid.0;
    Host { id: [m, n, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]], gid, mac }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
