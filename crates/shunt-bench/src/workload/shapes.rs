//! Servers of all shapes: how they wait, how many connections they have, on how many processors,
//! and how much they do beside.

use super::ipc::outcome;
use super::row::{Better, Cell, Family, Outcome, Row};
use crate::contender::Contender;
use crate::failure::{Failure, Result};
use crate::load::shapes::Shape;
use crate::load::work::steps_of;
use crate::rig::{Budget, Session};

static FAMILY: Family = Family {
    title: "Shapes of servers",
    meaning: "A client of two threads with epoll sends requests of 100 B over each of its connections, one \
              at a time, to a server that waits for them in one of ten ways and answers with 100 B. Both \
              share one or two cores. Default settings are compared with kernel TCP, and with each fixed \
              length of spinning: they should not be slower than either, in any cell.",
};

/// Connections of the matrix.
pub const CONNECTIONS: [u32; 6] = [1, 2, 8, 32, 100, 400];

/// Processors of the matrix.
pub const CORES: [u32; 2] = [1, 2];

/// Microseconds of work for each request, of the matrix.
pub const WORK: [u32; 3] = [0, 5, 50];

/// Processors and work that a row's name need not say.
const PLAIN: (u32, u32) = (2, 0);

/// Kernel TCP, default settings, and each fixed length of spinning.
const CONTENDERS: [Contender; 7] = {
    let [never, spin20, spin50, spin100, spin200] = Contender::FIXED;
    [Contender::Tcp, Contender::Attach, never, spin20, spin50, spin100, spin200]
};

impl Cell {
    /// The row's name: `shapes.<shape>.<connections>[.<cores>c][.<work>us]`.
    #[must_use]
    pub fn id(&self) -> String {
        let mut id = format!("shapes.{}.{}", self.shape, self.connections);
        if self.cores != PLAIN.0 {
            id += &format!(".{}c", self.cores);
        }
        if self.work != PLAIN.1 {
            id += &format!(".{}us", self.work);
        }
        id
    }

    /// For people.
    #[must_use]
    pub fn title(&self) -> String {
        let s = |n: u32| if n == 1 { "" } else { "s" };
        let work = match self.work {
            0 => "no work".to_owned(),
            us => format!("{us} µs of work"),
        };
        format!(
            "{}: {} connection{} on {} core{}, {work}",
            self.shape.title(),
            self.connections,
            s(self.connections),
            self.cores,
            s(self.cores)
        )
    }

    /// True when a run of all rows has it: every shape at 1, 8 and 100 connections on two cores,
    /// and at 8 on one, without work. The others run when they are named.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        let Self { connections, cores, work, .. } = *self;
        work == 0 && matches!((connections, cores), (1 | 8 | 100, 2) | (8, 1))
    }

    /// True when `--quick` has it: a sample of the shapes that are most unlike each other.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        let place = (self.shape, self.connections, self.cores, self.work);
        matches!(
            place,
            (Shape::Poll | Shape::EpollThread | Shape::Process, 8, 2, 0)
                | (Shape::ThreadPoll, 8 | 100, 2, 0)
        )
    }
}

/// All cells, by cores and work, then by shape, then by connections.
pub fn cells() -> impl Iterator<Item = Cell> {
    let places = CORES.into_iter().rev().flat_map(|cores| WORK.map(|work| (cores, work)));
    places.flat_map(|(cores, work)| {
        Shape::ALL.into_iter().flat_map(move |shape| {
            CONNECTIONS.map(|connections| Cell { shape, connections, cores, work })
        })
    })
}

fn run(session: &Session<'_>, budget: Budget, cell: Cell) -> Result<Outcome> {
    let there = std::thread::available_parallelism().map_or(1, usize::from);
    if there < cell.cores as usize {
        return Err(Failure::Skipped(format!(
            "this machine lets it use {there} of {} cores",
            cell.cores
        )));
    }
    let work = steps_of(cell.work).to_string();
    session.share_cores(cell.cores);
    let (at, connections) = (session.endpoint()?, cell.connections.to_string());
    let to = at.to_string();
    let mut command = session.load("serve-shape");
    command.args(["--at", &to, "--shape", cell.shape.name(), "--work", &work]);
    command.args(["--connections", &connections]);
    let _server = session.serve(command, &at)?;
    let mut command = session.load("drive");
    command.args(["--to", &to, "--connections", &connections]);
    command.args(["--seconds", &budget.seconds.to_string()]);
    let (seen, cost) = session.drive(vec![command], budget)?;
    Ok(outcome(&seen, cost))
}

/// The matrix.
pub fn rows() -> Vec<Row> {
    let row = |cell: Cell| {
        let drive = move |session: &Session<'_>, budget: Budget| run(session, budget, cell);
        Row::new(cell.id(), &FAMILY, cell.title(), drive)
            .unit("req/s", Better::Higher)
            .contenders(&CONTENDERS)
            .cell(cell)
            .quick(cell.is_quick())
            .named_only(!cell.is_usual())
    };
    cells().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: Cell = Cell { shape: Shape::Poll, connections: 100, cores: 2, work: 0 };

    #[test]
    fn names_say_what_is_not_plain() {
        assert_eq!(CELL.id(), "shapes.poll.100");
        assert_eq!(Cell { cores: 1, ..CELL }.id(), "shapes.poll.100.1c");
        assert_eq!(Cell { work: 5, ..CELL }.id(), "shapes.poll.100.5us");
        let worst = Cell { shape: Shape::EpollShared, connections: 1, cores: 1, work: 50 };
        assert_eq!(worst.id(), "shapes.epoll-shared.1.1c.50us");
        let title = "one epoll for all threads: 1 connection on 1 core, 50 µs of work";
        assert_eq!(worst.title(), title);
    }

    #[test]
    fn the_matrix_is_whole_and_a_run_of_all_rows_has_a_part_of_it() {
        let all: Vec<_> = cells().collect();
        assert_eq!(all.len(), 10 * 6 * 2 * 3);
        let count = |is: fn(&Cell) -> bool| all.iter().filter(|cell| is(cell)).count();
        assert_eq!((count(Cell::is_usual), count(Cell::is_quick)), (40, 5));
        assert!(all.iter().all(|cell| !cell.is_quick() || cell.is_usual()));
        for shape in Shape::ALL {
            let usual = all.iter().filter(|cell| cell.shape == shape && cell.is_usual());
            assert_eq!(usual.count(), 4, "{shape}");
        }
    }
}
