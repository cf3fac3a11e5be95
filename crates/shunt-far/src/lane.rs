//! One connection of a link: what goes to the far side next, and what of it is believed.

mod settle;
mod stand;

use core::fmt;

use shunt_shm::region::{DEAF, RESET, Section, Side};
use shunt_shm::ring::{self, ConsLine, MARKS, ProdLine, RxCursor, Span};
use shunt_shm::sync::{Ordering, store_load_fence};
use shunt_wire::clc::Proposal;

use crate::message::Words;
use crate::mirror::News;
pub use settle::{End, PIECE, Rest, Settled};
pub use stand::Stand;

/// The program on this host wrote into its section what cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken(pub shunt_shm::Violation);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the program wrote what cannot be: {}", self.0)
    }
}

impl core::error::Error for Broken {}

/// The far side said what cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Impossible {
    /// The producer's cursor ran back, or further than the ring is long.
    Producer,
    /// The consumer's cursor ran back, or past what was sent.
    Consumer,
    /// Switch points ran back, or ahead of what was passed.
    Marks,
    /// Switch points were passed that were not set, or ran back.
    Passed,
    /// Bytes behind the end, or an end that was taken back.
    End,
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Producer => "an impossible producer cursor",
            Self::Consumer => "an impossible consumer cursor",
            Self::Marks => "impossible switch points",
            Self::Passed => "a switch point passed that was not set",
            Self::End => "bytes behind the end",
        })
    }
}

impl core::error::Error for Impossible {}

/// What is to be posted: bytes at these places of both rings, then a message with these words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Posting {
    /// Where the bytes lie, in the ring here and there alike.
    pub span: Span,
    /// What the message says.
    pub words: Words,
    /// Not all that the program has published.
    pub has_more: bool,
}

/// A connection's cursors.
#[derive(Debug, Default)]
pub struct Lane {
    /// Reads what the local program publishes, as its peer would.
    reader: RxCursor,
    /// Where that reader is; private, as the program hears of the far reader instead.
    posted: ConsLine,
    /// What the far side was told last.
    told: Words,
    /// What it said last.
    heard: Words,
    /// Where the far program's last stretch in the ring ended.
    ring_end: u64,
    /// Where it stood when the link failed.
    stood: Option<Stand>,
    /// What was agreed on then.
    agreed: Option<stand::Agreed>,
    /// The program has broken the connection.
    is_broken: bool,
}

/// True when a number, which wraps, lies in so many from another one on.
const fn is_within(number: u32, from: u32, most: u32) -> bool {
    number.wrapping_sub(from) <= most
}

#[allow(clippy::cast_possible_truncation, reason = "two")]
const MOST_MARKS: u32 = MARKS as u32;

impl Lane {
    /// Bytes that the far side was told of.
    #[must_use]
    pub const fn told(&self) -> u64 {
        self.told.prod
    }

    /// Marks that the local program was told of.
    #[must_use]
    pub const fn marks_heard(&self) -> u32 {
        self.heard.marks
    }

    /// The far program has ended its direction.
    #[must_use]
    pub const fn has_heard_end(&self) -> bool {
        self.heard.fin != 0
    }

    /// Bytes that the local program was told of: all of them are in its ring.
    #[must_use]
    pub const fn heard(&self) -> u64 {
        self.heard.prod
    }

    /// What the local program has published since, of at most `most` bytes. `None`: nothing.
    ///
    /// # Errors
    /// The program wrote what cannot be. From then on the lane says only that it was reset.
    pub fn gather(
        &mut self,
        mine: &Section,
        ring: u64,
        most: u64,
    ) -> Result<Option<Posting>, Broken> {
        if self.is_broken {
            // Said once more where it was lost with a queue pair.
            return Ok((self.told.closed != RESET).then(|| self.reset()));
        }
        let heard = self.heard.marks;
        if heard != self.told.heard {
            // SYNC POINT handover: the marks are in the section; a program that leaves looks at them behind its own word.
            store_load_fence();
        }
        // In the opposite order of that in which the program writes: whoever reads an end or a switch point then also reads the
        // bytes before it.
        let ends = Ends::of(mine);
        let marks_passed = mine.cons.marks_passed.load(Ordering::Acquire);
        let span = match self.span(&mine.prod, ring, most) {
            Ok(span) => span,
            Err(violation) => return Err(self.broken(violation)),
        };
        let prod = self.told.prod + span.len() as u64;
        let has_more = self.reader.known() > span.len() as u64;
        let mut words = Words {
            prod,
            // Stays as it is while bytes lie unread, and these do; without any, it is of no consequence.
            base: if span.is_empty() {
                self.told.base
            } else {
                mine.prod.base.load(Ordering::Relaxed)
            },
            marks_passed,
            cons: mine.cons.cons.load(Ordering::Acquire),
            window: mine.ctl.window.load(Ordering::Relaxed),
            heard,
            state: mine.setup.state.load(Ordering::Relaxed),
            ..self.told
        };
        // Ends and switch points go along with the last byte before them.
        if !has_more {
            ends.put(&mut words);
        }
        if let Some(violation) = self.violation(&words, ring) {
            return Err(self.broken(violation));
        }
        Ok((words != self.told).then_some(Posting { span, words, has_more }))
    }

    /// What the far side has said last.
    #[must_use]
    pub const fn said(&self) -> Words {
        self.heard
    }

    /// The link goes on with another queue pair, and this is what the far side has heard last: all that lies behind goes there once more.
    ///
    /// # Errors
    /// It cannot be.
    pub fn restart(&mut self, far: &Words, ring: u64) -> Result<(), Impossible> {
        // What was said last might follow that; and the far program has taken, and passed, no more than it has heard.
        check(&self.told, far, &self.heard, ring)?;
        self.resume(far.prod)?;
        if !is_within(far.marks, self.heard.marks_passed, MOST_MARKS) {
            return Err(Impossible::Marks);
        }
        // The far program sets no more marks than it has heard to be passed, and two.
        let passed = [(self.told.marks_passed, far.marks_passed), (self.told.heard, far.heard)];
        if passed.iter().any(|(told, heard)| !is_within(*told, *heard, MOST_MARKS)) {
            return Err(Impossible::Passed);
        }
        if far.closed > DEAF {
            return Err(Impossible::End);
        }
        (self.told, self.reader) = (*far, RxCursor::at(far.prod));
        Ok(())
    }

    fn broken(&mut self, violation: shunt_shm::Violation) -> Broken {
        self.is_broken = true;
        Broken(violation)
    }

    /// Where the next bytes lie.
    fn span(&self, mine: &ProdLine, ring: u64, most: u64) -> Result<Span, shunt_shm::Violation> {
        let unposted = self.reader.refresh(mine, ring)?;
        self.reader.readable(mine, ring, unposted.min(most))
    }

    /// What a program may not say, as the far side would notice as well, and end the whole link.
    fn violation(&self, words: &Words, ring: u64) -> Option<shunt_shm::Violation> {
        match check(words, &self.told, &self.heard, ring) {
            Ok(()) => None,
            Err(Impossible::Producer | Impossible::End) => Some(shunt_shm::Violation::Producer),
            Err(Impossible::Consumer) => Some(shunt_shm::Violation::Consumer),
            Err(Impossible::Marks | Impossible::Passed) => Some(shunt_shm::Violation::Marks),
        }
    }

    /// A posting was posted.
    pub fn post(&mut self, posting: &Posting, ring: u64) {
        // The reader's own line: nothing waits for room there.
        let _ = self.reader.consume(&self.posted, ring, posting.span.len() as u64);
        self.told = posting.words;
    }

    /// What the far side is told of a connection that its program has broken.
    #[must_use]
    pub fn reset(&mut self) -> Posting {
        self.is_broken = true;
        let words = Words { closed: RESET, ..self.told };
        Posting { span: Span::default(), words, has_more: false }
    }

    /// Checks what the far side says, and writes it into its section.
    ///
    /// # Errors
    /// It cannot be; nothing was written.
    pub fn hear(
        &mut self,
        words: &Words,
        (theirs, side): (&Section, Side),
        ring: u64,
    ) -> Result<News, Impossible> {
        check(words, &self.heard, &self.told, ring)?;
        let before = core::mem::replace(&mut self.heard, *words);
        if words.marks != before.marks && words.marks.is_multiple_of(2) {
            // A program enters the ring again only when all its marks were passed here, so behind this message.
            self.ring_end = words.prod;
        }
        // SYNC POINT prod: the program reads `prod` first. Its bytes are in memory: the message came behind them.
        theirs.prod.base.store(words.base, Ordering::Relaxed);
        theirs.prod.prod.store(words.prod, Ordering::Release);
        for (to, at) in theirs.prod.mark_at.iter().zip(words.mark_at) {
            to.store(at, Ordering::Relaxed);
        }
        // SYNC POINT marks: behind their places, and behind the bytes before them.
        theirs.prod.marks.store(words.marks, Ordering::Release);
        theirs.ctl.handed_over.store(words.handed_over, Ordering::Release);
        theirs.prod.fin.store(words.fin, Ordering::Release);
        theirs.ctl.closed.store(words.closed, Ordering::Release);
        theirs.ctl.window.store(words.window, Ordering::Relaxed);
        // SYNC POINT cons: the far program has taken these bytes, so this card has read them and will not place them again.
        theirs.cons.cons.store(words.cons, Ordering::Release);
        theirs.cons.marks_passed.store(words.marks_passed, Ordering::Release);
        theirs.cons.heard.store(ring::heard(words.heard), Ordering::Release);
        if side == Side::Client && Proposal::is_read(words.state) {
            // The agent tells of room, also before the program has doorbells.
            theirs.setup.state.store(Proposal::Active as u32, Ordering::Release);
        }
        if words.fin != 0 {
            // All of the direction is here: what the kernel says of its end counts.
            theirs.prod.behind.store(0, Ordering::Release);
        }
        let sends =
            |words: &Words| (words.prod, words.marks, words.fin, words.closed, words.handed_over);
        let takes = |words: &Words| {
            (words.cons, words.marks_passed, words.window, words.closed, words.heard, words.state)
        };
        Ok(News { bytes: sends(&before) != sends(words), room: takes(&before) != takes(words) })
    }

    /// Both sides have opened the connection: from now on what the kernel says of the far program's end waits for the link, and so do
    /// marks of the local one. Something may have been heard before.
    pub fn begin(&self, theirs: &Section) {
        theirs.cons.heard.store(ring::heard(self.heard.heard), Ordering::Release);
        theirs.prod.behind.store(u32::from(self.heard.fin == 0), Ordering::Release);
    }
}

/// What one side may say after what it has said, to a side that has said so much itself.
fn check(said: &Words, before: &Words, other: &Words, ring: u64) -> Result<(), Impossible> {
    // `other.cons` is at most `before.prod`: that was checked when the other side said it.
    if said.prod < before.prod || said.prod - other.cons > ring {
        return Err(Impossible::Producer);
    }
    if said.cons < before.cons || said.cons > other.prod {
        return Err(Impossible::Consumer);
    }
    let open = is_within(said.marks, other.marks_passed, MOST_MARKS);
    if !open || !is_within(said.marks, before.marks, MOST_MARKS) {
        return Err(Impossible::Marks);
    }
    let set = other.marks.wrapping_sub(before.marks_passed);
    if !is_within(said.marks_passed, before.marks_passed, set) {
        return Err(Impossible::Passed);
    }
    if !is_within(said.heard, before.heard, other.marks.wrapping_sub(before.heard)) {
        return Err(Impossible::Passed);
    }
    let goes_on = said.fin == 0 || said.prod > before.prod;
    if (before.fin != 0 && goes_on) || said.closed > DEAF {
        return Err(Impossible::End);
    }
    Ok(())
}

/// The words that follow the bytes before them.
struct Ends {
    marks: u32,
    mark_at: [u64; MARKS],
    fin: u32,
    closed: u32,
    handed_over: u32,
}

impl Ends {
    fn of(mine: &Section) -> Self {
        // The first three before the marks, and those before the places, of which a set one stays until it is passed.
        let closed = mine.ctl.closed.load(Ordering::Acquire);
        let fin = mine.prod.fin.load(Ordering::Acquire);
        let handed_over = mine.ctl.handed_over.load(Ordering::Acquire);
        // SYNC POINT marks.
        let marks = mine.prod.marks.load(Ordering::Acquire);
        let mark_at = mine.prod.mark_at.each_ref().map(|at| at.load(Ordering::Relaxed));
        Self { marks, mark_at, fin, closed, handed_over }
    }

    const fn put(&self, words: &mut Words) {
        words.marks = self.marks;
        words.mark_at = self.mark_at;
        words.fin = self.fin;
        words.closed = self.closed;
        words.handed_over = self.handed_over;
    }
}

#[cfg(test)]
mod tests {
    use shunt_shm::Violation;
    use shunt_shm::region::{CLOSED, Side, shape};
    use shunt_shm::ring::{Content, TxCursor, UNLIMITED};

    use super::*;

    const RING: u64 = 256;

    /// A lane whose program has sent 100 bytes, of which the far side has taken 40, and that has heard of 50.
    fn lane() -> (Lane, Section, Section) {
        let (mut lane, mine, theirs) = (Lane::default(), Section::default(), Section::default());
        let program = TxCursor::default();
        let (wish, want) = (shape(Side::Server, RING), (100, Content::Put));
        let span = program.reserve(&theirs.cons, RING, wish, UNLIMITED, want).unwrap();
        program.publish(&mine.prod, span.len() as u64);
        let posting = lane.gather(&mine, RING, 1000).unwrap().unwrap();
        assert_eq!((posting.span.head, posting.words.prod), ((0, 100), 100));
        lane.post(&posting, RING);
        let said = Words { prod: 50, cons: 40, ..Words::default() };
        let news = lane.hear(&said, (&theirs, Side::Server), RING).unwrap();
        assert_eq!(news, News { bytes: true, room: true });
        (lane, mine, theirs)
    }

    /// What the far side said last there.
    const SAID: Words = Words {
        prod: 50,
        base: 0,
        cons: 40,
        mark_at: [0; 2],
        marks: 0,
        marks_passed: 0,
        fin: 0,
        closed: 0,
        handed_over: 0,
        window: 0,
        heard: 0,
        state: 0,
    };

    #[test]
    fn what_was_said_is_in_the_section() {
        let (mut lane, _, theirs) = lane();
        let words = Words {
            prod: 60,
            base: 7,
            cons: 100,
            mark_at: [8, 9],
            marks: 1,
            fin: 1,
            closed: CLOSED,
            handed_over: 1,
            window: 5,
            ..SAID
        };
        lane.hear(&words, (&theirs, Side::Server), RING).unwrap();
        let prod = &theirs.prod;
        let number = |word: &shunt_shm::sync::AtomicU32| word.load(Ordering::Relaxed);
        let long = |word: &shunt_shm::sync::AtomicU64| word.load(Ordering::Relaxed);
        assert_eq!([long(&prod.prod), long(&prod.base), long(&theirs.cons.cons)], [60, 7, 100]);
        assert_eq!(prod.mark_at.each_ref().map(long), [8, 9]);
        assert_eq!([number(&prod.marks), number(&prod.fin)], [1, 1]);
        let ctl = &theirs.ctl;
        assert_eq!([&ctl.closed, &ctl.handed_over, &ctl.window].map(number), [CLOSED, 1, 5]);
        // Said once more it is no news.
        assert_eq!(lane.hear(&words, (&theirs, Side::Server), RING), Ok(News::default()));
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
        let cases = [
            (Words { prod: 49, ..SAID }, Impossible::Producer),
            (Words { prod: RING + 1, ..SAID }, Impossible::Producer),
            (Words { prod: u64::MAX, ..SAID }, Impossible::Producer),
            (Words { cons: 39, ..SAID }, Impossible::Consumer),
            (Words { cons: 101, ..SAID }, Impossible::Consumer),
            (Words { marks: 3, ..SAID }, Impossible::Marks),
            (Words { marks: u32::MAX, ..SAID }, Impossible::Marks),
            (Words { marks_passed: 1, ..SAID }, Impossible::Passed),
            (Words { closed: 4, ..SAID }, Impossible::End),
        ];
        for (words, why) in cases {
            let (mut lane, _, theirs) = lane();
            assert_eq!(lane.hear(&words, (&theirs, Side::Server), RING), Err(why), "{words:?}");
            assert_eq!(theirs.prod.prod.load(Ordering::Relaxed), 50);
            assert_eq!(theirs.cons.cons.load(Ordering::Relaxed), 40);
            // And has left nothing behind.
            assert_eq!(lane.hear(&SAID, (&theirs, Side::Server), RING), Ok(News::default()));
        }
    }

    #[test]
    fn switch_points_do_not_run_back() {
        let (mut lane, _, theirs) = lane();
        lane.hear(&Words { marks: 1, ..SAID }, (&theirs, Side::Server), RING).unwrap();
        assert_eq!(lane.hear(&SAID, (&theirs, Side::Server), RING), Err(Impossible::Marks));
    }

    #[test]
    fn an_end_is_the_end() {
        let (mut lane, _, theirs) = lane();
        let ended = Words { fin: 1, ..SAID };
        lane.hear(&ended, (&theirs, Side::Server), RING).unwrap();
        let more = Words { prod: 51, ..ended };
        assert_eq!(lane.hear(&more, (&theirs, Side::Server), RING), Err(Impossible::End));
        assert_eq!(lane.hear(&SAID, (&theirs, Side::Server), RING), Err(Impossible::End));
        lane.hear(&Words { cons: 100, ..ended }, (&theirs, Side::Server), RING).unwrap();
    }

    #[test]
    fn the_far_ring_counts_by_what_the_far_side_was_told() {
        let (mut lane, mine, theirs) = lane();
        // The program has taken bytes, of which the far side does not know yet.
        mine.cons.cons.store(50, Ordering::Relaxed);
        let full = Words { prod: RING + 50, ..SAID };
        assert_eq!(lane.hear(&full, (&theirs, Side::Server), RING), Err(Impossible::Producer));
        let posting = lane.gather(&mine, RING, 1000).unwrap().unwrap();
        assert_eq!(posting.words.cons, 50);
        lane.post(&posting, RING);
        lane.hear(&full, (&theirs, Side::Server), RING).unwrap();
    }

    #[test]
    fn a_program_that_writes_what_cannot_be_breaks_its_own_connection() {
        let break_by = |with: &dyn Fn(&Section)| {
            let (mut lane, mine, _) = lane();
            with(&mine);
            let broken = lane.gather(&mine, RING, 1000).unwrap_err();
            let reset = lane.reset();
            assert_eq!(reset.words, Words { closed: RESET, ..lane.told });
            assert_eq!(lane.gather(&mine, RING, 1000), Ok(Some(reset)), "until that is posted");
            lane.post(&reset, RING);
            assert_eq!(lane.gather(&mine, RING, 1000), Ok(None));
            // And again where it was lost with a queue pair.
            lane.restart(&Words { prod: 100, ..Words::default() }, RING).unwrap();
            assert!(
                matches!(lane.gather(&mine, RING, 1000), Ok(Some(it)) if it.words.closed == RESET)
            );
            broken.0
        };
        let store = |word: &shunt_shm::sync::AtomicU64, to| word.store(to, Ordering::Relaxed);
        assert_eq!(break_by(&|mine| store(&mine.prod.prod, 99)), Violation::Producer);
        // In the far ring lie 60 bytes.
        assert_eq!(break_by(&|mine| store(&mine.prod.prod, 40 + RING + 1)), Violation::Producer);
        assert_eq!(break_by(&|mine| store(&mine.prod.prod, u64::MAX)), Violation::Producer);
        assert_eq!(break_by(&|mine| store(&mine.cons.cons, 51)), Violation::Consumer);
        let mark = |mine: &Section| mine.prod.marks.store(3, Ordering::Relaxed);
        assert_eq!(break_by(&mark), Violation::Marks);
        let passed = |mine: &Section| mine.cons.marks_passed.store(1, Ordering::Relaxed);
        assert_eq!(break_by(&passed), Violation::Marks);
    }

    #[test]
    fn ends_and_switch_points_go_with_the_last_byte() {
        let (mut lane, mine, _) = lane();
        mine.prod.prod.store(110, Ordering::Relaxed);
        mine.prod.marks.store(1, Ordering::Relaxed);
        mine.prod.fin.store(1, Ordering::Relaxed);
        let posting = lane.gather(&mine, RING, 4).unwrap().unwrap();
        assert!(posting.has_more);
        assert_eq!((posting.words.prod, posting.words.marks, posting.words.fin), (104, 0, 0));
        lane.post(&posting, RING);
        let posting = lane.gather(&mine, RING, 6).unwrap().unwrap();
        assert!(!posting.has_more);
        assert_eq!((posting.words.prod, posting.words.marks, posting.words.fin), (110, 1, 1));
        lane.post(&posting, RING);
        assert_eq!(lane.gather(&mine, RING, 6), Ok(None));
    }

    #[test]
    fn only_what_was_told_can_have_been_received() {
        let (lane, ..) = lane();
        assert_eq!(lane.resume(40), Ok(40));
        assert_eq!(lane.resume(100), Ok(100));
        assert_eq!(lane.resume(39), Err(Impossible::Producer));
        assert_eq!(lane.resume(101), Err(Impossible::Producer));
    }
}
