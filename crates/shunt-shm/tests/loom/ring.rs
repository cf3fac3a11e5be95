//! The ring: no byte torn, lost, repeated or out of order.

use loom::sync::Arc;
use loom::thread;
use shunt_shm::ring::{REWIND_AFTER, RxCursor, TxCursor};

use crate::world::{Rmb, explore};

/// Sends 1, 2, .. `n` in pieces of `piece` while another thread receives; both begin after `skip`
/// bytes.
fn pass(cap: u64, skip: u64, n: u8, piece: usize) {
    let rmb = Arc::new(Rmb::new(cap));
    let (tx, rx) = (TxCursor::default(), RxCursor::default());
    if skip > 0 {
        rmb.skip(&tx, &rx, skip);
    }
    let sender = {
        let rmb = Arc::clone(&rmb);
        thread::spawn(move || {
            let bytes: Vec<u8> = (1..=n).collect();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let sent = rmb.send(&tx, &rest[..rest.len().min(piece)]);
                rest = &rest[sent..];
                if sent == 0 {
                    thread::yield_now();
                }
            }
        })
    };
    let mut got = Vec::new();
    while got.len() < usize::from(n) {
        let bytes = rmb.receive(&rx, 2);
        if bytes.is_empty() {
            thread::yield_now();
        }
        got.extend(bytes);
    }
    sender.join().unwrap();
    assert_eq!(got, (1..=n).collect::<Vec<_>>());
    assert!(rmb.receive(&rx, 1).is_empty());
}

#[test]
fn bytes_go_round_a_full_ring() {
    explore(Some(3), || pass(2, 0, 4, 1));
}

#[test]
fn a_piece_that_wraps_arrives_whole() {
    explore(Some(4), || pass(4, 3, 4, 2));
}

/// Whether the sender finds the ring empty, and so goes back to its start, depends on how far the
/// receiver has come: every case occurs.
#[test]
fn rewinding_moves_no_byte_that_is_still_to_be_read() {
    explore(Some(4), || pass(2 * REWIND_AFTER, REWIND_AFTER, 3, 1));
}

/// The sender discards the ring whenever it finds it empty, whatever the receiver does meanwhile.
#[test]
fn discarding_an_empty_ring_takes_no_byte_from_its_receiver() {
    explore(Some(4), || {
        let rmb = Arc::new(Rmb::new(4));
        let (tx, rx) = (TxCursor::default(), RxCursor::default());
        let sender = {
            let rmb = Arc::clone(&rmb);
            thread::spawn(move || {
                for piece in [[1, 2], [3, 4]] {
                    let mut rest = &piece[..];
                    while !rest.is_empty() {
                        rest = &rest[rmb.send(&tx, rest)..];
                    }
                    rmb.discard(&tx);
                }
                tx
            })
        };
        let mut got = Vec::new();
        while got.len() < 4 {
            let bytes = rmb.receive(&rx, 2);
            if bytes.is_empty() {
                thread::yield_now();
            }
            got.extend(bytes);
        }
        let tx = sender.join().unwrap();
        assert_eq!(got, [1, 2, 3, 4]);
        assert!(rmb.discard(&tx), "all was taken");
    });
}
