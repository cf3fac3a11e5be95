//! Waits for several connections, which are looked at after each sleep.

use super::*;

/// Looks, until there is something at the third look.
struct Looks<'a>(Several<'a>, u32);

impl Wait for Looks<'_> {
    fn spin(&mut self) -> bool {
        self.0.spin()
    }
    fn turn_in(&mut self) -> Result<Way, Woken> {
        self.0.turn_in()
    }
    fn arm<T>(&mut self, _: Way, rest: impl FnOnce(&mut Self, Hearing) -> T) -> T {
        rest(self, Hearing::Woken)
    }
    fn is_ready(&mut self) -> bool {
        self.0.is_ready()
    }
    fn limits(&mut self, way: Way) -> Limits {
        self.0.limits(way)
    }
    fn sleep(&mut self, _: Way, _: Option<Nanos>, awake: impl FnOnce(&mut Self, Slept)) -> Slept {
        let slept = self.0.slept;
        awake(self, slept);
        slept
    }
    fn visit(&mut self, slept: Slept) {
        self.0.visit(slept);
    }
    fn teaches(&self) -> bool {
        false
    }
    fn follows(&self) -> bool {
        true
    }

    fn stopwatch(&mut self) -> &mut Stopwatch {
        self.0.stopwatch()
    }
    fn handlers(&mut self, slept: Slept) -> Handlers {
        self.0.handlers(slept)
    }
}

impl Set for Looks<'_> {
    type Answer = Result<u32, Woken>;

    fn look(&mut self) -> Option<Self::Answer> {
        self.1 += 1;
        (self.1 == 3).then_some(Ok(self.1))
    }

    fn ended(&mut self, woken: Woken) -> Self::Answer {
        Err(woken)
    }
}

#[test]
fn a_set_is_looked_at_after_each_sleep_until_there_is_an_answer() {
    let process = Process::default();
    assert_eq!(wait_for(&mut Looks(Several::new(&process), 0), &process), Ok(3));
    assert_eq!(process.counted[1].get(), 2);
    assert_eq!(wait_for(&mut Looks(Several::new(&process), 2), &process), Ok(3), "at once");
    assert_eq!(process.counted[1].get(), 2);
    let interrupted = Several { slept: Slept::Interrupted, ..Several::new(&process) };
    assert_eq!(wait_for(&mut Looks(interrupted, 0), &process), Err(Woken::Interrupted));
}
