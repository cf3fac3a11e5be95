//! What the kernel says about real sockets.

use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use shunt_sys::sockinfo;
use shunt_wire::addr::Addr;

#[test]
fn a_connection_has_the_same_name_at_both_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    let at_client = sockinfo::four_tuple(&client).unwrap();
    assert_eq!(at_client.reversed(), sockinfo::four_tuple(&server).unwrap());
    assert_eq!(at_client.local, Addr::from(client.local_addr().unwrap()));
    assert!(sockinfo::is_tcp(&client) && !sockinfo::is_listening(&client));
    assert!(sockinfo::is_tcp(&listener) && sockinfo::is_listening(&listener));
    assert_eq!(sockinfo::peer_addr(&listener), Err(Errno::NOTCONN));
}

#[test]
fn a_connection_that_is_over_has_its_name_still() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = TcpListener::bind(at) else { continue };
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let name = sockinfo::four_tuple(&client).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        drop(server);
        while sockinfo::peer_addr(&client) != Err(Errno::NOTCONN) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(sockinfo::four_tuple(&client), Ok(name));
        assert_eq!(sockinfo::four_tuple(&listener), Err(Errno::NOTCONN));
    }
}

#[test]
fn a_cookie_names_the_socket_and_not_the_descriptor() {
    let one = TcpListener::bind("127.0.0.1:0").unwrap();
    let same = one.try_clone().unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let cookie = sockinfo::cookie(&one).unwrap();
    assert_eq!(sockinfo::cookie(&same), Ok(cookie));
    assert_ne!(sockinfo::cookie(&other), Ok(cookie));
    assert_eq!(sockinfo::netns_cookie(&one), sockinfo::netns_cookie(&other));
}

#[test]
fn a_send_buffer_that_a_program_has_set_is_told_from_the_kernels_choice() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    if sockinfo::send_buffer_is_set(&client).is_none() {
        return;
    }
    assert_eq!(sockinfo::send_buffer_is_set(&client), Some(false));
    sockopt::set_socket_recv_buffer_size(&client, 4096).unwrap();
    assert_eq!(sockinfo::send_buffer_is_set(&client), Some(false));
    sockopt::set_socket_send_buffer_size(&listener, 4096).unwrap();
    let heir = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(sockinfo::send_buffer_is_set(&heir), Some(false));
    // The first in the queue came before the listener's was set.
    let accepted = [listener.accept().unwrap().0, listener.accept().unwrap().0];
    assert_eq!(accepted.map(sockinfo::send_buffer_is_set), [Some(false), Some(true)]);
}

#[test]
fn an_ipv4_connection_to_a_dual_stack_listener_has_one_name() {
    let listener = TcpListener::bind("[::]:0").unwrap();
    assert!(!sockinfo::is_v6only(&listener));
    let port = listener.local_addr().unwrap().port();
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (server, _) = listener.accept().unwrap();
    let name = sockinfo::four_tuple(&client).unwrap();
    assert!(name.local.is_v4() && name.local.is_loopback());
    assert_eq!(name.reversed(), sockinfo::four_tuple(&server).unwrap());
}

#[test]
fn what_is_not_tcp() {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(!sockinfo::is_tcp(&udp));
    let temp = tempfile::tempdir().unwrap();
    let unix = UnixListener::bind(temp.path().join("s")).unwrap();
    assert!(!sockinfo::is_tcp(&unix));
    assert_eq!(sockinfo::local_addr(&unix), Err(Errno::AFNOSUPPORT));
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(!sockinfo::is_tcp(&file) && !sockinfo::is_listening(&file));
    assert!(sockinfo::cookie(&file).is_err());
    assert_eq!(sockinfo::netns_cookie(&file), 0);
}

#[test]
fn own_addresses_are_told_from_others() {
    let addr = |text: &str| Addr::from(text.parse::<std::net::SocketAddr>().unwrap());
    assert!(sockinfo::is_own_address(&addr("127.0.0.1:80")));
    // For documentation (RFC 5737).
    assert!(!sockinfo::is_own_address(&addr("192.0.2.1:80")));
}
