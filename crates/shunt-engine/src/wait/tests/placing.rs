//! Where threads that are woken go.

use super::*;

/// A call that is woken so often from another processor, while it takes so long until an offered processor is back. All of its
/// steps.
fn woken(times: u32, away: Nanos, follows: bool) -> Vec<Step> {
    let process = Process { now: MS.into(), away: away.into(), ..Process::default() };
    let mut call = Call { rang: Some(5_000), from: Some(1), follows, ..Call::new(&process) };
    call.way = Ok(Way::Futex);
    for _ in 0..times {
        call.limits.now = process.now.get();
        assert_eq!(wait(&mut call, &process), Woken::Look);
    }
    process.steps()
}

#[test]
fn who_is_woken_from_elsewhere_goes_there_before_it_arms() {
    let steps = woken(200, 20_000, true);
    let goes = steps.iter().position(|step| *step == Step::GoTo(1)).expect("it goes");
    let around = &steps[goes - 2..=goes + 1];
    assert_eq!(around, [Step::Spin, Step::GiveWay, Step::GoTo(1), Step::Arm(Way::Futex)]);
    assert_eq!(steps.iter().filter(|step| matches!(step, Step::GoTo(_))).count(), 1);
}

#[test]
fn who_leaves_nobody_a_processor_stays() {
    let steps = woken(20_000, 0, true);
    let offers = steps.iter().filter(|step| **step == Step::GiveWay).count();
    assert!((5..15).contains(&offers), "{offers}");
    assert!(!steps.contains(&Step::GoTo(1)));
}

#[test]
fn who_follows_nobody_stays() {
    let steps = woken(200, 20_000, false);
    assert!(!steps.contains(&Step::GoTo(1)) && !steps.contains(&Step::GiveWay));
}
