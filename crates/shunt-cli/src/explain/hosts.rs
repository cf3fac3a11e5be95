//! What the agent knows of other hosts, for a connection that leads there and is not shunted.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use shunt_rdma::Reach;
use shunt_wire::agent::Request;
use shunt_wire::reason::Reason;

use super::story::Pair;
use crate::directory::Directory;

/// Reasons that are about a server with the kernel's SMC-R.
const OF_SERVERS: [Reason; 7] = [
    Reason::SmcUnspoken,
    Reason::SmcEchoed,
    Reason::SmcNoGroup,
    Reason::SmcDeclined,
    Reason::SmcFailed,
    Reason::SmcNoWayBack,
    Reason::SmcReset,
];

/// Adds it to the connections of which it is known.
pub fn add_to(pairs: &mut [Pair]) {
    let is_wanted = |pair: &Pair| of(pair).is_some();
    if !pairs.iter().any(is_wanted) {
        return;
    }
    // Without an agent that tells, the reasons alone have to do.
    let Ok(status) = Directory::open().and_then(|agent| agent.report(&Request::Status)) else {
        return;
    };
    for pair in pairs {
        tell(pair, &status["rdma"]);
    }
}

/// The reason, where it may be about another host.
fn of(pair: &Pair) -> Option<Reason> {
    let reason = Reason::from_name(pair.reason.as_deref()?)?;
    (reason == Reason::Remote || OF_SERVERS.contains(&reason)).then_some(reason)
}

fn tell(pair: &mut Pair, rdma: &Value) {
    let Some(reason) = of(pair) else { return };
    let ends = [&pair.peer, &pair.local].into_iter().filter_map(|end| end.parse().ok());
    let ends: Vec<SocketAddr> = ends.collect();
    let Some(said) = ends.iter().find_map(|end| said_of(*end, reason, rdma)) else { return };
    let (happened, fix) = said;
    pair.happened = Some(match (&pair.happened, reason) {
        (Some(before), reason) if reason != Reason::Remote => format!("{before} {happened}"),
        _ => happened,
    });
    pair.fix = fix.or(pair.fix.take());
}

/// What is known of the host at this end, and what to do where the reason does not say that.
fn said_of(end: SocketAddr, reason: Reason, rdma: &Value) -> Option<(String, Option<String>)> {
    let each = |name: &str| rdma[name].as_array().into_iter().flatten();
    let server = each("servers").find(|server| is_at(&server["at"], end));
    if reason != Reason::Remote {
        let last = server?["reason"].as_str()?;
        return Some((format!("The agent last said of {end}: {last}."), None));
    }
    if server.is_some() {
        let lacks = rdma["device_lacks"].as_str()?;
        let happened = format!("{end} is named as a server with SMC-R, and {lacks}.");
        return Some((happened, Some("Look at `shunt doctor`, which says what to do.".to_owned())));
    }
    let has = |peer: &&Value| {
        let addresses = peer["addresses"].as_array().into_iter().flatten();
        let mut addresses = addresses.filter_map(|ip| ip.as_str()?.parse::<IpAddr>().ok());
        addresses.any(|ip| ip == end.ip().to_canonical())
    };
    let peer = each("peers").find(has)?;
    let why = ["promotion_reason", "link_group_reason", "reason"];
    let why = why.iter().find_map(|name| peer[*name].as_str())?;
    let host = peer["host"].as_str().unwrap_or("the other host");
    let happened = format!("Connections with {host} stay on TCP: {why}.");
    let fix = "`shunt machines --json` has what was measured; docs/rdma.md says what to do. A link that is slower than TCP is left alone.";
    Some((happened, Some(fix.to_owned())))
}

fn is_at(at: &Value, end: SocketAddr) -> bool {
    at.as_str().and_then(|at| at.parse::<Reach>().ok()).is_some_and(|reach| reach.holds(end))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pair(reason: Reason, peer: &str) -> Pair {
        Pair {
            local: "10.0.0.1:4000".into(),
            peer: peer.into(),
            reason: Some(reason.name().into()),
            happened: Some("It happened.".into()),
            fix: Some("Mend it.".into()),
            ..Pair::default()
        }
    }

    fn told(reason: Reason, peer: &str, rdma: &Value) -> (String, String) {
        let mut pair = pair(reason, peer);
        tell(&mut pair, rdma);
        (pair.happened.unwrap(), pair.fix.unwrap())
    }

    #[test]
    fn the_last_word_on_a_server_is_added_to_the_reason() {
        let rdma = json!({ "servers": [{ "at": "10.0.0.2:80", "reason": "the server says no" }] });
        let (happened, fix) = told(Reason::SmcDeclined, "10.0.0.2:80", &rdma);
        assert_eq!(
            happened,
            "It happened. The agent last said of 10.0.0.2:80: the server says no."
        );
        assert_eq!(fix, "Mend it.");
        assert_eq!(told(Reason::SmcDeclined, "10.0.0.2:81", &rdma).0, "It happened.");
        assert_eq!(told(Reason::PeerGone, "10.0.0.2:80", &rdma).0, "It happened.");
    }

    #[test]
    fn a_server_without_a_device_here_is_not_just_remote() {
        let rdma = json!({ "device_lacks": "there is no device", "servers": [{ "at": "10.0.0.2:80", "reason": null }] });
        let (happened, fix) = told(Reason::Remote, "10.0.0.2:80", &rdma);
        assert!(happened.ends_with("named as a server with SMC-R, and there is no device."));
        assert!(fix.contains("shunt doctor"));
    }

    #[test]
    fn a_link_that_is_slower_is_told() {
        let peer = json!({ "host": "db2", "addresses": ["10.0.0.3"], "promotion_reason": "the link is slower than TCP" });
        let rdma = json!({ "peers": [peer] });
        let (happened, fix) = told(Reason::Remote, "10.0.0.3:5432", &rdma);
        assert_eq!(happened, "Connections with db2 stay on TCP: the link is slower than TCP.");
        assert!(fix.contains("shunt machines"));
        assert_eq!(told(Reason::Remote, "10.0.0.4:5432", &rdma).0, "It happened.");
        assert_eq!(told(Reason::Remote, "10.0.0.3:5432", &Value::Null).0, "It happened.");
    }
}
