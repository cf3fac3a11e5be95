//! A process at an end of a connection, and the advice that follows from how it runs.

use serde::Serialize;

use super::runs;
use crate::doctor::HOST_FOR_ALL;
use crate::waits::WaitTimes;

/// A process at an end of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct End {
    /// Address and port of the end.
    pub local: String,
    /// The process.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// Its descriptor.
    pub fd: i32,
    /// How it runs: `shunt`, `shunt-unknown` (its agent does not know the connection), `shunt-without-agent`,
    /// `shunt-with-another-agent`, `unaccepted` (it has not accepted the connection), `without` or `unknown`.
    pub runs: &'static str,
    /// The directory or the socket of its agent.
    pub agent: Option<String>,
    /// The user for whose own agent that is, and not that of this command.
    #[serde(skip)]
    pub of_user: Option<u32>,
    /// `tcp`, `shunt-attach` or `shunt-copy`, as this end has it.
    pub mode: Option<String>,
    /// How long calls have waited for the connection alone, where one has.
    pub waits: Option<WaitTimes>,
    /// Why it is on TCP, as this end has it.
    pub reason: Option<String>,
}

impl End {
    /// What happened, and what to do, where a process runs in such a way. `None`: that explains nothing.
    pub fn meaning(&self) -> Option<(String, String)> {
        let program = &self.program;
        let who = format!("{program} (pid {})", self.pid);
        let agent = self.agent.as_deref().unwrap_or("-");
        if let Some(user) = self.of_user.filter(|_| self.runs == runs::NO_AGENT) {
            let happened = format!(
                "{who} runs under Shunt as another user (uid {user}), who has no agent: it would be in {agent}."
            );
            return Some((happened, HOST_FOR_ALL.to_owned()));
        }
        Some(match self.runs {
            runs::WITHOUT => (
                format!("{who} runs without Shunt."),
                format!(
                    "Start {program} under Shunt (`shunt run`, or `shunt enable` for a service). Connections that are made \
                     afterwards are shunted."
                ),
            ),
            runs::NO_AGENT => (
                format!(
                    "{who} runs under Shunt, and no agent is in {agent}, where it looks for one."
                ),
                format!(
                    "Start an agent there: `SHUNT_RUN_DIR={agent} shunt agent`. Or restart {program} with the SHUNT_RUN_DIR \
                     of an agent that runs."
                ),
            ),
            runs::ANOTHER_AGENT => (
                format!("{who} runs under Shunt with another agent, in {agent}."),
                format!(
                    "Start both ends with the same SHUNT_RUN_DIR, so that they have one agent. Its own side tells \
                     `SHUNT_RUN_DIR={agent} shunt explain {}:{}`.",
                    self.pid, self.fd
                ),
            ),
            runs::UNKNOWN_TO_AGENT => (
                format!("{who} runs under Shunt, and its agent {agent} does not know of this."),
                format!(
                    "Look again in a moment. If it stays so, restart {program}: what was open before it could ask its agent \
                     stays on TCP."
                ),
            ),
            runs::UNACCEPTED => (
                format!("{who} has not accepted the connection yet."),
                format!("Nothing, if {program} accepts soon. Else see what keeps it from that."),
            ),
            runs::UNKNOWN => (
                format!("Whether {who} runs under Shunt cannot be seen by you."),
                "Ask as root, or as the user that it runs as.".to_owned(),
            ),
            _ => return None,
        })
    }
}
