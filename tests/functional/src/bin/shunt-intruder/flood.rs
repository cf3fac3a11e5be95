//! Everything at once that may keep an agent busy, until this process is ended.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use shunt_shm::registry::Registry;
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{MAX_MESSAGE, Reply, Request, encode};

use crate::agent::{Agent, doorbell};
use crate::say;

pub fn run(run_dir: &Path) -> io::Result<()> {
    // Proof that it is at work.
    drop(Agent::reach(run_dir)?);
    say("flood", "begins");
    let ways: [fn(&Path) -> io::Result<()>; 9] =
        [silent, coming, rubbish, deaf, greedy, busy, curious, offering, claiming];
    thread::scope(|scope| {
        for way in ways {
            scope.spawn(move || {
                loop {
                    // Whatever ends one try, the next begins.
                    let _ended = way(run_dir);
                    thread::yield_now();
                }
            });
        }
    });
    Ok(())
}

/// Connects, and says nothing.
fn silent(run_dir: &Path) -> io::Result<()> {
    let mut held = Vec::new();
    for _ in 0..1000 {
        held.push(Agent::reach(run_dir)?);
    }
    Ok(())
}

/// Introduces itself again and again, for which memory is made each time.
fn coming(run_dir: &Path) -> io::Result<()> {
    loop {
        Agent::introduced(run_dir)?;
    }
}

/// Says what means nothing.
fn rubbish(run_dir: &Path) -> io::Result<()> {
    let bell = doorbell()?;
    let fds = [bell.as_fd(); shunt_wire::agent::MAX_FDS];
    Agent::reach(run_dir)?.send(&[0xff; MAX_MESSAGE], &fds, Duration::ZERO)
}

/// Asks and never listens.
fn deaf(run_dir: &Path) -> io::Result<()> {
    let (agent, _) = Agent::introduced(run_dir)?;
    let mut buf = [0; MAX_MESSAGE];
    let packet = encode(&Request::Detach { region: 0 }, &mut buf).map_err(io::Error::other)?;
    loop {
        agent.send(packet, &[], Duration::from_secs(1))?;
    }
}

/// Takes as many regions as it gets, for any listener there is, and keeps them.
fn greedy(run_dir: &Path) -> io::Result<()> {
    let agent = Agent::reach(run_dir)?;
    let bell = doorbell()?;
    let hello = Request::Hello { version: PROTOCOL_VERSION, program: "greedy", run: 0 };
    let (_, fds) = agent.call(&hello, &[bell.as_fd()])?;
    let registry = Registry::map(fds.first().ok_or(io::ErrorKind::NotFound)?)?;
    let mut held = Vec::new();
    loop {
        let found = (1..=u16::MAX).find_map(|port| {
            let addr = std::net::SocketAddr::from(([127, 0, 0, 1], port));
            registry.find(&addr.into(), |_| true)
        });
        let Some(found) = found else { continue };
        match agent.call(&Request::Connect { listener: found.listener }, &[])? {
            (Reply::Linked { .. }, fds) => held.extend(fds),
            _ => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Asks as fast as it is answered.
fn busy(run_dir: &Path) -> io::Result<()> {
    let (agent, _) = Agent::introduced(run_dir)?;
    loop {
        agent.call(&Request::Unlisten { listener: 0 }, &[])?;
    }
}

/// Wants to know everything, again and again.
fn curious(run_dir: &Path) -> io::Result<()> {
    let agent = Agent::reach(run_dir)?;
    agent.call(&Request::Tool { version: PROTOCOL_VERSION }, &[])?;
    loop {
        for request in [Request::List, Request::Stats { run: 0 }, Request::Status] {
            agent.call(&request, &[])?;
        }
    }
}

/// Offers connections that it never makes.
fn offering(run_dir: &Path) -> io::Result<()> {
    let (agent, _) = Agent::introduced(run_dir)?;
    for number in 0..4000 {
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            None,
        )?;
        let record = u32::try_from(number % 1000).unwrap_or(0);
        agent.call(&Request::Offer { record, number }, &[socket.as_fd()])?;
    }
    Ok(())
}

/// Claims connections that nobody has offered.
fn claiming(run_dir: &Path) -> io::Result<()> {
    let (agent, _) = Agent::introduced(run_dir)?;
    let listening = std::net::TcpListener::bind("127.0.0.1:0")?;
    let _near = std::net::TcpStream::connect(listening.local_addr()?)?;
    let far = listening.accept()?.0;
    for _ in 0..4000 {
        agent.call(&Request::Claim, &[far.as_fd()])?;
    }
    Ok(())
}
