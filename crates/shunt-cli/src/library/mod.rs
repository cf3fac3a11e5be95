//! libshunt.so: finding it, naming it to the loader, and `shunt library`.

mod install;
mod place;
mod preload;

use crate::cli::{Library, LibraryCommand};
use crate::output::{complain, print};

pub use place::{LIB_DIRECTORIES, NAME, find};
pub use preload::{VARIABLE, entry, preload, without};

/// Runs the subcommand.
pub fn run(args: &Library) -> u8 {
    let LibraryCommand::Install(args) = &args.command;
    let found = find().map_err(|why| why.to_string());
    match found.and_then(|library| install::install(&library, &args.directory)) {
        Ok(path) => print(&format!("{} is in place\n", path.display())),
        Err(why) => {
            complain(&why);
            1
        }
    }
}
