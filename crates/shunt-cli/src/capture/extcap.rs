//! The answers to Wireshark and tshark, which use `shunt capture` as a capture program (extcap(4)).

use std::path::Path;

use super::sink::INTERFACE;
use crate::cli::{Capture, Extcap};
use crate::output::{complain, print};

/// Number of `LINKTYPE_RAW`: IPv4 or IPv6 without anything before it.
const RAW: u32 = 101;

/// The answer, where that is all that is asked for: the exit status.
pub fn answer(args: &Extcap) -> Option<u8> {
    let version = env!("CARGO_PKG_VERSION");
    if args.extcap_interfaces {
        return Some(print(&format!(
            "extcap {{version={version}}}{{display=Shunt}}\n\
             interface {{value={INTERFACE}}}{{display=Shunt: TCP connections in shared memory}}\n"
        )));
    }
    if args.extcap_dlts {
        return Some(print(&format!("dlt {{number={RAW}}}{{name=RAW}}{{display=Raw IP}}\n")));
    }
    if args.extcap_config {
        return Some(print(
            "arg {number=0}{call=--conditions}{display=Connections}{type=string}\
             {tooltip=As for shunt list: port 80, program nginx, pid 17}\n\
             arg {number=1}{call=--snaplen}{display=Most bytes of a packet}{type=unsigned}{default=262144}\n",
        ));
    }
    if args.capture && args.fifo.is_none() {
        complain(&"--capture goes with --fifo");
        return Some(crate::output::USAGE);
    }
    None
}

/// The words of the filter, and where packets go.
pub fn conditions(args: &Capture) -> (Vec<String>, Option<&Path>) {
    let mut words = args.filter.clone();
    words.extend(args.extcap.conditions.clone());
    // Wireshark gives what its user has written as the capture's filter.
    words.extend(args.extcap.extcap_capture_filter.clone());
    (words, args.extcap.fifo.as_deref().or(args.write.as_deref()))
}
