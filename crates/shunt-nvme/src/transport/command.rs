//! Commands in flight: places, and how often each was used.

/// A command in flight on one queue. A handle whose command is over matches no other command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Command {
    pub(crate) slot: u16,
    pub(crate) generation: u32,
}

impl Command {
    /// The place, below the depth of the queue: an index into the caller's own table.
    #[must_use]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }
}

/// Places for commands.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u16>,
}

impl<T> Slots<T> {
    pub(crate) fn new(depth: u16) -> Self {
        let mut slots = Self { slots: Vec::new(), free: Vec::new() };
        slots.grow(depth);
        slots
    }

    /// Makes room for `depth` commands.
    pub(crate) fn grow(&mut self, depth: u16) {
        let from = self.depth();
        for slot in (from..depth).rev() {
            self.free.push(slot);
        }
        self.slots.resize_with(usize::from(depth.max(from)), || (0, None));
    }

    pub(crate) fn depth(&self) -> u16 {
        u16::try_from(self.slots.len()).unwrap_or(u16::MAX)
    }

    /// The command that the next insertion makes.
    pub(crate) fn next(&self) -> Option<Command> {
        let slot = *self.free.last()?;
        Some(Command { slot, generation: self.slots[usize::from(slot)].0 })
    }

    pub(crate) fn insert(&mut self, value: T) -> Option<Command> {
        let command = self.next()?;
        self.free.pop();
        self.slots[command.slot()].1 = Some(value);
        Some(command)
    }

    pub(crate) fn get(&self, command: Command) -> Option<&T> {
        let (generation, value) = self.slots.get(command.slot())?;
        value.as_ref().filter(|_| *generation == command.generation)
    }

    pub(crate) fn get_mut(&mut self, command: Command) -> Option<&mut T> {
        let (generation, value) = self.slots.get_mut(command.slot())?;
        value.as_mut().filter(|_| *generation == command.generation)
    }

    /// The command that is at a place now.
    pub(crate) fn at(&self, slot: u16) -> Option<Command> {
        let (generation, value) = self.slots.get(usize::from(slot))?;
        value.as_ref().map(|_| Command { slot, generation: *generation })
    }

    pub(crate) fn remove(&mut self, command: Command) -> Option<T> {
        let (generation, value) = self.slots.get_mut(command.slot())?;
        if *generation != command.generation {
            return None;
        }
        let value = value.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(command.slot);
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Command, &T)> {
        self.slots.iter().zip(0..).filter_map(|((generation, value), slot)| {
            value.as_ref().map(|value| (Command { slot, generation: *generation }, value))
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// A page of the table; `NONE` marks a free identifier.
type Page = Box<[u16; 256]>;

const NONE: u16 = u16::MAX;

/// Which place has the command with an identifier. Two levels, as a host uses few of the 65,536.
#[derive(Debug, Default)]
pub(crate) struct CidMap {
    pages: Vec<Option<Page>>,
}

impl CidMap {
    pub(crate) fn get(&self, cid: u16) -> Option<u16> {
        let page = self.pages.get(usize::from(cid >> 8))?.as_ref()?;
        Some(page[usize::from(cid & 0xff)]).filter(|slot| *slot != NONE)
    }

    pub(crate) fn set(&mut self, cid: u16, slot: Option<u16>) {
        if self.pages.is_empty() {
            self.pages.resize_with(256, || None);
        }
        let page = &mut self.pages[usize::from(cid >> 8)];
        if slot.is_none() && page.is_none() {
            return;
        }
        let page = page.get_or_insert_with(|| Box::new([NONE; 256]));
        page[usize::from(cid & 0xff)] = slot.unwrap_or(NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_ends_with_its_command() {
        let mut slots = Slots::new(2);
        let first = slots.insert('a').unwrap();
        let second = slots.insert('b').unwrap();
        assert_eq!(slots.insert('c'), None);
        assert_eq!(slots.remove(first), Some('a'));
        let third = slots.insert('c').unwrap();
        assert_eq!(third.slot(), first.slot());
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!((slots.get(second), slots.get(third)), (Some(&'b'), Some(&'c')));
        assert_eq!(slots.len(), 2);
        slots.grow(3);
        assert!(slots.insert('d').is_some());
    }

    #[test]
    fn identifiers() {
        let mut map = CidMap::default();
        assert_eq!(map.get(7), None);
        map.set(0x1007, Some(7));
        assert_eq!((map.get(0x1007), map.get(7)), (Some(7), None));
        map.set(0x1007, None);
        assert_eq!(map.get(0x1007), None);
    }
}
