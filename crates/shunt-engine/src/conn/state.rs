//! Where one end of a connection stands, in total: derived from the words of its record and of its own section, and from
//! nothing else.
//!
//! An end is several machines at once, which move independently. Each is an enum below, with the transitions that
//! there are and what causes them; [`State`] is all of them together. Each word is stored by itself, so every state
//! between two stores that belong together has a name, too: a program can be killed there, or be overtaken by a signal handler.
//!
//! | Machine | Words |
//! |---|---|
//! | [`Agreement`] | `id.phase`, `id.offer`, `setup.state` (a [`Proposal`] of the client, an [`Answer`] of the acceptor) |
//! | [`Sending`] | `tx.marks`, `prod.marks`, `tx.replay` |
//! | [`Receiving`] | `rx.marks`, `rx.again` |
//! | [`Presence`] | `ctl.handed_over`, [`FROZEN`] |
//! | [`Ending`] | `prod.fin`, `ctl.closed`, `setup.done` |
//! | [`Reset`] | [`CUT_OFF`], [`RESET_DUE`], [`RESET_TOLD`] |
//!
//! The other flags change no state: they say what the program has set, and spare questions to the kernel ([`flags`](super::flags)).
//! A record that is used again begins anew, which is no transition. The drawing in docs/design/states.md is made of these tables, and the
//! simulator holds every step to them.

use core::sync::atomic::Ordering::Relaxed;

use shunt_shm::handover;
use shunt_shm::region::{CLOSED, DEAF, RESET};
use shunt_wire::clc::{Answer, Proposal};
use shunt_wire::offer::Offer;

use crate::conn::End;
use crate::conn::flags::{CUT_OFF, FROZEN, RESET_DUE, RESET_TOLD};
use crate::handshake::Phase;
use crate::stretch::{Path, path};

/// One of the machines that an end consists of.
pub trait Machine: Copy + Eq + core::fmt::Debug + 'static {
    /// Its name.
    const NAME: &'static str;
    /// All states; the first one is where a new record begins.
    const STATES: &'static [Self];
    /// What moves it: from, to, and the cause.
    const TRANSITIONS: &'static [(Self, Self, &'static str)];
}

/// The fewest transitions of the table that lead from one state to another; `None`: none do.
#[must_use]
pub fn distance<M: Machine>(from: M, to: M) -> Option<usize> {
    let mut known = vec![from];
    let mut fresh = 0..1;
    let mut steps = 0;
    loop {
        if known.contains(&to) {
            return Some(steps);
        }
        for at in fresh.clone() {
            let from = known[at];
            for (_, next, _) in M::TRANSITIONS.iter().filter(|(before, ..)| *before == from) {
                if !known.contains(next) {
                    known.push(*next);
                }
            }
        }
        fresh = fresh.end..known.len();
        if fresh.is_empty() {
            return None;
        }
        steps += 1;
    }
}

/// Declares a machine: its states once, and the transitions.
macro_rules! machine {
    (
        $(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $state:ident,)+ }
        $($from:ident => $to:ident: $cause:literal,)+
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $($(#[$of])* $state,)+ }

        impl Machine for $name {
            const NAME: &'static str = stringify!($name);
            const STATES: &'static [Self] = &[$(Self::$state,)+];
            const TRANSITIONS: &'static [(Self, Self, &'static str)] =
                &[$((Self::$from, Self::$to, $cause),)+];
        }
    };
}

machine! {
    /// How far both ends have come to agree that the connection is shunted.
    Agreement {
        /// Kernel TCP for good, and where every record begins.
        Tcp,
        /// Acceptor: no proposal found yet.
        Candidate,
        /// Client: the agent has the socket, and looks for the acceptor.
        Offered,
        /// Client: the agent has said where the acceptor is, or why it stays on TCP.
        Brokered,
        /// Client: the proposal is posted. The acceptor may be in the ring at any moment.
        Proposed,
        /// The same, and the program was seen to use the connection.
        Used,
        /// Client: it has taken the proposal back.
        Withdrawn,
        /// It has told the peer that it agrees, and has not noted it.
        Agreeing,
        /// Each sender enters the ring when it next sends.
        Active,
        /// Every call answers `ECONNRESET`.
        Broken,
    }
    Tcp => Proposed: "connect, to a listener of this machine's registry",
    Tcp => Candidate: "accept",
    Tcp => Offered: "connect, perhaps to another party or network",
    Tcp => Brokered: "the agent answers before connect returns",
    Tcp => Active: "a program before exec has left bytes unread",
    Candidate => Agreeing: "a proposal is found, and answered",
    Candidate => Tcp: "none is found in time, or the descriptor goes to another program",
    Offered => Brokered: "the agent answers",
    Offered => Candidate: "the client waits no longer, or closes",
    Brokered => Proposed: "the client takes up what the agent has found",
    Brokered => Candidate: "close",
    Brokered => Tcp: "the agent declines",
    Proposed => Used: "a call on the socket",
    Proposed => Withdrawn: "close, hand-over, or no answer for long",
    Proposed => Tcp: "a fork's, of whose link group this process has nothing",
    Used => Withdrawn: "close, hand-over, or no answer for long",
    Used => Agreeing: "the acceptor has answered, and its doorbells are here",
    Withdrawn => Tcp: "nobody has taken it up",
    Agreeing => Active: "noted",
    Proposed => Broken: "the peer breaks the protocol, or a call panics",
    Used => Broken: "the peer breaks the protocol, or a call panics",
    Agreeing => Broken: "the peer breaks the protocol, or a call panics",
    Active => Broken: "the peer breaks the protocol, or a call panics",
}

machine! {
    /// Where the bytes go that this end sends.
    Sending {
        /// Over kernel TCP.
        Tcp,
        /// The mark into the ring is set, and not noted yet.
        Entering,
        /// Into the ring.
        Ring,
        /// The mark out of the ring is set, and not noted yet.
        Leaving,
        /// Over TCP, where bytes of the ring go once more before any other.
        Repeating,
    }
    Tcp => Entering: "a send finds the peer there, and no mark open",
    Entering => Ring: "noted",
    Ring => Leaving: "the ring is full, the peer has left, or this end leaves",
    Leaving => Tcp: "noted",
    Leaving => Repeating: "the same, and the peer has not taken all that was in the ring",
    Repeating => Tcp: "all of that is sent, or nobody will read it",
}

machine! {
    /// Whence the bytes come that this end receives.
    Receiving {
        /// Over kernel TCP.
        Tcp,
        /// From the ring.
        Ring,
        /// Over TCP, where bytes come first that were taken from the ring already.
        Dropping,
    }
    Tcp => Ring: "all bytes before the mark were read",
    Ring => Tcp: "all bytes before the mark were taken",
    Ring => Dropping: "more were taken than lie before the mark",
    Dropping => Tcp: "what came twice is dropped, or will not come",
}

machine! {
    /// Whether this end takes bytes from the ring, or leaves them to be sent over TCP.
    Presence {
        /// It takes them.
        Here,
        /// It takes none from now on; the peer does not know.
        Freezing,
        /// It looks at the marks for the last time, or once more.
        Looking,
        /// It has left: another program has the descriptor.
        Left,
        /// It has left, and reads on.
        Stays,
    }
    Here => Freezing: "the descriptor goes to another program, or the program wants TCP",
    Freezing => Here: "the peer has ended, and nothing comes over TCP",
    Freezing => Looking: "it says so",
    Looking => Left: "how far it has come is said",
    Left => Looking: "a call reads on, beside the other program",
    Looking => Stays: "the peer has set no mark yet",
    Stays => Looking: "the descriptor goes to another program again",
    Here => Stays: "a program after exec begins so",
}

machine! {
    /// How this end has ended, as the peer hears of it before the kernel says it.
    Ending {
        /// It sends.
        Open,
        /// Its direction ends.
        Announced,
        /// Both directions are shut: more bytes are answered with RST.
        Deaf,
        /// The connection is closed.
        Closed,
        /// It is closed, and the kernel sends RST.
        Reset,
        /// This end is done with the slot.
        Done,
    }
    Open => Announced: "shutdown, close, or a broken connection",
    Announced => Open: "the kernel refuses shutdown",
    Announced => Deaf: "shutdown of both directions",
    Announced => Closed: "close",
    Announced => Reset: "close with bytes unread, SO_LINGER, or a panic",
    Deaf => Closed: "close",
    Deaf => Reset: "close with bytes unread, SO_LINGER, or a panic",
    Closed => Reset: "a panic",
    Open => Done: "a proposal was taken back, or the peer finds this end killed",
    Announced => Done: "an end that was handed over is closed, or the peer finds this end killed",
    Deaf => Done: "the peer finds this end killed",
    Closed => Done: "no thread of its own is in a call",
    Reset => Done: "no thread of its own is in a call",
}

machine! {
    /// What the program has heard of a reset that the kernel does not tell each call.
    Reset {
        /// There was none.
        None,
        /// The peer was killed with bytes of this end unread.
        CutOff,
        /// The kernel has told it to a call that returned something else.
        Due,
        /// A call has failed with it.
        Told,
    }
    None => CutOff: "the kernel's end comes unannounced, with bytes unread",
    None => Due: "the kernel tells a call that has moved bytes",
    CutOff => Due: "the kernel tells a call that has moved bytes",
    None => Told: "the kernel tells a call, which fails",
    CutOff => Told: "a call fails",
    Due => Told: "the next call fails",
}

/// Where an end stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// Of one mind with the peer.
    pub agreement: Agreement,
    /// Its sending direction.
    pub sending: Sending,
    /// Its receiving direction.
    pub receiving: Receiving,
    /// Whether it takes bytes from the ring.
    pub presence: Presence,
    /// How it has ended.
    pub ending: Ending,
    /// What it has heard of a reset.
    pub reset: Reset,
}

impl State {
    /// Where this end stands; `None` where its words contradict each other, which no step leads to.
    #[must_use]
    pub fn of(end: &End<'_>) -> Option<Self> {
        Some(Self {
            agreement: Agreement::of(end),
            sending: Sending::of(end)?,
            receiving: Receiving::of(end),
            presence: Presence::of(end),
            ending: Ending::of(end),
            reset: Reset::of(end),
        })
    }

    /// The most transitions that any of the machines needs from here to there; an error names one that cannot come there.
    ///
    /// # Errors
    /// The machine's name.
    pub fn distance(self, to: Self) -> Result<usize, &'static str> {
        fn steps<M: Machine>(from: M, to: M) -> Result<usize, &'static str> {
            distance(from, to).ok_or(M::NAME)
        }
        let all = [
            steps(self.agreement, to.agreement)?,
            steps(self.sending, to.sending)?,
            steps(self.receiving, to.receiving)?,
            steps(self.presence, to.presence)?,
            steps(self.ending, to.ending)?,
            steps(self.reset, to.reset)?,
        ];
        Ok(all.into_iter().max().unwrap_or(0))
    }
}

impl Agreement {
    fn of(end: &End<'_>) -> Self {
        let mine = end.mine.setup.state.load(Relaxed);
        let says = |proposal: Proposal| mine == proposal as u32;
        match end.phase() {
            Phase::Tcp => Self::Tcp,
            Phase::Candidate => match Offer::from_word(end.record.id.offer.load(Relaxed)) {
                Offer::Open(_) => Self::Offered,
                Offer::Claimed { .. } | Offer::Declined(_) => Self::Brokered,
                Offer::None if mine == Answer::Accepted as u32 => Self::Agreeing,
                Offer::None => Self::Candidate,
            },
            Phase::Proposed if says(Proposal::Used) => Self::Used,
            Phase::Proposed if says(Proposal::Withdrawn) => Self::Withdrawn,
            Phase::Proposed if says(Proposal::Active) => Self::Agreeing,
            Phase::Proposed => Self::Proposed,
            Phase::Active => Self::Active,
            Phase::Broken => Self::Broken,
        }
    }
}

impl Sending {
    fn of(end: &End<'_>) -> Option<Self> {
        let tx = &end.record.tx;
        let (known, set) = (tx.marks.load(Relaxed), end.mine.prod.marks.load(Relaxed));
        match (path(known), set.wrapping_sub(known)) {
            (Path::Tcp, 0) if tx.replay.load(Relaxed) != 0 => Some(Self::Repeating),
            (Path::Tcp, 0) => Some(Self::Tcp),
            (Path::Tcp, 1) => Some(Self::Entering),
            (Path::Ring, 0) => Some(Self::Ring),
            (Path::Ring, 1) => Some(Self::Leaving),
            _ => None,
        }
    }
}

impl Receiving {
    fn of(end: &End<'_>) -> Self {
        let rx = &end.record.rx;
        match path(rx.marks.load(Relaxed)) {
            Path::Ring => Self::Ring,
            Path::Tcp if rx.again.load(Relaxed) != 0 => Self::Dropping,
            Path::Tcp => Self::Tcp,
        }
    }
}

impl Presence {
    fn of(end: &End<'_>) -> Self {
        match end.mine.ctl.handed_over.load(Relaxed) {
            0 if end.has(FROZEN) => Self::Freezing,
            0 => Self::Here,
            handover::LEAVING => Self::Looking,
            handover::STAYS => Self::Stays,
            _ => Self::Left,
        }
    }
}

impl Ending {
    fn of(end: &End<'_>) -> Self {
        let (section, fin) = (end.mine, end.mine.prod.fin.load(Relaxed));
        match section.ctl.closed.load(Relaxed) {
            _ if section.setup.done.load(Relaxed) != 0 => Self::Done,
            CLOSED => Self::Closed,
            RESET => Self::Reset,
            DEAF => Self::Deaf,
            _ if fin != 0 => Self::Announced,
            _ => Self::Open,
        }
    }
}

impl Reset {
    fn of(end: &End<'_>) -> Self {
        if end.has(RESET_TOLD) {
            Self::Told
        } else if end.has(RESET_DUE) {
            Self::Due
        } else if end.has(CUT_OFF) {
            Self::CutOff
        } else {
            Self::None
        }
    }
}

#[cfg(test)]
mod tests {
    use core::fmt::Write;
    use std::path::Path as File;

    use super::*;
    use crate::conn::leave::{Below, Frozen};
    use crate::model::Memory;

    const BEGIN: &str = "<!-- drawn by shunt-engine/src/conn/state.rs: begin -->\n";
    const END: &str = "<!-- drawn by shunt-engine/src/conn/state.rs: end -->\n";

    /// A machine as a diagram of mermaid's, below its name.
    fn draw<M: Machine>(into: &mut String) {
        writeln!(into, "\n## {}\n\n```mermaid\nstateDiagram-v2", M::NAME).unwrap();
        writeln!(into, "    [*] --> {:?}", M::STATES[0]).unwrap();
        for (from, to, cause) in M::TRANSITIONS {
            writeln!(into, "    {from:?} --> {to:?}: {cause}").unwrap();
        }
        writeln!(into, "```").unwrap();
    }

    fn drawing() -> String {
        let mut text = String::new();
        draw::<Agreement>(&mut text);
        draw::<Sending>(&mut text);
        draw::<Receiving>(&mut text);
        draw::<Presence>(&mut text);
        draw::<Ending>(&mut text);
        draw::<Reset>(&mut text);
        text + "\n"
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads a file of the repository")]
    fn the_design_has_this_drawing() {
        let path = File::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/states.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = text.split_once(BEGIN).expect("where the drawing begins");
        let (found, after) = rest.split_once(END).expect("where it ends");
        if std::env::var_os("DRAW_STATES").is_some() {
            std::fs::write(&path, [before, BEGIN, &drawing(), END, after].concat()).unwrap();
        } else {
            assert!(
                found == drawing(),
                "the drawing in docs/design/states.md is not that of the tables in conn/state.rs; draw it anew by\n\
                 DRAW_STATES=1 cargo test -p shunt-engine --lib the_design_has_this_drawing"
            );
        }
    }

    fn is_sound<M: Machine>() {
        for state in M::STATES {
            assert!(distance(M::STATES[0], *state).is_some(), "nothing leads to {state:?}");
        }
        for (i, (from, to, cause)) in M::TRANSITIONS.iter().enumerate() {
            assert!(from != to && !cause.is_empty() && !cause.contains([':', ';']), "{cause}");
            let twice = M::TRANSITIONS[..i].iter().any(|(a, b, _)| (a, b) == (from, to));
            assert!(!twice, "{from:?} to {to:?} stands twice");
        }
    }

    #[test]
    fn every_state_can_be_reached_and_every_transition_stands_once() {
        is_sound::<Agreement>();
        is_sound::<Sending>();
        is_sound::<Receiving>();
        is_sound::<Presence>();
        is_sound::<Ending>();
        is_sound::<Reset>();
    }

    #[test]
    fn ways_are_counted() {
        assert_eq!(distance(Sending::Ring, Sending::Ring), Some(0));
        assert_eq!(distance(Sending::Tcp, Sending::Ring), Some(2));
        assert_eq!(distance(Sending::Ring, Sending::Repeating), Some(2));
        assert_eq!(distance(Ending::Closed, Ending::Open), None);
        let new = State::of(&Memory::default().end()).unwrap();
        let told = State { reset: Reset::Told, sending: Sending::Ring, ..new };
        assert_eq!(new.distance(told), Ok(2));
        assert_eq!(told.distance(new), Err("Reset"));
    }

    /// What the words say, of each machine: what is stored, and the state that it makes.
    #[test]
    fn words_make_states() {
        type Store = fn(&End<'_>);
        fn after<T>(stores: &[Store], of: impl Fn(&End<'_>) -> T) -> T {
            let memory = Memory::default();
            stores.iter().for_each(|store| store(&memory.end()));
            of(&memory.end())
        }
        let agreement = |p: Phase, offer: Offer, mine: u32| {
            let memory = Memory::default();
            let end = memory.end();
            end.record.id.phase.store(p as u32, Relaxed);
            end.record.id.offer.store(offer.to_word(), Relaxed);
            end.mine.setup.state.store(mine, Relaxed);
            Agreement::of(&end)
        };
        let claimed = Offer::Claimed { region: 7, slot: 1 };
        for (p, offer, mine, state) in [
            (Phase::Tcp, Offer::None, 0, Agreement::Tcp),
            (Phase::Tcp, Offer::Open(1), 0, Agreement::Tcp),
            (Phase::Candidate, Offer::None, 0, Agreement::Candidate),
            (Phase::Candidate, Offer::None, Answer::Accepted as u32, Agreement::Agreeing),
            (Phase::Candidate, Offer::Open(1), 0, Agreement::Offered),
            (Phase::Candidate, claimed, Proposal::Proposed as u32, Agreement::Brokered),
            (Phase::Proposed, claimed, Proposal::Proposed as u32, Agreement::Proposed),
            (Phase::Proposed, Offer::None, Proposal::Used as u32, Agreement::Used),
            (Phase::Proposed, Offer::None, Proposal::Withdrawn as u32, Agreement::Withdrawn),
            (Phase::Proposed, Offer::None, Proposal::Active as u32, Agreement::Agreeing),
            (Phase::Active, Offer::None, Proposal::Used as u32, Agreement::Active),
            (Phase::Broken, Offer::None, 0, Agreement::Broken),
        ] {
            assert_eq!(agreement(p, offer, mine), state, "{p:?} {offer:?} {mine}");
        }
        let sending = |known, set, replay| {
            let memory = Memory::default();
            let end = memory.end();
            end.record.tx.marks.store(known, Relaxed);
            end.record.tx.replay.store(replay, Relaxed);
            end.mine.prod.marks.store(set, Relaxed);
            Sending::of(&end)
        };
        for (known, set, replay, state) in [
            (0, 0, 0, Some(Sending::Tcp)),
            (0, 1, 0, Some(Sending::Entering)),
            (1, 1, 0, Some(Sending::Ring)),
            (1, 2, 0, Some(Sending::Leaving)),
            (2, 2, 9, Some(Sending::Repeating)),
            (u32::MAX, 0, 0, Some(Sending::Leaving)),
            (2, 4, 0, None),
            (2, 1, 0, None),
        ] {
            assert_eq!(sending(known, set, replay), state, "{known} {set} {replay}");
        }
        let receives: [(&[Store], _); 3] = [
            (&[], Receiving::Tcp),
            (&[|end| end.record.rx.marks.store(3, Relaxed)], Receiving::Ring),
            (&[|end| end.record.rx.again.store(1, Relaxed)], Receiving::Dropping),
        ];
        for (stores, state) in receives {
            assert_eq!(after(stores, Receiving::of), state);
        }
        let ends: [(&[Store], _); 6] = [
            (&[], Ending::Open),
            (&[|end| end.announce_end()], Ending::Announced),
            (&[|end| end.announce_end(), |end| end.take_end_back()], Ending::Open),
            (&[|end| end.mine.ctl.closed.store(DEAF, Relaxed)], Ending::Deaf),
            (&[|end| end.mine.ctl.closed.store(RESET, Relaxed)], Ending::Reset),
            (&[|end| end.mine.setup.done.store(1, Relaxed)], Ending::Done),
        ];
        for (stores, state) in ends {
            assert_eq!(after(stores, Ending::of), state);
        }
        let resets: [(&[Store], _); 4] = [
            (&[], Reset::None),
            (&[|end| end.put(CUT_OFF, true)], Reset::CutOff),
            (&[|end| end.put(CUT_OFF | RESET_DUE, true)], Reset::Due),
            (&[|end| end.put(CUT_OFF | RESET_TOLD, true)], Reset::Told),
        ];
        for (stores, state) in resets {
            assert_eq!(after(stores, Reset::of), state);
        }
    }

    /// A receiver that leaves, with what the real steps store on the way.
    #[test]
    fn leaving_goes_through_the_states() {
        let memory = Memory::default();
        let end = memory.end();
        assert_eq!(Presence::of(&end), Presence::Here);
        let between = || assert_eq!(Presence::of(&end), Presence::Freezing);
        assert_eq!(end.freeze(Below::Nothing, between), Frozen::Now);
        assert_eq!(Presence::of(&end), Presence::Left);
        assert!(end.stay());
        assert_eq!(Presence::of(&end), Presence::Stays);
        let memory = Memory::default();
        let end = memory.end();
        memory.enter_ring();
        assert_eq!(Sending::of(&end), Some(Sending::Ring));
        end.leave_ring(0, || assert_eq!(Sending::of(&end), Some(Sending::Leaving)));
        assert_eq!(Sending::of(&end), Some(Sending::Tcp));
    }
}
