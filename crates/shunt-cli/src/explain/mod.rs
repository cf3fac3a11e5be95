//! `shunt explain`: the state of a connection's or listener's handshake, the decisions about it,
//! and the remedy.

mod end;
mod hosts;
mod kernel;
mod runs;
mod story;
mod text;

use shunt_wire::addr::Addr;
use shunt_wire::agent::Request;

use crate::cli::Explain;
use crate::directory::{Directory, Unreachable};
use crate::doctor::{AgentOf, has_library};
use crate::output::{complain, print, terminal_width};
use end::End;
use kernel::{Holder, Socket};
use story::{Explanation, Seen, Told};

pub use kernel::Target;

/// Runs the subcommand.
pub fn run(args: &Explain) -> u8 {
    match explain(args.target) {
        Ok(told) if args.json => match serde_json::to_string_pretty(&told) {
            Ok(text) => print(&(text + "\n")),
            Err(e) => failed(&e.to_string()),
        },
        Ok(told) => print(&text::render(&told, terminal_width())),
        Err(why) => failed(&why),
    }
}

fn failed(why: &str) -> u8 {
    complain(&why);
    1
}

/// An error is why there is nothing to explain.
fn explain(target: Target) -> Result<Explanation, String> {
    let (process, only, ports) = match target {
        Target::Port(port) => (None, None, (port, 0)),
        Target::Socket(pid, fd) => {
            let socket = kernel::socket(pid, fd).map_err(|why| why.to_string())?;
            match socket.peer {
                Some(peer) => {
                    let ends = (socket.local.to_string(), peer.to_string());
                    (Some(pid), Some(ends), (socket.local.port, peer.port))
                }
                None => (Some(pid), None, (socket.local.port, 0)),
            }
        }
    };
    let told = match ask(ports) {
        Ok(told) => Some(told),
        // What runs with the library and without an agent is on TCP, which is said.
        Err(Unreachable::NotRunning(_) | Unreachable::HostNotRunning(_)) => None,
        Err(why) => return Err(why.to_string()),
    };
    let seen = seen(process, ports, told.is_some());
    let only = only.as_ref().map(|(local, peer)| (local.as_str(), peer.as_str()));
    let name = match target {
        Target::Socket(..) if only.is_none() => ports.0.to_string(),
        target => target.to_string(),
    };
    let mut explanation = Explanation::of(name, told, &seen, only);
    hosts::add_to(&mut explanation.connections);
    if explanation.concerns_shunt() {
        return Ok(explanation);
    }
    let programs = explanation.programs();
    let hidden = || match target {
        Target::Port(port) => kernel::hidden_user(port),
        Target::Socket(..) => None,
    };
    Err(match (target, programs.as_slice(), hidden()) {
        (Target::Port(port), [], Some(user)) => format!(
            "what has port {port} is of another user (uid {user}) and may not be looked at by you; ask as root, or as \
             that user, and with the agent of that program (SHUNT_RUN_DIR)"
        ),
        (Target::Port(port), [], None) => format!(
            "nothing here listens at port {port}, no connection has it, and no program under Shunt has decided anything \
             about it; `ss -tanp` shows the ports that are in use"
        ),
        (_, programs, _) => format!(
            "what has {target} runs without Shunt: {}; start both ends with `shunt run`",
            programs.join(", ")
        ),
    })
}

fn ask((port, other): (u16, u16)) -> Result<Told, Unreachable> {
    let report = Directory::open()?.report(&Request::Explain { port, other })?;
    serde_json::from_value(report).map_err(|e| Unreachable::Broken(e.to_string()))
}

/// The sockets with these ports in the network of a process, or this one's, each with the processes that have it.
fn seen(of: Option<i32>, (port, other): (u16, u16), is_asked: bool) -> Vec<Seen> {
    let matches = |socket: &Socket| match socket.peer {
        None => socket.local.port == port && other == 0,
        Some(peer) => [(socket.local.port, peer.port), (peer.port, socket.local.port)]
            .iter()
            .any(|(one, two)| *one == port && (other == 0 || *two == other)),
    };
    let all = kernel::sockets(of);
    let sockets: Vec<_> = all.iter().filter(|socket| matches(socket)).copied().collect();
    // One that no process has yet is its listener's.
    let holder = |socket: &Socket| match kernel::listener_of(&all, socket) {
        Some(listener) if socket.is_unaccepted => *listener,
        _ => *socket,
    };
    let holders = kernel::holders(&sockets.iter().map(holder).collect::<Vec<_>>());
    let of_socket = |socket: &Socket| {
        let mut held = kernel::holders_of(&holders, &holder(socket));
        if socket.is_unaccepted {
            held.truncate(1);
        }
        let is_unaccepted = socket.is_unaccepted;
        let (local, peer) = (socket.local.to_string(), socket.peer.as_ref().map(Addr::to_string));
        let seen = move |holder: Holder| {
            let end = if is_unaccepted {
                let (pid, program, fd) = (holder.pid.cast_unsigned(), holder.name, holder.fd);
                End {
                    local: local.clone(),
                    pid,
                    program,
                    fd,
                    runs: runs::UNACCEPTED,
                    ..End::default()
                }
            } else {
                end(&local, holder, is_asked)
            };
            Seen { end, local: local.clone(), peer: peer.clone() }
        };
        held.into_iter().map(seen).collect::<Vec<_>>()
    };
    sockets.iter().flat_map(of_socket).collect()
}

/// A process of which the agent has told nothing.
fn end(local: &str, holder: Holder, is_asked: bool) -> End {
    let pid = holder.pid.cast_unsigned();
    let agent = AgentOf::process(pid);
    let how = match (has_library(pid), &agent) {
        (None, _) => runs::UNKNOWN,
        (Some(false), _) => runs::WITHOUT,
        (Some(true), None) => runs::UNKNOWN_TO_AGENT,
        (Some(true), Some(agent)) if !agent.is_there => runs::NO_AGENT,
        (Some(true), Some(agent)) if !agent.is_asked => runs::ANOTHER_AGENT,
        // A socket that nobody serves.
        (Some(true), Some(_)) if !is_asked => runs::NO_AGENT,
        (Some(true), Some(_)) => runs::UNKNOWN_TO_AGENT,
    };
    End {
        local: local.to_owned(),
        pid,
        program: holder.name,
        fd: holder.fd,
        runs: how,
        of_user: agent.as_ref().and_then(|agent| agent.of_user),
        agent: agent.filter(|_| how != runs::WITHOUT).map(|agent| agent.directory),
        ..End::default()
    }
}
