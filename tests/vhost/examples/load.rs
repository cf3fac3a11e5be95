//! Writes to an emulated disk as fast as it takes them, as a guest without a processor: `load SOCKET SIZE DEPTH SECONDS`. Prints how
//! many requests were done a second.

#![allow(clippy::cast_possible_truncation, reason = "few and small numbers")]

use std::time::{Duration, Instant};

use shunt_vhost::{DATA, Driver, FAR, Part, REGION};

/// A request that writes (VIRTIO 1.2, 5.2.6).
const OUT: u32 = 1;
/// Sectors of the disk that are written.
const SECTORS: u64 = 1 << 20;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, socket, size, depth, seconds] = args.as_slice() else {
        eprintln!("load SOCKET SIZE DEPTH SECONDS");
        std::process::exit(2);
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (size, depth) = (number(size), number(depth));
    let time = Duration::from_secs_f64(seconds.parse().expect("seconds"));
    let mut driver = Driver::connect(std::path::Path::new(socket));
    // Buffers in turn, in both parts of the guest's memory.
    let places: Vec<u64> = [(DATA, REGION - DATA), (FAR, REGION)]
        .into_iter()
        .flat_map(|(at, len)| (0..len / size).map(move |n| at + n * size))
        .collect();
    let (mut next, mut sector) = (0, 0);
    let mut requests = |count: u64| -> Vec<(u64, Part)> {
        let request = |_| {
            next = (next + 1) % places.len();
            // Anywhere, and the same each time.
            sector = (sector * 25_214_903_917_u64 + 11) % (SECTORS * 512 / size);
            (sector * size / 512, (places[next], size as u32, false))
        };
        (0..count).map(request).collect()
    };
    driver.submit_all(OUT, requests(depth).into_iter());
    let (started, mut done) = (Instant::now(), 0_u64);
    while started.elapsed() < time {
        while driver.back() == 0 {
            driver.sleep();
        }
        let mut count = 0;
        while driver.back() > 0 {
            let (head, _) = driver.used();
            assert_eq!(driver.status(head as u16), 0, "a write has failed");
            count += 1;
        }
        done += count;
        driver.submit_all(OUT, requests(count).into_iter());
    }
    println!("{:.0}", done as f64 / started.elapsed().as_secs_f64());
}
