//! What the library adds to calls that are no business of its own: the same calls with libc alone
//! and with the library preloaded. The difference is the hook's fixed cost, look-up of the
//! descriptor included; the calls themselves do next to nothing in the kernel. And the look-ups by
//! themselves.
//!
//! `cargo build --release -p shunt-preload && cargo bench -p shunt-preload`

use std::env;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use criterion::Criterion;
use shunt_runtime::fds::fd_table;
use shunt_runtime::memory::mappings;

/// Set for the run under the library.
const PRELOADED: &str = "SHUNT_BENCH_PRELOADED";

/// The library, beside the directory of this executable: `target/release/deps/calls-…`.
fn library() -> Option<PathBuf> {
    let exe = env::current_exe().ok()?;
    let library = exe.ancestors().nth(2)?.join("libshunt.so");
    library.is_file().then_some(library)
}

fn calls(c: &mut Criterion, how: &str) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let (mut byte, fds) = ([0_u8; 1], [reader.as_raw_fd(), writer.as_raw_fd()]);
    let mut group = c.benchmark_group(how);
    group.bench_function("send on a pipe (ENOTSOCK)", |b| {
        // SAFETY: the buffer is live and of the length that is said.
        b.iter(|| unsafe { libc::send(black_box(fds[1]), byte.as_ptr().cast(), 1, 0) });
    });
    group.bench_function("read of nothing from a pipe", |b| {
        // SAFETY: nothing is written to a buffer of no length.
        b.iter(|| unsafe { libc::read(black_box(fds[0]), byte.as_mut_ptr().cast(), 0) });
    });
    group.bench_function("close of a bad descriptor (EBADF)", |b| {
        // SAFETY: no descriptor has this number.
        b.iter(|| unsafe { libc::close(black_box(-1)) });
    });
    group.finish();
}

fn look_up(c: &mut Criterion) {
    assert!(fd_table::reserve(), "the table is reserved");
    c.bench_function("descriptor table, look-up", |b| {
        b.iter(|| fd_table::lookup(black_box(100)).kind());
    });
    let registered = mappings::Windows::new();
    for (count, name) in [(1, "one window"), (100, "the last of 100 windows")] {
        for export in 0..count {
            let (base, len) = ((export + 1) << 24, 1 << 20);
            assert!(registered.add(mappings::Window { base, len, export, from: 0 }), "{export}");
        }
        let address = count << 24;
        c.bench_function(&format!("registered memory, look-up, {name}"), |b| {
            b.iter(|| registered.find(black_box(address), 65536));
        });
    }
    c.bench_function("registered memory, look-up, not registered", |b| {
        b.iter(|| registered.find(black_box(1 << 40), 65536));
    });
}

fn main() -> ExitCode {
    let mut criterion = Criterion::default().configure_from_args();
    if env::var_os(PRELOADED).is_some() {
        calls(&mut criterion, "with the library");
        return ExitCode::SUCCESS;
    }
    look_up(&mut criterion);
    calls(&mut criterion, "libc alone");
    criterion.final_summary();
    let Some(library) = library() else {
        eprintln!(
            "libshunt.so is not built in this profile: the calls were measured without it only"
        );
        return ExitCode::SUCCESS;
    };
    let again = Command::new(env::current_exe().expect("own path"))
        .args(env::args_os().skip(1))
        .env("LD_PRELOAD", library)
        .env(PRELOADED, "1")
        .status();
    if again.is_ok_and(|status| status.success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
