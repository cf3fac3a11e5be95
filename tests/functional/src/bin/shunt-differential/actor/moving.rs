//! Bytes that the kernel moves from one descriptor to another.

use std::ptr;

use shunt_functional::differential::board::Line;
use shunt_functional::differential::plan::ops::SpliceFlags;
use shunt_functional::differential::plan::{Op, Var};

use super::bytes::sending;
use super::seen::is_elastic;
use super::{calls, say, say_error, world};

/// Does one of these operations.
pub fn perform(op: &Op, line: &mut Line) {
    match *op {
        Op::Splice { from, to, len, flags } => {
            let moved = splice(from, to, len as usize, flags);
            say_moved(from, moved, len as usize, line);
        }
        Op::SpliceAll { from, to, len } => splice_all(from, to, len as usize, line),
        Op::Sendfile { to, from, offset, len } => sendfile(to, from, offset, len as usize, line),
        _ => {}
    }
}

fn splice(from: Var, to: Var, len: usize, flags: SpliceFlags) -> isize {
    let (stream, nowhere) = (to.stream(), ptr::null_mut());
    let (from, to) = (world().fd(from), world().fd(to));
    // SAFETY: no offsets.
    let call = || unsafe { libc::splice(from, nowhere, to, nowhere, len, flags.0.cast_unsigned()) };
    sending(stream, len, call)
}

/// How much was moved, where that does not depend on buffers.
fn say_moved(from: Var, moved: isize, len: usize, line: &mut Line) {
    let elastic = is_elastic(&world().board, from.incoming());
    match usize::try_from(moved) {
        Ok(n) if n > 0 && n < len && elastic => line.say(format_args!("some")),
        _ => say(line, moved as libc::c_long),
    }
}

fn splice_all(from: Var, to: Var, len: usize, line: &mut Line) {
    let mut left = len;
    while left > 0 {
        match splice(from, to, left, SpliceFlags(0)) {
            0 => return line.say(format_args!("end")),
            n => match usize::try_from(n) {
                Ok(n) => left -= n,
                Err(_) if calls::errno() == libc::EINTR => {}
                Err(_) => return say_error(line),
            },
        }
    }
    line.say(format_args!("all"));
}

fn sendfile(to: Var, from: Var, offset: i32, len: usize, line: &mut Line) {
    let (to, file) = (world().fd(to), world().fd(from));
    let mut at = libc::off_t::from(offset);
    let place = if offset < 0 { ptr::null_mut() } else { &raw mut at };
    // SAFETY: the offset, if there is one, is on this stack.
    let sent = unsafe { libc::sendfile(to, file, place, len) };
    match usize::try_from(sent) {
        Err(_) => say_error(line),
        Ok(n) if n == len => line.say(format_args!("all")),
        Ok(0) => line.say(format_args!("0")),
        // How much depends on buffers.
        Ok(_) => line.say(format_args!("some")),
    }
    if offset >= 0 && at - libc::off_t::from(offset) != sent.max(0) as libc::off_t {
        line.say(format_args!(" but the offset moved by {}", at - libc::off_t::from(offset)));
    }
}
