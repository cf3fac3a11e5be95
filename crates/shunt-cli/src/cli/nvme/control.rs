//! The command line of `shunt nvme control`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use shunt_nvme_target::control;

/// `shunt nvme control`.
#[derive(Args, Debug)]
#[command(
    after_help = "Ask as the user that the target runs as. What cannot be done is said with its reason, and \
                        changes nothing; the exit status is 1 then."
)]
pub struct Control {
    /// Where the target is commanded: what its --control says.
    #[arg(long, value_name = "PATH", default_value = control::USUAL)]
    pub socket: PathBuf,
    /// What it is to do.
    #[command(subcommand)]
    pub command: ControlCommand,
}

/// What `shunt nvme control` can ask for.
#[derive(Subcommand, Debug)]
pub enum ControlCommand {
    /// Read the configuration file again, as at SIGHUP.
    Reload,
    /// Serve what another configuration says, until the file is read again.
    Apply {
        /// The configuration; `-`: standard input.
        file: PathBuf,
    },
    /// Show what is served, and which hosts are connected.
    Show {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::nvme::{Nvme, NvmeCommand};
    use crate::cli::{Cli, Command};

    #[test]
    fn commands() {
        let control = |args: &[&str]| {
            let args = ["shunt", "nvme", "control"].iter().chain(args);
            match Cli::try_parse_from(args).map(|cli| cli.command) {
                Ok(Command::Nvme(Nvme { command: NvmeCommand::Control(control) })) => Some(control),
                _ => None,
            }
        };
        let apply = control(&["--socket", "/x", "apply", "-"]).unwrap();
        assert_eq!(apply.socket, PathBuf::from("/x"));
        assert!(matches!(apply.command, ControlCommand::Apply { file } if file.as_os_str() == "-"));
        let show = control(&["show", "--json"]).unwrap();
        assert_eq!(show.socket, PathBuf::from(control::USUAL));
        assert!(matches!(show.command, ControlCommand::Show { json: true }));
        assert!(matches!(control(&["reload"]).unwrap().command, ControlCommand::Reload));
        assert!(control(&[]).is_none() && control(&["apply"]).is_none());
    }
}
