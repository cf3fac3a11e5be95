//! What the parts of shared memory cost, both ends on one core: no cache line travels, so these are
//! the instructions alone.
//!
//! `cargo bench -p shunt-shm`
#![cfg_attr(
    not(feature = "sim"),
    allow(clippy::disallowed_types, reason = "those of `sync` are core's then")
)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shunt_shm::cq::{ArmLine, CqLine};
use shunt_shm::ring::{ConsLine, Content, ProdLine, RxCursor, Shape, Span, TxCursor, UNLIMITED};

/// As long as a ring of the product.
const CAPACITY: usize = 512 * 1024;
const SHAPE: Shape = Shape { cap: CAPACITY as u64, late: false };

const SIZES: [usize; 7] = [1, 14, 100, 1024, 4096, 16_384, 64_000];

/// Both ends of a ring.
struct Ring {
    prod: ProdLine,
    cons: ConsLine,
    tx: TxCursor,
    rx: RxCursor,
    buffer: Vec<u8>,
}

impl Ring {
    fn new() -> Self {
        Self {
            prod: ProdLine::default(),
            cons: ConsLine::default(),
            tx: TxCursor::default(),
            rx: RxCursor::default(),
            buffer: vec![0; CAPACITY],
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        let wanted = bytes.len() as u64;
        let Span { head, tail } = self
            .tx
            .reserve(&self.cons, CAPACITY as u64, SHAPE, UNLIMITED, (wanted, Content::Put))
            .expect("an honest peer");
        assert_eq!(head.1 + tail.1, bytes.len(), "the ring is empty before each put");
        let (first, second) = bytes.split_at(head.1);
        self.buffer[head.0..][..head.1].copy_from_slice(first);
        self.buffer[tail.0..][..tail.1].copy_from_slice(second);
        self.tx.publish(&self.prod, wanted);
    }

    fn get(&mut self, bytes: &mut [u8]) -> bool {
        let wanted = bytes.len() as u64;
        let Span { head, tail } =
            self.rx.readable(&self.prod, CAPACITY as u64, wanted).expect("an honest peer");
        let (first, second) = bytes.split_at_mut(head.1);
        first.copy_from_slice(&self.buffer[head.0..][..head.1]);
        second[..tail.1].copy_from_slice(&self.buffer[tail.0..][..tail.1]);
        self.rx.consume(&self.cons, CAPACITY as u64, wanted)
    }
}

fn ring(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring put and get");
    for size in SIZES {
        let (mut ring, from, mut to) = (Ring::new(), vec![7; size], vec![0; size]);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                ring.put(black_box(&from));
                ring.get(black_box(&mut to))
            });
        });
    }
    group.finish();
    c.bench_function("ring, look at an empty one", |b| {
        let ring = Ring::new();
        b.iter(|| ring.rx.refresh(black_box(&ring.prod), CAPACITY as u64));
    });
}

fn completion_queue(c: &mut Criterion) {
    let mut group = c.benchmark_group("completion queue");
    let (queue, arm) = (CqLine::default(), ArmLine::default());
    group.bench_function("push and pop one", |b| {
        b.iter(|| {
            queue.push(&arm, black_box(17));
            queue.pop_all(
                |_| 0,
                |conn| {
                    black_box(conn);
                },
            );
        });
    });
    group.bench_function("push what is queued already", |b| {
        b.iter(|| queue.push(&arm, black_box(17)));
    });
    queue.pop_all(|_| 0, |_| {});
    group.bench_function("look at an empty one", |b| b.iter(|| black_box(&queue).is_empty()));
    group.bench_function("push and pop all 256", |b| {
        b.iter(|| {
            for conn in 0..256 {
                queue.push(&arm, conn);
            }
            queue.pop_all(
                |_| 0,
                |conn| {
                    black_box(conn);
                },
            );
        });
    });
    group.bench_function("arm and disarm", |b| {
        b.iter(|| {
            arm.arm();
            arm.disarm();
        });
    });
    group.finish();
}

criterion_group!(benches, ring, completion_queue);
criterion_main!(benches);
