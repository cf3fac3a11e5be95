//! `shunt nvme disk`.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use shunt_disk::metrics::Totals;
use shunt_disk::nvme::{NvmeDisk, paths};
use shunt_disk::port::Disk as _;
use shunt_disk::{door, serve, vfio};
use shunt_ivshmem::notify::Notifier;
use shunt_metrics::Serving;
use shunt_nvme_host::{Error, Options, Subsystem};
use shunt_sys::signals;
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::cli::nvme::Disk;
use crate::output::{complain, log};

use super::way::identity;

/// How long a target that does not listen is waited for at the start.
const STARTING: Duration = Duration::from_secs(5);

/// Runs the subcommand.
pub fn run(args: &Disk) -> u8 {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    log(filter);
    match be_disk(args) {
        Ok(()) => 0,
        Err(why) => {
            complain(&why);
            1
        }
    }
}

fn be_disk(args: &Disk) -> Result<(), String> {
    let options = options(args)?;
    // A target that goes, and a closed standard error, must not end the disk.
    // SAFETY: changes this process's disposition of one signal, before any thread is made.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    // All threads leave these to the one that serves, also those that keep the connections.
    let stop = signals::stop_fd().map_err(|e| e.to_string())?;
    let subsystem = connect(&options).map_err(|e| {
        format!("{}: {e}; is the target there, and may this host connect to it?", args.nqn)
    })?;
    let disk = NvmeDisk::open(subsystem.clone(), args.nsid.get(), args.read_only);
    let disk = disk.map_err(|e| format!("{}: {e}", args.nqn))?;
    let geometry = disk.geometry();
    let queues =
        args.queues.map_or_else(|| available_parallelism().map_or(1, usize::from), usize::from);
    let Some(socket) = args.vfio_user.as_ref().or(args.socket.as_ref()) else {
        return Err("name a --socket or --vfio-user".to_owned());
    };
    let options =
        door::Options { socket: socket.clone(), mode: args.socket_mode, queues: queues.min(64) };
    let totals = Totals::new(options.queues);
    let metrics = match &args.metrics {
        None => None,
        Some(address) => {
            let (totals, subsystem) = (totals.clone(), subsystem.clone());
            let render = move || totals.render(&paths(&subsystem));
            let serving = Serving::start(address, args.metrics_public, render);
            let serving = serving.map_err(|e| e.to_string())?;
            info!("serving metrics at {}", serving.address());
            Some(serving)
        }
    };
    let ready = || {
        let size = geometry.blocks.saturating_mul(geometry.block_size.into());
        let at = options.socket.display();
        info!("{size} bytes in blocks of {}, for a virtual machine at {at}", geometry.block_size);
        Notifier::from_environment().tell("READY=1");
    };
    let served = if args.vfio_user.is_some() {
        vfio::serve::serve_until(&disk, &options, &totals, stop.as_fd(), ready)
    } else {
        serve::serve_until(&disk, &options, &totals, stop.as_fd(), ready)
    };
    served.map_err(|e| e.to_string())?;
    drop(metrics);
    drop(disk);
    subsystem.close();
    Ok(())
}

/// Connects to the target; one that is just being started is waited for.
fn connect(options: &Options) -> Result<Subsystem, Error> {
    let until = Instant::now() + STARTING;
    loop {
        let error = match Subsystem::connect(options.clone()) {
            Ok(subsystem) => return Ok(subsystem),
            Err(e) => e,
        };
        let listens =
            |address| TcpStream::connect_timeout(address, options.connect_timeout).is_ok();
        let is_there = || options.addresses.iter().any(listens);
        if Instant::now() >= until || !may_be_starting(&error, is_there) {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// True where the target may only just be starting. `is_there`: somebody listens now, which says nothing of an attempt that found
/// nobody: the target may have begun to listen since.
fn may_be_starting(error: &Error, is_there: impl FnOnce() -> bool) -> bool {
    match error {
        Error::Down(why) => may_be_starting(why, is_there),
        Error::Io(_, e) if e.kind() == ErrorKind::ConnectionRefused => true,
        _ => !is_there(),
    }
}

/// How to reach the target, and as whom.
fn options(args: &Disk) -> Result<Options, String> {
    Ok(Options {
        identity: identity(&args.host)?,
        header_digest: args.header_digest,
        data_digest: args.data_digest,
        grant: args.grant,
        depth: args.queue_depth.get(),
        give_up: args.give_up,
        ..Options::new(args.target.clone(), args.nqn.clone())
    })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_target_that_listens_since_an_attempt_found_nobody_is_waited_for() {
        let address = "127.0.0.1:4420".parse().unwrap();
        let failed = |kind: ErrorKind| Error::Down(Arc::new(Error::Io(address, kind.into())));
        for (kind, is_there, waits) in [
            (ErrorKind::ConnectionRefused, true, true),
            (ErrorKind::ConnectionRefused, false, true),
            (ErrorKind::HostUnreachable, false, true),
            (ErrorKind::ConnectionReset, true, false),
        ] {
            assert_eq!(may_be_starting(&failed(kind), || is_there), waits, "{kind} {is_there}");
        }
        let local = Error::Local(io::Error::other("no thread"));
        assert!(!may_be_starting(&local, || true));
    }
}
