//! Switch points: the stream goes from TCP into the ring and back, and is read as it was sent.

use std::collections::VecDeque;

use loom::sync::{Arc, Mutex};
use loom::thread;
use shunt_engine::stretch::{Path, had, path, reached_tcp_end};
use shunt_shm::ring::{RxCursor, TxCursor};
use shunt_shm::sync::Ordering;

use crate::world::{Rmb, explore};

/// The kernel's connection: its bytes, and how many ever came in.
#[derive(Default)]
struct Tcp {
    bytes: VecDeque<u8>,
    received: u64,
}

struct Direction {
    rmb: Rmb,
    tcp: Mutex<Tcp>,
}

impl Direction {
    fn new() -> Self {
        Self { rmb: Rmb::new(4), tcp: Mutex::new(Tcp::default()) }
    }

    fn send_tcp(&self, byte: u8) {
        let mut tcp = self.tcp.lock().unwrap();
        tcp.bytes.push_back(byte);
        tcp.received += 1;
    }

    fn pass(&self, marks: &mut u32) {
        *marks += 1;
        self.rmb.cons.marks_passed.store(*marks, Ordering::Release);
    }

    /// One look of a receiver that has passed `marks`: the library's order of looking.
    fn look(&self, rx: &RxCursor, marks: &mut u32) -> Option<u8> {
        let open = |marks| RxCursor::next_mark(&self.rmb.prod, marks).unwrap();
        match path(*marks) {
            Path::Tcp => {
                let mark = open(*marks);
                let mut tcp = self.tcp.lock().unwrap();
                if let Some(at) = mark
                    && tcp.bytes.is_empty()
                    && reached_tcp_end(tcp.received, at)
                {
                    drop(tcp);
                    self.pass(marks);
                    return None;
                }
                tcp.bytes.pop_front()
            }
            Path::Ring => {
                let byte = self.rmb.receive(rx, 1).pop();
                if byte.is_none()
                    && let Some(at) = open(*marks)
                    && had(at, rx.pos(), 4) == Some(0)
                {
                    self.pass(marks);
                }
                byte
            }
        }
    }
}

/// Sends one byte in each of `stretches` stretches, the first of which is TCP.
fn stretches(stretches: u8) {
    let direction = Arc::new(Direction::new());
    let sender = {
        let d = Arc::clone(&direction);
        thread::spawn(move || {
            let tx = TxCursor::default();
            let mut sent_tcp = 0;
            for byte in 0..stretches {
                if byte > 0 {
                    while !TxCursor::marks_settled(&d.rmb.prod, &d.rmb.cons) {
                        thread::yield_now();
                    }
                    let at = if byte % 2 == 1 { sent_tcp } else { tx.pos() };
                    TxCursor::set_mark(&d.rmb.prod, at);
                }
                if byte % 2 == 0 {
                    d.send_tcp(byte);
                    sent_tcp += 1;
                } else {
                    assert_eq!(d.rmb.send(&tx, &[byte]), 1);
                }
            }
        })
    };
    let rx = RxCursor::default();
    let mut marks = 0;
    let mut got = Vec::new();
    while got.len() < usize::from(stretches) {
        let before = marks;
        match direction.look(&rx, &mut marks) {
            Some(byte) => got.push(byte),
            None if marks == before => thread::yield_now(),
            None => {}
        }
    }
    sender.join().unwrap();
    assert_eq!(got, (0..stretches).collect::<Vec<_>>());
}

#[test]
fn promotion_keeps_the_order() {
    explore(None, || stretches(2));
}

#[test]
fn promotion_demotion_and_promotion_keep_the_order() {
    explore(Some(4), || stretches(4));
}
