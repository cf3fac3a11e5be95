//! Stands between a host and a target, and breaks what is between them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A connection: both sockets, and whether what the target says is withheld.
struct Pair {
    host: TcpStream,
    target: TcpStream,
    withheld: Arc<AtomicBool>,
}

/// See the module's description.
pub struct Proxy {
    /// Of 127.0.0.1.
    pub port: u16,
    pairs: Arc<Mutex<Vec<Pair>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// In front of a target at a port.
    pub fn start(target: u16) -> Self {
        Self::start_at(target, 0)
    }

    /// The same at a port of the caller's choice.
    pub fn start_at(target: u16, port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (pairs, ends) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (all, over) = (Arc::clone(&pairs), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            for host in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let host = host.unwrap();
                let Ok(target) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let withheld = Arc::new(AtomicBool::new(false));
                let copy = |from: &TcpStream, to: &TcpStream, withheld: Arc<AtomicBool>| {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || forward(from, to, &withheld));
                };
                copy(&host, &target, Arc::default());
                copy(&target, &host, Arc::clone(&withheld));
                all.lock().unwrap().push(Pair { host, target, withheld });
            }
        });
        Self { port, pairs, ends, thread: Some(thread) }
    }

    /// Forwards nothing any more that the target says on the `n`th connection.
    pub fn withhold(&self, n: usize) {
        self.pairs.lock().unwrap()[n].withheld.store(true, Ordering::Relaxed);
    }

    /// Ends all connections, and takes no others.
    pub fn cut(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.ends.store(true, Ordering::Relaxed);
        let _woken = TcpStream::connect(("127.0.0.1", self.port));
        thread.join().unwrap();
        for pair in self.pairs.lock().unwrap().iter() {
            let _gone = pair.host.shutdown(Shutdown::Both);
            let _gone = pair.target.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, withheld: &AtomicBool) {
    let mut room = vec![0; 65536];
    while let Ok(len) = from.read(&mut room) {
        if len == 0 {
            break;
        }
        if !withheld.load(Ordering::Relaxed) && to.write_all(&room[..len]).is_err() {
            break;
        }
    }
    let _gone = to.shutdown(Shutdown::Write);
}
