//! Spins: how long they are, and to whom they leave the processor.

use super::*;
use crate::spin::KEPT;

#[test]
fn a_spin_ends_when_it_has_found_something_or_its_budget_is_over() {
    let process = Process::default();
    process.tick.set(1_000);
    let learnt = AtomicU32::new(0);
    let mut looks = 0;
    let found_at = |at| {
        looks = 0;
        let spun = spin(&process, Way::Futex, &learnt, None, || {
            looks += 1;
            looks == at
        });
        (spun, looks)
    };
    let mut found_at = found_at;
    assert!(matches!(found_at(3), (Spun::Found(_), 3)));
    let (spun, looks) = found_at(u32::MAX);
    assert!(matches!(spun, Spun::Vain(_)) && looks > 100, "{looks}");
    let spun = spin(&process, Way::Futex, &learnt, Some(0), || false);
    assert!(matches!(spun, Spun::Vain(_)));
    process.mode.set(Mode::Never);
    assert_eq!(spin(&process, Way::Futex, &learnt, None, || panic!("it does not look")), Spun::Not);
}

#[test]
fn a_spinner_that_loses_the_processor_again_and_again_does_not_spin_next_time() {
    let process = Process::default();
    process.tick.set(MS);
    let learnt = AtomicU32::new(0);
    for _ in 0..2 {
        assert!(matches!(spin(&process, Way::Futex, &learnt, None, || true), Spun::Found(_)));
    }
    assert_eq!(spin(&process, Way::Futex, &learnt, None, || true), Spun::Not);
}

#[test]
fn one_spins_for_longer_than_a_moment_where_one_may() {
    let process = Process::default();
    process.tick.set(1_000);
    let spins = |learnt: &AtomicU32| {
        let mut looks = 0;
        spin(&process, Way::Futex, learnt, None, || {
            looks += 1;
            false
        });
        looks
    };
    let alone = spins(&AtomicU32::new(0));
    process.spinners[0].store(process.now.get(), Ordering::Relaxed);
    let beside_another = spins(&AtomicU32::new(0));
    assert!(beside_another < alone / 2, "{alone}, {beside_another}");
}

#[test]
fn a_sleeper_learns_what_a_wake_up_takes_each_way_by_itself() {
    let process = Process { now: Cell::new(MS), ..Process::default() };
    let mut call = Call::new(&process);
    (call.way, call.rang) = (Ok(Way::Futex), Some(20_000));
    assert_eq!(wait(&mut call, &process), Woken::Look);
    let known = |way| process.wake_up(way).load(Ordering::Relaxed);
    assert_eq!((known(Way::Futex), known(Way::Kernel)), (20_000, 0));
    // A sleep that ends for another reason teaches nothing.
    (call.slept, call.rang) = (Slept::Over, Some(90_000));
    wait(&mut call, &process);
    assert_eq!(known(Way::Futex), 20_000);
    (call.way, call.slept) = (Ok(Way::Kernel), Slept::Woken);
    wait(&mut call, &process);
    assert_eq!((known(Way::Futex), known(Way::Kernel)), (20_000, 90_000));
}

/// What a thread that always finds something at once does in a second, where offers of its processor take so long.
fn restless(away: Nanos) -> (usize, usize) {
    let process = Process { now: Cell::new(1000 * MS), ..Process::default() };
    process.away.set(away);
    process.tick.set(1_000);
    let learnt = AtomicU32::new(0);
    let (mut slept, mut offered) = (0, 0);
    while process.now.get() < 2000 * MS {
        slept += usize::from(spin(&process, Way::Futex, &learnt, None, || true) == Spun::Not);
        offered += process.steps().len();
    }
    (slept, offered)
}

#[test]
fn a_thread_that_never_needs_to_sleep_lets_others_have_its_processor() {
    let (slept, offered) = restless(500);
    assert!(slept == 0 && (1_000..1_700).contains(&offered), "nobody wants it: {offered}");
    let (slept, offered) = restless(3 * MS);
    assert!(slept > 5_000 && (4..8).contains(&offered), "somebody keeps it: {slept}, {offered}");
    let (slept, offered) = restless(30_000);
    assert!(slept > 4_000 && (300..500).contains(&offered), "wanted: {slept}, {offered}");
}

#[test]
fn a_long_spin_offers_the_processor_and_ends_where_somebody_takes_it() {
    let process = Process { now: Cell::new(1000 * MS), ..Process::default() };
    process.tick.set(1_000);
    let spins = |process: &Process, away: Nanos| {
        let before = process.now.get();
        process.away.set(away);
        process.rests(before);
        let spun = spin(process, Way::Futex, &AtomicU32::new(0), None, || false);
        assert!(matches!(spun, Spun::Vain(_)), "{spun:?}");
        (process.steps().len(), process.now.get() - before)
    };
    let (offered, took) = spins(&process, 500);
    assert!((2..4).contains(&offered) && took > 30_000, "nobody wants it: {offered}, {took}");
    let (offered, took) = spins(&process, 40_000);
    assert!(offered == 1 && took < 60_000, "{offered}, {took}");
    let (offered, took) = spins(&process, 500);
    assert!(offered == 0 && took < 20_000, "it is wanted: {offered}, {took}");
    process.now.set(process.now.get() + 2 * MS);
    assert!(spins(&process, 500).0 > 1, "no longer");
    // One that took long is not made again soon.
    assert_eq!(spins(&process, KEPT + 1).0, 1);
    process.now.set(process.now.get() + 20 * MS);
    assert_eq!(spins(&process, 500).0, 0);
    let process = Process { mode: Cell::new(Mode::Fixed(50_000)), ..Process::default() };
    process.tick.set(1_000);
    assert_eq!(spins(&process, 500).0, 0, "the user has chosen");
}

/// A thread beside which others sleep at its epoll instance.
const SHARED: Spared = Spared { way: Way::Kernel, is_shared: true };

#[test]
fn one_beside_sleepers_outlasts_their_wake_up_and_offers_nothing_meanwhile() {
    let spins = |process: &Process, spared: Spared, budget: u32| {
        process.tick.set(1_000);
        let before = process.now.get();
        process.rests(before);
        let spun = spin(process, spared, &AtomicU32::new(budget), None, || false);
        assert!(matches!(spun, Spun::Vain(_)), "{spun:?}");
        (process.steps().len(), process.now.get() - before)
    };
    let process = || Process { now: Cell::new(1000 * MS), ..Process::default() };
    let (offered, took) = spins(&process(), SHARED, 6_000);
    assert!(offered == 0 && (20_000..25_000).contains(&took), "{offered}, {took}");
    let (_, took) = spins(&process(), Way::Kernel.into(), 6_000);
    assert!(took < 12_000, "alone: {took}");
    let (offered, took) = spins(&process(), SHARED, 0);
    assert!(offered == 0 && took > 30_000, "a longer one is not cut: {offered}, {took}");
    // With one processor, or where the user has chosen, it spins as any other.
    let alone = Process { has_one_processor: Cell::new(true), ..process() };
    assert!(spins(&alone, SHARED, 6_000).1 < 12_000);
    assert!(spins(&alone, SHARED, 0).0 > 0, "it offers its processor");
    let wanted = process();
    wanted.offers.store(1001 * MS, Ordering::Relaxed);
    assert!(spins(&wanted, SHARED, 6_000).1 < 12_000, "others want processors");
    let far = process();
    far.far_answer().store(200_000, Ordering::Relaxed);
    assert!(spins(&far, SHARED, 0).0 > 0, "it is a long one");
    let fixed = Process { mode: Cell::new(Mode::Fixed(5_000)), ..process() };
    assert!(spins(&fixed, SHARED, 0).1 < 12_000);
}

#[test]
fn one_beside_sleepers_offers_its_processor_between_its_spins_more_often() {
    let offers = |spared: Spared| {
        let process = Process { now: Cell::new(1000 * MS), ..Process::default() };
        process.away.set(500);
        process.tick.set(1_000);
        let (learnt, mut offered) = (AtomicU32::new(0), 0);
        while process.now.get() < 1100 * MS {
            spin(&process, spared, &learnt, None, || true);
            offered += process.steps().len();
        }
        offered
    };
    let (alone, shared) = (offers(Way::Kernel.into()), offers(SHARED));
    assert!(shared > 3 * alone && alone > 100, "{shared}, {alone}");
}

#[test]
fn who_sleeps_now_and_then_need_not_rest() {
    let process = Process { now: Cell::new(1000 * MS), ..Process::default() };
    let learnt = AtomicU32::new(0);
    for _ in 0..100 {
        process.now.set(process.now.get() + MS / 2);
        wait(&mut Call::new(&process), &process);
        process.steps();
        spin(&process, Way::Futex, &learnt, None, || true);
        assert_eq!(process.steps(), []);
    }
}

#[test]
fn patience_is_a_habit_that_has_to_pay() {
    let process = Process::default();
    process.tick.set(1_000);
    let habit = AtomicU32::new(0);
    let spun: Vec<_> = (0..20).map(|_| spin_patiently(&process, &habit, 5_000, || false)).collect();
    assert!(matches!(spun[0], Spun::Vain(_)));
    assert_eq!(spun[19], Spun::Not, "it has not paid");
    let spun = spin_patiently(&process, &AtomicU32::new(0), 5_000, || true);
    assert!(matches!(spun, Spun::Found(_)));
    process.mode.set(Mode::Never);
    assert_eq!(spin_patiently(&process, &AtomicU32::new(0), 5_000, || true), Spun::Not);
}

#[test]
fn giving_way_ends_soon_when_nobody_wants_the_processor_or_somebody_keeps_it() {
    let go = 6 << 16;
    let yields = |away: Nanos, found: bool| {
        let process = Process { yields: AtomicU32::new(go), ..Process::default() };
        process.away.set(away);
        let is_found = give_way(&process, || found).is_some();
        (is_found, process.steps().len(), process.yields.load(Ordering::Relaxed) & 0xffff)
    };
    assert_eq!(yields(1_000, true), (true, 1, 0));
    let (found, times, pause) = yields(1_000, false);
    assert!(!found && (30..=31).contains(&times) && pause > 0, "alone: {times}");
    let (found, times, pause) = yields(KEPT + 1, false);
    assert!(!found && times == 1 && pause > 100, "kept: {pause}");
    let (found, times, _) = yields(50_000, false);
    assert!(!found && (4..=5).contains(&times), "in vain: {times}");
    let process = Process { mode: Cell::new(Mode::Fixed(1)), ..Process::default() };
    process.yields.store(go, Ordering::Relaxed);
    assert_eq!(give_way(&process, || true), None, "the user has chosen");
}
