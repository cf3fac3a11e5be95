//! The library panics at each of its points. The bytes of that connection are right and complete, or it
//! is reset at both ends; another connection of the same processes goes on.

use shunt_functional::binaries;
use shunt_functional::mode::Mode;
use shunt_functional::points;

use crate::two_ends;

fn panics(tested_listens: bool) {
    for mode in Mode::enabled_shunted() {
        let told = two_ends(&points::sandbox(mode), "panics", tested_listens, &[]);
        let count = |word: &str| -> u32 {
            let before =
                |line: &str| line.split(word).next()?.rsplit(' ').next()?.parse::<u32>().ok();
            told.lines().filter(|line| line.contains(word)).filter_map(before).sum()
        };
        // Points of all parts are reached, and a panic does not always end the connection.
        for part in ["promote.", "recv.", "send.", "sleep.", "poll.", "epoll.", "close.", "fork."] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(count(" complete") > 100 && count(" reset") > 100, "{told}");
    }
}

#[test]
fn the_client_panics() {
    panics(false);
}

#[test]
fn the_server_panics() {
    panics(true);
}

/// The feature is off in what users get.
#[test]
fn the_product_has_no_points() {
    let has_points = |library: &std::path::Path| {
        let bytes = std::fs::read(library).expect("the library");
        let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
        (has(b"shunt_points"), has(b"SHUNT_POINTS="), has(b"recv.taken"))
    };
    assert_eq!(has_points(&binaries::built("libshunt.so")), (false, false, false));
    assert_eq!(has_points(&points::library()), (true, true, true));
}
