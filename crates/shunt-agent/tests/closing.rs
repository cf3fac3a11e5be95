//! The agent keeps no socket of a program's open. Alone in its executable: other tests make processes of it, which have a
//! copy of everything for a moment.

mod common;

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use common::Agent;

#[test]
fn the_agent_does_not_keep_a_listener_alive() {
    let agent = Agent::start();
    let library = agent.library();
    // Other programs listen at 127.0.0.1, and may be given the port that is free again.
    let [.., b, c, d] = std::process::id().to_be_bytes();
    let own = Ipv4Addr::new(127, b | 0x80, c, d | 1);
    for _ in 0..200 {
        let socket = TcpListener::bind((own, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        library.listen(&socket);
        drop(socket);
        assert!(TcpStream::connect(address).is_err());
        drop(TcpListener::bind(address).unwrap());
    }
}
