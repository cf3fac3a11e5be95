//! What the kernel is given as data of what the library registers.

/// Addresses that name watches towards the kernel: no data of the program can be equal to one.
static TAGS: [u8; WATCHES + 1] = [0; WATCHES + 1];
/// Watches of one instance.
pub const WATCHES: usize = 1 << 20;

/// The kernel's data for a watch; `None` stands for a doorbell.
pub fn tag(watch: Option<usize>) -> u64 {
    TAGS.as_ptr().addr() as u64 + watch.map_or(0, |w| w as u64 + 1)
}

/// The reverse of [`tag`], or `None` for the program's own data.
#[allow(clippy::option_option, reason = "three cases: not a tag, a doorbell, a watch")]
pub fn untag(data: u64) -> Option<Option<usize>> {
    let offset = usize::try_from(data.checked_sub(tag(None))?).ok()?;
    (offset <= WATCHES).then(|| offset.checked_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_told_from_data() {
        assert_eq!(untag(tag(None)), Some(None));
        assert_eq!(untag(tag(Some(7))), Some(Some(7)));
        assert_eq!(untag(tag(Some(WATCHES - 1))), Some(Some(WATCHES - 1)));
        assert_eq!(untag(tag(None) - 1), None);
        assert_eq!(untag(u64::MAX), None);
        assert_eq!(untag(5), None);
    }
}
