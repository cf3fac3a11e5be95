//! The conversation of the tools with the agent: the directory of all programs under Shunt.

use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::geteuid;
use serde_json::Value;
use shunt_sys::fds::Fds;
use shunt_sys::run_dir::{Env, Owner, RunDir, Unusable};
use shunt_sys::seqpacket::{self, peer_cred, peer_pidfd};
use shunt_wire::agent::{MAX_MESSAGE, Reply, Request, decode, encode};
use shunt_wire::knob;
use shunt_wire::reason::Reason;
use shunt_wire::version::{CAPTURE_SINCE, EXPLAIN_SINCE, SPOKEN};

/// How long the agent may take to answer: a tool holds nobody up, so it never waits for less.
const PATIENCE: Duration = Duration::from_secs(2);

fn patience() -> Duration {
    let given = std::env::var(knob::AGENT_TIMEOUT.env).ok().and_then(|v| v.parse().ok());
    given.map_or(PATIENCE, |ms| PATIENCE.max(Duration::from_millis(ms)))
}

/// Versions after the newest that are tried, to tell the user which one the agent speaks.
const TRIED: u32 = 8;

/// Longest report that is read.
const MAX_REPORT: u32 = 256 << 20;

/// The agent's directory for this user and environment.
///
/// # Errors
/// When the environment names an impossible one.
pub fn run_dir() -> Result<RunDir, Unusable> {
    locate(RunDir::locate)
}

/// The same of an agent for the host.
///
/// # Errors
/// The same.
pub fn run_dir_of_host() -> Result<RunDir, Unusable> {
    locate(RunDir::locate_for_host)
}

/// Directories in which an agent of this user serves, of those to which any environment leads by default.
#[must_use]
pub fn agents_elsewhere() -> Vec<String> {
    let user = geteuid().as_raw();
    // Root has one directory.
    if user == 0 {
        return Vec::new();
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR");
    let usual = format!("/run/user/{user}");
    let mut found = Vec::new();
    for xdg in [own.as_ref().map(|v| v.as_bytes()), Some(usual.as_bytes()), None] {
        let env = Env { run_dir: None, xdg_runtime_dir: xdg };
        let Ok(dir) = RunDir::locate(env, user) else { continue };
        let path = dir.path().to_string();
        if !found.contains(&path) && dir.check().is_ok_and(|owner| serves(&dir, owner)) {
            found.push(path);
        }
    }
    found
}

/// True where an agent that is to be trusted takes connections.
fn serves(dir: &RunDir, owner: Owner) -> bool {
    let Ok(address) = dir.socket() else { return false };
    let Ok(socket) = seqpacket::connect_within(&address, patience()) else { return false };
    peer_cred(&socket).is_ok_and(|cred| owner.trusts(cred.uid, geteuid().as_raw()))
}

fn locate(
    place: impl FnOnce(Env<'_>, u32) -> Result<RunDir, Unusable>,
) -> Result<RunDir, Unusable> {
    let given = std::env::var_os("SHUNT_RUN_DIR");
    let xdg = std::env::var_os("XDG_RUNTIME_DIR");
    let env = Env {
        run_dir: given.as_ref().map(|v| v.as_bytes()),
        xdg_runtime_dir: xdg.as_ref().map(|v| v.as_bytes()),
    };
    place(env, geteuid().as_raw())
}

/// Why there is no agent to talk to. Each says what happened, why, and what to do.
#[derive(Debug)]
pub enum Unreachable {
    /// The directory cannot be used; its path, when it has a possible one.
    RunDir(Option<String>, Unusable),
    /// Nobody listens in this directory; where else agents of this user do is said besides.
    NotRunning(String),
    /// Nobody listens in this directory, which is that of an agent for the host.
    HostNotRunning(String),
    /// Somebody else's process listens there.
    Impostor(u32),
    /// It is of another version: the one that it speaks, if that could be found out, and its process, unless systemd made its
    /// socket.
    Version(Option<u32>, Option<i32>),
    /// It is older, and does not know what is asked.
    Unknown,
    /// As many captures as there can be are under way.
    Captured,
    /// It answered with something else, late, or not at all.
    Broken(String),
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunDir(dir, why) => {
                f.write_str("the agent's directory")?;
                if let Some(dir) = dir {
                    write!(f, " {dir}")?;
                }
                write!(f, " cannot be used: {why}; correct it, or set SHUNT_RUN_DIR to another")
            }
            Self::NotRunning(dir) => match agents_elsewhere().first() {
                Some(other) => write!(
                    f,
                    "no agent is running for {dir}, but one of yours is for {other}, to which another \
                     environment leads (XDG_RUNTIME_DIR); set {}={other} to use that one",
                    knob::RUN_DIR.env
                ),
                None => write!(
                    f,
                    "no agent is running for {dir}; `shunt run` starts one, and so does `shunt agent`"
                ),
            },
            Self::HostNotRunning(dir) => write!(
                f,
                "no agent is running for {dir}, the directory of an agent for the host; root starts that \
                 (`systemctl start shunt-host`, or `shunt agent --host`). For an agent of your own set \
                 SHUNT_RUN_DIR to a directory with mode 0700"
            ),
            Self::Impostor(uid) => write!(
                f,
                "the agent's socket is served by another user (uid {uid}) and is not trusted; \
                 set SHUNT_RUN_DIR to a directory of your own"
            ),
            Self::Version(theirs, pid) => {
                let (oldest, newest) = (SPOKEN.start(), SPOKEN.end());
                f.write_str("the running agent speaks ")?;
                match theirs {
                    Some(theirs) => write!(f, "version {theirs} of the protocol")?,
                    None => f.write_str("another version of the protocol")?,
                }
                write!(f, ", and this command {oldest} to {newest}: ")?;
                if theirs.is_some_and(|theirs| theirs > *newest) {
                    return f.write_str(
                        "this command is the older one; use the one that came with the agent",
                    );
                }
                f.write_str("the agent is the older one. Restart it: ")?;
                match pid {
                    Some(pid) => write!(f, "`kill {pid}`, and the next `shunt run` starts the right one"),
                    None => f.write_str("`systemctl restart` its unit (shunt-host, shunt-agent)"),
                }?;
                f.write_str(". Connections that there are live on (docs/upgrade.md)")
            }
            Self::Unknown => f.write_str(
                "the running agent is of an older version, which does not know this request; restart it \
                 (`systemctl restart shunt-host`; docs/upgrade.md)",
            ),
            Self::Captured => f.write_str(
                "as many captures are under way as there can be (4), or there is no memory for another; end one",
            ),
            Self::Broken(what) => write!(f, "the agent does not answer as it should: {what}"),
        }
    }
}

/// A conversation with the agent, as a tool.
pub struct Directory {
    socket: OwnedFd,
    /// The version that both speak.
    version: u32,
}

impl Directory {
    /// Finds the agent.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open() -> Result<Self, Unreachable> {
        let dir = run_dir().map_err(|why| Unreachable::RunDir(None, why))?;
        let path = || dir.path().to_string();
        let owner = match dir.check() {
            Ok(owner) => owner,
            Err(Unusable::System(Errno::NOENT)) => return Err(Unreachable::NotRunning(path())),
            Err(why) => return Err(Unreachable::RunDir(Some(path()), why)),
        };
        let address = dir.socket().map_err(|why| Unreachable::RunDir(Some(path()), why))?;
        let connect = || match seqpacket::connect_within(&address, patience()) {
            Ok(socket) => Ok(socket),
            Err(Errno::NOENT | Errno::CONNREFUSED) => Err(match owner {
                Owner::User => Unreachable::NotRunning(path()),
                Owner::Root | Owner::Unmapped => Unreachable::HostNotRunning(path()),
            }),
            Err(e) => Err(Unreachable::Broken(e.to_string())),
        };
        let mut pid = None;
        // An agent refuses a version that it does not speak, and hangs up.
        let mut offer = |version| -> Result<Option<Self>, Unreachable> {
            let socket = connect()?;
            let agent = peer_cred(&socket).map_err(|e| Unreachable::Broken(e.to_string()))?;
            if !owner.trusts(agent.uid, geteuid().as_raw()) {
                return Err(Unreachable::Impostor(agent.uid));
            }
            pid = Some(agent.pid).filter(|pid| *pid > 1);
            let directory = Self { socket, version };
            match directory.call(&Request::Tool { version })? {
                (Reply::Done, _) => Ok(Some(directory)),
                (Reply::Refused { reason: Reason::VersionMismatch }, _) => Ok(None),
                (other, _) => Err(unexpected(&other)),
            }
        };
        for version in SPOKEN.rev() {
            if let Some(directory) = offer(version)? {
                return Ok(directory);
            }
        }
        let mut others = (1..*SPOKEN.start()).rev().chain(SPOKEN.end() + 1..=SPOKEN.end() + TRIED);
        let theirs = others.find(|version| matches!(offer(*version), Ok(Some(_))));
        Err(Unreachable::Version(theirs, pid))
    }

    /// The agent's process: its number, and a descriptor of it. `None`: a service manager has made its
    /// socket.
    ///
    /// # Errors
    /// When it is just ending.
    pub fn process(&self) -> Result<Option<(i32, OwnedFd)>, Unreachable> {
        let broken = |e: Errno| Unreachable::Broken(e.to_string());
        let pid = peer_cred(&self.socket).map_err(broken)?.pid;
        if pid <= 1 {
            return Ok(None);
        }
        Ok(Some((pid, peer_pidfd(&self.socket).map_err(broken)?)))
    }

    fn call(&self, request: &Request<'_>) -> Result<(Reply, Fds), Unreachable> {
        let since = match request {
            Request::Capture { .. } | Request::Captured => CAPTURE_SINCE,
            Request::Explain { .. } => EXPLAIN_SINCE,
            _ => 0,
        };
        if self.version < since {
            return Err(Unreachable::Unknown);
        }
        let broken = |what: &dyn fmt::Display| Unreachable::Broken(what.to_string());
        let mut buf = [0; MAX_MESSAGE];
        let packet = encode(request, &mut buf).map_err(|e| broken(&e))?;
        seqpacket::send(&self.socket, packet, &[], patience()).map_err(|e| broken(&e))?;
        let mut fds = Fds::new();
        let len = seqpacket::recv(&self.socket, &mut buf, &mut fds, patience());
        let len = len.map_err(|e| broken(&e))?;
        if len == 0 {
            return Err(broken(&"it closed the connection"));
        }
        // What cannot be decoded was most likely encoded by another version.
        let reply = decode(&buf[..len]).map_err(|_| Unreachable::Version(None, None))?;
        Ok((reply, fds))
    }

    /// Asks for a report.
    ///
    /// # Errors
    /// When the agent does not give it.
    pub fn report(&self, request: &Request<'_>) -> Result<Value, Unreachable> {
        self.report_with(request).map(|(report, _)| report)
    }

    /// Begins to capture: most bytes of a packet's data, and a port of either end or 0. The capture's place.
    ///
    /// # Errors
    /// When the agent refuses.
    pub fn capture(&self, snap: u32, port: u16) -> Result<u8, Unreachable> {
        match self.call(&Request::Capture { snap, port })?.0 {
            Reply::Capturing { place } => Ok(place),
            Reply::Refused { reason: Reason::NoResources } => Err(Unreachable::Captured),
            other => Err(unexpected(&other)),
        }
    }

    /// Programs that have come and gone since it was last asked, and the rings of those that have come.
    ///
    /// # Errors
    /// When the agent does not give it.
    pub fn captured(&self) -> Result<(Value, Vec<OwnedFd>), Unreachable> {
        let (report, mut fds) = self.report_with(&Request::Captured)?;
        Ok((report, std::iter::from_fn(|| fds.take()).collect()))
    }

    fn report_with(&self, request: &Request<'_>) -> Result<(Value, Fds), Unreachable> {
        let (reply, mut fds) = self.call(request)?;
        let Reply::Report { len } = reply else { return Err(unexpected(&reply)) };
        let broken = |what: &str| Unreachable::Broken(what.to_owned());
        let fd = fds.take().ok_or_else(|| broken("a report is missing"))?;
        if len > MAX_REPORT {
            return Err(broken("a report is too long"));
        }
        let mut text = vec![0; len as usize];
        let mut done = 0;
        while done < text.len() {
            match rustix::io::pread(&fd, &mut text[done..], done as u64) {
                Ok(0) | Err(_) => return Err(broken("a report is cut short")),
                Ok(n) => done += n,
            }
        }
        let report = serde_json::from_slice(&text).map_err(|_| broken("a report is not JSON"))?;
        Ok((report, fds))
    }
}

fn unexpected(reply: &Reply) -> Unreachable {
    match reply {
        Reply::Refused { reason } => Unreachable::Broken(format!("it refused ({})", reason.name())),
        _ => Unreachable::Broken("it gave an answer to another question".to_owned()),
    }
}
