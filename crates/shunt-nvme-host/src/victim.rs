//! A queue of which fuzz targets are the target.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shunt_nvme::host::Config;
use shunt_nvme::wire::{IcResp, Nqn};
use zerocopy::IntoBytes;

use crate::link::Link;
use crate::memory::{Buffers, Data, Segment, Segments};
use crate::options::Options;
use crate::path::{Arrival, Shared};
use crate::queue::Queue;
use crate::request::{Namespace, Request};
use crate::subsystem::Subsystem;

/// Bytes of a block.
const BLOCK: usize = 512;
/// Blocks of the long commands.
const MANY: u32 = 20;

/// A queue, and the other end of its connection.
#[derive(Debug)]
pub struct Victim {
    queue: Queue,
    target: TcpStream,
    disk: Namespace,
    buffers: Buffers,
    next: u64,
    /// Commands under way: what is written, if something is, and memory that others have, in pieces
    /// that a sanitizer knows the ends of.
    under_way: HashMap<u64, (Option<u8>, Vec<Box<[u8]>>)>,
}

impl Victim {
    /// One that has just made its connection.
    ///
    /// # Panics
    /// Where a connection cannot be had.
    #[must_use]
    pub fn new(header_digest: bool, data_digest: bool) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let address = listener.local_addr().expect("its address");
        let socket = TcpStream::connect(address).expect("a connection");
        let (mut target, _) = listener.accept().expect("its other end");
        target.set_nodelay(true).expect("an option");
        let config = Config { header_digest, data_digest, depth: 8, ..Config::default() };
        let mut link = Link::new(socket, config, true).expect("a link");
        link.flush().expect("room");
        target.read_exact(&mut [0; 128]).expect("a request");
        let digests = u8::from(header_digest) | u8::from(data_digest) << 1;
        target.write_all(IcResp::new(0, digests, 4096).as_bytes()).expect("room");
        while link.negotiated().is_none() {
            link.receive(&mut Vec::new()).expect("what was sent");
        }
        target.set_nonblocking(true).expect("an option");

        let mut options = Options::new(vec![address], Nqn::discovery());
        options.depth = 8;
        options.give_up = Some(Duration::ZERO);
        let shared = Arc::new(Shared::new(Arc::new(options)).expect("descriptors"));
        let post = shared.add_post().expect("a descriptor");
        shared.change(0, |state| (state.generation, state.is_up) = (1, true));
        post.arrivals().push(Arrival { path: 0, generation: 1, link, in_capsule: 2048 });
        post.served[0].store(1, Ordering::Release);
        let queue = Subsystem::without_threads(shared).queue_at(post).expect("descriptors");
        let disk = Namespace {
            nsid: 1,
            blocks: 1 << 20,
            block_size: 512,
            ana_group: 0,
            read_only: false,
            nguid: None,
            uuid: None,
        };
        let buffers = Buffers::new(8, MANY as usize * BLOCK).expect("memory");
        Self { queue, target, disk, buffers, next: 0, under_way: HashMap::new() }
    }

    /// Commands of all kinds, as far as there is room.
    ///
    /// # Panics
    /// Where one is not taken.
    pub fn submit(&mut self) {
        let kinds: [fn(&mut Self); 5] = [
            |all| all.start(all.disk.read(3, 1), None, vec![0; BLOCK].into(), Vec::new()),
            |all| {
                all.start(
                    all.disk.write(7, 2),
                    Some(0x5a),
                    vec![0x5a; 2 * BLOCK].into(),
                    Vec::new(),
                )
            },
            |all| all.with_segments(None),
            |all| all.with_segments(Some(0xa5)),
            |all| {
                let Some(mut buffer) = all.buffers.take() else { return };
                buffer.fill(0x33);
                all.start(all.disk.write(9, MANY), Some(0x33), buffer.into(), Vec::new());
            },
        ];
        for kind in kinds {
            if self.queue.room() > 0 {
                kind(self);
            }
        }
    }

    fn with_segments(&mut self, written: Option<u8>) {
        let long = MANY as usize * BLOCK;
        let lens = [100, long - 101, 1];
        let mut memory: Vec<Box<[u8]>> =
            lens.iter().map(|len| vec![written.unwrap_or(0); *len].into()).collect();
        let pieces = memory
            .iter_mut()
            .map(|piece| Segment { at: NonNull::from(&mut **piece).cast(), len: piece.len() });
        // SAFETY: the boxes are kept until the command is over, and nobody looks at them before.
        let data = unsafe { Segments::new(pieces.collect()) };
        let request = match written {
            None => self.disk.read(11, MANY),
            Some(_) => self.disk.write(11, MANY),
        };
        self.start(request, written, data.into(), memory);
    }

    fn start(&mut self, request: Request, written: Option<u8>, data: Data, memory: Vec<Box<[u8]>>) {
        self.queue.submit(request, data, self.next).expect("room");
        self.under_way.insert(self.next, (written, memory));
        self.next += 1;
    }

    /// The target says something, and takes what it is sent.
    ///
    /// # Panics
    /// Where a command ends twice, or what was to be sent has changed.
    pub fn hear(&mut self, bytes: &[u8]) {
        // It may be closed, or full.
        let _gone = self.target.write(bytes);
        let mut done = Vec::new();
        self.queue.poll(&mut done, Some(Duration::ZERO)).expect("epoll");
        while self.target.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
        self.queue.poll(&mut done, Some(Duration::ZERO)).expect("epoll");
        for over in done {
            let ended = self.under_way.remove(&over.token);
            let (written, memory) = ended.expect("a command that has ended before");
            if let Some(byte) = written {
                let others = memory.iter().flat_map(|piece| piece.iter());
                assert!(over.data.bytes().iter().chain(others).all(|there| *there == byte));
            }
        }
    }

    /// The connection is lost: all commands end.
    ///
    /// # Panics
    /// Where one does not.
    pub fn end(mut self) {
        let _gone = self.target.shutdown(std::net::Shutdown::Both);
        drop(self.queue);
        self.under_way.clear();
    }
}
