//! The library's side of the conversation with the agent.
//!
//! One connection per process, made when it is first needed, under one lock; every request waits
//! for its reply for a bounded time, so an agent that hangs costs the program a moment once and then
//! counts as away. Nothing here is on the data path.

mod requests;

use core::cell::Cell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::process::geteuid;
use shunt_sys::fds::Fds;
use shunt_sys::run_dir::{Env, Owner, RunDir};
use shunt_sys::seqpacket;
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{MAX_MESSAGE, Reply, Request, decode, encode};
use shunt_wire::counter::Counter;
use shunt_wire::reason::Reason;
use shunt_wire::version::SPOKEN;

use crate::callback::Callback;
use crate::control::endpoint::{self, Endpoint};
use crate::control::invitation::{self, Invitation};
use crate::fds::own_fds::{OwnFd, adopt};
use crate::knobs;
use crate::point;
use crate::system::clock;
use crate::threads::mutex::{Guard, Mutex};
use crate::threads::signals::Uncancelled;

pub use requests::{
    Attached, Claimed, Linked, Listening, Memory, Proposals, add_bell, attach, await_clients, bell,
    bells, bequeath, claim, connect, detach, export, fetch, import, listen, mark, offer, ring,
    unexport, unlisten,
};

/// How long to leave an agent alone that could not be reached.
const BACK_OFF: u64 = 200_000_000;
/// The same at the most for one that is there and does not answer: each try costs
/// [`knobs::Knobs::agent_timeout`].
const LONGEST_BACK_OFF: u64 = 5_000_000_000;

/// How long an agent that has not answered in time is left alone; 0 when the last one did.
static SILENT_FOR: AtomicU64 = AtomicU64::new(0);

/// What came of waiting for an answer.
fn heard<T>(result: Result<T, Errno>) -> Result<T, Reason> {
    let before = SILENT_FOR.load(Ordering::Relaxed);
    let silent = match &result {
        Err(Errno::TIMEDOUT) => before.max(BACK_OFF).saturating_mul(4).min(LONGEST_BACK_OFF),
        _ => 0,
    };
    SILENT_FOR.store(silent, Ordering::Relaxed);
    result.map_err(as_reason)
}

/// When an agent that could not be spoken to is tried again.
fn next_try() -> u64 {
    clock::now().saturating_add(SILENT_FOR.load(Ordering::Relaxed).max(BACK_OFF))
}

/// What is done when a conversation has begun.
pub static BEGUN: Callback<fn(&'static Endpoint)> = Callback::none();

static CLIENT: Mutex<Client> = Mutex::new(Client::Away { until: 0, why: Reason::NoAgent });

/// The conversations of the processes that this one descends from, while it has listeners of theirs
/// that it has not registered itself. Nothing is said there; but as long as they are open the agent
/// keeps the listeners listed when the parent ends, as a program's does that becomes a daemon.
static INHERITED: Mutex<Vec<OwnFd>> = Mutex::new(Vec::new());

enum Client {
    /// Not to be tried before `until` (monotonic nanoseconds).
    Away {
        until: u64,
        why: Reason,
    },
    Here {
        socket: OwnFd,
        endpoint: &'static Endpoint,
    },
}

/// The endpoint of [`Client::Here`], for those who only want to know it; else null.
static ENDPOINT: AtomicPtr<Endpoint> = AtomicPtr::new(core::ptr::null_mut());

/// The place of its socket among the library's own descriptors plus one; 0: none. For who has the lock.
static SOCKET: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread has the lock.
    static TALKS: Cell<bool> = const { Cell::new(false) };
}

/// The lock, taken.
struct Talk(Guard<'static, Client>);

impl Deref for Talk {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl DerefMut for Talk {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.0
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        TALKS.set(false);
    }
}

impl Client {
    /// The conversation begins, or is over. Returns what it was before.
    fn turn_to(&mut self, new: Self) -> Self {
        let (endpoint, socket) = match &new {
            Self::Here { endpoint, socket } => {
                (core::ptr::from_ref(*endpoint).cast_mut(), u32::from(socket.place()) + 1)
            }
            Self::Away { .. } => (core::ptr::null_mut(), 0),
        };
        ENDPOINT.store(endpoint, Ordering::Release);
        SOCKET.store(socket, Ordering::Release);
        core::mem::replace(self, new)
    }
}

/// The locks, held across fork so that the child does not inherit them taken.
pub struct ForkLocks {
    _talk: Talk,
    _inherited: Guard<'static, Vec<OwnFd>>,
}

/// Takes them.
pub fn lock_for_fork() -> ForkLocks {
    let (talk, mut inherited) = (lock(), inherited());
    // For what the child may keep, which has to copy each page of the heap's that it writes to.
    inherited.reserve(1);
    ForkLocks { _talk: talk, _inherited: inherited }
}

fn inherited() -> Guard<'static, Vec<OwnFd>> {
    INHERITED.lock()
}

/// No listener is left that somebody else has registered.
pub fn let_go_of_inherited() {
    inherited().clear();
}

fn lock() -> Talk {
    let guard = CLIENT.lock();
    TALKS.set(true);
    Talk(guard)
}

/// In a forked child: the parent's conversation is not ours. It stays open if the child
/// `has_listeners`.
pub fn forget_in_child(has_listeners: bool) {
    let mut client = lock();
    let before = client.turn_to(Client::Away { until: 0, why: Reason::NoAgent });
    invitation::become_own();
    match before {
        Client::Here { socket, .. } if has_listeners => inherited().push(socket),
        // Drops the inherited socket; the parent's stays open.
        _ => {}
    }
}

fn as_reason(errno: Errno) -> Reason {
    match errno {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Reason::NoResources,
        _ => Reason::NoAgent,
    }
}

/// A question that has no answer yet. After a panic the answer would be taken for that to the next
/// question, so the conversation ends.
struct Asked<'a>(BorrowedFd<'a>);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = rustix::net::shutdown(self.0, rustix::net::Shutdown::Both);
        }
    }
}

fn call(
    socket: BorrowedFd<'_>,
    request: &Request<'_>,
    with: &[BorrowedFd<'_>],
    fds: &mut Fds,
) -> Result<Reply, Reason> {
    let mut buf = [0; MAX_MESSAGE];
    let packet = encode(request, &mut buf).map_err(|_| Reason::Internal)?;
    let patience = knobs::get().agent_timeout();
    seqpacket::send(socket, packet, with, patience).map_err(as_reason)?;
    let asked = Asked(socket);
    point!(agent_asked);
    let len = heard(seqpacket::recv(socket, &mut buf, fds, patience))?;
    drop(asked);
    let packet = buf.get(..len).unwrap_or(&[]);
    if packet.is_empty() {
        return Err(Reason::NoAgent);
    }
    decode(packet).map_err(|_| Reason::VersionMismatch)
}

/// The directory of the agent.
fn run_dir() -> Result<RunDir, Reason> {
    let env = Env {
        run_dir: knobs::get().run_dir.as_ref().map(|p| p.to_bytes()),
        xdg_runtime_dir: knobs::get().xdg_runtime_dir.as_ref().map(|p| p.to_bytes()),
    };
    RunDir::locate(env, geteuid().as_raw()).map_err(|_| Reason::NoAgent)
}

/// Begins the conversation if `any`, or if the agent is one that another user would not be let in to.
/// One for the host lets all in, and must know this process as the user that it will be.
pub fn begin_while_permitted(any: bool) {
    let is_of_user = || run_dir().is_ok_and(|dir| dir.check() == Ok(Owner::User));
    if any || is_of_user() {
        let _ = endpoint();
    }
}

/// Before a fork: the child is to have a conversation, too, where it could not begin one by itself.
pub fn invite_child() {
    let _uncancelled = Uncancelled::begin();
    let mut client = lock();
    let invited = match &*client {
        Client::Here { socket, endpoint } => {
            invitation::is_needed(endpoint).then(|| ask_for_child(socket.borrow(), endpoint.user))
        }
        Client::Away { .. } => invitation::with_own(|own| {
            own.as_ref().map(|own| ask_for_child(own.socket.borrow(), own.user))
        }),
    };
    if let Some(Err(why @ (Reason::NoAgent | Reason::VersionMismatch))) = invited {
        client.turn_to(Client::Away { until: next_try(), why });
        drop(invitation::with_own(Option::take));
    }
    // Without one the child is TCP.
    invitation::keep_for_child(invited.and_then(Result::ok));
}

/// In the parent, after the fork.
pub fn child_has_come() {
    invitation::keep_for_child(None);
}

fn ask_for_child(agent: BorrowedFd<'_>, user: u32) -> Result<Invitation, Reason> {
    let mut fds = Fds::new();
    match call(agent, &Request::Invite, &[], &mut fds)? {
        Reply::Invited => {
            let socket = adopt(fds.take().ok_or(Reason::NoResources)?).map_err(as_reason)?;
            Ok(Invitation { socket, user })
        }
        Reply::Refused { reason } => Err(reason),
        _ => Err(Reason::VersionMismatch),
    }
}

/// By an invitation, if there is one, else by the socket in the agent's directory.
fn introduce() -> Result<(OwnFd, &'static Endpoint), Reason> {
    if let Some(Invitation { socket, user }) = invitation::with_own(Option::take)
        && let Ok(Reply::Done) = call(socket.borrow(), &Request::Arrive, &[], &mut Fds::new())
    {
        return say_hello(socket, user, agreed());
    }
    // An older agent refuses what it does not speak, and hangs up.
    let mut answer = Err(Reason::VersionMismatch);
    for version in SPOKEN.rev() {
        answer = say_hello(come_in()?, geteuid().as_raw(), version);
        if !matches!(answer, Err(Reason::VersionMismatch)) {
            AGREED.store(version, Ordering::Relaxed);
            break;
        }
    }
    answer
}

/// The version that this process, or the one that has forked it, last spoke with the agent.
static AGREED: AtomicU32 = AtomicU32::new(PROTOCOL_VERSION);

/// See [`AGREED`].
fn agreed() -> u32 {
    AGREED.load(Ordering::Relaxed)
}

/// A connection to the agent's socket.
fn come_in() -> Result<OwnFd, Reason> {
    let dir = run_dir()?;
    let owner = dir.check().map_err(|_| Reason::NoAgent)?;
    let address = dir.socket().map_err(|_| Reason::NoAgent)?;
    let socket = heard(seqpacket::connect_within(&address, knobs::get().agent_timeout()))?;
    let socket = adopt(socket).map_err(as_reason)?;
    let agent = seqpacket::peer_cred(socket.borrow()).map_err(as_reason)?;
    if !owner.trusts(agent.uid, geteuid().as_raw()) {
        return Err(Reason::NoAgent);
    }
    Ok(socket)
}

fn say_hello(socket: OwnFd, user: u32, version: u32) -> Result<(OwnFd, &'static Endpoint), Reason> {
    let own_bell = Endpoint::make_bell().map_err(|_| Reason::NoResources)?;
    let mut fds = Fds::new();
    let hello =
        Request::Hello { version, program: &knobs::get().program, run: knobs::get().run_id };
    match call(socket.borrow(), &hello, &[own_bell.borrow()], &mut fds)? {
        Reply::Welcome { endpoint, memory } => {
            let (Some(registry), Some(arena)) = (fds.take(), fds.take()) else {
                return Err(Reason::NoResources);
            };
            // Of an older agent there are none.
            let shared = (registry, arena, fds.take());
            let endpoint = Endpoint::new((endpoint, user), memory, own_bell, shared);
            Ok((socket, endpoint.map_err(|_| Reason::NoResources)?))
        }
        Reply::Refused { reason } => Err(reason),
        _ => Err(Reason::VersionMismatch),
    }
}

/// Runs `f` with the conversation, which is begun if need be.
fn with<T>(
    f: impl FnOnce(BorrowedFd<'_>, &'static Endpoint) -> Result<T, Reason>,
) -> Result<T, Reason> {
    if knobs::get().disabled {
        return Err(Reason::Disabled);
    }
    let _uncancelled = Uncancelled::begin();
    let mut client = lock();
    if let Client::Away { until, why } = *client {
        let now = clock::now();
        if now < until {
            return Err(why);
        }
        match introduce() {
            Ok((socket, endpoint)) => {
                drop(client.turn_to(Client::Here { socket, endpoint }));
                endpoint::count(Counter::WrongVariables, knobs::get().wrong.into());
                if let Some(begun) = BEGUN.get() {
                    begun(endpoint);
                }
            }
            Err(why) => {
                client.turn_to(Client::Away { until: next_try(), why });
                return Err(why);
            }
        }
    }
    let Client::Here { socket, endpoint } = &*client else { return Err(Reason::NoAgent) };
    let result = f(socket.borrow(), endpoint);
    if let Err(why @ (Reason::NoAgent | Reason::VersionMismatch)) = result {
        client.turn_to(Client::Away { until: next_try(), why });
    }
    result
}

/// This process's endpoint, with the agent's registry.
pub fn endpoint() -> Result<&'static Endpoint, Reason> {
    // SAFETY: null, or an endpoint, which is never freed.
    match unsafe { ENDPOINT.load(Ordering::Acquire).as_ref() } {
        Some(known) => Ok(known),
        None => with(|_, endpoint| Ok(endpoint)),
    }
}

/// True when the agent has hung up (it died or was restarted): the next request starts anew.
pub fn hung_up() -> bool {
    let _uncancelled = Uncancelled::begin();
    let mut client = lock();
    let Client::Here { socket, .. } = &*client else { return false };
    let mut byte = [0; 1];
    let mut fds = Fds::new();
    match seqpacket::recv(socket.borrow(), &mut byte, &mut fds, Duration::ZERO) {
        Err(Errno::AGAIN) => false,
        // The agent never speaks first: whatever came, the conversation is over.
        _ => {
            client.turn_to(Client::Away { until: 0, why: Reason::NoAgent });
            true
        }
    }
}

/// [`hung_up`], asked at most every so often.
pub fn hung_up_now_and_then() -> bool {
    static LOOKED: AtomicU64 = AtomicU64::new(0);
    let now = clock::now();
    if now.saturating_sub(LOOKED.load(Ordering::Relaxed)) < BACK_OFF {
        return false;
    }
    LOOKED.store(now, Ordering::Relaxed);
    hung_up()
}
