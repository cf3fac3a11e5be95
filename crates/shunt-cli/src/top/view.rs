//! The screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Cell, Row, Table, TableState};

use shunt_wire::waits::Part;

use super::sample::{End, Missed, Pair, Rates};
use super::state::State;
use crate::listing::explained;
use crate::table::{cut, human};
use crate::waits::quantile;

/// From so many columns on, more of them are shown.
const WIDE: u16 = 120;
/// And all of them.
const WIDEST: u16 = 160;
/// Columns of a count of connections.
const COUNT: u16 = 5;
/// Most lines of a reason.
const LINES: usize = 12;

/// Whether there are colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Theme {
    /// Else bold and reversed text alone.
    pub is_coloured: bool,
}

impl Theme {
    fn fg(self, color: Color) -> Style {
        if self.is_coloured { Style::new().fg(color) } else { Style::new() }
    }
}

/// A column: its title, its width, whether it has numbers, and from which width of the screen on it is shown.
struct Column(&'static str, Constraint, bool, u16);

const PAIRS: [Column; 9] = [
    Column("Programs", Constraint::Fill(1), false, 0),
    Column("Conns", Constraint::Length(6), true, 0),
    Column("Shunted", Constraint::Length(7), true, 0),
    Column("Msgs/s", Constraint::Length(7), true, 0),
    Column("Bytes/s", Constraint::Length(8), true, 0),
    Column("Spin", Constraint::Length(5), true, 0),
    Column("Ring", Constraint::Length(7), true, 0),
    Column("Wake p99", Constraint::Length(8), true, WIDE),
    Column("On TCP because", Constraint::Fill(2), false, WIDE),
];

const ENDS: [Column; 13] = [
    Column("Program", Constraint::Fill(1), false, WIDE),
    Column("Pid", Constraint::Length(7), true, 0),
    Column("Local", Constraint::Fill(1), false, 0),
    Column("Peer", Constraint::Fill(1), false, 0),
    Column("Mode", Constraint::Length(12), false, 0),
    Column("Msgs/s", Constraint::Length(7), true, 0),
    Column("Bytes/s", Constraint::Length(8), true, 0),
    Column("Spin", Constraint::Length(5), true, WIDE),
    Column("Ring Tx", Constraint::Length(7), true, WIDE),
    Column("Ring Rx", Constraint::Length(7), true, WIDE),
    Column("Wait p50", Constraint::Length(8), true, WIDEST),
    Column("Wait p99", Constraint::Length(8), true, WIDEST),
    Column("Wake p99", Constraint::Length(8), true, WIDEST),
];

/// Rows that a screen of so many columns needs to show everything.
#[must_use]
pub fn height(state: &State, width: u16) -> u16 {
    let rows = state.pairs().len() + 3 + usize::from(below(&state.sample.missed, width, LINES));
    u16::try_from(rows).unwrap_or(u16::MAX).clamp(8, 4096)
}

/// Rows that the pane below needs, with so many lines for each reason at most.
fn below(missed: &[Missed], width: u16, most: usize) -> u16 {
    let lines = missed.iter().map(|m| why(m, missed, width, most).len()).sum::<usize>();
    u16::try_from(lines.max(1)).unwrap_or(u16::MAX).saturating_add(1)
}

/// Draws it.
pub fn draw(frame: &mut Frame<'_>, state: &State, theme: Theme) {
    let (area, missed) = (frame.area(), &state.sample.missed);
    let rows = if state.within.is_some() { state.ends().len() } else { state.pairs().len() };
    let room = usize::from(area.height).saturating_sub(rows + 3);
    // As many lines of each reason as there is room for; of many reasons as many as a third of the screen has.
    let fits = |lines: &usize| usize::from(below(missed, area.width, *lines)) <= room;
    let lines = (2..=LINES).rev().find(fits).unwrap_or(1);
    let all = below(missed, area.width, lines);
    let below = if usize::from(all) <= room { all } else { all.min((area.height / 3).max(2)) };
    let [top, middle, pane, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(below),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(heading(state, theme), top);
    if state.within.is_some() {
        let rows = state.ends().into_iter().map(end_cells).collect::<Vec<_>>();
        table(frame, middle, &ENDS, &rows, state, theme);
    } else {
        let rows: Vec<_> = state.pairs().iter().map(pair_cells).collect();
        table(frame, middle, &PAIRS, &rows, state, theme);
    }
    missed_pane(frame, pane, missed, lines, theme);
    frame.render_widget(help(state), keys);
}

fn heading(state: &State, theme: Theme) -> Line<'static> {
    if let Some(trouble) = &state.trouble {
        return Line::styled(trouble.clone(), theme.fg(Color::Red).add_modifier(Modifier::BOLD));
    }
    let mut sum = Rates::default();
    let pairs = state.sample.pairs();
    let (mut connections, mut shunted) = (0, 0);
    for pair in &pairs {
        sum.messages += pair.rates.messages;
        sum.bytes += pair.rates.bytes;
        connections += pair.connections;
        shunted += pair.shunted;
    }
    let more = if state.sample.truncated { ", and more than the agent lists" } else { "" };
    let text = format!(
        "shunt: {shunted} of {connections} connections shunted{more}; {} msgs/s, {}B/s; every {} s, by {}",
        human(sum.messages),
        human(sum.bytes),
        state.interval,
        state.order.name()
    );
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0))
}

#[allow(clippy::cast_precision_loss, reason = "shown as a whole percentage, or with three digits")]
fn number(n: u64) -> f64 {
    n as f64
}

#[allow(clippy::cast_precision_loss, reason = "shown as a whole percentage")]
fn share(part: usize, all: usize) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}

fn pair_cells(pair: &Pair) -> Vec<String> {
    let reasons: Vec<_> = pair.reasons.iter().map(|(name, n)| format!("{name} {n}")).collect();
    vec![
        format!("{} - {}", pair.programs.0, pair.programs.1),
        pair.connections.to_string(),
        percent(share(pair.shunted, pair.connections)),
        human(pair.rates.messages),
        human(pair.rates.bytes),
        percent(pair.rates.spin_share()),
        human(number(pair.ring)),
        quantile(pair.waits.of(Part::WakeUp), 990),
        reasons.join(", "),
    ]
}

fn end_cells(end: &End) -> Vec<String> {
    let c = &end.connection;
    let waits = end.waits.whole();
    vec![
        c.program.clone(),
        c.pid.to_string(),
        c.local.clone(),
        c.peer.clone(),
        c.reason.clone().filter(|_| !c.is_shunted()).unwrap_or_else(|| c.mode.clone()),
        human(end.rates.messages),
        human(end.rates.bytes),
        percent(end.rates.spin_share()),
        human(number(c.ring_fill_tx)),
        human(number(c.ring_fill_rx)),
        quantile(&waits, 500),
        quantile(&waits, 990),
        quantile(end.waits.of(Part::WakeUp), 990),
    ]
}

fn table(
    frame: &mut Frame<'_>,
    area: Rect,
    columns: &[Column],
    rows: &[Vec<String>],
    state: &State,
    theme: Theme,
) {
    let shown: Vec<_> = columns.iter().enumerate().filter(|(_, c)| area.width >= c.3).collect();
    let line = |cells: &[String]| {
        let cells = shown.iter().map(|(i, column)| {
            let line = Line::from(cells[*i].clone());
            Cell::from(if column.2 { line.right_aligned() } else { line })
        });
        Row::new(cells.collect::<Vec<_>>())
    };
    let titles: Vec<_> = columns.iter().map(|column| column.0.to_owned()).collect();
    let head = line(&titles).style(theme.fg(Color::Cyan).add_modifier(Modifier::BOLD));
    let rows = rows.iter().map(|cells| line(cells));
    let widths = shown.iter().map(|(_, column)| column.1);
    let chosen = Style::new().add_modifier(Modifier::REVERSED);
    let table = Table::new(rows, widths).header(head).column_spacing(1).row_highlight_style(chosen);
    let mut selection = TableState::new().with_selected(Some(state.selected));
    frame.render_stateful_widget(table, area, &mut selection);
}

/// Columns of what a reason is of, with a screen of so many.
fn what_width(missed: &[Missed], width: u16) -> u16 {
    let longest = missed.iter().map(|m| m.what.chars().count()).max().unwrap_or(0);
    u16::try_from(longest).unwrap_or(u16::MAX).max(7).min(width / 3)
}

/// A reason and what can be done, in so many lines at most.
fn why(missed: &Missed, all: &[Missed], width: u16, most: usize) -> Vec<String> {
    let width = usize::from(width.saturating_sub(COUNT + what_width(all, width) + 2)).max(20);
    let text = format!("{}: {}", missed.reason, explained(&missed.reason));
    if most == 1 {
        return vec![cut(&text, width)];
    }
    let options = textwrap::Options::new(width);
    let options = options.word_splitter(textwrap::WordSplitter::NoHyphenation);
    let mut lines: Vec<String> =
        textwrap::wrap(&text, options).into_iter().map(Into::into).collect();
    if lines.len() > most {
        let rest = lines.split_off(most - 1).join(" ");
        lines.push(cut(&rest, width));
    }
    lines
}

fn missed_pane(frame: &mut Frame<'_>, area: Rect, missed: &[Missed], lines: usize, theme: Theme) {
    let block = Block::new().borders(Borders::TOP).title(" Not shunted, and why ");
    let row = |m: &Missed| {
        let count = Cell::from(Line::from(m.count.to_string()).right_aligned());
        let lines = why(m, missed, area.width, lines);
        let height = u16::try_from(lines.len()).unwrap_or(u16::MAX);
        let lines = lines.into_iter().map(|line| match line.strip_prefix(&m.reason) {
            Some(rest) => Line::from(vec![
                Span::styled(m.reason.clone(), theme.fg(Color::Yellow)),
                Span::raw(rest.to_owned()),
            ]),
            None => Line::from(line),
        });
        let why = Text::from(lines.collect::<Vec<_>>());
        Row::new(vec![count, Cell::from(m.what.clone()), Cell::from(why)]).height(height)
    };
    let mut rows: Vec<_> = missed.iter().map(row).collect();
    if rows.is_empty() {
        rows.push(Row::new(vec!["", "nothing"]));
    }
    let what = what_width(missed, area.width);
    let widths = [Constraint::Length(COUNT), Constraint::Length(what), Constraint::Fill(1)];
    frame.render_widget(Table::new(rows, widths).column_spacing(1).block(block), area);
}

fn help(state: &State) -> Line<'static> {
    if state.is_typing {
        return Line::from(format!("filter: {}_  Enter keeps it, Esc drops it", state.filter));
    }
    let filter = match state.filter.as_str() {
        "" => String::new(),
        filter => format!("  (filter: {filter})"),
    };
    let drill = if state.within.is_some() { "Esc back" } else { "Enter connections" };
    Line::from(format!("q quit  s sort  / filter  {drill}{filter}"))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::sample::tests::sample;
    use super::*;

    fn drawn(state: &State, width: u16, is_coloured: bool) -> Terminal<TestBackend> {
        drawn_in(state, (width, 14), is_coloured)
    }

    fn drawn_in(
        state: &State,
        (width, height): (u16, u16),
        is_coloured: bool,
    ) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state, Theme { is_coloured })).unwrap();
        terminal
    }

    fn state() -> State {
        State { sample: sample(), interval: 2.0, ..State::default() }
    }

    #[test]
    fn pairs_of_programs() {
        assert_snapshot!("pairs-80", drawn(&state(), 80, true).backend());
        assert_snapshot!("pairs-200", drawn(&state(), 200, true).backend());
    }

    /// A usual terminal has room for what can be done.
    #[test]
    fn reasons_are_whole_where_there_is_room() {
        assert_snapshot!("whole-80", drawn_in(&state(), (80, 28), true).backend());
        let rows = height(&state(), 80);
        let drawn = drawn_in(&state(), (80, rows), true).backend().to_string();
        let text = |line: &str| line.chars().skip(24).collect::<String>().replace('"', " ");
        let text = drawn.lines().map(text).collect::<String>();
        let words: Vec<_> = text.split_whitespace().collect();
        for missed in &state().sample.missed {
            let last = explained(&missed.reason).split_whitespace().next_back().unwrap().to_owned();
            assert!(words.contains(&last.as_str()), "{last} in {drawn}");
        }
    }

    #[test]
    fn connections_of_a_pair() {
        let within = Some(("nginx".to_owned(), "wrk".to_owned()));
        let state = State { within, ..state() };
        assert_snapshot!("ends-80", drawn(&state, 80, true).backend());
        assert_snapshot!("ends-200", drawn(&state, 200, true).backend());
    }

    #[test]
    fn nothing_runs_or_the_agent_is_gone() {
        let nothing = State { interval: 1.0, ..State::default() };
        assert_snapshot!("nothing-80", drawn(&nothing, 80, true).backend());
        let gone = State { trouble: Some("no agent is running".to_owned()), ..state() };
        assert_snapshot!("gone-80", drawn(&gone, 80, true).backend());
    }

    #[test]
    fn colours_are_there_or_not() {
        let has_colour = |is_coloured| {
            let terminal = drawn(&state(), 80, is_coloured);
            let cells = &terminal.backend().buffer().content;
            cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
        };
        assert!(has_colour(true) && !has_colour(false));
    }

    #[test]
    fn no_screen_is_too_small() {
        for (width, height) in [(1, 1), (10, 3), (20, 5), (79, 8)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &state(), Theme { is_coloured: true })).unwrap();
        }
    }
}
