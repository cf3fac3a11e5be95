//! The waits of a blocking call: spins, naps, the timeout, and when it gives way.

use super::*;

#[test]
fn blocking_calls_spin_for_the_ring_and_for_the_first_byte() {
    use Direction::{Receiving, Sending};
    for direction in [Receiving, Sending] {
        for is_first in [false, true] {
            assert!(spins(direction, Until::Ring, is_first));
            assert!(!spins(direction, Until::Kernel, is_first));
            assert!(!spins(direction, Until::More(0), is_first));
            let for_the_first_byte = is_first && direction == Receiving;
            assert_eq!(spins(direction, Until::Both, is_first), for_the_first_byte);
        }
    }
}

/// How a blocking call turns in at this time.
fn turns_in(
    times: &mut Blocking,
    process: &Process,
    until: Until,
    timeout: Option<Nanos>,
) -> Result<Way, Woken> {
    times.turn_in(
        until,
        process,
        Ears { ring: true, ..Ears::default() },
        || timeout,
        || false,
        |_, _| {},
    )
}

fn never_yields() -> Process {
    let process = Process { mode: Cell::new(Mode::Never), ..Process::default() };
    process.now.set(1000 * MS);
    process
}

#[test]
fn a_blocking_call_sleeps_on_the_futex_unless_the_kernel_has_something_to_tell() {
    let process = never_yields();
    let mut times = Blocking::default();
    let mut turns = || turns_in(&mut times, &process, Until::Ring, None);
    assert_eq!(turns(), Ok(Way::Futex));
    process.now.set(1000 * MS + SELDOM * 100);
    assert_eq!(turns(), Ok(Way::Futex));
    for until in [Until::Both, Until::Kernel, Until::More(0)] {
        let way = turns_in(&mut Blocking::default(), &process, until, None);
        assert_eq!(way, Ok(Way::Kernel), "what the kernel may tell is heard there: {until:?}");
    }
    let far = Ears { ring: true, is_far: true, ..Ears::default() };
    for ears in [Ears::default(), far] {
        let way =
            Blocking::default().turn_in(Until::Ring, &process, ears, || None, || false, |_, _| {});
        assert_eq!(way, Ok(Way::Kernel), "without a ring, or from afar: {ears:?}");
    }
    let told = Ears { ring: true, kernel: true, ..Ears::default() };
    process.now.set(1000 * MS);
    let mut times = Blocking::default();
    let mut turns = || times.turn_in(Until::Ring, &process, told, || None, || false, |_, _| {});
    assert_eq!(turns(), Ok(Way::Futex));
    process.now.set(1000 * MS + SOON);
    assert_eq!(turns(), Ok(Way::Kernel), "it has told of something before");
}

#[test]
fn a_blocking_call_sleeps_no_longer_than_its_timeout_and_a_nap() {
    let process = never_yields();
    let mut times = Blocking::default();
    assert_eq!(turns_in(&mut times, &process, Until::Ring, Some(5 * MS)), Ok(Way::Futex));
    let until = |limits: Limits| limits.deadline.map(|deadline| deadline - limits.now);
    assert_eq!(until(times.limits(Way::Futex, None)), Some(5 * MS));
    assert!(times.always_ends(false), "a call with a timeout is not begun anew");
    process.now.set(1005 * MS);
    let again = turns_in(&mut times, &process, Until::Ring, Some(MS));
    assert_eq!(again, Err(Woken::TimedOut), "the timeout is asked for once");
    assert_eq!(times.waited(), 5 * MS);

    let mut times = Blocking::default();
    assert_eq!(turns_in(&mut times, &process, Until::Ring, None), Ok(Way::Futex));
    assert_eq!(until(times.limits(Way::Futex, None)), Some(SOON));
    let limits = times.limits(Way::Kernel, Some(3));
    assert_eq!((limits.deadline, limits.look), (None, Some(3)));
    assert!(!times.always_ends(false) && times.always_ends(true));
}

#[test]
fn a_blocking_call_whose_agent_is_gone_looks_each_second() {
    let process = never_yields();
    let napped = |agent| {
        let (mut times, mut last) = (Blocking::default(), None);
        let ears = Ears { ring: true, agent, ..Ears::default() };
        for _ in 0..9 {
            let way = times.turn_in(Until::Ring, &process, ears, || None, || false, |_, _| {});
            assert_eq!(way, Ok(Way::Futex));
            let limits = times.limits(Way::Futex, None);
            last = limits.deadline.map(|deadline| deadline - limits.now);
            process.now.set(limits.deadline.unwrap_or_default());
            times.looks(&process);
        }
        last
    };
    assert_eq!((napped(true), napped(false)), (Some(SELDOM), Some(UNATTENDED)));
}

#[test]
fn a_blocking_call_that_handlers_keep_from_its_nap_looks_when_that_should_be_over() {
    let (process, mut times) = (never_yields(), Blocking::default());
    let mut longest = |now| {
        process.now.set(now);
        assert_eq!(turns_in(&mut times, &process, Until::Ring, None), Ok(Way::Futex));
        let limits = times.limits(Way::Futex, None);
        limits.deadline.map(|deadline| deadline.saturating_sub(limits.now))
    };
    let each = 3 * SOON / 4;
    assert_eq!(longest(1000 * MS), Some(SOON));
    assert_eq!(longest(1000 * MS + each), Some(SOON - each));
    assert_eq!(longest(1000 * MS + 2 * each), Some(0), "and so asks the kernel");
}

#[test]
fn a_blocking_call_gives_way_once_and_not_with_a_timeout() {
    let process = Process::default();
    process.now.set(1000 * MS);
    process.away.set(10_000);
    let gives_way = |times: &mut Blocking, until, timeout| {
        // It has learnt nothing against it.
        process.yields.store(6 << 16, Ordering::Relaxed);
        let woken = times.turn_in(
            until,
            &process,
            Ears { ring: true, ..Ears::default() },
            || timeout,
            || true,
            |_, _| {},
        );
        (woken == Err(Woken::Look), process.steps().contains(&Step::GiveWay))
    };
    let mut times = Blocking::default();
    assert_eq!(gives_way(&mut times, Until::Ring, None), (true, true));
    assert_eq!(gives_way(&mut times, Until::Ring, None), (false, false), "once");
    let mut times = Blocking::default();
    assert_eq!(gives_way(&mut times, Until::Ring, Some(MS)), (false, false), "with a timeout");
    let mut times = Blocking::default();
    assert_eq!(gives_way(&mut times, Until::Both, None), (false, false));
    process.has_one_processor.set(true);
    let mut times = Blocking::default();
    assert_eq!(gives_way(&mut times, Until::Ring, None), (false, false), "with one processor");
}

#[test]
fn long_spins_heed_the_timeout_and_one_for_the_first_byte_is_short() {
    let process = never_yields();
    let spins_until = |mode, until| {
        process.mode.set(mode);
        Blocking::default().spins_until(until, &process, || Some(30 * MS))
    };
    assert_eq!(spins_until(Mode::Auto, Until::Ring), None, "the timeout is not asked for");
    assert_eq!(spins_until(Mode::Fixed(50 * MS), Until::Ring), Some(1030 * MS));
    assert_eq!(spins_until(Mode::Auto, Until::Both), Some(1000 * MS + 50_000));
}
