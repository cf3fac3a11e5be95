//! Equal addresses in two networks are two addresses. Needs root, which makes the second network.

mod common;

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use common::{Agent, registered};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use rustix::process::geteuid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use shunt_shm::region::{Region, Side};
use shunt_sys::sockinfo;
use shunt_wire::agent::{Exported, Reply, Request};
use shunt_wire::reason::Reason;

/// A network with a loopback device, for as long as this lives.
struct Network(Child);

impl Network {
    fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && echo up && exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("unshare(1)");
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "up\n");
        Self(child)
    }

    /// Runs `body` in it: the kernel keeps a thread's network for itself.
    fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let place = std::fs::File::open(format!("/proc/{}/ns/net", self.0.id())).unwrap();
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(place.as_fd(), network).unwrap();
                body()
            });
            there.join().unwrap()
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// A listener, and a connection to it: the client's end and the server's. With given addresses or new ones.
fn connection(server: SocketAddr, client: SocketAddr) -> (TcpListener, TcpStream, TcpStream) {
    let listener = TcpListener::bind(server).unwrap();
    let near = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&near, true).unwrap();
    bind(&near, &client).unwrap();
    connect(&near, &listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    (listener, TcpStream::from(near), far)
}

#[test]
fn equal_addresses_in_two_networks_are_two_addresses() {
    if !geteuid().is_root() {
        println!("left out: only root can make a network");
        return;
    }
    let agent = Agent::start();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (listening, near, far) = connection(any, any);
    let (server_at, client_at) = (listening.local_addr().unwrap(), near.local_addr().unwrap());
    let elsewhere = Network::new();
    let (their_listening, their_near, their_far) =
        elsewhere.run(|| connection(server_at, client_at));
    let tuple = sockinfo::four_tuple(&near).unwrap();
    assert_eq!(tuple, sockinfo::four_tuple(&their_near).unwrap());

    let (client, server) = (agent.library(), agent.library());
    let (their_client, their_server) = elsewhere.run(|| (agent.library(), agent.library()));
    let (listener, _) = server.listen(&listening);
    let (their_listener, _) = their_server.listen(&their_listening);
    assert_ne!(listener, their_listener);

    // A listener of the other network cannot be proposed to.
    for (who, other) in [(&client, their_listener), (&their_client, listener)] {
        let request = Request::Connect { listener: other };
        assert_eq!(who.refused(&request, &[]), Reason::OtherNamespace);
    }

    // Who accepted the same addresses in the other network is not the acceptor, whoever shows the socket.
    let propose = |memory: &OwnedFd| {
        let map = Region::map(memory).unwrap();
        map.view().section(0, Side::Client).setup.set_tuple(&tuple);
    };
    let (region, _, memory) = client.connect(listener);
    propose(&memory);
    let (their_region, _, their_memory) = their_client.connect(their_listener);
    propose(&their_memory);
    for (region, right, wrong) in [(region, &far, &their_far), (their_region, &their_far, &far)] {
        let attach = Request::Attach { region, slot: 0 };
        for acceptor in [&server, &their_server] {
            assert_eq!(acceptor.refused(&attach, &[wrong.as_fd()]), Reason::Refused);
        }
        let (_, fds) = server.call(&attach, &[right.as_fd()]);
        assert!(!fds.is_empty());
    }

    // Nor is it given what the client has registered.
    let Reply::Exported { export } =
        client.call(&Request::Export { what: Exported::Asked }, &[registered().as_fd()]).0
    else {
        panic!("not exported");
    };
    let import = Request::Import { region, slot: 0, export };
    let relative = agent.library();
    for end in [&their_near, &their_far] {
        assert_eq!(relative.refused(&import, &[end.as_fd()]), Reason::Refused);
    }
    assert_eq!(relative.call(&import, &[far.as_fd()]).0, Reply::Imported);
}
