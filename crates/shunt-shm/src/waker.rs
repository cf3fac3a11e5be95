//! Who wakes a sleeper: when it began to, and on which processor it ran.

/// What the one who wakes leaves beside its cursors, or beside a queue's arm word, in one word. Untrusted: it tells how long a
/// wake-up took, and where it came from, and nothing depends on its being true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waker {
    /// When it began, in nanoseconds of the monotonic clock, to some 500 of them.
    pub at: u64,
    /// The number of its processor, as sched_getcpu(3) has it; `None`: it is not known, or too large for the word.
    pub cpu: Option<u32>,
}

/// The processor's number is in the lowest bits, in place of time that nobody needs so exactly: so the word is a time, too, as it is
/// for libraries that know no more of it. All of these set: there is no number.
const CPU: u64 = (1 << 10) - 1;

impl Waker {
    /// The word.
    #[must_use]
    pub fn word(self) -> u64 {
        let cpu = self.cpu.map_or(CPU, |cpu| u64::from(cpu).min(CPU));
        self.at & !CPU | cpu
    }

    /// Who began to wake since `since`, by this word.
    #[must_use]
    pub fn since(word: u64, since: u64) -> Option<Self> {
        let (at, cpu) = ((word & !CPU) + CPU / 2, word & CPU);
        let cpu = if cpu == CPU { None } else { u32::try_from(cpu).ok() };
        (at >= since).then_some(Self { at, cpu })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_the_time_and_the_processor() {
        const NOW: u64 = 86_400_123_456_789;
        for (cpu, seen) in [(Some(0), Some(0)), (Some(1022), Some(1022)), (Some(1023), None)] {
            let waker = Waker { at: NOW, cpu };
            let seen_since = |since| Waker::since(waker.word(), since);
            let at = seen_since(0).expect("it woke").at;
            assert!(at.abs_diff(NOW) <= 512, "{at}");
            assert_eq!(seen_since(at), Some(Waker { at, cpu: seen }));
            assert_eq!(seen_since(at + 1), None, "it was before that");
        }
        assert_eq!(Waker::since(0, NOW), None, "nobody did");
        assert_eq!(Waker { at: NOW, cpu: None }.word(), Waker { at: NOW, cpu: Some(5000) }.word());
    }
}
