//! The conversation with systemd, by way of systemctl(1).

use std::io::ErrorKind;
use std::process::{Command, Output, Stdio};

use super::unit::PROPERTIES;

fn systemctl(args: &[&str]) -> Result<Output, String> {
    let mut command = Command::new("systemctl");
    command.args(args).stdin(Stdio::null()).env("LC_ALL", "C").env_remove("SYSTEMD_COLORS");
    match command.output() {
        Ok(output) if output.status.success() => Ok(output),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().find(|line| !line.trim().is_empty());
            Err(said.unwrap_or("it failed and said nothing").trim().to_owned())
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            Err("there is no such command: this is no systemd system".to_owned())
        }
        Err(e) => Err(e.to_string()),
    }
}

/// What `systemctl show` says of a service.
///
/// # Errors
/// Why it says nothing.
pub fn show(name: &str) -> Result<String, String> {
    let properties = PROPERTIES.join(",");
    let output = systemctl(&["show", "--no-pager", "--property", &properties, "--", name])?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Has systemd read its units anew.
///
/// # Errors
/// Why it does not.
pub fn reload() -> Result<(), String> {
    systemctl(&["daemon-reload"]).map(drop)
}

/// Restarts a service if it runs.
///
/// # Errors
/// Why that failed.
pub fn restart(name: &str) -> Result<(), String> {
    systemctl(&["try-restart", "--", name]).map(drop)
}
