//! Man pages of the commands: clap's knowledge, and the sections that clap lacks: environment,
//! files, examples, other pages.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use shunt_wire::knob::{self, Knob};

use crate::cli::Cli;

/// What a page has beside the options.
#[derive(Debug)]
struct Beside {
    /// The page's name, without section.
    page: &'static str,
    /// Variables that the command heeds, as far as they are Shunt's.
    environment: &'static [Knob],
    /// Files, and what they are.
    files: &'static [(&'static str, &'static str)],
    /// Command lines, and what they do.
    examples: &'static [(&'static str, &'static str)],
    /// Other pages.
    see: &'static [&'static str],
}

const PAGES: (&str, &str) = (
    "/usr/share/doc/shunt/docs",
    "What messages and these pages call docs/..., where Shunt is installed below /usr.",
);
const DIRECTORY: (&str, &str) = (
    "/run/shunt-root, $XDG_RUNTIME_DIR/shunt, /tmp/shunt-UID",
    "The directory of root's own agent, and of other users' agents: its socket, and totals.json, which keeps totals over restarts.",
);
const HOST: (&str, &str) = ("/run/shunt", "The directory of the agent for the host.");
/// What tools of a running agent heed.
const TOOL: &[Knob] = &[knob::RUN_DIR, knob::AGENT_TIMEOUT];

const BESIDE: &[Beside] = &[
    Beside {
        page: "shunt",
        environment: &[knob::RUN_DIR, knob::DISABLE],
        files: &[DIRECTORY, HOST, PAGES],
        examples: &[
            ("shunt doctor nginx", "Would nginx be shunted, and if not, why not?"),
            ("shunt run -- nginx -g 'daemon off;'", "Run it under Shunt."),
            ("shunt list", "See how its connections go."),
        ],
        see: &[
            "shunt-run(1)",
            "shunt-doctor(1)",
            "shunt-list(1)",
            "shunt-top(1)",
            "shunt-agent(1)",
            "shunt-enable(1)",
        ],
    },
    Beside {
        page: "shunt-run",
        environment: knob::ALL,
        files: &[DIRECTORY, HOST, PAGES],
        examples: &[
            ("shunt run -- redis-server --port 6399", "A server."),
            (
                "shunt run --summary -- redis-cli -p 6399 ping",
                "A client, and what became of its connections.",
            ),
            (
                "SHUNT_RUN_DIR=/run/shunt shunt run -- nginx -g 'daemon off;'",
                "With the agent for the host.",
            ),
            ("shunt run --spin never -- memcached", "Never spin: each wait sleeps."),
        ],
        see: &["shunt-doctor(1)", "shunt-list(1)", "shunt-enable(1)", "shunt_alloc(3)", "ld.so(8)"],
    },
    Beside {
        page: "shunt-agent",
        environment: &[knob::RUN_DIR, knob::METRICS, knob::IVSHMEM],
        files: &[
            DIRECTORY,
            HOST,
            ("/etc/shunt/policy.toml", "Who may be shunted with whom, for --host."),
        ],
        examples: &[
            ("shunt agent --detach", "An agent of this user, in the background."),
            ("shunt agent --host --detach", "As root: for all users and containers."),
            ("shunt agent --metrics 127.0.0.1:9464", "With metrics for Prometheus."),
        ],
        see: &["shunt-policy(5)", "shunt-run(1)", "shunt-machines(1)"],
    },
    Beside {
        page: "shunt-list",
        environment: TOOL,
        files: &[DIRECTORY, HOST],
        examples: &[
            ("shunt list sport = :80 not program nginx", "Of one port, but not of one program."),
            ("shunt list mode tcp", "What is on TCP, with reasons."),
            ("shunt list --watch 1 --sort sent", "Again each second, the most bytes first."),
        ],
        see: &["shunt-explain(1)", "shunt-top(1)", "shunt-stats(1)", "shunt-capture(1)", "ss(8)"],
    },
    Beside {
        page: "shunt-explain",
        environment: TOOL,
        files: &[],
        examples: &[
            ("shunt explain 4711:8", "A connection, by its process and descriptor."),
            ("shunt explain 6379", "The listener of a port."),
        ],
        see: &["shunt-list(1)", "shunt-doctor(1)"],
    },
    Beside {
        page: "shunt-top",
        environment: TOOL,
        files: &[],
        examples: &[
            ("shunt top --sort messages", "The busiest pairs of programs first."),
            ("shunt top --once", "One frame, as text."),
        ],
        see: &["shunt-list(1)", "shunt-stats(1)"],
    },
    Beside {
        page: "shunt-explain",
        environment: TOOL,
        files: &[DIRECTORY, HOST],
        examples: &[
            (
                "shunt explain 4711:3",
                "A connection, by process and descriptor, as ss(8) shows them.",
            ),
            ("shunt explain 6379", "What listens at a port, and the connections that have it."),
        ],
        see: &["shunt-list(1)", "shunt-doctor(1)", "ss(8)"],
    },
    Beside {
        page: "shunt-capture",
        environment: TOOL,
        files: &[],
        examples: &[
            ("shunt capture port 6379", "Lines, as tcpdump's."),
            ("shunt capture -w out.pcapng program nginx", "A file for Wireshark."),
            ("shunt capture -w - port 80 | tshark -r -", "Live."),
        ],
        see: &["shunt-list(1)", "tcpdump(1)", "tshark(1)", "wireshark(1)"],
    },
    Beside {
        page: "shunt-stats",
        environment: TOOL,
        files: &[DIRECTORY, HOST],
        examples: &[
            ("shunt stats --verbose", "Totals, with what each counts."),
            ("shunt stats --interval 1", "What is added each second."),
        ],
        see: &["shunt-list(1)", "shunt-top(1)"],
    },
    Beside {
        page: "shunt-doctor",
        environment: TOOL,
        files: &[DIRECTORY, HOST],
        examples: &[
            ("shunt doctor /usr/sbin/nginx", "A program."),
            (
                "shunt doctor --unit redis-server",
                "A systemd service, with what its sandbox takes away.",
            ),
            ("shunt doctor --connect 127.0.0.1:6379", "Try a connection."),
        ],
        see: &["shunt-run(1)", "shunt-enable(1)"],
    },
    Beside {
        page: "shunt-enable",
        environment: &[],
        files: &[("/etc/systemd/system/UNIT.d/50-shunt.conf", "The drop-in.")],
        examples: &[
            ("shunt enable --dry-run redis-server", "What would be written."),
            ("shunt enable redis-server nginx --restart", "Two services, now."),
            ("shunt enable --status", "Which are enabled, and which run with the library."),
        ],
        see: &["shunt-disable(1)", "shunt-doctor(1)", "systemd.unit(5)"],
    },
    Beside {
        page: "shunt-disable",
        environment: &[],
        files: &[("/etc/systemd/system/UNIT.d/50-shunt.conf", "The drop-in.")],
        examples: &[("shunt disable --all --restart", "Before an uninstallation.")],
        see: &["shunt-enable(1)"],
    },
    Beside {
        page: "shunt-cdi-generate",
        environment: &[knob::RUN_DIR, knob::LIB],
        files: &[("/etc/cdi/shunt.json", "Where container engines look for devices.")],
        examples: &[(
            "SHUNT_RUN_DIR=/run/shunt shunt cdi generate --output /etc/cdi/shunt.json",
            "The device of the host's agent.",
        )],
        see: &["shunt-agent(1)", "podman-run(1)"],
    },
    Beside {
        page: "shunt-library-install",
        environment: &[knob::LIB],
        files: &[],
        examples: &[(
            "shunt library install /opt/shunt",
            "For images and volumes, also under running programs.",
        )],
        see: &["shunt-run(1)", "shunt-cdi-generate(1)"],
    },
    Beside {
        page: "shunt-machines",
        environment: TOOL,
        files: &[],
        examples: &[("shunt machines --json", "For other programs.")],
        see: &["shunt-agent(1)", "shunt-ivshmem-server(1)"],
    },
    Beside {
        page: "shunt-ivshmem-server",
        environment: &[],
        files: &[("/run/shunt-ivshmem/ivshmem.sock", "The socket of the systemd unit.")],
        examples: &[(
            "shunt ivshmem-server --socket /run/shunt-ivshmem/ivshmem.sock --size 512M --vectors 16",
            "Memory for QEMU's ivshmem-doorbell devices.",
        )],
        see: &["shunt-ivshmem-server-status(1)", "shunt-machines(1)", "qemu(1)"],
    },
    Beside {
        page: "shunt-nvme-target",
        environment: &[],
        files: &[("/etc/shunt/nvme.toml", "The configuration of the systemd unit.")],
        examples: &[(
            "shunt run -- shunt nvme target /etc/shunt/nvme.toml",
            "A target whose hosts under Shunt use shared memory.",
        )],
        see: &["shunt-nvme-control(1)", "shunt-nvme-disk(1)", "shunt_nvme(3)"],
    },
    Beside {
        page: "shunt-bench",
        environment: &[],
        files: &[],
        examples: &[
            ("shunt bench --quick", "About a minute."),
            (
                "shunt bench --only redis,nginx.612 --json bench.json --html bench.html",
                "Some rows, for a report.",
            ),
        ],
        see: &["shunt-run(1)"],
    },
];

/// Text of a page: nothing in it is a request or an escape.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('`', "");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

impl Beside {
    fn render(&self, to: &mut dyn Write) -> io::Result<()> {
        let items = |to: &mut dyn Write, heading: &str, items: &[(&str, &str)]| {
            if !items.is_empty() {
                writeln!(to, ".SH {heading}")?;
            }
            items.iter().try_for_each(|(name, text)| {
                writeln!(to, ".TP\n\\fB{}\\fR\n{}", roff(name), roff(text))
            })
        };
        let environment: Vec<_> =
            self.environment.iter().map(|knob| (knob.env, knob.doc)).collect();
        items(to, "ENVIRONMENT", &environment)?;
        items(to, "FILES", self.files)?;
        items(to, "EXAMPLES", self.examples)?;
        let see: Vec<_> = self.see.iter().map(|page| roff(page)).collect();
        writeln!(to, ".SH \"SEE ALSO\"\n{}", see.join(",\n"))
    }
}

fn page(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text)?;
    // The name of a section that pages of other programs have.
    let mut text =
        String::from_utf8_lossy(&text).replace(".SH EXTRA\n", ".SH NOTES\n").into_bytes();
    let parent = name.rsplit_once('-').map(|(parent, _)| parent);
    match BESIDE.iter().find(|beside| beside.page == name) {
        Some(beside) => beside.render(&mut text)?,
        None => writeln!(text, ".SH \"SEE ALSO\"\n{}(1)", roff(parent.unwrap_or("shunt")))?,
    }
    Ok(text)
}

/// Writes a page for each command that is not hidden.
///
/// # Errors
/// A file cannot be written.
pub fn write_all(to: &Path) -> io::Result<()> {
    fn write(command: &Command, to: &Path) -> io::Result<()> {
        let below = command.get_subcommands().filter(|command| !command.is_hide_set());
        below.into_iter().try_for_each(|command| write(command, to))?;
        let name = command.get_display_name().unwrap_or_else(|| command.get_name());
        fs::write(to.join(format!("{name}.1")), page(command, name)?)
    }
    let mut all = Cli::command().disable_help_subcommand(true);
    all.build();
    write(&all, to)
}

/// The command lines of all examples.
#[cfg(test)]
pub fn examples() -> impl Iterator<Item = &'static str> {
    BESIDE.iter().flat_map(|beside| beside.examples).map(|(line, _)| *line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_say_what_clap_does_not_know() {
        let dir = tempfile::tempdir().unwrap();
        write_all(dir.path()).unwrap();
        for beside in BESIDE {
            let text = fs::read_to_string(dir.path().join(format!("{}.1", beside.page))).unwrap();
            for section in [".SH EXAMPLES\n", ".SH \"SEE ALSO\"\n"] {
                assert!(text.contains(section), "{}: {section}", beside.page);
            }
            for knob in beside.environment {
                assert!(text.contains(knob.env), "{}: {}", beside.page, knob.env);
            }
            assert!(!text.contains(".SH EXTRA"), "{}", beside.page);
            // Pages of Shunt's exist.
            for other in beside.see.iter().filter(|page| page.starts_with("shunt")) {
                let (name, section) = other.trim_end_matches(')').split_once('(').unwrap();
                let file = format!("{name}.{section}");
                let shipped =
                    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/man").join(&file);
                assert!(
                    dir.path().join(&file).exists() || shipped.exists(),
                    "{}: no page {file}",
                    beside.page
                );
            }
        }
    }

    #[test]
    fn text_is_no_request() {
        assert_eq!(roff(".SH a\\b"), "\\&.SH a\\eb");
        assert_eq!(roff("--spin `never`"), "\\-\\-spin never");
    }
}
