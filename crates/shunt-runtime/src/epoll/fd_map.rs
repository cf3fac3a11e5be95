//! Which watch a descriptor has: an array, as descriptors are small numbers.

use crate::system::abi::c_int;

/// Watches by descriptor.
#[derive(Debug, Default)]
pub struct FdMap {
    /// The watch plus one at the descriptor's place; 0: none.
    places: Vec<u32>,
}

impl FdMap {
    /// The watch of `fd`.
    #[inline]
    pub fn get(&self, fd: c_int) -> Option<usize> {
        let place = self.places.get(usize::try_from(fd).ok()?)?;
        (*place as usize).checked_sub(1)
    }

    /// Enters it.
    pub fn insert(&mut self, fd: c_int, watch: usize) {
        let (Ok(fd), Ok(watch)) = (usize::try_from(fd), u32::try_from(watch + 1)) else { return };
        if fd >= self.places.len() {
            self.places.resize(fd + 1, 0);
        }
        self.places[fd] = watch;
    }

    /// Takes it out.
    pub fn remove(&mut self, fd: c_int) -> Option<usize> {
        let was = self.get(fd)?;
        self.places[usize::try_from(fd).ok()?] = 0;
        Some(was)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_entered_is_found_until_it_is_taken_out() {
        let mut map = FdMap::default();
        assert_eq!(map.get(3), None);
        map.insert(3, 0);
        map.insert(1000, 7);
        assert_eq!((map.get(3), map.get(4), map.get(1000)), (Some(0), None, Some(7)));
        assert_eq!(map.remove(3), Some(0));
        assert_eq!((map.remove(3), map.get(3), map.get(-1)), (None, None, None));
    }
}
