//! The processes of a run.
//!
//! A [`Rig`] is a private directory with an agent for each contender that runs under Shunt. A
//! [`Session`] is one contender in it: it makes command lines, starts servers, runs clients, meters
//! what they cost, and has the agent prove that connections were shunted.
//!
//! Each program is started through the hidden `shunt load exec`, which raises its limits, has the
//! kernel end it with the bench, and, under Shunt, hands over to `shunt run`.

pub mod account;
pub mod agent;
pub mod bridge;
mod budget;
pub mod cgroup;
pub mod endpoint;
mod installed;
pub mod loopback;
pub mod meter;
pub mod namespaces;
pub mod ports;
pub mod process;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use tempfile::TempDir;

use crate::contender::Contender;
use crate::failure::{Context, Failure, Result};
use crate::load::Seen;
use account::Account;
use agent::Agent;
use bridge::{Bridge, End};
pub use budget::Budget;
use endpoint::Endpoint;
pub use installed::program;
use loopback::Loopback;
use meter::{Cost, Meter};
use namespaces::Namespaces;
use process::{Finished, Groups, Process};

/// How long a server may take until it listens.
const START: Duration = Duration::from_secs(10);

/// After a server listens, until all of its workers do.
const SETTLE: Duration = Duration::from_millis(30);

/// Descriptors that each program may open: more than the largest row needs.
pub const DESCRIPTORS: u64 = 65_536;

/// Where programs run, and as which user.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Place {
    /// Servers and clients are in networks of their own.
    pub isolated: bool,
    /// This user, where root runs the bench.
    pub user: Option<&'static str>,
}

/// See the module's description.
pub struct Rig {
    dir: TempDir,
    shunt: PathBuf,
    groups: Groups,
    agents: RefCell<HashMap<(Contender, Place), Rc<Agent>>>,
    // After the agents, which run in them.
    cgroups: Result<cgroup::ControlGroups>,
    bridge: OnceCell<Result<Bridge>>,
    loopbacks: RefCell<HashMap<Contender, Result<Rc<Loopback>>>>,
    // After the agents, too.
    _namespaces: Namespaces,
    files: Cell<u32>,
    rates: RefCell<HashMap<(String, Contender), f64>>,
}

impl Rig {
    /// An empty one. Its directory is in the system's place for temporary files.
    ///
    /// # Errors
    /// When there is no room for it, or this executable cannot be found.
    pub fn new(groups: Groups) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("shunt-bench-").tempdir();
        Ok(Self {
            dir: dir.context("a directory for the run")?,
            shunt: std::env::current_exe().context("the path of shunt itself")?,
            groups,
            cgroups: cgroup::ControlGroups::new(),
            bridge: OnceCell::new(),
            loopbacks: RefCell::default(),
            _namespaces: Namespaces::default(),
            agents: RefCell::default(),
            files: Cell::new(0),
            rates: RefCell::default(),
        })
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The control groups, if they can be had.
    ///
    /// # Errors
    /// [`Failure::Skipped`] without the privilege.
    pub fn cgroups(&self) -> Result<&cgroup::ControlGroups> {
        self.cgroups.as_ref().map_err(Clone::clone)
    }

    fn exec(
        &self,
        contender: Contender,
        cores: Option<Cores>,
        netns: Option<&Path>,
        account: Option<&Account>,
    ) -> Command {
        let group = self.cgroups.as_ref().ok().map(|groups| groups.path(contender));
        exec(&self.shunt, group, cores, netns, account)
    }

    /// A new name in the directory.
    #[must_use]
    pub fn new_path(&self, stem: &str) -> PathBuf {
        self.files.set(self.files.get() + 1);
        self.path().join(format!("{stem}.{}", self.files.get()))
    }

    /// One contender, whose servers and clients run at this place. Its agent is started if it needs
    /// one and has none.
    ///
    /// # Errors
    /// When the agent cannot be started, or what the contender needs cannot be had.
    pub fn session(&self, contender: Contender, place: Place) -> Result<Session<'_>> {
        let bridge = place.isolated.then(|| self.bridge.get_or_init(Bridge::new).as_ref());
        let bridge = bridge.transpose().map_err(Clone::clone)?;
        let loopback = contender.congestion_control().map(|name| self.loopback(contender, name));
        if contender == Contender::Sockmap {
            self.cgroups()?.sockmap()?;
        }
        let user = place.user.filter(|_| rustix::process::geteuid().is_root());
        let account = user.map(|name| Account::new(name, self.path())).transpose()?;
        let agent = if contender.is_shunt() {
            Some(self.agent(contender, place, account.as_ref())?)
        } else {
            None
        };
        Ok(Session {
            rig: self,
            contender,
            agent,
            account,
            bridge,
            loopback: loopback.transpose()?,
            has_server: Cell::new(false),
            environment: RefCell::default(),
            counts_calls: Cell::new(false),
            cores: Cell::new(None),
        })
    }

    fn loopback(&self, contender: Contender, name: &'static str) -> Result<Rc<Loopback>> {
        let mut all = self.loopbacks.borrow_mut();
        all.entry(contender).or_insert_with(|| Loopback::with(name).map(Rc::new)).clone()
    }

    fn agent(
        &self,
        contender: Contender,
        place: Place,
        account: Option<&Account>,
    ) -> Result<Rc<Agent>> {
        if let Some(agent) = self.agents.borrow().get(&(contender, place)) {
            return Ok(Rc::clone(agent));
        }
        let (whose, args): (_, &[_]) =
            if place.isolated { ("host", &["agent", "--host"]) } else { ("run", &["agent"]) };
        let dir = account.map_or(self.path(), |account| &account.dir);
        let run_dir = dir.join(format!("{whose}-{}", contender.name()));
        let mut command = self.exec(contender, None, None, account);
        command.arg(&self.shunt).args(args);
        let log = self.new_path("agent");
        let agent = Agent::start(command, &self.shunt, run_dir, &log, &self.groups, account)?;
        let agent = Rc::new(agent);
        self.agents.borrow_mut().insert((contender, place), Rc::clone(&agent));
        Ok(agent)
    }
}

/// Processors that programs share: so many, behind the first so many of those that may be used.
#[derive(Clone, Copy, Debug)]
struct Cores {
    past: u32,
    count: u32,
}

/// See the module's description.
pub struct Session<'r> {
    rig: &'r Rig,
    /// Who runs.
    pub contender: Contender,
    agent: Option<Rc<Agent>>,
    account: Option<Account>,
    bridge: Option<&'r Bridge>,
    loopback: Option<Rc<Loopback>>,
    /// What is started from now on are clients.
    has_server: Cell<bool>,
    environment: RefCell<Vec<(&'static str, String)>>,
    counts_calls: Cell<bool>,
    cores: Cell<Option<Cores>>,
}

impl Session<'_> {
    /// The rig.
    #[must_use]
    pub const fn rig(&self) -> &Rig {
        self.rig
    }

    /// Where its programs may make files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.account.as_ref().map_or(self.rig.path(), |account| &account.dir)
    }

    /// The agent, of a contender under Shunt.
    #[must_use]
    pub fn agent(&self) -> Option<&Agent> {
        self.agent.as_deref()
    }

    /// Sets a variable for programs that are started from now on.
    pub fn set(&self, name: &'static str, value: &str) {
        self.environment.borrow_mut().push((name, value.to_owned()));
    }

    /// Programs that are started from now on share so many processors.
    pub fn share_cores(&self, cores: u32) {
        self.cores.set(Some(Cores { past: 0, count: cores }));
    }

    /// Programs that are started from now on have one processor: that behind the first so many, if there is one.
    pub fn take_core(&self, past: u32) {
        self.cores.set(Some(Cores { past, count: 1 }));
    }

    /// From now on system calls are counted too, which slows everything down.
    pub fn count_calls(&self) {
        self.counts_calls.set(true);
    }

    /// A command line that runs a program as this contender does.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.bare();
        if let (Some(agent), Some(options)) = (self.agent(), self.contender.run_options()) {
            command.env("SHUNT_RUN_DIR", agent.run_dir());
            command.arg(&self.rig.shunt).arg("run").args(options).arg("--");
        }
        command.envs(self.environment.borrow().iter().map(|(name, value)| (name, value)));
        command.arg(program);
        command
    }

    /// How each command line begins, before `shunt run`.
    fn bare(&self) -> Command {
        let end = if self.has_server.get() { End::Client } else { End::Server };
        let of_its_own = self.loopback.as_ref().map(|loopback| loopback.namespace().to_owned());
        let netns = self.bridge.map(|bridge| bridge.namespace(end)).or(of_its_own);
        let account = self.account.as_ref();
        let mut command =
            self.rig.exec(self.contender, self.cores.get(), netns.as_deref(), account);
        command.current_dir(self.dir());
        command
    }

    /// A command line for a load program that is no program of the contender's: it never runs under Shunt.
    #[must_use]
    pub fn load_apart(&self, name: &str) -> Command {
        let mut command = self.bare();
        command.arg(&self.rig.shunt).args(["load", "--stops", name]);
        command
    }

    /// A command line for one of the bench's own load programs.
    #[must_use]
    pub fn load(&self, name: &str) -> Command {
        let mut command = self.command(&self.rig.shunt);
        command.args(["load", "--stops", name]);
        command
    }

    /// A command line for a subcommand of `shunt`.
    #[must_use]
    pub fn own(&self) -> Command {
        self.command(&self.rig.shunt)
    }

    /// Somewhere for a server to listen.
    ///
    /// # Errors
    /// When no port is free.
    pub fn endpoint(&self) -> Result<Endpoint> {
        Endpoint::free(self.contender, self.rig.path(), self.bridge.map(|_| bridge::SERVER))
    }

    /// Starts a program.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, command: Command) -> Result<Process> {
        Process::start(command, &self.rig.new_path("program"), &self.rig.groups)
    }

    /// Starts a server and waits until it listens.
    ///
    /// # Errors
    /// When it does not.
    pub fn serve(&self, command: Command, at: &Endpoint) -> Result<Process> {
        let mut processes = self.serve_all(vec![(command, at.clone())])?;
        processes.pop().ok_or_else(|| Failure::failed("no server"))
    }

    /// Starts several servers at once and waits until they listen.
    ///
    /// # Errors
    /// When one of them does not.
    pub fn serve_all(&self, servers: Vec<(Command, Endpoint)>) -> Result<Vec<Process>> {
        let start = |(command, at)| Ok((self.start(command)?, at));
        let servers: Vec<_> = servers.into_iter().map(start).collect::<Result<_>>()?;
        for (process, at) in &servers {
            process.wait_until(START, |process| at.is_served(process.pid()))?;
        }
        std::thread::sleep(SETTLE);
        self.has_server.set(true);
        Ok(servers.into_iter().map(|(process, _)| process).collect())
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// When it fails or takes longer than `patience`.
    pub fn run(&self, command: Command, patience: Duration) -> Result<Finished> {
        self.start(command)?.wait(patience)
    }

    /// Runs clients of the bench's own, which start together, and says what they saw and what all
    /// programs of the rig used while they did.
    ///
    /// # Errors
    /// When one of them fails or takes longer than the patience for this budget.
    pub fn drive(&self, clients: Vec<Command>, budget: Budget) -> Result<(Vec<Seen>, Cost)> {
        let clients: Vec<_> = clients.into_iter().map(|c| self.start(c)).collect::<Result<_>>()?;
        let stop = |client: &Process| client.wait_until(budget.patience(), Process::is_stopped);
        clients.iter().try_for_each(stop)?;
        let (_, cost) = self.metered(|| {
            clients.iter().for_each(Process::go_on);
            // Looking at them costs time on the processors that are measured.
            std::thread::sleep(Duration::from_secs_f64(budget.seconds * 0.9));
            let done = |client: &Process| client.is_stopped() && client.stdout().ends_with('\n');
            clients.iter().try_for_each(|client| client.wait_until(budget.patience(), done))
        })?;
        let seen = clients.iter().map(|client| {
            serde_json::from_str(client.stdout().trim()).context("what the load program printed")
        });
        Ok((seen.collect::<Result<_>>()?, cost))
    }

    /// Runs `act`, and says what the programs of the rig used meanwhile.
    ///
    /// # Errors
    /// Those of `act`.
    pub fn metered<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<(T, Cost)> {
        let counter = match &self.rig.cgroups {
            Ok(groups) if self.counts_calls.get() => groups.count_calls(self.contender).ok(),
            _ => None,
        };
        let meter = Meter::start(&self.rig.groups, counter);
        let result = act()?;
        Ok((result, meter.stop(&self.rig.groups)))
    }

    /// The rate that this contender was seen to reach in a row, for programs that want to be told
    /// how many requests to send; `guess` before that.
    ///
    /// # Errors
    /// Those of `guess`.
    pub fn known_rate(&self, row: &str, guess: impl FnOnce() -> Result<f64>) -> Result<f64> {
        let place = if self.bridge.is_some() { "bridge." } else { "" };
        let key = (format!("{place}{row}"), self.contender);
        if let Some(rate) = self.rig.rates.borrow().get(&key) {
            return Ok(*rate);
        }
        let rate = guess()?;
        self.rig.rates.borrow_mut().insert(key, rate);
        Ok(rate)
    }
}

/// The beginning of each command line.
fn exec(
    shunt: &Path,
    group: Option<&Path>,
    cores: Option<Cores>,
    netns: Option<&Path>,
    account: Option<&Account>,
) -> Command {
    let mut command = Command::new(shunt);
    command.args(["load", "exec", "--nofile", &DESCRIPTORS.to_string()]);
    if let Some(group) = group {
        command.arg("--cgroup").arg(group);
    }
    if let Some(Cores { past, count }) = cores {
        command.args(["--cores", &count.to_string(), "--past", &past.to_string()]);
    }
    if let Some(netns) = netns {
        command.arg("--netns").arg(netns);
    }
    if let Some(account) = account {
        command.args(["--uid", &account.uid.to_string(), "--gid", &account.gid.to_string()]);
    }
    command.arg("--");
    for (name, _) in std::env::vars_os() {
        // What is set for the bench must not reach those it compares. Where the library is, may.
        let name_text = name.to_string_lossy();
        if name_text == "LD_PRELOAD" || name_text.starts_with("SHUNT_") && name_text != "SHUNT_LIB"
        {
            command.env_remove(&name);
        }
    }
    command.env("LC_ALL", "C");
    command
}
