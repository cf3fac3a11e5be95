//! What agents say to each other over TCP, on a way that takes its time.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use shunt_verbs::fake::Random;

/// Leads to an agent, from a port of its own. Each piece takes up to `most` more, in either direction; they stay in order.
pub fn to(agent: SocketAddr, most: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (seed, from) in (0..).zip(listener.incoming()) {
            let Ok(from) = from else { return };
            let Ok(to) = TcpStream::connect(agent) else { continue };
            let ways =
                [(&from, &to), (&to, &from)].map(|(from, to)| (from.try_clone(), to.try_clone()));
            for (n, way) in (0..).zip(ways) {
                let (Ok(from), Ok(to)) = way else { continue };
                thread::spawn(move || carry(from, to, Random::new(2 * seed + n), most));
            }
        }
    });
    at
}

/// Until one of both ends.
fn carry(mut from: TcpStream, mut to: TcpStream, mut random: Random, most: Duration) {
    let mut room = [0; 512];
    let most = usize::try_from(most.as_micros()).unwrap();
    while let Ok(len @ 1..) = from.read(&mut room) {
        thread::sleep(Duration::from_micros(random.below(most) as u64));
        if to.write_all(&room[..len]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
