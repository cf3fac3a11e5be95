//! A host: its thread that meets peers, and its agent, as far as the memory shows that.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use shunt_engine::handshake::slots::{LinkGroup, Slots};
use shunt_peer::PublicKey;
use shunt_rdma::{Config, Host as Facts, PeerName, Plane, Promote, SecretKey, SharedMemory};
use shunt_shm::cq::Push;
use shunt_shm::ivshmem::{Control, EXTENT, Home, Kind, MemberId, Published, offset, table_offset};
use shunt_shm::reach::WHOLE;
use shunt_shm::region::{self, Geometry, Region, Section, Side, queue_place};
use shunt_shm::sync::Ordering;
use shunt_shm::table::Table;
use shunt_verbs::fake::{FakePort, Random};
use shunt_wire::addr::Addr;
use shunt_wire::agent::{EndpointId, RegionId};

use crate::Key;
use crate::wait::{PATIENCE, until};

/// The agent's number in the memory.
const AGENT: u16 = 0;

const FACTS: [Facts; 2] = [
    Facts { addresses: || Ok(vec![address(0)]), ..TIMELESS },
    Facts { addresses: || Ok(vec![address(1)]), ..TIMELESS },
];
const TIMELESS: Facts = Facts {
    addresses: || Ok(Vec::new()),
    memory_limit: || None,
    patience: PATIENCE,
    reunion: PATIENCE,
};

const fn address(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, host + 1))
}

/// Where a host's server listens.
pub const fn server(host: u8) -> SocketAddr {
    SocketAddr::new(address(host), 80)
}

/// A region of the peer's programs, as the program that serves has it.
struct Served {
    name: RegionId,
    extent: usize,
    region: Arc<Region>,
}

pub struct Host {
    pub plane: Plane,
    number: u8,
    memory: Arc<SharedMemory>,
    control: Control,
    /// Proposals of the peer's programs to this host's.
    pub proposals: Table,
    me: MemberId,
    /// Programs with connections to the peer.
    clients: RefCell<Vec<Rc<Client>>>,
    /// The regions of those that have ended.
    ended: RefCell<Vec<usize>>,
    /// The program that serves.
    pub server: Cell<EndpointId>,
    /// Regions of the peer's programs.
    regions: RefCell<Vec<Served>>,
    next: Cell<u64>,
    port: Cell<u16>,
}

impl Host {
    pub fn start(number: u8, key: &Key, peer: (SocketAddr, PublicKey), port: FakePort) -> Self {
        let config = Config {
            device: "fake0".parse().unwrap(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            key: SecretKey::clone(&key.1),
            peers: vec![PeerName::new(&peer.0.to_string(), peer.1).unwrap()],
            promote: Promote::Always,
            servers: None,
            host: FACTS[usize::from(number)],
        };
        let plane = Plane::start_with(config, move || Ok(port.clone())).unwrap();
        let memory = plane.memory();
        let control = Control::map(memory.fd(), memory.len()).unwrap();
        let me = control.join(1, Some(AGENT), 2).unwrap();
        let proposals = moves_in(&control, me, &memory, number);
        plane.set_listeners(vec![server(number)]);
        let host = Self {
            plane,
            number,
            memory,
            control,
            proposals,
            me,
            clients: RefCell::default(),
            ended: RefCell::default(),
            server: Cell::new(1),
            regions: RefCell::default(),
            next: Cell::new(2),
            port: Cell::new(1024),
        };
        (0..3).for_each(|_| host.start_client());
        host
    }

    fn name(&self) -> u64 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }

    /// Another program with connections to the peer.
    pub fn start_client(&self) {
        let (control, name, endpoint) = (&self.control, self.name(), self.name());
        let extent = control.take_extent(self.me).unwrap();
        let before = control.extent(extent).kind();
        let fd = self.memory.fd();
        let region = region::create_in_device(fd, offset(extent), name, before).unwrap();
        control.describe(extent, Kind::Region, EXTENT, endpoint, name);
        let (region, slots) = (Arc::new(region), Slots::new(Geometry::Device.slots()));
        self.clients.borrow_mut().push(Rc::new(Client { name, endpoint, extent, region, slots }));
    }

    /// One of the programs with connections to the peer.
    pub fn client(&self, random: &mut Random) -> Rc<Client> {
        let clients = self.clients.borrow();
        Rc::clone(&clients[random.below(clients.len())])
    }

    /// Such a program has ended, and its proposals to the peer's programs go. Another one begins.
    pub fn client_ends(&self, client: &Client, proposals: &Table) {
        proposals.scrub(client.name);
        self.memory.gone(client.name, client.endpoint);
        self.control.hide(client.extent, self.me);
        self.clients.borrow_mut().retain(|other| other.name != client.name);
        self.ended.borrow_mut().push(client.extent);
        self.start_client();
    }

    /// The program that serves has ended, and another one begins.
    pub fn server_ends(&self) {
        let endpoint = self.server.replace(self.name());
        for Served { name, extent, .. } in self.regions.borrow_mut().drain(..) {
            self.memory.gone(name, endpoint);
            self.control.extent(extent).release(self.me.index);
        }
    }

    /// Proposals to the peer's server, once the peer is there.
    pub fn table(&self) -> Table {
        let mut table = None;
        until("the peer's server", || {
            table = self.find_table();
            table.is_some()
        });
        table.unwrap()
    }

    pub fn find_table(&self) -> Option<Table> {
        let home = offset(self.peers_home()?);
        let listeners = Home::map(self.memory.fd(), home).ok()?;
        let wanted = Addr::from(server(1 - self.number));
        let (place, _) = listeners.listeners().find(|(_, known)| known.addr == wanted)?;
        Table::map_device(self.memory.fd(), home + table_offset(place)).ok()
    }

    fn peers_home(&self) -> Option<usize> {
        let is_peer = |member: &MemberId| self.control.member(member.index).peer() != Some(AGENT);
        self.control.members().filter(is_peer).find_map(|member| self.control.home_of(member))
    }

    /// A connection's name: of another port each time.
    pub fn addresses(&self) -> [SocketAddr; 2] {
        let port = self.port.get();
        self.port.set(if port == u16::MAX { 1024 } else { port + 1 });
        [SocketAddr::new(address(self.number), port), server(1 - self.number)]
    }

    /// True when no connection has a place, and nobody has the regions of programs that have ended.
    pub fn is_at_rest(&self) -> bool {
        let is_free = |client: &Rc<Client>| {
            (0..Geometry::Device.slots()).all(|slot| !client.slots.is_given(slot, &**client))
        };
        let is_let_go = |extent: &usize| {
            let others = !(1 << self.me.index);
            self.control.extent(*extent).holders() & others == 0
        };
        self.clients.borrow().iter().all(is_free) && self.ended.borrow().iter().all(is_let_go)
    }

    /// A region of the peer's programs. The program that serves holds it as long as it has connections there.
    pub fn region(&self, name: RegionId) -> Arc<Region> {
        let mut regions = self.regions.borrow_mut();
        if let Some(known) = regions.iter().find(|known| known.name == name) {
            return Arc::clone(&known.region);
        }
        regions.retain(|known| {
            let is_used = Arc::strong_count(&known.region) > 1;
            if !is_used {
                self.control.extent(known.extent).release(self.me.index);
            }
            is_used
        });
        let (extent, owner) = self.control.find_extent(name).unwrap();
        assert!(self.control.hold(extent, (owner, name), self.me));
        let region = Region::map_device(self.memory.fd(), offset(extent)).unwrap();
        let region = Arc::new(region);
        regions.push(Served { name, extent, region: Arc::clone(&region) });
        region
    }

    /// The agent hears that there are proposals.
    pub fn is_told(&self, client: &Client) {
        self.memory.proposed(client.name);
    }

    /// A program has published something in a place, as its peer's section asks to be told.
    pub fn tell(&self, region: &Region, slot: usize, theirs: &Section) {
        let code = theirs.ctl.queue.load(Ordering::Acquire);
        let Some((lane, vector)) = queue_place(code) else { return };
        let queue = region.view().lane(lane).vector(vector);
        if queue.queue.push(&queue.arm, slot) == Push::Ring {
            self.ring(theirs.setup.endpoint.load(Ordering::Relaxed));
        }
    }

    fn ring(&self, endpoint: EndpointId) {
        let Some(home) = self.peers_home() else { return };
        let home = Home::map(self.memory.fd(), offset(home)).unwrap();
        let line = home.find_endpoint(endpoint).and_then(|place| home.interrupt_of(place, 0));
        let means = self.memory.means().unwrap();
        if let Some(bell) = line.and_then(|line| means.into_iter().nth(line.into())) {
            std::fs::File::from(bell).write_all(&1_u64.to_ne_bytes()).unwrap();
        }
    }
}

/// Publishes the agent's home, with the program that serves and its listener: the proposals to that.
fn moves_in(control: &Control, me: MemberId, memory: &SharedMemory, number: u8) -> Table {
    let extent = control.take_extent(me).unwrap();
    let home = Home::map(memory.fd(), offset(extent)).unwrap();
    control.describe(extent, Kind::Home, EXTENT, 0, 0);
    home.set_endpoint(0, 1, 1, &(0..0));
    let table = offset(extent) + table_offset(0);
    let proposals = Table::create_in_device(memory.fd(), table).unwrap();
    let addr = Addr::from(server(number));
    home.publish(0, &Published { id: 5, addr, v6only: false, bits: WHOLE });
    control.moves_in(me, extent);
    proposals
}

/// A program with connections to the peer.
pub struct Client {
    pub name: RegionId,
    pub endpoint: EndpointId,
    extent: usize,
    pub region: Arc<Region>,
    slots: Slots,
}

impl Client {
    /// A place for a connection. `None`: all are taken.
    pub fn take(&self) -> Option<usize> {
        self.slots.take(Geometry::Device.slots(), self)
    }

    /// Nobody has taken up what was proposed there.
    pub fn free(&self, slot: usize) {
        self.slots.free(slot, self);
    }
}

impl LinkGroup for Client {
    fn section(&self, slot: usize, side: Side) -> &Section {
        self.region.view().section(slot, side)
    }

    fn is_open(&self, _: usize) -> bool {
        true
    }

    fn open(&self, _: usize) -> bool {
        true
    }

    fn begins(&self, _: usize) {}
}
