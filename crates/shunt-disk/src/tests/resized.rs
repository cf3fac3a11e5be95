//! A disk that changes its size while a front end has it.

use std::io::Read;
use std::os::unix::net::UnixStream;

use super::exact::{FAILED, IN, OK, geometry};
use super::ram::Ram;
use super::served::Served;
use shunt_guest::vhost::{DATA, Driver};

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG: request, flags, no bytes behind.
const CHANGED: [[u8; 4]; 3] = [[2, 0, 0, 0], [1, 0, 0, 0], [0; 4]];

fn hears(channel: &mut UnixStream) {
    let mut said = [0; 12];
    channel.read_exact(&mut said).unwrap();
    assert_eq!(said.as_chunks().0, CHANGED);
}

#[test]
fn a_front_end_hears_of_another_size() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    let mut channel = driver.channel();
    let read = [(DATA, 512, true)];
    assert_eq!(driver.request(IN, 2048, &read), (FAILED, 1));
    for (blocks, then) in [(4096, (OK, 513)), (1024, (FAILED, 1))] {
        disk.resize(blocks);
        hears(&mut channel);
        assert_eq!(driver.config(8), blocks.to_le_bytes());
        assert_eq!(driver.request(IN, 2048, &read), then);
    }
    assert_eq!(driver.request(IN, 1023, &read), (OK, 513));
    // The next one needs no message.
    drop(driver);
    assert_eq!(Driver::connect(&served.path).config(8), 1024u64.to_le_bytes());
}

/// QEMU drops the message while the guest's driver has not begun, and then shows it what was read before.
#[test]
fn a_front_end_that_has_not_read_the_size_hears_again_when_rings_begin() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    let mut channel = driver.channel();
    assert_eq!(driver.config(8), 2048u64.to_le_bytes());
    disk.resize(4096);
    hears(&mut channel);
    driver.enable();
    hears(&mut channel);
    assert_eq!(driver.config(8), 4096u64.to_le_bytes());
    driver.enable();
    // An answer comes behind what was said for the last one.
    assert_eq!(driver.config(8), 4096u64.to_le_bytes());
    drop(driver);
    let mut rest = Vec::new();
    channel.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}

#[test]
fn a_front_end_without_a_channel_goes_on() {
    let disk = Ram::new(geometry());
    let served = Served::new(&disk, 1);
    let mut driver = Driver::connect(&served.path);
    disk.resize(4096);
    while driver.config(8) != 4096u64.to_le_bytes() {
        std::thread::yield_now();
    }
    assert_eq!(driver.request(IN, 2048, &[(DATA, 512, true)]), (OK, 513));
}
