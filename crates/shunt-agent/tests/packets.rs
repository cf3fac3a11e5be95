//! Whatever a packet is made of (its length, its bytes, its descriptors): it is answered or it costs its
//! sender the conversation, nothing of it is kept, and others are served.

mod common;

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};

use common::{Agent, Client, PATIENCE, new_eventfd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, fallocate, memfd_create, open};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use shunt_shm::memfd;
use shunt_shm::region::Region;
use shunt_sys::seqpacket;
use shunt_wire::PROTOCOL_VERSION;
use shunt_wire::agent::{MAX_FDS, MAX_MESSAGE, Reply, Request, encode};
use shunt_wire::reason::Reason;

fn encoded(request: &Request<'_>) -> Vec<u8> {
    encode(request, &mut [0; MAX_MESSAGE]).unwrap().to_vec()
}

/// One of each kind, that means nothing.
fn requests() -> Vec<Vec<u8>> {
    let program = "p";
    [
        Request::Hello { version: PROTOCOL_VERSION, program, run: u64::MAX },
        Request::Tool { version: PROTOCOL_VERSION },
        Request::Listen,
        Request::Unlisten { listener: u64::MAX },
        Request::Bequeath { listener: u64::MAX },
        Request::Connect { listener: u64::MAX },
        Request::Attach { region: u64::MAX, slot: u32::MAX },
        Request::Bells { region: u64::MAX, endpoint: u64::MAX },
        Request::Detach { region: u64::MAX },
        Request::List,
        Request::Stats { run: u64::MAX },
        Request::Explain { port: 80, other: 0 },
        Request::Status,
    ]
    .iter()
    .map(encoded)
    .collect()
}

/// Somebody else is served as if nothing were.
fn serves(agent: &Agent, bystander: &Client) {
    let missing = Request::Connect { listener: 1 };
    assert_eq!(bystander.refused(&missing, &[]), Reason::PeerNotShunted);
    drop(agent.library());
}

#[test]
fn packets_of_every_length() {
    let agent = Agent::start();
    let bystander = agent.library();
    let beginnings = [requests(), vec![vec![0xff], vec![0x80]]].concat();
    // Those around the longest message one by one, and far beyond it.
    let lengths = (0..64).chain((64..MAX_MESSAGE - 8).step_by(97));
    let lengths = lengths.chain(MAX_MESSAGE - 8..MAX_MESSAGE + 8).chain([4096, 65_536, 150_000]);
    for (n, len) in lengths.enumerate() {
        for (m, beginning) in beginnings.iter().enumerate() {
            let filler = if (n + m).is_multiple_of(2) { 0 } else { 0xff };
            let mut packet = beginning.clone();
            packet.resize(len, filler);
            let sender = match m % 3 {
                0 => agent.client(),
                1 => agent.tool(),
                _ => agent.library(),
            };
            sender.send_raw(&packet, &[]).unwrap();
            let answer = sender.receive();
            assert!(len <= MAX_MESSAGE || answer.is_none(), "{len} bytes are answered: {answer:?}");
        }
    }
    serves(&agent, &bystander);
}

/// One descriptor of each kind there is, under its name.
fn kinds() -> Vec<(&'static str, OwnedFd)> {
    let temp = tempfile::tempdir().unwrap();
    let path = open(temp.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let tcp = rustix::net::AddressFamily::INET;
    let stream = rustix::net::SocketType::STREAM;
    let unsealed = memfd_create("given", MemfdFlags::CLOEXEC).unwrap();
    vec![
        ("device", File::open("/dev/null").unwrap().into()),
        ("directory", File::open("/").unwrap().into()),
        ("path", path),
        ("file", tempfile::tempfile().unwrap().into()),
        ("process file", File::open("/proc/self/mem").unwrap().into()),
        ("pipe", std::io::pipe().unwrap().0.into()),
        ("udp", UdpSocket::bind("127.0.0.1:0").unwrap().into()),
        ("tcp, not connected", rustix::net::socket(tcp, stream, None).unwrap()),
        ("unix stream", UnixStream::pair().unwrap().0.into()),
        ("unix listener", UnixListener::bind(temp.path().join("socket")).unwrap().into()),
        ("seqpacket", seqpacket::pair().unwrap().0),
        (
            "epoll",
            rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap(),
        ),
        ("timer", timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap()),
        ("inotify", rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).unwrap()),
        ("pidfd", pidfd_open(getpid(), PidfdFlags::empty()).unwrap()),
        ("sealed memory", memfd::create_sealed("anon_inode:[eventfd]", 4096).unwrap()),
        ("memory", unsealed),
        // Its last part is what an eventfd is called.
        (
            "memory of a bad name",
            memfd_create("x/anon_inode:[eventfd]", MemfdFlags::CLOEXEC).unwrap(),
        ),
    ]
}

#[test]
fn every_kind_of_descriptor_that_is_not_asked_for() {
    let agent = Agent::start();
    let bystander = agent.library();
    let (server, client) = (agent.library(), agent.library());
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let (listener, _) = server.listen(&socket);
    let (region, _, memory) = client.connect(listener);
    let attach = Request::Attach { region, slot: 0 };
    let hello = encoded(&Request::Hello { version: PROTOCOL_VERSION, program: "p", run: 0 });
    let bell = new_eventfd();
    for (kind, fd) in &kinds() {
        let fd = fd.as_fd();
        agent.client().dropped_for(&hello, &[fd]);
        agent.client().dropped_for(&hello, &[bell.as_fd(), fd]);
        assert_eq!(server.refused(&Request::Listen, &[fd]), Reason::Unsupported, "{kind}");
        assert_eq!(server.refused(&attach, &[fd]), Reason::Unsupported, "{kind}");
        for request in [Request::Connect { listener }, Request::Detach { region }, Request::Listen]
        {
            // One more than asked for.
            let fds = if request == Request::Listen { vec![socket.as_fd(), fd] } else { vec![fd] };
            agent.library().dropped_for(&encoded(&request), &fds);
        }
        agent.tool().dropped_for(&encoded(&Request::Status), &[fd]);
    }
    // Memory and doorbells of the agent's own making are no sockets either.
    for fd in [memory.as_fd(), bell.as_fd()] {
        assert_eq!(server.refused(&Request::Listen, &[fd]), Reason::Unsupported);
        assert_eq!(server.refused(&attach, &[fd]), Reason::Unsupported);
    }
    agent.client().dropped_for(&hello, &[memory.as_fd()]);
    serves(&agent, &bystander);
    assert_eq!(agent.status()["listeners"][0]["holders"], 1);
}

/// Sends as many descriptors as the kernel takes, which [`seqpacket::send`] does not.
fn send_many(client: &Client, packet: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    let packet = [IoSlice::new(packet)];
    sendmsg(&client.socket, &packet, &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// The agent keeps no copy: the reader of a pipe sees its end.
#[test]
fn descriptors_of_bad_packets_are_closed() {
    let agent = Agent::start();
    let bystander = agent.library();
    let given_back = |client: Client, packet: &[u8], count: usize| {
        let (reader, writer) = std::io::pipe().unwrap();
        send_many(&client, packet, &vec![writer.as_fd(); count]);
        drop(writer);
        let answer = client.receive();
        let mut end = [PollFd::new(&reader, PollFlags::IN)];
        let patience = rustix::event::Timespec::try_from(PATIENCE).unwrap();
        assert_eq!(poll(&mut end, Some(&patience)), Ok(1), "{packet:?}: {count} are kept");
        answer
    };
    let bad = [requests(), vec![vec![], vec![0xff; 3], vec![0; 2 * MAX_MESSAGE]]].concat();
    let attach = Request::Attach { region: u64::MAX, slot: u32::MAX };
    let takes_one = [Request::Listen, attach].map(|request| encoded(&request));
    for count in [1, 2, MAX_FDS, MAX_FDS + 1, 253] {
        for packet in &bad {
            assert!(given_back(agent.client(), packet, count).is_none());
            assert!(given_back(agent.tool(), packet, count).is_none());
            let answer = given_back(agent.library(), packet, count);
            let asked_for = count == 1 && takes_one.contains(packet);
            assert_eq!(answer.is_some(), asked_for, "{packet:?} with {count}");
        }
    }
    serves(&agent, &bystander);
}

/// An answer that nobody takes, a direction that is shut, a conversation that ends in the middle.
#[test]
fn clients_that_are_half_there() {
    use rustix::net::{Shutdown, shutdown};
    let agent = Agent::start();
    let bystander = agent.library();
    let missing = encoded(&Request::Connect { listener: 1 });
    for how in [Shutdown::Read, Shutdown::Write, Shutdown::Both] {
        for asks in [false, true] {
            for kind in [Agent::client, Agent::tool, Agent::library] {
                let client = kind(&agent);
                if asks {
                    client.send_raw(&missing, &[]).unwrap();
                }
                shutdown(&client.socket, how).unwrap();
                // It may have been hung up on before.
                let _ = client.send_raw(&missing, &[]);
                serves(&agent, &bystander);
            }
        }
    }
    agent.until("they are forgotten", |s| s["endpoints"] == 1);
}

/// What a client was handed it can neither shorten nor make longer.
#[test]
fn memory_that_is_handed_out_keeps_its_length() {
    let agent = Agent::start();
    let client = agent.client();
    let bell = new_eventfd();
    let hello = Request::Hello { version: PROTOCOL_VERSION, program: "p", run: 0 };
    let (_, welcome) = client.call(&hello, &[bell.as_fd()]);
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let (listener, table) = client.listen(&socket);
    let (_, same_table, region) = client.connect(listener);
    let (reply, report) = agent.tool().call(&Request::Status, &[]);
    assert!(matches!(reply, Reply::Report { .. }));
    let handed_out = welcome.into_iter().chain([table, same_table, region]).chain(report);
    let handed_out: Vec<_> = handed_out.map(File::from).collect();
    assert_eq!(handed_out.len(), 7);
    for file in handed_out {
        let len = file.metadata().unwrap().len();
        for other in [0, len - 1, len + 1] {
            assert!(file.set_len(other).is_err(), "{file:?}");
        }
        assert!(file.write_all_at(&[0], len).is_err(), "{file:?}");
        assert_eq!(file.metadata().unwrap().len(), len);
    }
}

/// Memory that the agent reads is taken away under it, page by page, or filled with anything: that is
/// the harm of those who have it.
#[test]
fn memory_that_a_client_has_emptied_or_filled_harms_nobody() {
    let agent = Agent::start();
    let bystander = agent.library();
    for fill in [None, Some(0xff), Some(0x5a)] {
        let (client, bell) = (agent.client(), new_eventfd());
        let hello = Request::Hello { version: PROTOCOL_VERSION, program: "p", run: 3 };
        let (_, mut welcome) = client.call(&hello, &[bell.as_fd()]);
        let server = agent.library();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let (listener, table) = server.listen(&socket);
        let (region, _, memory) = client.connect(listener);
        for fd in [welcome.pop().unwrap(), table, memory.try_clone().unwrap()] {
            let file = File::from(fd);
            let len = file.metadata().unwrap().len();
            fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, len)
                .unwrap();
            if let Some(byte) = fill {
                file.write_all_at(&vec![byte; len.min(1 << 22) as usize], 0).unwrap();
            }
        }
        let attach = Request::Attach { region, slot: 0 };
        let near = TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        let far = socket.accept().unwrap().0;
        assert_eq!(server.refused(&attach, &[far.as_fd()]), Reason::Refused);
        assert!(Region::map(&memory).is_err(), "it is no region any more");
        for report in [
            Request::List,
            Request::Stats { run: 3 },
            Request::Explain { port: 0, other: 0 },
            Request::Status,
        ] {
            agent.tool().report(&report);
        }
        drop((client, server, near));
        agent.until("both are forgotten", |s| s["endpoints"] == 1 && s["regions"] == 0);
        serves(&agent, &bystander);
    }
}
