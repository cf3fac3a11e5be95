//! What goes over the wire, as another implementation reads it: Wireshark's dissector.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use shunt_functional::binaries::program;
use shunt_functional::machines::Lab;
use shunt_functional::sandbox::Process;

/// Types of PDUs (TCP 3.6.2).
pub const IC_REQ: u8 = 0;
pub const IC_RESP: u8 = 1;
pub const CAPSULE_CMD: u8 = 4;
pub const CAPSULE_RESP: u8 = 5;
pub const H2C_DATA: u8 = 6;
pub const C2H_DATA: u8 = 7;
pub const R2T: u8 = 9;
/// Those of a connection with data in both directions.
pub const ALL: [u8; 7] = [IC_REQ, IC_RESP, CAPSULE_CMD, CAPSULE_RESP, H2C_DATA, C2H_DATA, R2T];

/// Room for what tcpdump has not yet read, in KiB: more than a test moves, so that nothing is lost however slow it is.
const ROOM: &str = "--buffer-size=262144";

/// A capture of the link between the lab's first machine and its guests.
pub struct Capture {
    tcpdump: Process,
    file: PathBuf,
}

impl Capture {
    /// Begins.
    pub fn start(lab: &Lab, name: &str) -> Self {
        let file = lab.path().join(format!("{name}.pcap"));
        let machine = &lab.machines[0];
        let mut command = machine.inside();
        command.arg(program("tcpdump")).args(["-i", "shunt0", "-s", "0", "-Z", "root", ROOM, "-w"]);
        command.arg(&file).args(["tcp", "portrange", "4420-4429"]);
        let tcpdump = machine.sandbox().spawn(command);
        shunt_functional::waiting::settles("tcpdump", &true, || {
            tcpdump.describe().contains("listening on")
        });
        Self { tcpdump, file }
    }

    /// Ends, and has every PDU looked at: none is malformed, no digest is wrong, PDUs of these types were there, and
    /// where connections had digests those of headers and of data.
    pub fn check(self, types: &[u8], digests: bool) {
        // What was captured last may still be on its way to the file.
        self.tcpdump.signal(libc::SIGINT);
        let finished = self.tcpdump.wait().success();
        assert!(finished.stderr.contains("\n0 packets dropped by kernel"), "{finished}");
        let seen = dissected(&self.file, &["-T", "fields", "-e", "nvme-tcp.type"], "nvme-tcp");
        let seen: BTreeSet<u8> =
            seen.split([',', '\n']).filter_map(|kind| kind.trim().parse().ok()).collect();
        for kind in types {
            assert!(seen.contains(kind), "no PDU of type {kind}: {seen:?}");
        }
        for right in ["nvme-tcp.hdgst.status == 1", "nvme-tcp.ddgst.status == 1"] {
            assert_eq!(!dissected(&self.file, &[], right).is_empty(), digests, "{right}");
        }
        for wrong in [
            "_ws.malformed",
            "nvme-tcp.type > 9",
            "nvme-tcp.hdgst.status == 0",
            "nvme-tcp.ddgst.status == 0",
            "tcp.port >= 4420 and tcp.port <= 4429 and tcp.len > 0 and not nvme-tcp and not tcp.segment_data \
             and not tcp.analysis.retransmission",
        ] {
            let found = dissected(&self.file, &[], wrong);
            assert_eq!(found, "", "{wrong}");
        }
    }
}

/// What tshark prints of the packets that a filter takes.
fn dissected(file: &std::path::Path, args: &[&str], filter: &str) -> String {
    let mut command = Command::new(program("tshark"));
    // Port numbers count only where nothing else says what a connection is.
    command.args(["-n", "-d", "tcp.port==4420-4429,nvme-tcp"]);
    command.args(["-o", "nvme-tcp.check_hdgst:TRUE", "-o", "nvme-tcp.check_ddgst:TRUE"]);
    command.arg("-r").arg(file).args(["-Y", filter]).args(args);
    let output = command.output().expect("tshark runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
