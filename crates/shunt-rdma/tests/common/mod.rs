//! The device in the process, which goes on by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use shunt_verbs::fake::{Faults, Network};

/// A network that goes on by itself.
pub struct Running {
    pub network: Network,
    must_end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn new(seed: u64) -> Self {
        let network = Network::new(seed, Faults::NONE);
        let must_end = Arc::new(AtomicBool::new(false));
        let (stepped, end) = (network.clone(), Arc::clone(&must_end));
        let run = move || {
            while !end.load(Ordering::Relaxed) {
                if !stepped.step() {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        };
        Self { network, must_end, thread: Some(std::thread::spawn(run)) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.must_end.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}
