//! Gap lists, as `w4pack_format::exact` describes them: written, and read back from the spool.

use std::io;

use super::super::spool::{Reader, Spool, Stream};

/// Ascending group numbers as a gap list, with a value for each.
#[derive(Default)]
pub(super) struct Listed {
    pub gaps: Stream,
    pub values: Stream,
    pub count: usize,
    next: u64,
}

impl Listed {
    pub(super) fn push(&mut self, spool: &mut Spool, group: u64, value: &[u8]) -> io::Result<()> {
        let mut gap = group - self.next;
        while gap >= 255 {
            self.gaps.push(spool, &[255])?;
            gap -= 255;
        }
        self.gaps.push(spool, &[gap as u8])?;
        self.values.push(spool, value)?;
        self.count += 1;
        self.next = group + 1;
        Ok(())
    }

    /// Reads the list from its beginning; values are of `N` bytes.
    pub(super) fn entries<const N: usize>(&self) -> Entries<'_, N> {
        let (gaps, values) = (self.gaps.reader(), self.values.reader());
        Entries { gaps, values, left: self.count, next: 0 }
    }
}

/// A list being read.
pub(super) struct Entries<'l, const N: usize> {
    gaps: Reader<'l>,
    values: Reader<'l>,
    left: usize,
    next: u64,
}

impl<const N: usize> Entries<'_, N> {
    /// The next group and its value.
    pub(super) fn next(&mut self, spool: &Spool) -> io::Result<Option<(u64, [u8; N])>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let mut group = self.next;
        loop {
            let mut gap = [0];
            self.gaps.read(spool, &mut gap)?;
            group += u64::from(gap[0]);
            if gap[0] < 255 {
                break;
            }
        }
        self.next = group + 1;
        let mut value = [0; N];
        self.values.read(spool, &mut value)?;
        Ok(Some((group, value)))
    }
}

/// How long the list of some groups would be, which is known without writing it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListSize {
    first: u64,
    last: u64,
    /// Bytes of the gaps between the first group and the last.
    between: u64,
    count: u64,
}

fn gap_bytes(gap: u64) -> u64 {
    1 + gap / 255
}

impl ListSize {
    /// Adds a group behind all others.
    #[inline]
    pub fn add(&mut self, group: u64) {
        if self.count == 0 {
            self.first = group;
        } else {
            self.between += gap_bytes(group - self.last - 1);
        }
        self.last = group;
        self.count += 1;
    }

    /// Adds groups behind all others; `offset` is added to their numbers.
    pub fn append(&mut self, later: &ListSize, offset: u64) {
        if later.count == 0 {
            return;
        }
        let count = self.count + later.count;
        self.add(later.first + offset);
        *self = ListSize {
            last: later.last + offset,
            between: self.between + later.between,
            count,
            ..*self
        };
    }

    /// Bytes of the gaps and of values of so many bytes.
    pub(super) fn bytes(&self, width: u64) -> u64 {
        match self.count {
            0 => 0,
            count => gap_bytes(self.first) + self.between + count * width,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Sizes are those of the lists, in whatever pieces the groups come; and lists are read as
        /// they were written.
        #[test]
        fn a_size_is_that_of_the_list(
            gaps in prop::collection::vec(prop_oneof![0..3_u64, 250..260_u64, 0..2000_u64], 0..60),
            cut in 0..60_usize,
        ) {
            let groups: Vec<u64> = gaps
                .iter()
                .scan(0, |next, gap| {
                    let group = *next + gap;
                    *next = group + 1;
                    Some(group)
                })
                .collect();
            let folder = tempfile::tempdir().unwrap();
            let mut spool = Spool::create(&folder.path().join("spool")).unwrap();
            let mut listed = Listed::default();
            for group in &groups {
                listed.push(&mut spool, *group, &(*group as u32).to_le_bytes()).unwrap();
            }
            let (one, other) = groups.split_at(cut.min(groups.len()));
            let offset = other.first().copied().unwrap_or(0);
            let (mut size, mut later) = (ListSize::default(), ListSize::default());
            one.iter().for_each(|group| size.add(*group));
            other.iter().for_each(|group| later.add(*group - offset));
            size.append(&later, offset);
            prop_assert_eq!(size.bytes(4), listed.gaps.bytes() + listed.values.bytes());
            listed.gaps.flush(&mut spool).unwrap();
            let mut entries = listed.entries::<4>();
            for group in groups {
                let expected = (group, (group as u32).to_le_bytes());
                prop_assert_eq!(entries.next(&spool).unwrap(), Some(expected));
            }
            prop_assert_eq!(entries.next(&spool).unwrap(), None);
        }
    }
}
