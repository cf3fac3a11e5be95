//! `shunt nvme target`.

use std::net::SocketAddr;

use shunt_ivshmem::notify::Notifier;
use shunt_nvme_target::config::{Backing, Config};
use shunt_nvme_target::server::{Options, serve};
use shunt_nvme_target::stores::Stores;
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::cli::nvme::Target;
use crate::output::{complain, log, print};

/// Runs the subcommand.
pub fn run(args: Target) -> u8 {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    log(filter);
    let config = match config(&args) {
        Ok(config) => config,
        Err(why) => {
            complain(&why);
            return 1;
        }
    };
    if args.check {
        return check(&config);
    }
    // A host that goes, and a closed standard error, must not end the target.
    // SAFETY: changes this process's disposition of one signal, before any thread is made.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let options = Options {
        config,
        file: args.config,
        control: args.control,
        metrics: args.metrics,
        metrics_public: args.metrics_public,
    };
    let ready = |addresses: &[SocketAddr]| {
        for address in addresses {
            info!("listening at {address}");
        }
        Notifier::from_environment().tell("READY=1");
    };
    match serve(options, ready) {
        Ok(()) => 0,
        Err(e) => {
            complain(&e);
            1
        }
    }
}

/// What the command line, or the file that it names, says.
fn config(args: &Target) -> Result<Config, String> {
    if let Some(file) = &args.config {
        return Config::load(file).map_err(|e| e.to_string());
    }
    let (store, size) = if let Some(size) = args.store.null {
        (Backing::Null, Some(size))
    } else if let Some(size) = args.store.memory {
        (Backing::Memory, Some(size))
    } else if let Some(path) = args.store.file.clone() {
        (Backing::file(path, args.size.is_some()), args.size)
    } else {
        return Err("nothing to serve: name a --config, --null, --memory or --file".to_owned());
    };
    let block = u64::from(args.block_size.bytes());
    if let Some(size) = size.filter(|size| *size == 0 || !size.is_multiple_of(block)) {
        return Err(format!(
            "{size} bytes cannot be the size: it must be a multiple of the block size {block}, and not 0"
        ));
    }
    let config = Config::quick(args.listen.clone(), store, size, args.block_size);
    config.map_err(|e| e.to_string())
}

/// Says whether all of it can be had.
fn check(config: &Config) -> u8 {
    match Stores::open(config) {
        Ok(_) => print("The configuration can be served.\n"),
        Err(e) => {
            complain(&e);
            1
        }
    }
}
