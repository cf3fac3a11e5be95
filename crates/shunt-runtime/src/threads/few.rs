//! A list of which there are few mostly: these take no memory of the heap's.

/// The list.
#[derive(Debug)]
pub struct Few<T, const N: usize> {
    first: [Option<T>; N],
    rest: Vec<T>,
}

impl<T: Copy, const N: usize> Few<T, N> {
    /// One more.
    pub fn push(&mut self, one: T) {
        match self.first.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(one),
            None => self.rest.push(one),
        }
    }

    /// All, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().flatten().chain(&self.rest)
    }
}

impl<T: Copy, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Self { first: [None; N], rest: Vec::new() }
    }
}

impl<T: Copy, const N: usize> FromIterator<T> for Few<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut few = Self::default();
        all.into_iter().for_each(|one| few.push(one));
        few
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_come_in_order_too() {
        for many in [0, 1, 2, 3, 100] {
            let few: Few<u32, 2> = (0..many).collect();
            assert!(few.iter().copied().eq(0..many));
            assert_eq!(few.rest.capacity() > 0, many > 2);
        }
    }
}
