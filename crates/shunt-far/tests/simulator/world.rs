//! Both hosts, and what must hold.

use std::time::Duration;

use shunt_far::link::Position;
use shunt_far::{Cause, Halt};
use shunt_shm::region::Side;
use shunt_verbs::fake::{Faults, Network};
use shunt_verbs::value::PeerPair;

use crate::end::{End, Taken, byte, settings};
use crate::plan::{Action, Plan};

/// Steps in which the devices come to rest.
const REST: usize = 100_000;

/// Who begins where a link has failed.
const FIRST: usize = 0;

/// How a history ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All arrived over the link, which had other queue pairs so many times.
    Whole { renewed: usize },
    /// The link failed, and so many bytes went over TCP, or from agent to agent.
    Failed { silent: bool, resent: u64, rest: u64 },
}

pub struct World {
    network: Network,
    ends: [End; 2],
    lanes: usize,
    stays: bool,
    silence: Duration,
    /// What each agent said to the other one when its link had failed.
    halts: [Option<Vec<Halt>>; 2],
    /// The link goes on with another queue pair when it has failed; `None`: it does not, or not any more.
    renewal: Option<Renewal>,
    renewed: usize,
}

/// What each side has said of its new queue pair, and whether it has gone on.
#[derive(Default)]
struct Renewal {
    said: [Option<(PeerPair, Vec<Position>)>; 2],
    went_on: [bool; 2],
}

impl World {
    pub fn new(plan: &Plan) -> Self {
        let network = Network::new(plan.seed, plan.faults);
        let (mut one, first) = End::new(network.host(), Side::Client, plan.sizes, plan.stays);
        let (mut two, second) = End::new(network.host(), Side::Server, plan.sizes, plan.stays);
        (one.far_scratch, two.far_scratch) = (Some(two.scratch()), Some(one.scratch()));
        one.link().connect(&second).unwrap();
        two.link().connect(&first).unwrap();
        for lane in 0..plan.sizes.lanes {
            let (here, there) = (one.open(lane), two.open(lane));
            one.attach(lane, there);
            two.attach(lane, here);
            if plan.stays {
                [&mut one, &mut two].iter_mut().for_each(|end| end.set_mark(lane));
            }
        }
        let silence = settings(plan.sizes).silence;
        let halts = [None, None];
        let (lanes, stays) = (plan.sizes.lanes, plan.stays);
        let renewal = plan.renews.then(Renewal::default);
        Self { network, ends: [one, two], lanes, stays, silence, halts, renewal, renewed: 0 }
    }

    /// Measurements that came to an end.
    pub fn measured(&self) -> usize {
        self.ends.iter().map(|end| end.measures[1]).sum()
    }

    pub fn sent(&self) -> u64 {
        (0..self.lanes).map(|lane| self.ends[0].sent(lane) + self.ends[1].sent(lane)).sum()
    }

    fn has_failed(&mut self, who: usize) -> bool {
        self.ends[who].link().cause().is_some()
    }

    /// Its program knows of no failure.
    fn is_in_ring(&mut self, who: usize) -> bool {
        self.renewal.is_some() || !self.has_failed(who)
    }

    /// An agent makes another queue pair for a link that has failed, or of whose failure it hears. The second one of both, which hears what
    /// the first one says, goes on at once, and waits for the first one to do so.
    fn renew(&mut self, who: usize) {
        let Some(renewal) = &mut self.renewal else { return };
        let is_due = renewal.said[who].is_none() && (who == FIRST || renewal.said[FIRST].is_some());
        if !is_due || self.ends.iter_mut().all(|end| end.link().cause().is_none()) {
            return;
        }
        self.ends[who].link().fail(Cause::Told);
        let said = self.ends[who].renew();
        if let Some(first) = renewal.said[FIRST].as_ref() {
            self.ends[who].go_on(first, true);
            renewal.went_on[who] = true;
        }
        renewal.said[who] = Some(said);
    }

    fn go_on_renewed(&mut self) {
        let second = self.renewal.as_ref().and_then(|renewal| renewal.said[1 - FIRST].as_ref());
        let Some(second) = second else { return };
        self.ends[FIRST].go_on(second, false);
        self.renewal = Some(Renewal::default());
        self.renewed += 1;
    }

    /// A link that fails before both sides have gone on fails for good.
    fn see_to_renewal(&mut self) {
        let went_on = self.renewal.as_ref().map_or([false; 2], |renewal| renewal.went_on);
        if (0..2).any(|who| went_on[who] && self.has_failed(who)) {
            self.renewal = None;
        }
    }

    /// The agents do all that there is to do for it.
    fn renew_all(&mut self) {
        for _ in 0..20 {
            self.see_to_renewal();
            if self.renewal.is_none() || !(self.has_failed(0) || self.has_failed(1)) {
                break;
            }
            (0..2).for_each(|who| self.renew(who));
            self.go_on_renewed();
            self.settle();
        }
        self.renewal = None;
        self.note_halts();
    }

    fn take(&mut self, who: usize, lane: usize, len: usize) {
        let sender = 1 - who;
        let passed = self.ends[who].passed(lane) as usize;
        let (taken, end, mark) = self.ends[who].take(lane, len);
        self.is_right(lane, sender, &taken);
        if let Some(end) = end {
            assert!(self.ends[sender].has_ended(lane), "an end that was not");
            assert_eq!(end, self.ends[sender].sent(lane), "an end before its bytes");
        }
        if let Some(at) = mark {
            assert_eq!(
                self.ends[sender].marks(lane).get(passed),
                Some(&at),
                "another switch point"
            );
        }
    }

    /// These bytes are those of the stream.
    fn is_right(&self, lane: usize, sender: usize, Taken { from, bytes }: &Taken) {
        let sent = self.ends[sender].sent(lane);
        assert!(from + bytes.len() as u64 <= sent, "more than was sent");
        let side = self.ends[sender].side;
        for (at, got) in (*from..).zip(bytes) {
            assert_eq!(*got, byte(lane, side, at), "byte {at} of lane {lane}, sent by {side:?}");
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            // A program whose link has failed goes on over TCP.
            Action::Send(who, ..)
            | Action::Mark(who, _)
            | Action::BeginToEnd(who, _)
            | Action::End(who, _)
            | Action::Take(who, ..)
                if !self.is_in_ring(who) => {}
            Action::Send(who, lane, len) => self.ends[who].send(lane, len),
            Action::Take(who, lane, len) => self.take(who, lane, len),
            Action::Mark(..) if self.stays => {}
            Action::Mark(who, lane) => self.ends[who].set_mark(lane),
            Action::BeginToEnd(who, lane) => self.ends[who].begin_to_end(lane),
            Action::End(who, lane) => self.ends[who].end(lane),
            Action::Work(who) => self.ends[who].work(&self.network),
            Action::Devices(steps) => self.network.settle(steps),
            Action::Wait(milliseconds) => self.wait(Duration::from_millis(milliseconds)),
            Action::Tell => self.tell(),
            Action::Measure(who, load) => self.ends[who].measure(load),
            Action::Lose(who) => self.lose(who),
            Action::Fail(who) => self.ends[who].link().fail(Cause::Told),
            Action::Renew(who) => self.renew(who),
            Action::GoOn => self.go_on_renewed(),
        }
        self.see_to_renewal();
        self.note_halts();
    }

    /// A queue pair that was lost before it was connected is one too many.
    fn lose(&mut self, who: usize) {
        self.ends[who].lose();
        self.renewal.take_if(|renewal| renewal.said[who].is_some());
    }

    /// An agent says at once where its connections stand.
    fn note_halts(&mut self) {
        if self.renewal.is_some() {
            return;
        }
        for (end, halts) in self.ends.iter_mut().zip(&mut self.halts) {
            if halts.is_none() && end.link().cause().is_some() {
                *halts = Some(end.link().halts());
            }
        }
    }

    fn wait(&mut self, time: Duration) {
        self.ends.iter_mut().for_each(|end| end.wait(time));
    }

    fn tell(&mut self) {
        if self.has_failed(0) || self.has_failed(1) {
            self.ends.iter_mut().for_each(|end| end.link().fail(Cause::Told));
            self.note_halts();
        }
    }

    /// Everybody goes on until nothing moves; programs take all that there is.
    fn settle(&mut self) {
        let (mut before, mut same) = (None, 0);
        // A message takes a round to get there, and its acknowledgement another one.
        while same < 4 {
            for who in 0..2 {
                self.ends[who].work(&self.network);
                for lane in 0..self.lanes {
                    if self.is_in_ring(who) {
                        self.take(who, lane, usize::MAX);
                    }
                }
            }
            self.network.settle(REST);
            let now = self.progress();
            same = if before.replace(now) == Some(now) { same + 1 } else { 0 };
        }
    }

    fn progress(&mut self) -> [u64; 5] {
        let mut progress = [0; 5];
        for who in 0..2 {
            let failed = u64::from(self.has_failed(who));
            let end = &self.ends[who];
            for lane in 0..self.lanes {
                progress[0] += end.taken(lane) + end.heard(lane);
                progress[1] += u64::from(end.passed(lane));
                progress[2] += u64::from(end.saw_end(lane));
            }
            progress[3] += end.free as u64;
            progress[4] += failed;
        }
        progress
    }

    fn is_whole(&self) -> bool {
        (0..2).all(|who| {
            let (sender, receiver) = (&self.ends[who], &self.ends[1 - who]);
            (0..self.lanes).all(|lane| {
                sender.sent(lane) == receiver.taken(lane)
                    && sender.marks(lane).len() == receiver.passed(lane) as usize
                    && sender.has_ended(lane) == receiver.saw_end(lane)
            })
        })
    }

    pub fn run(&mut self, plan: &Plan) -> Outcome {
        plan.actions.iter().for_each(|action| self.act(*action));
        let may_renew = self.renewal.is_some();
        self.settle();
        self.renew_all();
        if may_renew && plan.is_curable() {
            assert!(self.is_whole(), "it does not go on");
        }
        // Tests are for completions that stay away, and nothing else waits for them.
        assert!(!plan.is_harmless() || self.is_whole(), "it goes on only after a while");
        if plan.is_harmless() {
            let measures = self.ends.each_ref().map(|end| end.measures);
            assert!(measures.iter().all(|[begun, over]| begun == over), "{measures:?}");
        }
        // As long as it takes to notice silence, in steps that give an answer time to come.
        for _ in 0..4 {
            if self.has_failed(0) || self.has_failed(1) {
                break;
            }
            if self.is_whole() && (0..2).all(|who| self.ends[who].link().deadline().is_none()) {
                break;
            }
            self.wait(self.silence / 2);
            self.settle();
        }
        if self.has_failed(0) || self.has_failed(1) {
            assert!(
                !plan.is_harmless(),
                "{:?}",
                self.ends.each_mut().map(|end| end.link().cause())
            );
            return if plan.stays { self.go_on(plan) } else { self.go_on_over_tcp() };
        }
        assert!(self.is_whole(), "it neither failed nor arrived");
        self.leave(plan);
        Outcome::Whole { renewed: self.renewed }
    }

    /// Both programs send once more and leave, and the places become free.
    fn leave(&mut self, plan: &Plan) {
        for who in 0..2 {
            for lane in 0..self.lanes {
                self.ends[who].send(lane, 60);
                self.ends[who].leave(lane);
            }
        }
        self.network.set_faults(Faults::NONE);
        // The agents run while the last bytes are on their way, and some links fail.
        let fails_at = plan.seed as usize % 60;
        for turn in 0..40 {
            self.ends[turn % 2].work(&self.network);
            if turn == fails_at && plan.renews {
                self.ends[turn % 2].link().fail(Cause::Told);
                self.renewal = Some(Renewal::default());
                self.renew_all();
            }
        }
        self.settle();
        self.wait(self.silence / 2);
        self.settle();
        if plan.is_harmless() || plan.is_curable() {
            assert_eq!(
                self.ends.each_ref().map(|end| end.free),
                [self.lanes; 2],
                "places stay taken"
            );
            let registered = self.ends.each_mut().map(|end| end.link().registered());
            assert_eq!(registered, [0; 2]);
            // A side that has left is told no more of what came just before its link failed: its program does not read any more.
            let has_failed = plan.renews && fails_at < 40;
            assert!(has_failed || self.is_whole(), "the last bytes are missing");
            self.wait(self.silence);
            assert_eq!(self.ends.each_mut().map(|end| end.link().cause()), [None; 2]);
        }
    }

    /// What the agents would have the programs do. All that is on its way gets into memory first, at the worst.
    fn go_on_over_tcp(&mut self) -> Outcome {
        let silent = self.ends.iter_mut().any(|end| end.link().cause() == Some(Cause::Silence));
        self.tell();
        self.network.settle(REST);
        self.ends.iter_mut().for_each(|end| end.work(&self.network));
        let mut resent = 0;
        for receiver in 0..2 {
            let sender = 1 - receiver;
            let halts = self.halts[receiver].take().unwrap();
            assert_eq!(halts.len(), self.lanes);
            for halt in halts {
                let lane = halt.slot;
                let from = self.ends[sender].link().resume(&halt).unwrap();
                // The receiver takes what lies in its ring.
                let (taken, _, _) = self.ends[receiver].take(lane, usize::MAX);
                self.is_right(lane, sender, &taken);
                assert_eq!(self.ends[receiver].taken(lane), from, "a hole, or bytes twice");
                // And the sender sends the rest over TCP.
                let bytes = self.ends[sender].unread(lane, from);
                resent += bytes.len() as u64;
                self.is_right(lane, sender, &Taken { from, bytes });
            }
        }
        Outcome::Failed { silent, resent, rest: 0 }
    }

    /// What the agents do, and what programs find then. Some programs end only when the agents have said where connections stood.
    fn go_on(&mut self, plan: &Plan) -> Outcome {
        let silent = self.ends.iter_mut().any(|end| end.link().cause() == Some(Cause::Silence));
        self.tell();
        self.network.settle(REST);
        self.ends.iter_mut().for_each(|end| end.work(&self.network));
        for at in (0..2 * self.lanes).filter(|at| plan.seed >> at & 3 == 3) {
            self.ends[at % 2].end(at / 2);
        }
        let halts = self.halts.each_mut().map(|halts| halts.take().unwrap());
        let (mut resent, mut rest) = (0, 0);
        let rests = [0, 1].map(|who: usize| {
            let mut settlement = self.ends[who].link().settle(&halts[1 - who]);
            // Those that have looked before see nothing of it.
            for lane in 0..self.lanes {
                if self.ends[who].is_ending(lane) {
                    self.ends[who].end(lane);
                }
            }
            let endings = core::mem::take(&mut settlement.endings);
            let late = self.ends[who].link().settle_endings(&endings, false);
            assert_eq!((settlement.ended, late.ended, late.endings), (vec![], vec![], vec![]));
            settlement.rests.extend(late.rests);
            settlement.rests
        });
        for (receiver, rests) in [1, 0].into_iter().zip(rests) {
            for (lane, generation, pieces) in rests {
                for piece in pieces {
                    rest += piece.bytes.len() as u64;
                    assert_eq!(self.ends[receiver].link().rest(lane, generation, &piece), Ok(()));
                    self.take_all(lane, receiver);
                }
            }
        }
        for receiver in 0..2 {
            let sender = 1 - receiver;
            assert_eq!(self.ends[receiver].link().part(true), []);
            for lane in 0..self.lanes {
                self.take_all(lane, receiver);
                let (from, sent) = (self.ends[receiver].taken(lane), self.ends[sender].sent(lane));
                if self.ends[sender].has_ended(lane) {
                    assert_eq!(from, sent, "bytes before an end are lost");
                    continue;
                }
                assert_eq!(self.ends[sender].goes_on_at(lane), from, "a hole, or bytes twice");
                let bytes = self.ends[sender].unread(lane, from);
                resent += bytes.len() as u64;
                self.is_right(lane, sender, &Taken { from, bytes });
            }
        }
        Outcome::Failed { silent, resent, rest }
    }

    /// A program takes what there is.
    fn take_all(&mut self, lane: usize, receiver: usize) {
        let sender = 1 - receiver;
        loop {
            let (taken, end, passed) = self.ends[receiver].take(lane, usize::MAX);
            self.is_right(lane, sender, &taken);
            if end.is_some() {
                assert!(self.ends[sender].has_ended(lane), "an end that was not");
            }
            if taken.bytes.is_empty() && passed.is_none() {
                break;
            }
        }
    }
}
