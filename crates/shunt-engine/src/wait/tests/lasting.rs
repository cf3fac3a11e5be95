//! How long waits are said to have lasted.

use super::*;
use crate::wait::ports::is_counted;

fn now(process: &Process) -> Nanos {
    process.now.get()
}

/// A spin that has found something after so long, at least, and is counted.
fn found(from: Nanos, after: Nanos) -> (Spun, Nanos) {
    let all = (from + after..).map(|to| Spell { from, to });
    let spell = all.into_iter().find(|spell| is_counted(*spell)).unwrap();
    (Spun::Found(spell), spell.to - from)
}

/// A wait that spins in vain for 40 µs, and then sleeps for so long.
fn wait_of(call: &mut Call<'_>, process: &Process, sleeps: Nanos) {
    let from = now(process);
    process.now.set(from + 40_000);
    call.spins = Spun::Vain(Spell { from, to: from + 40_000 });
    call.limits = Limits { now: from + 40_000, ..Limits::default() };
    call.takes = sleeps;
    assert_eq!(wait(call, process), Woken::Look);
}

#[test]
fn a_wait_is_its_spin_and_its_sleep() {
    let process = Process { now: MS.into(), ..Process::default() };
    let mut call = Call { rang: Some(5_000), ..Call::new(&process) };
    wait_of(&mut call, &process, 60_000);
    assert_eq!(call.lasted, [(Part::Slept, 100_000), (Part::WakeUp, 5_000)]);
    // The next one, of a call that waits for more.
    call.rang = None;
    wait_of(&mut call, &process, 10_000);
    assert_eq!(call.lasted[2..], [(Part::Slept, 50_000)]);
}

#[test]
fn naps_in_which_nothing_came_are_a_part_of_the_wait() {
    let process = Process { now: MS.into(), ..Process::default() };
    let mut call = Call { slept: Slept::Over, ..Call::new(&process) };
    wait_of(&mut call, &process, 20 * MS);
    assert_eq!(call.lasted, [], "nothing has come");
    call.slept = Slept::Woken;
    wait_of(&mut call, &process, 2 * MS);
    assert_eq!(call.lasted, [(Part::Slept, 22 * MS + 80_000)]);
    // A spin ends it as well.
    call.slept = Slept::Over;
    wait_of(&mut call, &process, MS);
    let (spins, took) = found(now(&process), 3_000);
    call.spins = spins;
    assert_eq!(wait(&mut call, &process), Woken::Look);
    assert_eq!(call.lasted[1..], [(Part::Spun, MS + 40_000 + took)]);
}

#[test]
fn a_spin_that_finds_something_is_a_wait() {
    let process = Process { now: MS.into(), ..Process::default() };
    process.tick.set(100);
    let mut looks = 0;
    let spins = spin(&process, Way::Futex, &AtomicU32::new(0), None, || {
        looks += 1;
        looks == 40
    });
    // The clock is looked at each 16 looks.
    let Spun::Found(Spell { from, to }) = spins else { panic!("{spins:?}") };
    assert_eq!(to - from, 300);
    let (spins, took) = found(from, 300);
    let mut call = Call { spins, ..Call::new(&process) };
    assert_eq!(wait(&mut call, &process), Woken::Look);
    assert_eq!(call.lasted, [(Part::Spun, took)]);
}

#[test]
fn one_in_sixteen_of_them_is_counted_however_coarse_the_clock_is() {
    for step in [1, 16, 100, 1_000, 1 << 20] {
        let ends = (1..=16_000).map(|n| n * step);
        let counted = ends.filter(|to| is_counted(Spell { from: 0, to: *to })).count();
        assert!((900..1_100).contains(&counted), "{step}: {counted}");
    }
}

#[test]
fn what_comes_before_it_sleeps_and_what_ends_it_otherwise_is_not_counted() {
    let process = Process { now: MS.into(), ..Process::default() };
    let mut call = Call { ready_after: 1, ..Call::new(&process) };
    wait_of(&mut call, &process, MS);
    (call.ready_after, call.rang) = (u32::MAX, None);
    for slept in [Slept::Interrupted, Slept::Failed, Slept::NotAtAll] {
        call.slept = slept;
        let _ = wait(&mut call, &process);
    }
    assert_eq!(call.lasted, []);
    call.way = Err(Woken::TimedOut);
    assert_eq!(wait(&mut call, &process), Woken::TimedOut);
    assert_eq!(call.lasted, []);
}

#[test]
fn a_wait_that_gave_way_is_told_with_the_spin_before() {
    let process = Process { now: MS.into(), ..Process::default() };
    process.away.set(10_000);
    process.yields.store(6 << 16, Ordering::Relaxed);
    let mut times = Blocking::default();
    times.stopwatch().goes_on(MS - 30_000);
    let mut told = Vec::new();
    let ears = Ears { ring: true, ..Ears::default() };
    let lasted = |part, nanos| told.push((part, nanos));
    let woken = times.turn_in(Until::Ring, &process, ears, || None, || true, lasted);
    assert_eq!(woken, Err(Woken::Look));
    assert_eq!(told, [(Part::GaveWay, 40_000)]);
}
