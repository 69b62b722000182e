//! A first look at a stored group, 32 lanes at once: what its codes and its source values say
//! together.
//!
//! Plain loops over 32 lanes of integers, which the compiler turns into vector instructions;
//! `leaves.rs` compiles them once for each instruction set. [`confirm`](super::confirm) says what
//! may be concluded from a look, and where nothing may.
//!
//! Every end of a value's step interval is a half-way point divided by a code size of 1 to 8, which
//! is a whole number of 840ths. In 840ths of an eighth of the smallest value's last place, all ends
//! of a group are even integers below 2^25; an open low end stands one higher, an open high end one
//! lower. So the largest low end and the smallest high end are plain maxima and minima, and some
//! step gives all values if and only if the one does not exceed the other.

use super::bf16::LAST_PLACE;
use super::recover::GROUP;

/// A multiple of every code size.
pub(super) const COMMON: i32 = 840;

/// Sizes of codes of one step lie within a factor of 8, so their values within 4 binades.
const BINADES: i32 = 4;

/// What is seen in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The largest low end, in 840ths of `2^unit`; one higher where it is open.
    pub(super) low: i32,
    /// The smallest high end, in the same unit; one lower where it is open.
    pub(super) high: i32,
    /// Exponent of the ends' unit.
    pub(super) unit: i32,
    /// Bit `k` set: a code of size `k` occurs.
    pub(super) sizes: u32,
    /// Bit `i` set: value `i` is +0.0 or -0.0.
    pub zeros: u32,
    /// Bit `i` set: the sign bit of value `i` is set.
    pub signs: u32,
    /// Bit `i` set: code `i` is negative.
    pub(super) negative_codes: u32,
    /// Zeros with a code, codes without a value, values that are no normal numbers or among the
    /// smallest of them, values too far apart: then the ends say nothing.
    pub(super) strange: bool,
}

impl Look {
    /// Looks at 32 source values and the stored codes.
    #[inline(always)]
    pub fn at(values: &[u16; GROUP], codes: &[i8; GROUP]) -> Look {
        let mut smallest = 0xFF;
        for lane in 0..GROUP {
            let magnitude = i32::from(values[lane] & 0x7FFF);
            let exponent = if magnitude == 0 { 0xFF } else { magnitude >> 7 };
            smallest = exponent.min(smallest);
        }
        let (mut low, mut high) = (0, i32::MAX);
        let (mut sizes, mut zeros, mut signs, mut negative_codes, mut strange) = (0, 0, 0, 0, 0);
        for lane in 0..GROUP {
            let magnitude = i32::from(values[lane] & 0x7FFF);
            let code = i32::from(codes[lane]);
            let size = code.abs();
            let (exponent, fraction) = (magnitude >> 7, magnitude & 0x7F);
            // All ones where there is a zero, a code, a value.
            let zero = -i32::from(magnitude == 0);
            let coded = -i32::from(size != 0);
            let binades = (exponent - smallest) & !zero;
            strange |= (zero ^ !coded) & 1;
            strange |= i32::from(binades as u32 > BINADES as u32);
            // Below the smallest normal number the next one lies as far as above it.
            strange |= i32::from(exponent == 0xFF) | (i32::from(exponent <= 1) & !zero);

            // Half-way points around the value, in quarters of its last place. Below a power of two
            // the next smaller number lies half as far.
            let below = 4 * (128 + fraction) - 2 + i32::from(fraction == 0);
            let above = 4 * (128 + fraction) + 2;
            // A whole number is the last bits of its sum with 2^23.
            let share = COMMON as f32 / (size | !coded & 1) as f32 + 8_388_608.0;
            let units = 2 * (share.to_bits() as i32 & 0x007F_FFFF);
            let binades = binades & 7;
            let open = fraction & 1;
            low = low.max((((units * below) << binades) + open) & coded);
            high = high.min((((units * above) << binades) - open) & coded | (!coded & i32::MAX));

            sizes |= 1u32 << size;
            zeros |= (zero as u32 & 1) << lane;
            signs |= (u32::from(values[lane]) >> 15) << lane;
            negative_codes |= (code as u32 >> 31) << lane;
        }
        let unit = smallest - 1 + LAST_PLACE - 3;
        let strange = strange != 0;
        Look { low, high, unit, sizes, zeros, signs, negative_codes, strange }
    }

    /// Looks at a group as it lies in the two files.
    #[inline(always)]
    pub(super) fn at_bytes(values: &[u8; 2 * GROUP], words: &[u8; GROUP / 2]) -> Look {
        let (mut halves, mut codes) = ([0; GROUP], [0; GROUP]);
        for lane in 0..GROUP {
            halves[lane] = u16::from_le_bytes([values[2 * lane], values[2 * lane + 1]]);
            let nibble = words[lane / 2] >> (4 * (lane % 2)) & 15;
            codes[lane] = nibble as i8 - 8;
        }
        Look::at(&halves, &codes)
    }
}
