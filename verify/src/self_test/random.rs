//! Random numbers that are the same in every run: SplitMix64 (Steele, Lea, Flood, 2014).

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A row of numbers.
pub struct Random(u64);

impl Random {
    /// The row of a trial.
    pub fn of(seed: u64, trial: u64) -> Random {
        let mut random = Random(seed);
        random.0 = random.next() ^ trial.wrapping_mul(STEP);
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// One of them, if there are any.
    pub fn one_of<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        (!items.is_empty()).then(|| items[self.below(items.len())].clone())
    }
}
