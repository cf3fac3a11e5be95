//! What agents say to each other over TCP, on a way that takes its time, and that can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use shunt_verbs::fake::Random;

/// Leads to an agent, from a port of its own.
pub struct Way {
    pub at: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    is_barred: Arc<AtomicBool>,
}

impl Way {
    /// Each piece takes up to `most` more, in either direction; they stay in order.
    pub fn to(agent: SocketAddr, most: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let streams = Arc::<Mutex<Vec<TcpStream>>>::default();
        let is_barred = Arc::<AtomicBool>::default();
        let (all, bar) = (Arc::clone(&streams), Arc::clone(&is_barred));
        thread::spawn(move || {
            for (seed, from) in (0..).zip(listener.incoming()) {
                let Ok(from) = from else { return };
                if bar.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(to) = TcpStream::connect(agent) else { continue };
                let copy = |stream: &TcpStream| stream.try_clone().unwrap();
                all.lock().unwrap().extend([&from, &to].map(copy));
                for (n, (from, to)) in (0..).zip([(&from, &to), (&to, &from)]) {
                    let (from, to) = (copy(from), copy(to));
                    thread::spawn(move || carry(from, to, Random::new(2 * seed + n), most));
                }
            }
        });
        Self { at, streams, is_barred }
    }

    /// There are no connections as long as it is barred.
    pub fn bar(&self, is_barred: bool) {
        self.is_barred.store(is_barred, Ordering::SeqCst);
        self.cut();
    }

    /// All connections end, with what is on its way.
    pub fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
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
