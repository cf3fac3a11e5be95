//! What commands that have begun wait for.

use shunt_nvme::controller::Transfer;
use shunt_nvme::subsystem::Io;
use shunt_nvme::transport::Command;
use shunt_nvme::wire::Sqe;

/// What becomes of a command when its data is there, or its store is done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    /// It is looked at when its data is whole.
    Whole(Sqe, Transfer),
    /// It is for a store.
    Store(Io, Sqe),
}

/// Those of a connection, by the slots of their commands.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    tasks: Vec<Option<(Command, Task)>>,
    count: usize,
}

impl Tasks {
    /// Notes what is to become of a command.
    pub fn note(&mut self, command: Command, task: Task) {
        let slot = command.slot();
        if slot >= self.tasks.len() {
            self.tasks.resize(slot + 1, None);
        }
        if self.tasks[slot].replace((command, task)).is_none() {
            self.count += 1;
        }
    }

    /// That of a command, if something is to become of it.
    pub fn get(&self, command: Command) -> Option<Task> {
        let (of, task) = self.tasks.get(command.slot())?.as_ref()?;
        (*of == command).then_some(*task)
    }

    /// Nothing more is to become of a command.
    pub fn forget(&mut self, command: Command) {
        let Some(task) = self.tasks.get_mut(command.slot()) else { return };
        if task.as_ref().is_some_and(|(of, _)| *of == command) {
            *task = None;
            self.count -= 1;
        }
    }

    /// The commands.
    pub fn commands(&self) -> impl Iterator<Item = Command> {
        self.tasks.iter().flatten().map(|(command, _)| *command)
    }

    /// True if nothing is to become of any command.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// A command of a fused operation, and whether its data is there.
pub(super) type Half = (Command, bool);

/// The fused operations of a connection that are not yet at their store, in the order in which they came. Only the last one
/// may have no second command.
#[derive(Debug, Default)]
pub(super) struct Fused {
    operations: Vec<(Half, Option<Half>)>,
}

impl Fused {
    /// The first command of an operation has come.
    pub fn begin(&mut self, first: Command) {
        self.operations.push(((first, false), None));
    }

    /// The second has.
    pub fn join(&mut self, second: Command) {
        if let Some((_, half @ None)) = self.operations.last_mut() {
            *half = Some((second, false));
        }
    }

    /// The first command that has no second one, and gets none any more.
    pub fn unpair(&mut self) -> Option<Half> {
        self.operations.pop_if(|(_, second)| second.is_none()).map(|(first, _)| first)
    }

    /// The data of a command is there: both commands, when both have theirs.
    pub fn received(&mut self, command: Command) -> Option<(Command, Command)> {
        let of = |half: &Half| half.0 == command;
        let place = self.operations.iter_mut().position(|(first, second)| {
            let half =
                if of(first) { Some(first) } else { second.as_mut().filter(|half| of(half)) };
            half.is_some_and(|half| {
                half.1 = true;
                true
            })
        })?;
        let ((first, true), Some((second, true))) = self.operations[place] else { return None };
        self.operations.remove(place);
        Some((first, second))
    }
}

#[cfg(test)]
mod tests {
    use shunt_nvme::host;
    use shunt_nvme::wire::IcResp;
    use zerocopy::IntoBytes;

    use super::*;

    /// Handles of so many commands.
    fn commands<const N: usize>() -> [Command; N] {
        let mut queue = host::Queue::new(host::Config::default());
        queue.header(IcResp::new(0, 0, 4096).as_bytes()).unwrap();
        [0; N].map(|_| queue.submit(&Sqe::new(0, 1), host::Transfer::None).unwrap())
    }

    fn task() -> Task {
        Task::Whole(Sqe::new(0, 1), Transfer::None)
    }

    #[test]
    fn tasks_end_once() {
        let [one, two, three] = commands();
        let mut tasks = Tasks::default();
        tasks.note(two, task());
        tasks.note(one, task());
        tasks.note(one, task());
        assert!(tasks.get(one).is_some() && tasks.get(three).is_none());
        assert_eq!(tasks.commands().count(), 2);
        tasks.forget(three);
        tasks.forget(one);
        tasks.forget(one);
        assert!(tasks.get(one).is_none() && !tasks.is_empty());
        tasks.forget(two);
        assert!(tasks.is_empty());
    }

    #[test]
    fn both_halves_are_needed() {
        let [one, two, three] = commands();
        for order in [[one, two], [two, one]] {
            let mut fused = Fused::default();
            fused.begin(one);
            fused.join(two);
            assert_eq!(fused.received(three), None);
            assert_eq!(fused.received(order[0]), None);
            assert_eq!(fused.received(order[1]), Some((one, two)));
            assert_eq!((fused.received(one), fused.unpair()), (None, None));
        }
    }

    #[test]
    fn an_operation_that_is_not_whole() {
        let [one, two, three] = commands();
        let mut fused = Fused::default();
        fused.join(two);
        assert_eq!((fused.unpair(), fused.received(two)), (None, None));
        fused.begin(one);
        assert_eq!(fused.received(one), None);
        assert_eq!(fused.unpair(), Some((one, true)));
        assert_eq!((fused.received(one), fused.unpair()), (None, None));
        // Another second one belongs to nothing.
        fused.begin(one);
        fused.join(two);
        fused.join(three);
        assert_eq!(fused.unpair(), None);
        assert_eq!((fused.received(three), fused.received(two)), (None, None));
        assert_eq!(fused.received(one), Some((one, two)));
    }

    /// Data comes in the order in which it was asked for, or another one.
    #[test]
    fn several_operations_at_once() {
        let [one, two, three, four, five] = commands();
        let mut fused = Fused::default();
        fused.begin(one);
        fused.join(two);
        fused.begin(three);
        fused.join(four);
        fused.begin(five);
        assert_eq!((fused.received(four), fused.received(one)), (None, None));
        assert_eq!(fused.received(three), Some((three, four)));
        // The last one alone is without a second command.
        assert_eq!((fused.unpair(), fused.unpair()), (Some((five, false)), None));
        assert_eq!(fused.received(two), Some((one, two)));
    }
}
