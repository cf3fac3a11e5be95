//! The order of a wait: spin, arm, look, sleep; and what ends it.

use super::*;

#[test]
fn who_waits_arms_looks_and_sleeps_in_that_order() {
    use Step::{Alarm, Arm, AskWay, Awake, Disarm, Look, Sleep, Spin};
    let process = Process::default();
    let mut call = Call::new(&process);
    assert_eq!(wait(&mut call, &process), Woken::Look);
    let armed = [Spin, Arm(Way::Kernel), Look, AskWay];
    let expected = [&armed[..], &[Alarm, Sleep(Way::Kernel, None), Awake, Disarm]].concat();
    assert_eq!(process.steps(), expected);
    (call.way, call.ready_after) = (Ok(Way::Futex), 2);
    assert_eq!(wait(&mut call, &process), Woken::Look);
    let armed = [Spin, Arm(Way::Futex), Look, AskWay];
    let expected = [&armed[..], &[Sleep(Way::Futex, None), Disarm, Look]].concat();
    assert_eq!(process.steps(), expected, "a short nap needs no alarm");
    (call.limits.is_long, call.ready_after) = (true, 2);
    assert_eq!(wait(&mut call, &process), Woken::Look);
    let sleep = Sleep(Way::Futex, None);
    let expected = [&armed[..], &[Alarm, sleep, Awake, Disarm, Look]].concat();
    assert_eq!(process.steps(), expected, "a long one does");
    assert_eq!(process.counted.each_ref().map(Cell::get), [2, 1]);
}

#[test]
fn after_a_nap_in_which_nothing_came_the_kernel_is_asked() {
    for (slept, visits) in [
        (Slept::Woken, true),
        (Slept::Over, true),
        (Slept::Interrupted, false),
        (Slept::NotAtAll, false),
    ] {
        for (way, ready_after) in [(Way::Futex, 0), (Way::Futex, 2), (Way::Kernel, 0)] {
            let process = Process::default();
            let ready_after = if ready_after == 0 { u32::MAX } else { ready_after };
            let mut call = Call { slept, way: Ok(way), ready_after, ..Call::new(&process) };
            wait(&mut call, &process);
            let expected = visits && way == Way::Futex && ready_after == u32::MAX;
            assert_eq!(
                process.steps().contains(&Step::Visit(slept)),
                expected,
                "{slept:?} {way:?}"
            );
            // Also where it has found something, and sleeps on after that.
            let was_woken = slept == Slept::Woken;
            assert_eq!(process.woken.get(), u32::from(was_woken), "{slept:?} {way:?}");
        }
    }
}

#[test]
fn what_came_before_it_armed_ends_the_wait_without_a_sleep() {
    let process = Process::default();
    let mut call = Call { ready_after: 1, ..Call::new(&process) };
    assert_eq!(wait(&mut call, &process), Woken::Look);
    let steps = process.steps();
    assert_eq!(steps, [Step::Spin, Step::Arm(Way::Kernel), Step::Look, Step::Disarm]);
    assert_eq!(process.counted[1].get(), 0);
}

#[test]
fn one_whose_way_to_be_told_is_old_by_the_time_it_has_armed_does_not_sleep() {
    let process = Process::default();
    let mut set = Several { way: Ok(Way::Futex), is_heard: false, ..Several::new(&process) };
    assert_eq!(wait(&mut set, &process), Woken::Look);
    let steps = process.steps();
    let looked = [Step::Spin, Step::Arm(Way::Futex), Step::Look, Step::AskWay, Step::Disarm];
    assert_eq!(steps, looked, "behind the look, which may pass a mark");
}

#[test]
fn a_spin_that_finds_something_and_a_wait_that_is_over_arm_nothing() {
    let process = Process::default();
    let mut call = Call { spins: Spun::Found(Spell::default()), ..Call::new(&process) };
    assert_eq!(wait(&mut call, &process), Woken::Look);
    assert_eq!(process.steps(), [Step::Spin]);
    let mut call = Call { way: Err(Woken::TimedOut), ..Call::new(&process) };
    assert_eq!(wait(&mut call, &process), Woken::TimedOut);
    assert_eq!(process.steps(), [Step::Spin]);
}

#[test]
fn a_sleep_ends_at_the_soonest_of_its_limits() {
    let limits =
        Limits { now: 100 * MS, deadline: Some(150 * MS), look: Some(60 * MS), is_long: false };
    let process = Process::default();
    assert_eq!(Call { limits, ..Call::new(&process) }.longest(), Some(50 * MS));
    let sooner = Limits { look: Some(20 * MS), ..limits };
    assert_eq!(Call { limits: sooner, ..Call::new(&process) }.longest(), Some(20 * MS));
    let past = Limits { deadline: Some(99 * MS), ..limits };
    assert_eq!(Call { limits: past, ..Call::new(&process) }.longest(), Some(0));

    let process = Process { alarm: Some(30 * MS), doubt: Some(10 * MS), ..Process::default() };
    assert_eq!(Call { limits, ..Call::new(&process) }.longest(), Some(30 * MS), "the alarm");
    assert_eq!(Several { limits, ..Several::new(&process) }.longest(), Some(10 * MS), "a doubt");
    let hearing = Hearing::Deaf;
    assert_eq!(Call { limits, hearing, ..Call::new(&process) }.longest(), Some(7 * MS));
    let way = Ok(Way::Futex);
    let on_futex = Several { limits, hearing, way, ..Several::new(&process) }.longest();
    assert_eq!(on_futex, Some(10 * MS), "a short nap heeds doubts, and no alarm");
    let on_futex = Call { limits, hearing, way, ..Call::new(&process) }.longest();
    assert_eq!(on_futex, Some(50 * MS), "and one for a single connection heeds neither");
    let long = Limits { is_long: true, ..limits };
    let on_futex = Call { limits: long, hearing, way, ..Call::new(&process) }.longest();
    assert_eq!(on_futex, Some(30 * MS), "the alarm");
    assert_eq!(Call::new(&Process::default()).longest(), None, "for ever");
}

#[test]
fn what_a_sleep_came_to_decides_with_the_handlers_that_ran() {
    use Woken::{Interrupted, Look};
    for (slept, alone, with_handler) in [
        (Slept::Woken, Look, Look),
        (Slept::Over, Look, Interrupted),
        (Slept::Interrupted, Interrupted, Interrupted),
        (Slept::Failed, Interrupted, Interrupted),
        (Slept::NotAtAll, Interrupted, Interrupted),
    ] {
        for (ran, expected) in [(false, alone), (true, with_handler)] {
            let process = Process::default();
            let mut set = Several { slept, ran, ..Several::new(&process) };
            assert_eq!(wait(&mut set, &process), expected, "{slept:?} {ran}");
            let looks_after = process.steps().contains(&Step::LookAfter);
            assert_eq!(looks_after, slept == Slept::Over, "whose alarm it was looks: {slept:?}");
        }
    }
    assert_eq!(Slept::by_call(None, || true), Slept::NotAtAll);
    assert_eq!(Slept::by_call(Some(2), || true), Slept::Woken);
    assert_eq!(Slept::by_call(Some(0), || true), Slept::Over);
    assert_eq!(Slept::by_call(Some(-1), || true), Slept::Interrupted);
    assert_eq!(Slept::by_call(Some(-1), || false), Slept::Failed);
}

#[test]
fn a_call_whose_number_is_anothers_is_begun_anew_there() {
    assert_eq!(Handlers::of_a_call(true, true, || false), Handlers::End);
    assert_eq!(Handlers::of_a_call(false, true, || false), Handlers::Restart);
    assert_eq!(Handlers::of_a_call(false, true, || true), Handlers::Continue);
    let unasked = || panic!("no handler ran: the kernel does not look the number up");
    assert_eq!(Handlers::of_a_call(false, false, unasked), Handlers::Continue);
}

#[test]
fn spins_are_learnt_from_sleeps_that_were_woken_from_afar() {
    let takes = 400_000;
    let learnt = |known: u32, slept, teaches| {
        let process = Process { far: AtomicU32::new(known), ..Process::default() };
        wait(&mut Call { slept, teaches, takes, ..Call::new(&process) }, &process);
        process.far.load(Ordering::Relaxed)
    };
    assert_eq!(learnt(200_000, Slept::Woken, true), 250_000, "quick to grow");
    assert_eq!(learnt(800_000, Slept::Woken, true), 775_000, "slow to shrink");
    assert_eq!(learnt(200_000, Slept::Woken, false), 200_000);
    assert_eq!(learnt(200_000, Slept::Over, true), 200_000);
    assert_eq!(learnt(0, Slept::Woken, true), 0, "all are near");
    let process = Process { far: AtomicU32::new(200_000), ..Process::default() };
    process.now.set(3 * MS);
    learn(&process, 0);
    assert_eq!(process.far.load(Ordering::Relaxed), 200_000, "that was no answer");
    let answer = AtomicU32::new(0);
    far_guess(&answer);
    assert_eq!(answer.swap(5, Ordering::Relaxed), 200_000);
    far_guess(&answer);
    assert_eq!(answer.load(Ordering::Relaxed), 5, "what was measured stays");
}
