//! Programs that nobody wrote, over kernel TCP and under Shunt. See `shunt_functional::differential`.

mod actor;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use shunt_functional::differential::generate::Family;

/// Runs programs that nobody wrote over kernel TCP and under Shunt, and compares what came of them.
#[derive(Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Becomes a process of a plan; for this program's own use.
    #[command(hide = true)]
    Act {
        /// Where the plan is.
        board: PathBuf,
        /// Which of its processes.
        process: u8,
        /// The step that has brought it here.
        #[arg(long)]
        resumed: Option<usize>,
    },
    /// Lists what plans can be made of.
    Families,
}

fn main() -> ExitCode {
    let result = match Options::parse().role {
        Role::Act { board, process, resumed } => actor::run(&board, process, resumed),
        Role::Families => {
            for family in Family::ALL {
                println!("{:10}{}", family.name(), family.explain().trim());
            }
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("shunt-differential {}: {e}", std::process::id());
            ExitCode::from(2)
        }
    }
}
