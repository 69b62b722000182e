//! Gap lists: ascending group numbers, walked one by one.

/// A cursor over the group numbers of a gap list.
pub struct Gaps {
    bytes: Vec<u8>,
    at: usize,
    next: Option<u64>,
}

impl Gaps {
    /// Starts at the first number; an absent list is empty.
    ///
    /// Errors: the last number is not ended by a byte below 255.
    pub fn new(bytes: Option<Vec<u8>>) -> Result<Gaps, String> {
        let bytes = bytes.unwrap_or_default();
        if bytes.last() == Some(&255) {
            return Err("a gap list ends in the middle of a number".into());
        }
        let mut gaps = Gaps { bytes, at: 0, next: None };
        gaps.next = gaps.decode();
        Ok(gaps)
    }

    /// How many numbers the list holds in all.
    pub fn len(&self) -> usize {
        self.bytes.iter().filter(|byte| **byte < 255).count()
    }

    /// The number that comes next.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Takes the next number if it is `group`.
    pub fn take(&mut self, group: u64) -> bool {
        let hit = self.next == Some(group);
        if hit {
            self.next = self.decode().map(|difference| group + 1 + difference);
        }
        hit
    }

    fn decode(&mut self) -> Option<u64> {
        let mut difference = 0;
        loop {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            difference += u64::from(byte);
            if byte < 255 {
                return Some(difference);
            }
        }
    }
}

/// All numbers of a gap list.
pub fn group_numbers(bytes: Vec<u8>) -> Result<Vec<u64>, String> {
    let mut gaps = Gaps::new(Some(bytes))?;
    let mut numbers = Vec::with_capacity(gaps.len());
    while let Some(number) = gaps.next() {
        gaps.take(number);
        numbers.push(number);
    }
    Ok(numbers)
}

/// Entries for some groups, looked up by the group's number.
pub struct Listed<T> {
    numbers: Vec<u64>,
    entries: Vec<T>,
}

impl<T> Listed<T> {
    /// As many numbers, ascending, as entries.
    pub fn of(numbers: Vec<u64>, entries: Vec<T>) -> Option<Listed<T>> {
        (numbers.len() == entries.len()).then_some(Listed { numbers, entries })
    }

    /// The entry of a group.
    pub fn get(&self, number: u64) -> Option<&T> {
        let place = self.numbers.binary_search(&number).ok()?;
        self.entries.get(place)
    }
}

#[cfg(test)]
mod tests {
    use super::Gaps;

    #[test]
    fn numbers_come_in_order() {
        // 3, then 3 + 1 + 254, then 258 + 1 + 255 + 255 + 0.
        let mut gaps = Gaps::new(Some(vec![3, 254, 255, 255, 0])).unwrap();
        assert_eq!(gaps.len(), 3);
        let found: Vec<u64> = (0..2000).filter(|&group| gaps.take(group)).collect();
        assert_eq!(found, [3, 258, 769]);
        assert_eq!(gaps.next(), None);
    }

    #[test]
    fn an_unfinished_number_is_refused() {
        assert!(Gaps::new(Some(vec![3, 255])).is_err());
        assert_eq!(Gaps::new(None).unwrap().next(), None);
    }
}
