//! The data that the library gives the kernel with its own registrations.

use shunt_wire::agent::MAX_VECTORS;

/// Addresses that name what is registered towards the kernel: no data of the program can be equal to one.
static TAGS: [u8; AGENT + 1] = [0; AGENT + 1];
/// The place of [`Ours::Agent`].
const AGENT: usize = WATCHES + MAX_VECTORS;
/// Watches of one instance.
pub const WATCHES: usize = 1 << 20;

/// What the library registers in an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ours {
    /// A watch, by its number.
    Watch(usize),
    /// The doorbell of a vector.
    Bell(usize),
    /// The end of an agent that brings what comes from another host.
    Agent,
}

/// The kernel's data for it.
pub fn tag(ours: Ours) -> u64 {
    let offset = match ours {
        Ours::Watch(watch) => watch % WATCHES,
        Ours::Bell(vector) => WATCHES + vector % MAX_VECTORS,
        Ours::Agent => AGENT,
    };
    TAGS.as_ptr().addr() as u64 + offset as u64
}

/// The reverse of [`tag`], or `None` for the program's own data.
pub fn untag(data: u64) -> Option<Ours> {
    let offset = usize::try_from(data.checked_sub(TAGS.as_ptr().addr() as u64)?).ok()?;
    (offset < TAGS.len()).then(|| match offset.checked_sub(WATCHES) {
        None => Ours::Watch(offset),
        Some(MAX_VECTORS) => Ours::Agent,
        Some(vector) => Ours::Bell(vector),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_told_from_data() {
        let all = [Ours::Watch(0), Ours::Watch(7), Ours::Watch(WATCHES - 1), Ours::Bell(0)];
        for ours in all.into_iter().chain([Ours::Bell(MAX_VECTORS - 1), Ours::Agent]) {
            assert_eq!(untag(tag(ours)), Some(ours));
        }
        assert_eq!(untag(tag(Ours::Watch(0)) - 1), None);
        assert_eq!(untag(tag(Ours::Agent) + 1), None);
        assert_eq!(untag(u64::MAX), None);
        assert_eq!(untag(5), None);
    }
}
