//! The thread, as the agent has it.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use shunt_peer::PublicKey;
use shunt_verbs::port::Port;
use shunt_wire::agent::RegionId;

use crate::config::{Config, PeerName, Promote};
use crate::device;
use crate::error::StartError;
use crate::hub::Hub;
use crate::kernels::Marks;
use crate::kernels::socket::Socket;
use crate::memory::SharedMemory;
use crate::peers;
use crate::report::Report;
use crate::shared::Shared;

/// A thread that keeps the connections to peers. It ends with this value.
#[derive(Debug)]
pub struct Plane {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    own: PublicKey,
    /// What servers answer to SYNs, where any are named.
    marks: Option<Arc<dyn Marks>>,
}

impl Plane {
    /// Starts it. A device that cannot be used is no error: the report says why, and it is looked for again.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: Config) -> Result<Self, StartError> {
        let wanted = config.device.clone();
        Self::start_with(config, move || device::open(&wanted).map_err(|why| why.to_string()))
    }

    /// The same, with a device that `open` opens, or else says why it cannot.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with<P>(
        config: Config,
        open: impl FnMut() -> Result<P, String> + Send + 'static,
    ) -> Result<Self, StartError>
    where
        P: Port + Clone + Send + 'static,
        P::Region: Send,
        P::Channel: Send,
        P::Queue: Send,
        P::Pair: Send,
    {
        let own = config.key.public().map_err(StartError::Key)?;
        peers::check(&config.peers, &own)?;
        let listen = |error| StartError::Listen(config.listen, error);
        let listener = TcpListener::bind(config.listen).map_err(listen)?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared::new()?);
        let marks = config.servers.as_ref().map(|servers| Arc::clone(&servers.marks));
        let mut hub = Hub::new(config, own, listener, Arc::clone(&shared), Box::new(open))?;
        hub.show();
        let thread = std::thread::Builder::new().name("shunt-peers".into());
        let thread = Some(thread.spawn(move || hub.run())?);
        Ok(Self { shared, thread, own, marks })
    }

    /// The listeners of this host's programs, instead of those that were said before. Peers hear of those that they can reach.
    pub fn set_listeners(&self, listeners: Vec<SocketAddr>) {
        self.shared.tell(|inbox| inbox.listeners = Some(listeners));
    }

    /// Other peers, instead of those before. Those that are still named keep their connections.
    ///
    /// # Errors
    /// [`StartError`]: they stay as they are.
    pub fn set_peers(&self, names: Vec<PeerName>) -> Result<(), StartError> {
        peers::check(&names, &self.own)?;
        self.shared.tell(|inbox| inbox.peers = Some(names));
        Ok(())
    }

    /// Connections are promoted by this rule from now on; those that are, stay.
    pub fn set_promote(&self, promote: Promote) {
        self.shared.tell(|inbox| inbox.promote = Some(promote));
    }

    /// The socket of a connection that a program is about to propose at this place, to one of [`Config::servers`]. Its SYN is marked.
    pub fn pass(&self, region: RegionId, slot: usize, socket: OwnedFd) {
        // A program may pass as many as it likes, and proposes none of them.
        let before = self.shared.pass((region, slot), socket);
        drop(before.map(|before| Socket::new(before, self.marks.clone())));
    }

    /// The memory in which programs of this host find those of other hosts.
    #[must_use]
    pub fn memory(&self) -> Arc<SharedMemory> {
        Arc::clone(&self.shared.memory)
    }

    /// What is known now. `None`: it has just started.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        self.shared.report()
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.shared.tell(|inbox| inbox.must_end = true);
        if let Some(thread) = self.thread.take() {
            // A panic of it was written to the log; nothing here depends on how it ended.
            let _ = thread.join();
        }
    }
}
