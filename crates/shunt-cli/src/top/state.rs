//! The view's choice and order, and the keys that change them.

use std::cmp::Ordering;

use ratatui::crossterm::event::KeyCode;
use shunt_wire::waits::Part;

use super::sample::{End, Pair, Sample, programs};

/// By what rows are sorted; the most first.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Bytes a second.
    #[default]
    Bytes,
    /// Messages a second.
    Messages,
    /// Connections that are on TCP.
    Tcp,
    /// Bytes in rings.
    Ring,
    /// How long the longest hundredth takes: of waits for a connection, of the wake-ups of a pair.
    Wait,
    /// Names, as in the alphabet.
    Name,
}

impl Order {
    const ALL: [Self; 6] =
        [Self::Bytes, Self::Messages, Self::Tcp, Self::Ring, Self::Wait, Self::Name];

    /// What the heading says.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Messages => "messages",
            Self::Tcp => "on TCP",
            Self::Ring => "ring",
            Self::Wait => "wait",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }
}

/// What a key has led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// Go on.
    Go,
    /// End.
    Quit,
}

/// The state of the screen.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct State {
    /// The last look.
    pub sample: Sample,
    /// The order of rows.
    pub order: Order,
    /// Text that has to be in a row.
    pub filter: String,
    /// It is being typed.
    pub is_typing: bool,
    /// The pair whose connections are shown.
    pub within: Option<(String, String)>,
    /// The row that is selected.
    pub selected: usize,
    /// Why the agent tells nothing now.
    pub trouble: Option<String>,
    /// Seconds between looks.
    pub interval: f64,
}

fn most_first<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    b.partial_cmp(a).unwrap_or(Ordering::Equal)
}

impl State {
    /// The pairs to be shown.
    #[must_use]
    pub fn pairs(&self) -> Vec<Pair> {
        let mut pairs = self.sample.pairs();
        pairs.retain(|p| {
            let names = format!("{} {}", p.programs.0, p.programs.1);
            self.takes(&names) || p.reasons.keys().any(|reason| self.takes(reason))
        });
        // They come by their names.
        pairs.sort_by(|a, b| match self.order {
            Order::Bytes => most_first(&a.rates.bytes, &b.rates.bytes),
            Order::Messages => most_first(&a.rates.messages, &b.rates.messages),
            Order::Tcp => most_first(&(a.connections - a.shunted), &(b.connections - b.shunted)),
            Order::Ring => most_first(&a.ring, &b.ring),
            Order::Wait => {
                let longest = |pair: &Pair| pair.waits.of(Part::WakeUp).quantile(990);
                most_first(&longest(a), &longest(b))
            }
            Order::Name => Ordering::Equal,
        });
        pairs
    }

    /// The ends of connections to be shown.
    #[must_use]
    pub fn ends(&self) -> Vec<&End> {
        let is_shown = |end: &&End| {
            let c = &end.connection;
            let reason = c.reason.as_deref().unwrap_or_default();
            let other = c.peer_program.as_deref().unwrap_or_default();
            let text = format!("{} {other} {} {} {} {reason}", c.program, c.local, c.peer, c.mode);
            self.within.as_ref().is_none_or(|pair| programs(c) == *pair) && self.takes(&text)
        };
        let mut ends: Vec<_> = self.sample.ends.iter().filter(is_shown).collect();
        ends.sort_by(|a, b| match self.order {
            Order::Bytes => most_first(&a.rates.bytes, &b.rates.bytes),
            Order::Messages => most_first(&a.rates.messages, &b.rates.messages),
            Order::Tcp => a.connection.is_shunted().cmp(&b.connection.is_shunted()),
            Order::Ring => {
                let fill = |end: &End| end.connection.ring_fill_tx.max(end.connection.ring_fill_rx);
                most_first(&fill(a), &fill(b))
            }
            Order::Wait => {
                let longest = |end: &End| end.waits.whole().quantile(990);
                most_first(&longest(a), &longest(b))
            }
            Order::Name => a.connection.program.cmp(&b.connection.program),
        });
        ends
    }

    fn takes(&self, text: &str) -> bool {
        text.to_lowercase().contains(&self.filter.to_lowercase())
    }

    fn rows(&self) -> usize {
        if self.within.is_some() { self.ends().len() } else { self.pairs().len() }
    }

    /// A new look. What is selected is there still, or the last row is.
    pub fn update(&mut self, sample: Sample) {
        self.sample = sample;
        self.trouble = None;
        self.keep_selected();
    }

    fn keep_selected(&mut self) {
        self.selected = self.selected.min(self.rows().saturating_sub(1));
    }

    /// A key was pressed.
    pub fn key(&mut self, key: KeyCode) -> Then {
        if self.is_typing {
            match key {
                KeyCode::Char(c) => self.filter.push(c),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => {
                    self.filter.clear();
                    self.is_typing = false;
                }
                _ => {}
            }
            self.keep_selected();
            return Then::Go;
        }
        match key {
            KeyCode::Char('q') => return Then::Quit,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Down | KeyCode::Char('j') => self.selected += 1,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Enter if self.within.is_none() => {
                self.within = self.pairs().get(self.selected).map(|pair| pair.programs.clone());
                self.selected = 0;
            }
            KeyCode::Esc | KeyCode::Backspace if self.within.is_some() => {
                let left = self.within.take();
                let at = self.pairs().iter().position(|p| Some(&p.programs) == left.as_ref());
                self.selected = at.unwrap_or(0);
            }
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
        self.keep_selected();
        Then::Go
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::sample;
    use super::*;

    fn state() -> State {
        State { sample: sample(), interval: 2.0, ..State::default() }
    }

    fn press(state: &mut State, keys: &str) {
        for c in keys.chars() {
            let key = match c {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                '\u{8}' => KeyCode::Backspace,
                c => KeyCode::Char(c),
            };
            assert_eq!(state.key(key), Then::Go, "{c:?}");
        }
    }

    #[test]
    fn drilling_down_and_back() {
        let mut state = state();
        press(&mut state, "ssssssj");
        assert_eq!((state.order, state.selected), (Order::Bytes, 1));
        press(&mut state, "k\n");
        assert_eq!(state.within, Some(("nginx".to_owned(), "wrk".to_owned())));
        assert_eq!(state.ends().len(), 4);
        press(&mut state, "jjjjjjj");
        assert_eq!(state.selected, 3, "no further than the last row");
        press(&mut state, "\u{1b}");
        assert_eq!((state.within.is_none(), state.selected), (true, 0));
        assert_eq!(state.key(KeyCode::Char('q')), Then::Quit);
    }

    #[test]
    fn filters_take_names_addresses_and_reasons() {
        let mut state = state();
        press(&mut state, "j/Q");
        assert!(state.is_typing && state.pairs().is_empty() && state.selected == 0);
        press(&mut state, "\u{8}SHORT\n");
        let names: Vec<_> = state.pairs().into_iter().map(|p| p.programs.1).collect();
        assert_eq!(names, ["wrk"]);
        press(&mut state, "\n");
        assert_eq!(state.ends().len(), 1);
        press(&mut state, "\u{1b}\u{1b}");
        assert_eq!((state.filter.as_str(), state.pairs().len()), ("", 2));
    }

    #[test]
    fn a_look_with_fewer_rows_keeps_the_selection_within() {
        let mut state = state();
        press(&mut state, "j");
        state.trouble = Some("gone".to_owned());
        state.update(Sample::default());
        assert_eq!((state.selected, &state.trouble), (0, &None));
    }
}
