//! The configuration of an agent.

use std::path::PathBuf;
use std::time::Duration;

pub use shunt_device::ivshmem::Place;
use shunt_sys::run_dir::RunDir;

use crate::policy::Policy;
use shunt_metrics::Address;

/// How an agent is to run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where its socket, lock and totals are.
    pub run_dir: RunDir,
    /// End when nobody has been connected for so long.
    pub idle_exit: Option<Duration>,
    /// How long to wait for an agent that is just ending.
    pub lock_wait: Duration,
    /// Where to serve metrics, if at all.
    pub metrics: Option<Metrics>,
    /// For all users and containers of this host, instead of one user.
    pub host: Option<HostConfig>,
    /// The memory that is shared with other machines, if any.
    pub ivshmem: Option<Sharing>,
    /// Agents of other hosts, and the device to reach them by, if any. The peers are those of the command line; the policy may name more.
    pub rdma: Option<shunt_rdma::Config>,
    /// When connections to other hosts are promoted, as the command line says; where it says nothing the policy does.
    pub rdma_promote: Option<shunt_rdma::Promote>,
    /// Bounds.
    pub limits: Limits,
}

impl Config {
    /// An agent in `run_dir` that stays.
    #[must_use]
    pub fn new(run_dir: RunDir) -> Self {
        Self {
            run_dir,
            idle_exit: None,
            lock_wait: Duration::ZERO,
            metrics: None,
            host: None,
            ivshmem: None,
            rdma: None,
            rdma_promote: None,
            limits: Limits::default(),
        }
    }
}

/// Where metrics are to be served.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// At which address.
    pub address: Address,
    /// Also at one that other hosts can reach.
    pub public: bool,
    /// No agent without. Else an address that can't be had is a warning.
    pub required: bool,
}

/// What an agent for the host is told besides.
#[derive(Clone, Debug, Default)]
pub struct HostConfig {
    /// Who may be shunted with whom.
    pub policy: Policy,
    /// Where that was read, to be read again; `None`: nowhere.
    pub policy_file: Option<PathBuf>,
    /// The control group (version 2) whose programs' connections are marked; `None`: the root.
    pub cgroup: Option<PathBuf>,
}

/// The memory that is shared with other machines.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// The device.
    pub place: Place,
    /// An agent that can't have it does not run.
    pub required: bool,
}

/// Bounds on what clients can make the agent keep or do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections to the agent's socket.
    pub clients: usize,
    /// The same of one process, which needs one: so that no process takes the places of all others.
    pub clients_per_process: usize,
    /// Conversations that were made for children of one process, of which they have said nothing yet.
    pub invitations_per_process: usize,
    /// Programs.
    pub endpoints: usize,
    /// Listening sockets.
    pub listeners: usize,
    /// Listening sockets at one address (`SO_REUSEPORT`) that one endpoint holds.
    pub sockets_per_listener: usize,
    /// Regions that one endpoint owns.
    pub regions_per_endpoint: usize,
    /// Regions.
    pub regions: usize,
    /// Doorbells beyond the first of each endpoint.
    pub bells: usize,
    /// Connections that one endpoint has offered, and that nobody has claimed.
    pub offers_per_endpoint: usize,
    /// Of what an agent for the host has room for (clients, endpoints, listeners, regions, doorbells), one account may
    /// have this part: one in so many.
    pub share: usize,
    /// Memory that one endpoint has registered: so many pieces.
    pub exports_per_endpoint: usize,
    /// Time to say who one is.
    pub introduction: Duration,
    /// Inspectors that may be stuck with what one process has passed.
    pub stuck_per_process: usize,
    /// The same of one account, of an agent for the host.
    pub stuck_per_account: usize,
    /// Inspectors.
    pub inspectors: usize,
    /// Time for an inspector to receive a packet.
    pub inspection: Duration,
    /// Messages that a client may send at once.
    pub burst: u32,
    /// Messages per second that it may send in the long run.
    pub rate: u32,
    /// Connections that `List` reports.
    pub listed: usize,
    /// Who asks for metrics at once.
    pub scrapers: usize,
    /// Time for a scraper to ask, to be answered and to leave.
    pub scrape: Duration,
}

/// How long an inspector may take before another one serves the others.
const HURRY: Duration = Duration::from_millis(10);

impl Limits {
    /// What concerns inspectors.
    pub(crate) const fn of_inspectors(&self, of_host: bool) -> shunt_inspector::Limits {
        shunt_inspector::Limits {
            of_process: self.stuck_per_process,
            // An agent of one user knows one account.
            of_account: if of_host { self.stuck_per_account } else { self.inspectors },
            inspectors: self.inspectors,
            hurry: HURRY,
            patience: self.inspection,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 4096 + 256,
            clients_per_process: 16,
            invitations_per_process: 256,
            endpoints: 4096,
            listeners: 1024,
            sockets_per_listener: 1024,
            regions_per_endpoint: 64,
            regions: 8192,
            bells: 32 * 1024,
            offers_per_endpoint: 1024,
            share: 4,
            exports_per_endpoint: 128,
            introduction: Duration::from_secs(10),
            stuck_per_process: 2,
            stuck_per_account: 8,
            inspectors: 64,
            inspection: Duration::from_secs(2),
            burst: 16384,
            rate: 10_000,
            listed: 64 * 1024,
            scrapers: 16,
            scrape: Duration::from_secs(5),
        }
    }
}
