//! `shunt top`.

mod sample;
mod state;
mod view;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Terminal};

use crate::cli::Top;
use crate::directory::Unreachable;
use crate::listing::Listing;
use crate::output::{complain, is_coloured, print, width};
use sample::Sample;
use state::{State, Then};
use view::{Theme, draw, height};

pub use state::Order;

/// Columns where nothing is known of a terminal.
const COLUMNS: u16 = 80;

/// Runs the subcommand.
pub fn run(args: &Top) -> u8 {
    let first = match look(None) {
        Ok(sample) => sample,
        Err(why) => {
            complain(&why);
            return 1;
        }
    };
    let mut state = State {
        order: args.sort,
        filter: args.filter.clone().unwrap_or_default(),
        interval: args.interval,
        ..State::default()
    };
    state.update(first);
    if args.once {
        return once(state);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        complain(&"`shunt top` needs a terminal; --once prints one frame as text");
        return 1;
    }
    let ended = ratatui::try_init().and_then(|mut terminal| watch(&mut terminal, &mut state));
    ratatui::restore();
    match ended {
        Ok(()) => 0,
        Err(e) => {
            complain(&format!("the terminal cannot be used: {e}"));
            1
        }
    }
}

fn look(before: Option<(&Sample, f64)>) -> Result<Sample, Unreachable> {
    Listing::ask().map(|listing| Sample::new(listing, before))
}

/// One frame, of what happens within one interval.
fn once(mut state: State) -> u8 {
    let started = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(state.interval));
    match look(Some((&state.sample, started.elapsed().as_secs_f64()))) {
        Ok(sample) => state.update(sample),
        Err(why) => {
            complain(&why);
            return 1;
        }
    }
    let width = width().unwrap_or(COLUMNS);
    let drawn =
        Terminal::new(TestBackend::new(width, height(&state, width))).and_then(|mut terminal| {
            terminal.draw(|frame| draw(frame, &state, Theme { is_coloured: false }))?;
            Ok(text(&terminal))
        });
    match drawn {
        Ok(text) => print(&text),
        Err(never) => match never {},
    }
}

/// What is on the screen, but the line of keys.
fn text(terminal: &Terminal<TestBackend>) -> String {
    let buffer = terminal.backend().buffer();
    let columns = usize::from(buffer.area.width).max(1);
    let lines = buffer.content.chunks(columns).map(|row| {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        format!("{}\n", line.trim_end())
    });
    let mut lines: Vec<_> = lines.collect();
    lines.pop();
    lines.concat()
}

/// Draws, and takes keys, until one of them ends it.
fn watch(terminal: &mut DefaultTerminal, state: &mut State) -> io::Result<()> {
    let theme = Theme { is_coloured: is_coloured(&io::stdout()) };
    let interval = Duration::from_secs_f64(state.interval);
    let mut looked = Instant::now();
    loop {
        terminal.draw(|frame| draw(frame, state, theme))?;
        let left = interval.saturating_sub(looked.elapsed());
        if left.is_zero() {
            match look(Some((&state.sample, looked.elapsed().as_secs_f64()))) {
                Ok(sample) => state.update(sample),
                // It may come back.
                Err(why) => state.trouble = Some(why.to_string()),
            }
            looked = Instant::now();
        } else if event::poll(left)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            let is_interrupt =
                key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if is_interrupt || state.key(key.code) == Then::Quit {
                return Ok(());
            }
        }
    }
}
