//! A disk in memory, whose lanes keep requests until they may end.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};

use shunt_nvme::wire::Status;

use crate::port::{
    Buffers, Completed, Disk, Geometry, Interest, Lane, Op, Outcome, Request, Traffic, Wait,
};

/// What all lanes share.
pub struct State {
    pub bytes: Vec<u8>,
    /// Flushes that were done.
    pub flushes: usize,
    /// No request ends before this is taken back.
    pub held: bool,
    /// Reads and writes of this block fail.
    pub bad: Option<u64>,
    /// Extents that were given up.
    pub discarded: Vec<(u64, u64)>,
    /// How many a lane takes at once.
    pub room: usize,
    /// How many requests were taken.
    pub taken: usize,
    /// Told when requests may end, one for each lane.
    bells: Vec<Arc<OwnedFd>>,
}

/// The disk.
#[derive(Clone)]
pub struct Ram {
    pub geometry: Geometry,
    pub state: Arc<Mutex<State>>,
    changes: Arc<OwnedFd>,
}

impl Ram {
    pub fn new(geometry: Geometry) -> Self {
        let bytes = vec![0; (geometry.blocks * u64::from(geometry.block_size)) as usize];
        let state = State {
            bytes,
            flushes: 0,
            held: false,
            bad: None,
            discarded: Vec::new(),
            room: 4,
            taken: 0,
            bells: Vec::new(),
        };
        let changes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Self { geometry, state: Arc::new(Mutex::new(state)), changes: Arc::new(changes) }
    }

    /// Has so many blocks from now on.
    pub fn resize(&self, blocks: u64) {
        let len = blocks * u64::from(self.geometry.block_size);
        self.state.lock().unwrap().bytes.resize(len as usize, 0);
        rustix::io::write(&*self.changes, &1u64.to_ne_bytes()).unwrap();
    }

    pub fn hold(&self) {
        self.state.lock().unwrap().held = true;
    }

    /// Lets all end that is held.
    pub fn release(&self) {
        let mut state = self.state.lock().unwrap();
        state.held = false;
        for bell in &state.bells {
            rustix::io::write(&**bell, &1u64.to_ne_bytes()).unwrap();
        }
    }
}

impl Disk for Ram {
    fn geometry(&self) -> Geometry {
        let bytes = self.state.lock().unwrap().bytes.len() as u64;
        Geometry { blocks: bytes / u64::from(self.geometry.block_size), ..self.geometry.clone() }
    }

    fn changes(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    fn lane(&self) -> io::Result<Box<dyn Lane>> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        self.state.lock().unwrap().bells.push(Arc::clone(&bell));
        Ok(Box::new(RamLane {
            disk: self.clone(),
            waiting: VecDeque::new(),
            bell,
            traffic: Traffic::default(),
        }))
    }
}

struct RamLane {
    disk: Ram,
    waiting: VecDeque<Request>,
    bell: Arc<OwnedFd>,
    /// What is written is said to be copied.
    traffic: Traffic,
}

/// Copies between the disk's bytes and a guest's.
fn copy(bytes: &mut [u8], data: &Buffers, to_guest: bool) {
    let mut at = 0;
    for segment in data.segments() {
        let part = &mut bytes[at..at + segment.len];
        // SAFETY: so many bytes of the guest's are mapped while `data` lives; `part` is this disk's own.
        unsafe {
            if to_guest {
                std::ptr::copy(part.as_ptr(), segment.address, segment.len);
            } else {
                std::ptr::copy(segment.address, part.as_mut_ptr(), segment.len);
            }
        }
        at += segment.len;
    }
}

impl RamLane {
    fn execute(&self, request: &Request) -> Outcome {
        let mut state = self.disk.state.lock().unwrap();
        let size = self.disk.geometry.block_size as usize;
        let range =
            |block: u64, len: u64| block as usize * size..block as usize * size + len as usize;
        match &request.op {
            Op::Read { block } | Op::Write { block } | Op::Compare { block }
                if state.bad == Some(*block) =>
            {
                Outcome::Failed
            }
            Op::Read { block } => {
                let range = range(*block, request.data.len());
                copy(&mut state.bytes[range], &request.data, true);
                Outcome::Done
            }
            Op::Write { block } => {
                let range = range(*block, request.data.len());
                copy(&mut state.bytes[range], &request.data, false);
                Outcome::Done
            }
            Op::Compare { block } => {
                let range = range(*block, request.data.len());
                let mut there = vec![0; range.len()];
                copy(&mut there, &request.data, false);
                if state.bytes[range] == there { Outcome::Done } else { Outcome::Failed }
            }
            Op::Flush => {
                state.flushes += 1;
                Outcome::Done
            }
            Op::Discard(extents) => {
                state.discarded.extend(extents.iter().map(|e| (e.block, e.blocks)));
                Outcome::Done
            }
            Op::WriteZeroes { extents, .. } => {
                for extent in extents {
                    let range = range(extent.block, extent.blocks * size as u64);
                    state.bytes[range].fill(0);
                }
                Outcome::Done
            }
        }
    }
}

impl Lane for RamLane {
    fn has_room(&self) -> bool {
        self.waiting.len() < self.disk.state.lock().unwrap().room
    }

    fn submit(&mut self, request: Request) {
        self.disk.state.lock().unwrap().taken += 1;
        self.waiting.push_back(request);
    }

    fn poll(&mut self, completed: &mut Vec<Completed>) {
        let _empty = rustix::io::read(&*self.bell, &mut [0; 8]);
        if self.disk.state.lock().unwrap().held {
            return;
        }
        // The last one first, as any order is right.
        while let Some(request) = self.waiting.pop_back() {
            let outcome = self.execute(&request);
            if matches!(request.op, Op::Write { .. }) {
                self.traffic.copied += request.data.len();
            }
            let compares = matches!(request.op, Op::Compare { .. });
            let why = (compares && outcome == Outcome::Failed).then_some(Status::COMPARE_FAILURE);
            completed.push(Completed { tag: request.tag, outcome, why, data: request.data });
        }
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn wait(&self, wait: &mut Wait) {
        let fd = self.bell.as_raw_fd();
        wait.interests.push(Interest { fd, generation: 0, writable: false });
    }
}
