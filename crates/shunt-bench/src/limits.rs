//! What the machine allows: the figures that no transport on it can pass, measured in the same run.

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::stats::Spread;

/// A limit, as it is reported.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// Its name.
    pub id: String,
    /// For people.
    pub title: String,
    /// Of the figure.
    pub unit: String,
    /// What it means.
    pub meaning: String,
    /// The figure, over several tries; none on a machine with one processor.
    pub value: Option<Spread>,
}

/// How one is measured.
struct Probe {
    id: &'static str,
    title: &'static str,
    unit: &'static str,
    meaning: &'static str,
    run: fn(Cores, Duration) -> Option<f64>,
}

/// Two processors; both the same on a machine with one.
#[derive(Clone, Copy)]
struct Cores {
    one: usize,
    other: usize,
}

const PROBES: [Probe; 5] = [
    Probe {
        id: "cache-line",
        title: "Cache line from core to core and back",
        unit: "µs",
        meaning: "Two threads on two cores hand a word to and fro, both spinning. A message and its \
                  answer through shared memory cannot be faster.",
        run: cache_line,
    },
    Probe {
        id: "ring",
        title: "Ring with two copies",
        unit: "MB/s",
        meaning: "One core copies blocks of 64 KiB into a ring of 512 KiB, the other copies them out. A \
                  transport between two cores cannot be faster for programs that own their buffers, unless \
                  it saves a copy.",
        run: ring,
    },
    Probe {
        id: "futex",
        title: "Futex sleep and wake-up, there and back",
        unit: "µs",
        meaning: "Two threads on two cores put each other to sleep and wake each other. A message and \
                  its answer between programs that sleep cannot be faster.",
        run: futex,
    },
    Probe {
        id: "eventfd",
        title: "eventfd sleep and wake-up, there and back",
        unit: "µs",
        meaning: "The same by blocking reads of eventfds: what a wait costs that also watches kernel \
                  descriptors.",
        run: event,
    },
    Probe {
        id: "syscall",
        title: "System call",
        unit: "µs",
        meaning: "getppid(2): going into the kernel and back, doing nothing there.",
        run: syscall,
    },
];

/// The names of all.
pub const NAMES: [&str; 5] = ["cache-line", "ring", "futex", "eventfd", "syscall"];

/// Measures all, `tries` times each, for `time` each.
#[must_use]
pub fn measure(tries: u32, time: Duration, before: impl Fn(&str)) -> Vec<Limit> {
    let cores = cores();
    let mut limits = Vec::new();
    for probe in PROBES {
        before(probe.title);
        let tries: Option<Vec<f64>> = (0..tries).map(|_| (probe.run)(cores, time)).collect();
        limits.push(Limit {
            id: probe.id.into(),
            title: probe.title.into(),
            unit: probe.unit.into(),
            meaning: probe.meaning.into(),
            value: tries.and_then(|tries| Spread::of(&tries)),
        });
    }
    limits
}

/// The first two that this process may use.
fn cores() -> Cores {
    let mine = sched_getaffinity(None).unwrap_or_default();
    let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| mine.is_set(*cpu));
    let one = usable.next().unwrap_or(0);
    Cores { one, other: usable.next().unwrap_or(one) }
}

impl Cores {
    fn are_two(self) -> bool {
        self.one != self.other
    }

    /// Runs `ping` on the one and `pong` on the other; what `ping` returns.
    fn both<T: Send>(
        self,
        ping: impl FnOnce() -> T + Send,
        pong: impl FnOnce() + Send,
    ) -> Option<T> {
        if !self.are_two() {
            return None;
        }
        thread::scope(|scope| {
            scope.spawn(move || {
                stay_on(self.other);
                pong();
            });
            let ping = scope.spawn(move || {
                stay_on(self.one);
                ping()
            });
            ping.join().ok()
        })
    }
}

/// Only a wish: without it the figure is a little worse.
fn stay_on(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ignored = sched_setaffinity(None, &set);
}

/// Calls `round` until the time is over; microseconds for each.
fn rounds(time: Duration, mut round: impl FnMut()) -> f64 {
    const BATCH: u32 = 64;
    let start = Instant::now();
    let mut done = 0_u64;
    while start.elapsed() < time {
        for _ in 0..BATCH {
            round();
        }
        done += u64::from(BATCH);
    }
    start.elapsed().as_secs_f64() * 1e6 / done as f64
}

/// A word on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// The word that ends it.
const OVER: u64 = u64::MAX;

fn cache_line(cores: Cores, time: Duration) -> Option<f64> {
    let line = Line::default();
    let word = &line.0;
    let ping = || {
        let mut turn = 0;
        let micros = rounds(time, || {
            word.store(turn + 1, Ordering::Release);
            turn += 2;
            while word.load(Ordering::Acquire) != turn {
                std::hint::spin_loop();
            }
        });
        word.store(OVER, Ordering::Release);
        micros
    };
    let pong = || {
        loop {
            match word.load(Ordering::Acquire) {
                OVER => break,
                turn if turn % 2 == 1 => word.store(turn + 1, Ordering::Release),
                _ => std::hint::spin_loop(),
            }
        }
    };
    cores.both(ping, pong)
}

/// A block of the ring, and the ring.
const BLOCK: usize = 64 * 1024;
const BLOCKS: u64 = 8;

fn ring(cores: Cores, time: Duration) -> Option<f64> {
    // The locks are never contended: the counters say whose turn it is.
    let blocks = [(); 8].map(|()| Mutex::new(vec![0_u8; BLOCK]));
    let (produced, consumed, over) = (Line::default(), Line::default(), AtomicBool::new(false));
    let block = |n: u64| {
        let index = usize::try_from(n % BLOCKS).unwrap_or(0);
        blocks[index].lock().unwrap_or_else(PoisonError::into_inner)
    };
    let ping = || {
        let own = vec![1_u8; BLOCK];
        let mut next = 0;
        let micros = rounds(time, || {
            while next - consumed.0.load(Ordering::Acquire) == BLOCKS {
                std::hint::spin_loop();
            }
            block(next).copy_from_slice(&own);
            next += 1;
            produced.0.store(next, Ordering::Release);
        });
        over.store(true, Ordering::Release);
        BLOCK as f64 / micros
    };
    let pong = || {
        let mut own = vec![0_u8; BLOCK];
        let mut next = 0;
        loop {
            let ended = over.load(Ordering::Acquire);
            if produced.0.load(Ordering::Acquire) > next {
                own.copy_from_slice(&block(next));
                next += 1;
                consumed.0.store(next, Ordering::Release);
            } else if ended {
                break;
            } else {
                std::hint::spin_loop();
            }
        }
        std::hint::black_box(own);
    };
    cores.both(ping, pong)
}

fn futex(cores: Cores, time: Duration) -> Option<f64> {
    if !cores.are_two() {
        return None;
    }
    // std's park and unpark are one futex each.
    let line = Line::default();
    let word = &line.0;
    let (tell, told) = std::sync::mpsc::channel::<thread::Thread>();
    thread::scope(|scope| {
        let ping = scope.spawn(move || {
            stay_on(cores.one);
            let other = told.recv().ok()?;
            let mut turn = 0;
            let micros = rounds(time, || {
                word.store(turn + 1, Ordering::Release);
                other.unpark();
                turn += 2;
                while word.load(Ordering::Acquire) != turn {
                    thread::park_timeout(PATIENCE);
                }
            });
            word.store(OVER, Ordering::Release);
            other.unpark();
            Some(micros)
        });
        let first = ping.thread().clone();
        scope.spawn(move || {
            stay_on(cores.other);
            // If the first has failed to start, there is nothing to do.
            let mut over = tell.send(thread::current()).is_err();
            while !over {
                match word.load(Ordering::Acquire) {
                    OVER => over = true,
                    turn if turn % 2 == 1 => {
                        word.store(turn + 1, Ordering::Release);
                        first.unpark();
                    }
                    _ => thread::park_timeout(PATIENCE),
                }
            }
        });
        ping.join().ok().flatten()
    })
}

/// Nobody waits longer, should the other have gone.
const PATIENCE: Duration = Duration::from_secs(1);

fn event(cores: Cores, time: Duration) -> Option<f64> {
    let make = || eventfd(0, EventfdFlags::CLOEXEC).ok();
    let (there, back) = (make()?, make()?);
    let over = AtomicBool::new(false);
    let write = |fd: &dyn AsFd| rustix::io::write(fd.as_fd(), &1_u64.to_ne_bytes()).is_ok();
    let read = |fd: &dyn AsFd| rustix::io::read(fd.as_fd(), &mut [0_u8; 8]).is_ok();
    let ping = || {
        let micros = rounds(time, || {
            let _both = write(&there) && read(&back);
        });
        over.store(true, Ordering::Release);
        write(&there);
        micros
    };
    let pong = || {
        let mut more = true;
        while more {
            more = read(&there) && !over.load(Ordering::Acquire) && write(&back);
        }
    };
    cores.both(ping, pong)
}

fn syscall(cores: Cores, time: Duration) -> Option<f64> {
    let call = move || {
        stay_on(cores.one);
        rounds(time, || {
            std::hint::black_box(rustix::process::getppid());
        })
    };
    thread::spawn(call).join().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_measured() {
        let limits = measure(1, Duration::from_millis(5), |_| {});
        let names: Vec<_> = limits.iter().map(|limit| limit.id.as_str()).collect();
        assert_eq!(names, NAMES);
        for limit in limits.iter().filter(|limit| cores().are_two() || limit.id == "syscall") {
            assert!(limit.value.is_some_and(|value| value.median > 0.0), "{}", limit.id);
        }
    }
}
