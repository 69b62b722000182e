//! Steps that reproduce a value: exact intervals, in 840ths.
//!
//! A level k (1 to 8, a code's magnitude) times a step s gives the bf16 number w when k·s lies
//! between the half-way points from w to its two bf16 neighbours. A half-way point itself counts
//! if the significand of w is even (round half to even).
//!
//! **Why f64 is exact here.** A half-way point is n·2^e with n ≤ 511 (9 bits): w has 8 significand
//! bits, and half-way adds one. Multiplying by 840/k (840 is the least common multiple of 1 to 8;
//! at most 10 bits) gives the end of the interval of 840·s with at most 19 bits. Any number of
//! f32, f16 or bf16 times 840 has at most 24 + 10 = 34 bits. The exponents reach from 2^-150 to
//! 2^138. f64 holds 53 bits down to 2^-1022, so each product below is exact and each comparison
//! means what it says.

/// The least common multiple of 1 to 8: 840/k is whole for every level k.
pub(super) const UNITS: f64 = 840.0;

/// 840/k by level; level 0 has no interval and is never asked for.
const UNITS_BY_LEVEL: [f64; 9] = [0.0, 840.0, 420.0, 280.0, 210.0, 168.0, 140.0, 120.0, 105.0];

/// One end of an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End {
    /// 840 times the step magnitude at this end, exact.
    pub at: f64,
    /// Whether the end itself does not belong to the interval.
    pub open: bool,
}

/// The step magnitudes that reproduce one or more values, in 840ths; possibly a single point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The smaller end; above 0.
    pub low: End,
    /// The larger end.
    pub high: End,
}

impl Interval {
    /// The steps s > 0 with bf16(level·s) = the bf16 number of these bits.
    ///
    /// `level` is 1 to 8; `magnitude` is a positive finite bf16 bit pattern (sign bit clear).
    pub(super) fn of_level(level: usize, magnitude: u16) -> Interval {
        // Between two neighbouring bf16 numbers f32's bit patterns are evenly spaced, subnormals
        // included, so the half-way point is the pattern half-way: 0x8000 on either side.
        let bits = u32::from(magnitude) << 16;
        let below = f64::from(f32::from_bits(bits - 0x8000));
        let above = f64::from(f32::from_bits(bits + 0x8000));
        let units = UNITS_BY_LEVEL[level];
        let open = magnitude & 1 == 1;
        Interval { low: End { at: below * units, open }, high: End { at: above * units, open } }
    }

    /// Narrows this interval to the steps that also lie in `other`.
    pub(super) fn intersect(&mut self, other: Interval) {
        if other.low.at > self.low.at {
            self.low = other.low;
        } else if other.low.at == self.low.at {
            self.low.open |= other.low.open;
        }
        if other.high.at < self.high.at {
            self.high = other.high;
        } else if other.high.at == self.high.at {
            self.high.open |= other.high.open;
        }
    }

    /// Whether no step is left.
    pub(super) fn is_empty(&self) -> bool {
        self.low.at > self.high.at
            || (self.low.at == self.high.at && (self.low.open || self.high.open))
    }

    /// Whether this step magnitude reproduces the values.
    #[inline]
    pub fn contains(&self, magnitude: f32) -> bool {
        let step = UNITS * f64::from(magnitude);
        let above = if self.low.open { step > self.low.at } else { step >= self.low.at };
        let below = if self.high.open { step < self.high.at } else { step <= self.high.at };
        above && below
    }

    /// 840 times the middle. Exact: the ends are at most a factor 3 apart and have 19 bits each.
    #[inline]
    pub(super) fn middle(&self) -> f64 {
        (self.low.at + self.high.at) / 2.0
    }

    /// Whether this step magnitude misses the interval by more than 2^-8 of its nearer end.
    pub(super) fn missed_widely(&self, magnitude: f32) -> bool {
        let step = UNITS * f64::from(magnitude);
        (self.low.at - step) * 256.0 > self.low.at || (step - self.high.at) * 256.0 > self.high.at
    }
}
