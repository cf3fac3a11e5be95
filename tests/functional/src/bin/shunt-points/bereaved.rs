//! A process takes a connection up, and is killed as it answers. This one holds the connection with it, and goes on where that one was:
//! the client may have heard the answer, and put its bytes into the ring.

use std::io;
use std::os::fd::AsRawFd;

use shunt_functional::sys::{self, Forked, points};

use crate::steps::{Ends, Held, exchange, expect, send};
use crate::watch;

/// What this process does first of all on the connection.
const FIRST: [&str; 4] = ["recv", "send", "shutdown", "close"];

/// Where the other one is killed, and whether the connection has come into shared memory then.
const PLACES: [(&str, bool); 3] =
    [("promote.taken", false), ("promote.settled", true), ("promote.answered", true)];

fn goes_on(ends: &Ends, point: &str, first: &str) -> io::Result<bool> {
    watch::begin(&format!("one is killed at {point}, and the other one begins with {first}"));
    let (client, server) = ends.fresh()?;
    let held = Held::at(point)?;
    let Forked::Parent(pid) = sys::fork()? else {
        let _ = sys::recv(server.as_raw_fd(), &mut [0], 0, false);
        sys::exit_now(1);
    };
    points::plan("");
    held.wait()?;
    // The client looks for the answer, and goes where that leads.
    for _ in 0..2 {
        send(client.as_raw_fd(), b"early")?;
    }
    sys::kill(pid, libc::SIGKILL)?;
    sys::wait_for(pid)?;
    if first == "send" {
        send(server.as_raw_fd(), b"answer")?;
        expect(client.as_raw_fd(), b"answer")?;
    }
    match first {
        "close" => {}
        "shutdown" => {
            sys::shutdown(server.as_raw_fd(), libc::SHUT_WR)?;
            expect(client.as_raw_fd(), b"")?;
            expect(server.as_raw_fd(), b"earlyearly")?;
        }
        _ => {
            expect(server.as_raw_fd(), b"earlyearly")?;
            exchange(&client, &server)?;
        }
    }
    let has_answered = points::passed("promote.answered") > 0;
    drop(server);
    if first == "close" {
        // Over TCP it is RST, too: bytes lay unread.
        let reset = sys::recv(client.as_raw_fd(), &mut [0; 8], 0, false);
        let is_reset = reset.is_err_and(|e| e.raw_os_error() == Some(libc::ECONNRESET));
        return Ok(is_reset);
    }
    expect(client.as_raw_fd(), b"")?;
    Ok(has_answered)
}

/// All of them. True when each has its bytes, and those that can be are in shared memory.
pub fn all() -> io::Result<bool> {
    let ends = Ends::new()?;
    let mut is_right = true;
    for (point, is_shared) in PLACES {
        for first in FIRST {
            let result = goes_on(&ends, point, first);
            let expected = is_shared || first == "close";
            is_right &= result.as_ref().is_ok_and(|result| *result == expected);
            let told = result.map_or_else(|e| e.to_string(), |result| result.to_string());
            println!("killed at {point}, then {first}: {told}");
        }
    }
    Ok(is_right)
}
