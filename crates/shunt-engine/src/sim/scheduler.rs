//! The scheduler: which program goes on, how far, and what must hold whenever one has stopped.

use super::forks::{self, PROGRAMS};
use super::machine::Machine;
use super::pace::{Program, Stopped};
use super::{Ending, World};
use crate::conn::state::State;
use std::rc::Rc;

impl Machine {
    /// Which program comes first, and after how many points it stops: few as a rule.
    fn turn(&self) -> (usize, u32) {
        let Some(choice) = self.choices.borrow_mut().pop_front() else { return (0, u32::MAX) };
        if self.has_forks() {
            return forks::turn(choice);
        }
        let gap = match u32::from(choice & 0x7f) {
            few @ 0..64 => few,
            more @ 64..112 => 64 + (more - 64) * 8,
            _ => u32::MAX,
        };
        (usize::from(choice >> 7), gap)
    }

    /// A program stands still until nobody else can go on.
    pub fn stands_still(&self, program: usize) {
        self.minds[program].stands.set(true);
    }

    fn can_go_on(&self, program: usize) -> bool {
        let me = &self.minds[program];
        if !me.is_born.get() || me.stands.get() {
            return false;
        }
        let Some(asleep) = me.asleep.get() else { return !me.is_dead.get() };
        let is_woken = || match me.asleep_on.get() {
            Some(conn) => self.world(conn).is_woken(program, &asleep),
            None => !self.backlog.borrow().is_empty(),
        };
        !me.is_dead.get() && is_woken()
    }

    /// Something else whenever a program has got anywhere.
    fn progress(&self) -> (u64, usize, Vec<[Ending; 2]>) {
        let left = self.minds.iter().map(|me| me.ops.borrow().len()).sum();
        let worlds = self.conns.borrow();
        let (moved, endings): (Vec<u64>, _) = worlds.iter().map(|world| world.progress()).unzip();
        (moved.iter().sum(), left, endings)
    }

    /// The connection on which a program sleeps.
    fn sleeps_on(&self, program: usize) -> Option<Rc<World>> {
        let me = &self.minds[program];
        me.asleep.get()?;
        Some(self.world(me.asleep_on.get()?))
    }

    /// Runs both programs until neither can go on.
    pub fn runs(&self, programs: &mut [Program; PROGRAMS]) {
        let (mut idle, mut before) = (0, self.progress());
        let mut is_done = [false; PROGRAMS];
        let mut states = Vec::new();
        self.have_moved(&mut states, 0);
        while idle < World::PATIENCE {
            let (first, gap) = self.turn();
            let can = |who: &usize| !is_done[*who] && self.can_go_on(*who);
            if let Some(who) = forks::order(first).find(can) {
                match programs[who].goes_on(gap) {
                    Stopped::Between => {}
                    Stopped::Done => is_done[who] = true,
                    Stopped::Dies => self.dies(who),
                }
                self.have_moved(&mut states, gap);
                continue;
            }
            if self.minds.iter().any(|me| me.stands.replace(false)) {
                continue;
            }
            for who in 0..PROGRAMS {
                if let Some(world) = self.sleeps_on(who) {
                    world.rests(who);
                }
            }
            let is_doomed =
                |who: &usize| programs[*who].is_doomed() && !self.minds[*who].is_dead.get();
            if let Some(who) = (0..PROGRAMS).find(is_doomed) {
                self.dies(who);
                continue;
            }
            let now = self.progress();
            idle = if now == before { idle + 1 } else { 0 };
            before = now;
            self.passes_time();
        }
        for who in 0..PROGRAMS {
            if let Some(world) = self.sleeps_on(who) {
                world.rests_for_good(who);
            }
        }
        self.worlds().iter().for_each(|world| world.have_agreed());
    }

    /// No end has gone other ways than there are, or further than a program comes that passes so many points.
    fn have_moved(&self, states: &mut Vec<[Option<State>; 2]>, gap: u32) {
        let gap = if self.leaps.take() { u32::MAX } else { gap };
        for world in self.conns.borrow().iter() {
            let before = states.get(world.conn).copied().unwrap_or_default();
            let now = world.have_moved(before, gap);
            world.agree();
            match states.get_mut(world.conn) {
                Some(state) => *state = now,
                None => states.push(now),
            }
        }
    }
}
