//! Which connections are listed: the words that ss(8) knows, and some that it does not.

use serde_json::Value;

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
    Pid(u64),
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

    /// True for a connection that is to be listed.
    #[must_use]
    pub fn takes(&self, connection: &Value) -> bool {
        self.0.iter().all(|(is_wanted, condition)| condition.holds(connection) == *is_wanted)
    }
}

/// Address without brackets, and port.
fn parts(endpoint: &Value) -> (&str, Option<u16>) {
    let text = endpoint.as_str().unwrap_or_default();
    let (address, port) = text.rsplit_once(':').unwrap_or((text, ""));
    (address.trim_matches(['[', ']']), port.parse().ok())
}

impl Condition {
    fn holds(&self, connection: &Value) -> bool {
        // A listener has one address.
        let is_listener = connection["local"].is_null();
        let local = parts(&connection[if is_listener { "address" } else { "local" }]);
        let peer = parts(&connection["peer"]);
        let either = |name: &str, wanted: &str| {
            [name.to_owned(), format!("peer_{name}")].iter().any(|n| connection[n] == wanted)
        };
        match self {
            Self::LocalPort(port) => local.1 == Some(*port),
            Self::PeerPort(port) => peer.1 == Some(*port),
            Self::Port(port) => local.1 == Some(*port) || peer.1 == Some(*port),
            Self::Local(address) => local.0 == address.trim_matches(['[', ']']),
            Self::Peer(address) => peer.0 == address.trim_matches(['[', ']']),
            Self::Pid(pid) => connection["pid"] == *pid || connection["peer_pid"] == *pid,
            Self::Program(name) => either("program", name),
            Self::Mode(mode) => connection["mode"].as_str().is_some_and(|m| m.starts_with(mode)),
            Self::Reason(reason) => connection["reason"] == reason.as_str(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn takes(filter: &str, connection: &Value) -> bool {
        let words: Vec<_> = filter.split(' ').map(str::to_owned).collect();
        Filter::parse(&words).unwrap().takes(connection)
    }

    #[test]
    fn conditions_as_ss_has_them() {
        let connection = json!({ "mode": "shunt-attach", "local": "[::1]:80", "peer": "[::1]:5000", "pid": 7,
            "program": "nginx", "peer_pid": 8, "peer_program": "wrk", "reason": null });
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
            assert!(takes(good, &connection), "{good}");
        }
        for bad in ["sport 5000", "dport 80", "not port 80", "pid 9", "program ng", "mode tcp"] {
            assert!(!takes(bad, &connection), "{bad}");
        }
        let listener = json!({ "address": "0.0.0.0:443", "pid": 7, "reason": "no-agent" });
        assert!(takes("sport 443 reason no-agent", &listener) && !takes("mode tcp", &listener));
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
