//! Two virtual machines with a virtio network and an ivshmem device: well-known programs between them, unmodified, over the
//! network and under Shunt, side by side, with the proof that the connections were shunted.

use std::process::ExitCode;
use std::time::Duration;

use shunt_functional::machines::Lab;
use shunt_functional::vm::{Device, Guest, Image};

/// One line of the table.
struct Measurement {
    name: &'static str,
    unit: &'static str,
    less_is_better: bool,
    /// What serves at `$IP`, and stays.
    server: &'static str,
    /// What measures.
    client: &'static str,
    /// The number, in what the client prints.
    result: fn(&str) -> Option<f64>,
}

/// The number before or behind a word.
fn behind(text: &str, word: &str) -> Option<f64> {
    let (_, rest) = text.rsplit_once(word)?;
    let number = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
    number.get(..end)?.trim_end_matches('.').parse().ok()
}

const MEASUREMENTS: [Measurement; 5] = [
    Measurement {
        name: "sockperf ping-pong, 14 B, median",
        unit: "us",
        less_is_better: true,
        server: "sockperf server --tcp -i $IP -p 7001",
        client: "sockperf ping-pong --tcp -i $IP -p 7001 -m 14 -t 5",
        result: |text| behind(text, "percentile 50.000 ="),
    },
    Measurement {
        name: "sockperf throughput, 64,000 B",
        unit: "MB/s",
        less_is_better: false,
        server: "sockperf server --tcp -i $IP -p 7002",
        client: "sockperf throughput --tcp -i $IP -p 7002 -m 64000 -t 5",
        result: |text| behind(text, "BandWidth is"),
    },
    Measurement {
        name: "iperf3, 64 KB",
        unit: "Mb/s",
        less_is_better: false,
        server: "iperf3 -s -p 7003",
        client: "iperf3 -c $IP -p 7003 -t 5 -l 64K -f m | grep receiver",
        result: |text| behind(text, "Bytes"),
    },
    Measurement {
        name: "nginx and wrk, 16 connections",
        unit: "req/s",
        less_is_better: false,
        server: "mkdir -p /tmp/w && echo hello > /tmp/w/index.html && printf 'daemon off; master_process off; \
                 pid /tmp/w/pid; error_log /dev/null; events {} http { access_log off; server { listen 7004; \
                 root /tmp/w; } }' > /tmp/w/conf && nginx -c /tmp/w/conf",
        client: "wrk -t1 -c16 -d5s http://$IP:7004/",
        result: |text| behind(text, "Requests/sec:"),
    },
    Measurement {
        name: "redis GET, 16 connections",
        unit: "req/s",
        less_is_better: false,
        server: "redis-server --port 7005 --bind 0.0.0.0 --protected-mode no --save ''",
        client: "redis-benchmark -h $IP -p 7005 -c 16 -n 20000 -t get -q",
        result: |text| text.rsplit(['\r', '\n']).find_map(|line| behind(line, "GET:")),
    },
];

/// Runs one measurement, over TCP or under Shunt with this way to spin.
fn measure(guests: &mut [Guest; 2], m: &Measurement, spin: Option<&str>) -> f64 {
    let [server, client] = guests;
    let ip = server.ip.map(|part| part.to_string()).join(".");
    let under = |line: &str| {
        let line = line.replace("$IP", &ip).replace('"', "\\\"").replace('$', "\\$");
        let run = spin.map_or(String::new(), |spin| format!("shunt run --spin {spin} -- "));
        // The program itself is what runs under Shunt, not the shell.
        let (before, program) = line.rsplit_once("&& ").unwrap_or(("true", &line));
        format!("{before} && {run}{program}")
    };
    let script = under(m.server);
    server.must(&format!(
        "{} > /tmp/server.log 2>&1 & echo $! > /tmp/server.pid; sleep 2",
        script.replacen(" && ", " ; exec ", usize::from(!script.contains("mkdir")))
    ));
    // Its agent hears of the listener within a second.
    std::thread::sleep(Duration::from_millis(1500));
    let said = client.run(&under(m.client), Duration::from_secs(120));
    let _ = server.run(
        "killall sockperf iperf3 nginx redis-server; sleep 1; \
         killall -9 sockperf iperf3 nginx redis-server",
        Duration::from_secs(60),
    );
    (m.result)(&said.text).unwrap_or_else(|| panic!("{} says no number: {}", m.name, said.text))
}

/// What to measure: those rows whose names contain one of the words, all without a word, each so often.
struct Wanted {
    runs: usize,
    /// As `shunt run` takes it.
    spin: String,
    words: Vec<String>,
}

impl Wanted {
    fn of(args: impl Iterator<Item = String>) -> Option<Self> {
        let mut wanted = Self { runs: 1, spin: "auto".to_owned(), words: Vec::new() };
        let mut args = args;
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--runs" => wanted.runs = args.next()?.parse().ok().filter(|n| *n > 0)?,
                "--spin" => wanted.spin = args.next()?,
                word if word.starts_with('-') => return None,
                word => wanted.words.push(word.to_owned()),
            }
        }
        Some(wanted)
    }

    fn has(&self, name: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word.as_str()))
    }
}

/// What several runs have come to.
struct Figures(Vec<f64>);

impl Figures {
    fn of(figures: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<_> = figures.collect();
        sorted.sort_by(f64::total_cmp);
        Self(sorted)
    }

    /// The middle one; of two in the middle the lower.
    fn median(&self) -> f64 {
        self.0[(self.0.len() - 1) / 2]
    }
}

fn show(m: &Measurement, tcp: &Figures, shunt: &Figures, ratios: &Figures) {
    let [a, b, ratio] = [tcp, shunt, ratios].map(Figures::median);
    println!("{:34} {:>6} {a:>12.1} {b:>12.1} {ratio:>7.2}x", m.name, m.unit);
    if ratios.0.len() > 1 {
        for (what, figures) in [("virtio-net", tcp), ("Shunt", shunt), ("ratio", ratios)] {
            let each: Vec<_> = figures.0.iter().map(|figure| format!("{figure:.1}")).collect();
            println!("    {what}: {}", each.join(", "));
        }
    }
}

fn main() -> ExitCode {
    let Some(wanted) = Wanted::of(std::env::args().skip(1)) else {
        eprintln!(
            "usage: shunt-vm-demo [--runs N] [--spin auto|never|MICROSECONDS] [WORD OF A ROW'S NAME] ..."
        );
        return ExitCode::FAILURE;
    };
    // Whatever goes wrong here is about the machine or a program: a sentence, not a trace.
    std::panic::set_hook(Box::new(|info| eprintln!("\nThe demo stopped: {info}")));
    let lab = Lab::new(1, "512M");
    let image = Image::assemble(lab.path());
    eprintln!("Booting two virtual machines, which are emulated ...");
    let mut guests =
        [2, 3].map(|n| Guest::start(&lab, &image, n, Device::Doorbell)).map(Guest::ready);
    for guest in &mut guests {
        guest.join();
    }
    println!(
        "{:34} {:>6} {:>12} {:>12} {:>8}",
        "Between two virtual machines", "", "virtio-net", "Shunt", "ratio"
    );
    for m in MEASUREMENTS.iter().filter(|m| wanted.has(m.name)) {
        let run = |_| [None, Some(&*wanted.spin)].map(|spin| measure(&mut guests, m, spin));
        let runs: Vec<_> = (0..wanted.runs).map(run).collect();
        let [tcp, shunt] = [0, 1].map(|i| Figures::of(runs.iter().map(|run| run[i])));
        let ratio =
            |[tcp, shunt]: &[f64; 2]| if m.less_is_better { tcp / shunt } else { shunt / tcp };
        show(m, &tcp, &shunt, &Figures::of(runs.iter().map(ratio)));
    }
    println!("\nThe machines are emulated: what the figures are by themselves means nothing.");
    let mut proven = true;
    for guest in &mut guests {
        let [made, shunted] =
            ["connections", "connections_shunted"].map(|name| guest.counter(name));
        println!(
            "10.77.0.{}: {shunted} of {made} connection ends under Shunt were shunted.",
            guest.ip[3]
        );
        proven &= shunted > 0 && shunted * 10 >= made * 9;
    }
    if proven { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
