//! `shunt nvme bench`.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use shunt_nvme_host::{Buffers, Completion, Data, Namespace, Queue, Request, Subsystem};
use shunt_wire::agent::Request as AgentRequest;

use super::latency::Latency;
use super::way::{blocks, namespace, options, text};
use crate::cli::nvme::{Bench, Order};
use crate::directory::Directory;
use crate::output::{complain, print};
use crate::table::Table;

/// Runs the subcommand.
pub fn run(args: &Bench) -> u8 {
    match measure(args) {
        Ok(report) if args.json => print(&format!("{report:#}\n")),
        Ok(report) => print(&table(&report)),
        Err(why) => {
            complain(&why);
            1
        }
    }
}

/// What a thread has done.
struct Share {
    reads: u64,
    writes: u64,
    latency: Latency,
}

fn measure(args: &Bench) -> Result<Value, String> {
    let mut options = options(&args.way)?;
    options.depth = args.depth;
    let subsystem = Subsystem::connect(options).map_err(text)?;
    let disk = namespace(&subsystem, args.namespace)?;
    let count = blocks("a command", args.size, &disk)?;
    let count = u32::try_from(count).ok().filter(|count| (1..=65536).contains(count));
    let count = count.ok_or("a command has at least one block, and at most 65536")?;
    if args.size > u64::from(subsystem.max_transfer()) {
        return Err(format!("the target takes {} bytes at once", subsystem.max_transfer()));
    }
    if disk.blocks < u64::from(count) {
        return Err(format!("the namespace has {} bytes", disk.len()));
    }
    let threads = usize::from(args.threads);
    let workers: Result<Vec<_>, String> =
        (0..threads).map(|n| Worker::new(&subsystem, &disk, args, count, n)).collect();
    let (workers, start) = (workers?, Barrier::new(threads + 1));
    let length = Duration::from_secs_f64(args.seconds);
    let (shares, took, cpu) = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|worker| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    worker.run(length)
                })
            })
            .collect();
        let before = (Instant::now(), cpu_time());
        start.wait();
        let shares: Result<Vec<_>, String> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread has failed".to_owned())))
            .collect();
        let took = before.0.elapsed();
        (shares, took, cpu_time().saturating_sub(before.1))
    });
    let (mut reads, mut writes, mut latency) = (0, 0, Latency::new());
    let (shares, queues): (Vec<_>, Vec<_>) = shares?.into_iter().unzip();
    for share in shares {
        reads += share.reads;
        writes += share.writes;
        latency.merge(&share.latency);
    }
    let connections = connections();
    drop(queues);
    subsystem.close();
    Ok(report(args, reads, writes, &latency, took, cpu, &connections))
}

fn report(
    args: &Bench,
    reads: u64,
    writes: u64,
    latency: &Latency,
    took: Duration,
    cpu: Duration,
    connections: &Value,
) -> Value {
    let commands = (reads + writes) as f64;
    let per_second = commands / took.as_secs_f64();
    let bytes = commands * args.size as f64;
    json!({
        "size": args.size,
        "depth": args.depth,
        "threads": args.threads,
        "reads": reads,
        "writes": writes,
        "seconds": took.as_secs_f64(),
        "iops": per_second,
        "megabytes_per_second": bytes / 1e6 / took.as_secs_f64(),
        "latency_p50_us": latency.quantile(500),
        "latency_p99_us": latency.quantile(990),
        "latency_p999_us": latency.quantile(999),
        "cpu_seconds": cpu.as_secs_f64(),
        "cpu_us_per_command": cpu.as_secs_f64() * 1e6 / commands.max(1.0),
        "megabytes_per_cpu_second": bytes / 1e6 / cpu.as_secs_f64().max(1e-9),
        "connections": connections,
    })
}

fn table(report: &Value) -> String {
    let number = |name: &str, digits: usize| {
        let value = report[name].as_f64().unwrap_or(0.0);
        format!("{value:.digits$}")
    };
    let mut table = Table::without_heading(&[false, true]);
    for (label, name, digits) in [
        ("Commands per second", "iops", 0),
        ("MB/s", "megabytes_per_second", 1),
        ("Latency, median, µs", "latency_p50_us", 1),
        ("Latency, 99 %, µs", "latency_p99_us", 1),
        ("Latency, 99.9 %, µs", "latency_p999_us", 1),
        ("Processor time per command, µs", "cpu_us_per_command", 2),
        ("MB per second of processor time", "megabytes_per_cpu_second", 1),
    ] {
        table.row(vec![label.to_owned(), number(name, digits)]);
    }
    let connections = report["connections"].as_array().map_or(0, Vec::len);
    let sum = |name: &str| {
        let all = report["connections"].as_array().into_iter().flatten();
        all.filter_map(|connection| connection[name].as_u64()).sum::<u64>()
    };
    let shunted = report["connections"].as_array().into_iter().flatten();
    let shunted = shunted.filter(|connection| connection["shunted"] == true).count();
    // Without an agent nothing is known of them.
    if connections > 0 {
        let shunted = format!("{shunted}/{connections}");
        table.row(vec!["Connections that are shunted".to_owned(), shunted]);
        let sent = format!("{}/{}", sum("bytes_granted"), sum("bytes_sent"));
        table.row(vec!["Bytes granted, of those sent".to_owned(), sent]);
    }
    table.render()
}

/// The connections of this process, as the agent knows them; none without an agent.
fn connections() -> Value {
    let Ok(report) = Directory::open().and_then(|agent| agent.report(&AgentRequest::List)) else {
        return json!([]);
    };
    let own = u64::from(std::process::id());
    let all = report["connections"].as_array().into_iter().flatten();
    let mine = all.filter(|connection| connection["pid"].as_u64() == Some(own));
    let told = mine.map(|connection| {
        let mode = connection["mode"].as_str().unwrap_or("tcp");
        json!({
            "mode": mode,
            "shunted": mode.starts_with("shunt"),
            "bytes_sent": connection["bytes_sent"],
            "bytes_granted": connection["zerocopy"]["bytes_granted"].as_u64().unwrap_or(0),
            "reason": connection["reason"],
        })
    });
    told.collect()
}

/// Processor time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

struct Worker {
    queue: Queue,
    disk: Namespace,
    buffers: Buffers,
    count: u32,
    depth: u16,
    reads: u8,
    order: Order,
    /// Of the pseudo-random numbers.
    state: u64,
    next: u64,
}

impl Worker {
    fn new(
        subsystem: &Subsystem,
        disk: &Namespace,
        args: &Bench,
        count: u32,
        n: usize,
    ) -> Result<Self, String> {
        let queue = subsystem.queue().map_err(text)?;
        let size = usize::try_from(args.size).map_err(text)?;
        let buffers = Buffers::new(usize::from(args.depth), size).map_err(text)?;
        let n = n as u64;
        Ok(Self {
            queue,
            disk: disk.clone(),
            buffers,
            count,
            depth: args.depth,
            reads: args.reads,
            order: args.order,
            state: (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            next: disk.blocks / u64::from(args.threads) / u64::from(count) * n,
        })
    }

    /// Xorshift.
    const fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// The next command; true for a read.
    fn request(&mut self) -> (Request, bool) {
        let places = self.disk.blocks / u64::from(self.count);
        let place = match self.order {
            Order::Random => self.random() % places,
            Order::Sequential => self.next % places,
        };
        self.next = self.next.wrapping_add(1);
        let start = place * u64::from(self.count);
        let is_read = self.random() % 100 < u64::from(self.reads);
        if is_read {
            (self.disk.read(start, self.count), true)
        } else {
            (self.disk.write(start, self.count), false)
        }
    }

    fn run(mut self, length: Duration) -> Result<(Share, Queue), String> {
        let mut share = Share { reads: 0, writes: 0, latency: Latency::new() };
        let mut began = vec![(Instant::now(), false); usize::from(self.depth)];
        let mut done: Vec<Completion> = Vec::new();
        for slot in 0..self.depth {
            let mut buffer = self.buffers.take().ok_or("a buffer is missing")?;
            // What was never touched is no memory yet.
            buffer.fill(slot.to_le_bytes()[0]);
            self.submit(slot.into(), buffer.into(), &mut began)?;
        }
        let end = Instant::now() + length;
        let mut is_over = false;
        while self.queue.outstanding() > 0 {
            self.queue.poll(&mut done, None).map_err(text)?;
            let now = Instant::now();
            is_over |= now >= end;
            for over in done.drain(..) {
                let slot = usize::try_from(over.token).map_err(text)?;
                let (from, is_read) = began[slot];
                over.result.map_err(text)?;
                share.latency.add(now.saturating_duration_since(from));
                *(if is_read { &mut share.reads } else { &mut share.writes }) += 1;
                if !is_over {
                    self.submit(over.token, over.data, &mut began)?;
                }
            }
        }
        Ok((share, self.queue))
    }

    fn submit(
        &mut self,
        slot: u64,
        data: Data,
        began: &mut [(Instant, bool)],
    ) -> Result<(), String> {
        let (request, is_read) = self.request();
        began[usize::try_from(slot).map_err(text)?] = (Instant::now(), is_read);
        self.queue.submit(request, data, slot).map_err(text)
    }
}
