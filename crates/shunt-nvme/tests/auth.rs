//! DH-HMAC-CHAP, host against controller.

mod common;

use common::{DISK, HOST, Random, nqn};
use shunt_nvme::auth::{AuthenticationError, Group, Initiator, Responder, Secret, Step};

// Keys of 32 bytes 01h and 02h, and of 48 bytes 03h.
const KEY: &str = "DHHC-1:00:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQHMnzFi:";
const OTHER: &str = "DHHC-1:01:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgJvwX3v:";
const LONG: &str =
    "DHHC-1:02:AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDe+w+Zg==:";

fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}

/// Runs an authentication; `change` may change each message.
fn run(
    host: &mut Initiator,
    controller: &mut Responder,
    change: &mut dyn FnMut(usize, &mut Vec<u8>),
) -> Result<(), AuthenticationError> {
    let mut entropy = Random(1);
    let mut random = |bytes: &mut [u8]| bytes.fill_with(|| entropy.next().to_le_bytes()[0]);
    for number in 0..20 {
        match host.step()? {
            Step::Send(mut message) => {
                change(number, &mut message);
                controller.receive(&message);
            }
            Step::Receive => {
                let mut message = controller.send(&mut random);
                change(number, &mut message);
                host.receive(&message, &mut random);
            }
            Step::Done => return Ok(()),
        }
    }
    panic!("it has no end");
}

fn pair(host_key: &str, expected: &str, mutual: bool, group: Group) -> (Initiator, Responder) {
    let host = Initiator::new(
        nqn(HOST),
        nqn(DISK),
        secret(host_key),
        mutual.then(|| secret(LONG)),
        vec![group],
        7,
    );
    let controller =
        Responder::new(nqn(HOST), nqn(DISK), secret(expected), mutual.then(|| secret(LONG)));
    (host, controller)
}

#[test]
fn keys_that_match() {
    for key in [KEY, OTHER, LONG] {
        for mutual in [false, true] {
            for group in [Group::Null, Group::Ffdhe2048] {
                let (mut host, mut controller) = pair(key, key, mutual, group);
                assert_eq!(run(&mut host, &mut controller, &mut |_, _| {}), Ok(()));
                assert!(controller.is_authenticated());
            }
        }
    }
}

#[test]
fn keys_that_do_not_match() {
    for mutual in [false, true] {
        let (mut host, mut controller) = pair(KEY, OTHER, mutual, Group::Null);
        let result = run(&mut host, &mut controller, &mut |_, _| {});
        assert_eq!(result, Err(AuthenticationError::Refused(1)));
        assert!(controller.has_failed() && !controller.is_authenticated());
    }
}

/// A controller that doesn't have the key that the host expects is not taken for the right one.
#[test]
fn another_controller() {
    let (mut host, _) = pair(KEY, KEY, true, Group::Ffdhe2048);
    let mut controller = Responder::new(nqn(HOST), nqn(DISK), secret(KEY), Some(secret(OTHER)));
    let result = run(&mut host, &mut controller, &mut |_, _| {});
    assert_eq!(result, Err(AuthenticationError::Controller));
    assert!(controller.has_failed() && !controller.is_authenticated());
    let (mut host, _) = pair(KEY, KEY, true, Group::Null);
    let mut controller = Responder::new(nqn(HOST), nqn(DISK), secret(KEY), None);
    let result = run(&mut host, &mut controller, &mut |_, _| {});
    assert_eq!(result, Err(AuthenticationError::Refused(1)));
}

/// A change to any byte of any message never makes a wrong key good, and never panics. Bytes that
/// are reserved, and identifiers that the other end doesn't use, may change.
#[test]
fn every_byte_changed() {
    for mutual in [false, true] {
        for number in 0..5 {
            for at in 0..80 {
                let (mut host, mut controller) = pair(KEY, OTHER, mutual, Group::Null);
                let result = run(&mut host, &mut controller, &mut |index, message| {
                    if index == number
                        && let Some(byte) = message.get_mut(at)
                    {
                        *byte ^= 0x55;
                    }
                });
                // The host may be told of success by a message that was changed to one; the
                // controller knows better.
                let _ = result;
                assert!(!controller.is_authenticated(), "message {number}, byte {at}");
            }
        }
    }
}

/// Values of the right key's reply, changed: none is good.
#[test]
fn replies_changed() {
    // Behind the header: response, then challenge and value.
    for at in 16..48 {
        let (mut host, mut controller) = pair(KEY, KEY, false, Group::Ffdhe2048);
        let result = run(&mut host, &mut controller, &mut |index, message| {
            if index == 2 {
                message[at] ^= 1;
            }
        });
        assert_eq!(result, Err(AuthenticationError::Refused(1)), "byte {at}");
    }
}
