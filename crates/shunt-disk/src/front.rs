//! The device as vhost-user's front ends (QEMU) see it: a thread per ring, each with a lane of its own.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tracing::warn;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{VhostUserBackend, VringEpollHandler};
use vm_memory::GuestMemoryAtomic;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

use crate::config::{Config, features, protocol_features};
use crate::metrics::Totals;
use crate::port::{Geometry, Lane, Memory, Size, Wait};
use crate::relay::{Channel, Heard};
use crate::worker::{Ring, Worker};

/// The longest ring.
pub const MAX_RING: usize = 1024;

type Loop = VringEpollHandler<Arc<Front>>;

/// The device for one front end.
pub struct Front {
    geometry: Geometry,
    size: Size,
    /// The blocks that the front end was told of last.
    told: AtomicU64,
    /// Where it listens for another number of them.
    channel: Mutex<Option<Channel>>,
    seats: Vec<Seat>,
}

/// What belongs to one thread.
struct Seat {
    stopped: Arc<AtomicBool>,
    state: Mutex<State>,
    /// Told when nothing is under way any more.
    idle: Condvar,
    timer: OwnedFd,
    /// Where the thread waits. It holds the device, so it is not held.
    waits: OnceLock<Weak<Loop>>,
}

struct State {
    worker: Worker,
    /// What the thread's loop waits for, besides the ring.
    armed: Wait,
    /// Room for what it is to wait for.
    wanted: Wait,
}

impl Front {
    /// A device with a ring for each lane.
    ///
    /// # Errors
    /// Those of timerfd_create(2).
    pub fn new(
        geometry: &Geometry,
        lanes: Vec<Box<dyn Lane>>,
        memory: &GuestMemoryAtomic<Memory>,
        totals: &Totals,
    ) -> io::Result<Arc<Self>> {
        let size = Size::new(geometry.blocks);
        let seat = |(n, lane)| {
            let (geometry, size) = (geometry.clone(), size.clone());
            let worker = Worker::new(lane, memory.clone(), geometry, size, totals.ring(n));
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            Ok(Seat {
                stopped: worker.stopper(),
                state: Mutex::new(State {
                    worker,
                    armed: Wait::default(),
                    wanted: Wait::default(),
                }),
                idle: Condvar::new(),
                timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
                waits: OnceLock::new(),
            })
        };
        let seats = lanes.into_iter().enumerate().map(seat).collect::<io::Result<Vec<_>>>()?;
        let (geometry, told) = (geometry.clone(), geometry.blocks.into());
        Ok(Arc::new(Self { geometry, size, told, channel: Mutex::default(), seats }))
    }

    /// The disk has so many blocks now.
    pub fn resize(&self, blocks: u64) {
        self.size.set(blocks);
        self.tell();
    }

    /// Learns from what passes between the front end and the device.
    pub fn hear(&self, heard: Heard) {
        if let Heard::Channel(channel) = heard {
            *self.channel() = Some(channel);
        }
        // QEMU takes no notice of changes until rings have begun, and then tells the guest of what it had read before.
        if self.told.load(Ordering::Relaxed) != self.size.get() {
            self.tell();
        }
    }

    fn tell(&self) {
        if let Some(channel) = &*self.channel() {
            channel.config_changed();
        }
    }

    fn channel(&self) -> MutexGuard<'_, Option<Channel>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells each thread where it waits. Once, before the front end is heard.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn attach(&self, loops: &[Arc<Loop>]) -> io::Result<()> {
        for (n, (seat, waits)) in self.seats.iter().zip(loops).enumerate() {
            waits.register_listener(seat.timer.as_raw_fd(), EventSet::IN, self.token(TIMER))?;
            let _once = seat.waits.set(Arc::downgrade(waits));
            self.arm(n, &mut seat.lock())?;
        }
        Ok(())
    }

    /// Takes no more requests, and waits until all that were taken are over; `until` at the most.
    /// True if nothing is under way any more.
    #[must_use]
    pub fn drain(&self, until: Option<Instant>) -> bool {
        for seat in &self.seats {
            seat.stopped.store(true, Ordering::Relaxed);
        }
        self.seats.iter().all(|seat| seat.drained(until))
    }

    /// Back come the lanes, when the threads have ended.
    #[must_use]
    pub fn into_lanes(self) -> Vec<Box<dyn Lane>> {
        let lane = |seat: Seat| {
            let state = seat.state.into_inner().unwrap_or_else(PoisonError::into_inner);
            state.worker.into_lane()
        };
        self.seats.into_iter().map(lane).collect()
    }

    /// Events behind those of the rings, and of what the loop has for itself.
    fn token(&self, n: u64) -> u64 {
        self.seats.len() as u64 + n
    }

    /// Has the loop of a thread wait for what its lane waits for.
    fn arm(&self, n: usize, state: &mut State) -> io::Result<()> {
        let State { worker, armed, wanted } = state;
        worker.wait(wanted);
        if wanted == armed {
            return Ok(());
        }
        let seat = &self.seats[n];
        let Some(waits) = seat.waits.get().and_then(Weak::upgrade) else { return Ok(()) };
        let token = self.token(LANE);
        armed.follow(
            wanted,
            |old| {
                let _left = waits.unregister_listener(old, EventSet::empty(), token);
            },
            |new| {
                let out = if new.writable { EventSet::OUT } else { EventSet::empty() };
                waits.register_listener(new.fd, EventSet::IN | out, token)
            },
        )?;
        if wanted.until != armed.until {
            let left = |until: Instant| until.saturating_duration_since(Instant::now());
            set(&seat.timer, wanted.until.map(left))?;
        }
        std::mem::swap(armed, wanted);
        Ok(())
    }
}

/// When a lane that cannot be waited for is looked at again.
const AGAIN: Duration = Duration::from_millis(20);

/// Sets a timer, or stops it.
fn set(timer: &OwnedFd, left: Option<Duration>) -> io::Result<()> {
    // No time at all would be no timer.
    let left = left.map_or(Duration::ZERO, |left| left.max(Duration::from_nanos(1)));
    let it_value = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?;
    Ok(())
}

/// The lane's descriptor.
const LANE: u64 = 1;
/// The timer.
const TIMER: u64 = 2;

impl Seat {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that has panicked leaves counts behind, no broken memory.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nothing is under way.
    fn drained(&self, until: Option<Instant>) -> bool {
        let mut state = self.lock();
        while state.worker.in_flight() > 0 {
            let left = match until {
                None => Duration::from_secs(3600),
                Some(until) => until.saturating_duration_since(Instant::now()),
            };
            if left.is_zero() {
                return false;
            }
            let waited = self.idle.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl VhostUserBackend for Front {
    type Bitmap = ();
    type Vring = Ring;

    fn num_queues(&self) -> usize {
        self.seats.len()
    }

    fn max_queue_size(&self) -> usize {
        MAX_RING
    }

    fn features(&self) -> u64 {
        features(&self.geometry, u16::try_from(self.seats.len()).unwrap_or(u16::MAX))
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        protocol_features()
    }

    fn set_event_idx(&self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let queues = u16::try_from(self.seats.len()).unwrap_or(u16::MAX);
        let blocks = self.size.get();
        self.told.store(blocks, Ordering::Relaxed);
        let geometry = Geometry { blocks, ..self.geometry.clone() };
        Config::new(&geometry, queues).part(offset, size)
    }

    fn set_config(&self, _offset: u32, _buf: &[u8]) -> io::Result<()> {
        // No field is the driver's to write, as the write cache's mode is not offered.
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn update_memory(&self, _memory: GuestMemoryAtomic<Memory>) -> io::Result<()> {
        Ok(())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        (0..self.seats.len()).map(|n| 1 << n).collect()
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::CLOEXEC | EventFlag::NONBLOCK).ok()
    }

    fn stop_vring(&self, index: u32) -> io::Result<()> {
        if let Some(seat) = usize::try_from(index).ok().and_then(|n| self.seats.get(n)) {
            // What was taken has to be over before the front end hears where the ring stands; `Front::drain` ends the wait.
            let _all = seat.drained(None);
            seat.lock().worker.begin();
        }
        Ok(())
    }

    fn handle_event(
        &self,
        event: u16,
        _events: EventSet,
        rings: &[Ring],
        thread: usize,
    ) -> io::Result<()> {
        let (Some(seat), Some(ring)) = (self.seats.get(thread), rings.first()) else {
            return Ok(());
        };
        if u64::from(event) == self.token(TIMER) {
            let mut expirations = [0; 8];
            let _none = rustix::io::read(&seat.timer, &mut expirations);
        }
        let mut state = seat.lock();
        state.worker.run(ring);
        if state.worker.in_flight() == 0 {
            seat.idle.notify_all();
        }
        if let Err(e) = self.arm(thread, &mut state) {
            // Without a descriptor to wait for, the lane is looked at now and then.
            warn!("waiting for the target failed: {e}");
            set(&seat.timer, Some(AGAIN))?;
        }
        Ok(())
    }
}
