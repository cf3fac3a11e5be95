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
    is_slow: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn new(seed: u64) -> Self {
        let network = Network::new(seed, Faults::NONE);
        let must_end = Arc::new(AtomicBool::new(false));
        let is_slow = Arc::new(AtomicBool::new(false));
        let (stepped, end, slow) = (network.clone(), Arc::clone(&must_end), Arc::clone(&is_slow));
        let run = move || {
            while !end.load(Ordering::Relaxed) {
                let rests = !stepped.step() || slow.load(Ordering::Relaxed);
                if rests {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        };
        Self { network, must_end, is_slow, thread: Some(std::thread::spawn(run)) }
    }
}

impl Running {
    /// Each step takes a while from now on, or none does.
    #[allow(dead_code, reason = "not all tests do")]
    pub fn set_slow(&self, is_slow: bool) {
        self.is_slow.store(is_slow, Ordering::Relaxed);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.must_end.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}
