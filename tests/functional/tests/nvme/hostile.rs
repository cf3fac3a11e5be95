//! Connections that are no hosts, or do not want to be.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use shunt_functional::mode::Mode;
use shunt_functional::sandbox::Sandbox;

use crate::Target;

fn connect(target: &Target) -> TcpStream {
    let socket = TcpStream::connect(("127.0.0.1", target.port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

/// Everything up to the end of the connection.
fn rest(mut socket: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end, too.
    if let Err(e) = socket.read_to_end(&mut bytes) {
        assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{e}");
    }
    bytes
}

#[test]
fn silent_connections_are_few_and_do_not_last() {
    let sandbox = Sandbox::new(Mode::Plain);
    let text = "[limits]\nunconnected = 3\nconnect-timeout = 2\n[[subsystem]]\n\
                nqn = \"nqn.2024-01.org.shunt:target\"\nhosts = \"any\"\n\
                [[subsystem.namespace]]\nstore = \"memory\"\nsize = \"1MiB\"\n";
    let target = Target::configured(&sandbox, text);
    let silent: Vec<_> = (0..50).map(|_| connect(&target)).collect();
    // Most are closed at once, and the others before long.
    for socket in silent {
        assert_eq!(rest(socket), Vec::<u8>::new());
    }
    // Hosts that have connected do not count: this one has two connections, and there are as many more.
    target.run(&sandbox, &["verify", "--commands", "50"]);
    target.end();
}

#[test]
fn nonsense_is_answered_with_a_reason_and_an_end() {
    let sandbox = Sandbox::new(Mode::Plain);
    let target = Target::quick(&sandbox, &["--memory", "1MiB"]);
    for bytes in [&b"GET / HTTP/1.1\r\nHost: disk\r\n\r\n"[..], &[0xff; 128], &[4; 72], &[0; 8]] {
        let mut socket = connect(&target);
        socket.write_all(bytes).unwrap();
        let answer = rest(socket);
        // C2HTermReq.
        assert_eq!(answer.first(), Some(&3), "{bytes:?}: {answer:?}");
    }
    target.run(&sandbox, &["identify"]);
    let finished = target.end();
    assert_eq!(finished.stderr.matches("the connection is ended").count(), 4, "{finished}");
}
