//! The filter of listed connections: the words of ss(8), and some more.

use crate::listing::{Connection, Listener};

/// What `shunt list --help` says of it.
pub const HELP: &str = "FILTER are conditions that all have to hold, each of which may have `not` before it: `sport PORT`, \
                        `dport PORT`, `port PORT` (either), `src ADDRESS`, `dst ADDRESS`, `pid PID` and `program NAME` \
                        (either end), `mode tcp|shunt`, `reason NAME`. As in ss(8), `=` may stand before a value, `:` \
                        before a port, and `and` between conditions.";

/// What has to be true of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Condition {
    LocalPort(u16),
    PeerPort(u16),
    Port(u16),
    Local(String),
    Peer(String),
    Pid(u32),
    Program(String),
    Mode(String),
    Reason(String),
}

/// All conditions, and for each whether it is to hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter(Vec<(bool, Condition)>);

impl Filter {
    /// Reads it.
    ///
    /// # Errors
    /// What makes no sense in it.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let joined = words.join(" ");
        let mut words =
            joined.split([' ', '=', '(', ')']).filter(|word| !matches!(*word, "" | "and"));
        let mut conditions = Vec::new();
        while let Some(mut word) = words.next() {
            let is_wanted = !matches!(word, "not" | "!");
            if !is_wanted {
                word = words.next().ok_or("a condition has to follow `not`")?;
            }
            if word == "or" {
                return Err("conditions are joined by `and` alone; list once for each".to_owned());
            }
            let mut value =
                || words.next().ok_or_else(|| format!("a value has to follow `{word}`"));
            let port = |text: &str| {
                let number = text.trim_start_matches(':');
                number.parse().map_err(|_| format!("`{text}` is no port: a number up to 65535"))
            };
            let condition = match word {
                "sport" => Condition::LocalPort(port(value()?)?),
                "dport" => Condition::PeerPort(port(value()?)?),
                "port" => Condition::Port(port(value()?)?),
                "src" => Condition::Local(value()?.to_owned()),
                "dst" => Condition::Peer(value()?.to_owned()),
                "pid" => {
                    let text = value()?;
                    let number = text.parse().map_err(|_| format!("`{text}` is no pid"))?;
                    Condition::Pid(number)
                }
                "program" => Condition::Program(value()?.to_owned()),
                "mode" => Condition::Mode(value()?.to_owned()),
                "reason" => Condition::Reason(value()?.to_owned()),
                other => return Err(format!("`{other}` is no condition; see `shunt list --help`")),
            };
            conditions.push((is_wanted, condition));
        }
        Ok(Self(conditions))
    }

    /// A port that either end of a connection has to have.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.0.iter().find_map(|(is_wanted, condition)| match condition {
            Condition::LocalPort(port) | Condition::PeerPort(port) | Condition::Port(port) => {
                is_wanted.then_some(*port)
            }
            _ => None,
        })
    }

    /// True for a connection that is to be listed.
    #[must_use]
    pub fn takes(&self, connection: &Connection) -> bool {
        let entry = Entry {
            local: &connection.local,
            peer: &connection.peer,
            pids: [Some(connection.pid), connection.peer_pid],
            programs: [Some(&connection.program), connection.peer_program.as_deref()],
            mode: Some(&connection.mode),
            reason: connection.reason.as_deref(),
        };
        self.takes_entry(&entry)
    }

    /// True for a listener that is to be listed. It has one address.
    #[must_use]
    pub fn takes_listener(&self, listener: &Listener) -> bool {
        let entry = Entry {
            local: &listener.address,
            peer: "",
            pids: [Some(listener.pid), None],
            programs: [Some(&listener.program), None],
            mode: None,
            reason: Some(&listener.reason),
        };
        self.takes_entry(&entry)
    }

    /// True for what is to be shown.
    #[must_use]
    pub fn takes_entry(&self, entry: &Entry<'_>) -> bool {
        self.0.iter().all(|(is_wanted, condition)| condition.holds(entry) == *is_wanted)
    }
}

/// What conditions speak of.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Address and port.
    pub local: &'a str,
    /// Those of the other end.
    pub peer: &'a str,
    /// The processes of both ends, as far as they are known.
    pub pids: [Option<u32>; 2],
    /// Their programs.
    pub programs: [Option<&'a str>; 2],
    /// `tcp`, or the beginning of what a shunted connection's mode is called.
    pub mode: Option<&'a str>,
    /// Why it is on TCP.
    pub reason: Option<&'a str>,
}

/// Address without brackets, and port.
fn parts(endpoint: &str) -> (&str, Option<u16>) {
    let (address, port) = endpoint.rsplit_once(':').unwrap_or((endpoint, ""));
    (address.trim_matches(['[', ']']), port.parse().ok())
}

impl Condition {
    fn holds(&self, entry: &Entry<'_>) -> bool {
        let (local, peer) = (parts(entry.local), parts(entry.peer));
        match self {
            Self::LocalPort(port) => local.1 == Some(*port),
            Self::PeerPort(port) => peer.1 == Some(*port),
            Self::Port(port) => local.1 == Some(*port) || peer.1 == Some(*port),
            Self::Local(address) => local.0 == address.trim_matches(['[', ']']),
            Self::Peer(address) => peer.0 == address.trim_matches(['[', ']']),
            Self::Pid(pid) => entry.pids.contains(&Some(*pid)),
            Self::Program(name) => entry.programs.contains(&Some(name)),
            Self::Mode(mode) => entry.mode.is_some_and(|m| m.starts_with(mode)),
            Self::Reason(reason) => entry.reason == Some(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(filter: &str) -> Filter {
        let words: Vec<_> = filter.split(' ').map(str::to_owned).collect();
        Filter::parse(&words).unwrap()
    }

    #[test]
    fn conditions_as_ss_has_them() {
        let connection = Connection {
            mode: "shunt-attach".to_owned(),
            local: "[::1]:80".to_owned(),
            peer: "[::1]:5000".to_owned(),
            pid: 7,
            program: "nginx".to_owned(),
            peer_pid: Some(8),
            peer_program: Some("wrk".to_owned()),
            ..Connection::default()
        };
        let takes = |filter: &str| parse(filter).takes(&connection);
        for good in [
            "",
            "sport = :80",
            "sport 80",
            "sport=80 and dport = :5000",
            "port 5000",
            "src ::1 dst [::1]",
            "pid 8",
            "program wrk",
            "mode shunt",
            "not mode tcp not reason remote",
        ] {
            assert!(takes(good), "{good}");
        }
        for bad in ["sport 5000", "dport 80", "not port 80", "pid 9", "program ng", "mode tcp"] {
            assert!(!takes(bad), "{bad}");
        }
        let listener = Listener {
            address: "0.0.0.0:443".to_owned(),
            pid: 7,
            reason: "no-agent".to_owned(),
            ..Listener::default()
        };
        let takes = |filter: &str| parse(filter).takes_listener(&listener);
        assert!(takes("sport 443 reason no-agent") && !takes("mode tcp"));
    }

    #[test]
    fn a_port_is_known_beforehand() {
        let port = |filter: &str| {
            let words: Vec<_> = filter.split(' ').map(str::to_owned).collect();
            Filter::parse(&words).unwrap().port()
        };
        assert_eq!(port("program nginx and dport = :80"), Some(80));
        assert_eq!(port("not port 80"), None);
        assert_eq!(port(""), None);
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for bad in
            ["sport", "sport 70000", "sport x", "not", "pid me", "colour red", "pid 1 or pid 2"]
        {
            let words: Vec<_> = bad.split(' ').map(str::to_owned).collect();
            assert!(Filter::parse(&words).is_err(), "{bad}");
        }
    }
}
