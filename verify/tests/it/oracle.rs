//! Slow, obvious arithmetic to hold against the fast one: every end times 840, every number of a
//! dtype, every code vector.

use std::collections::BTreeSet;

/// Rounds a real, given exactly as f64, to bf16: of the two neighbours the nearer, or the even one.
pub fn round_to_bf16(real: f64) -> u16 {
    let sign = if real.is_sign_negative() { 0x8000 } else { 0 };
    let size = real.abs();
    // bf16 magnitudes are ordered like their bits; find the last one that is not above.
    let (mut below, mut above) = (0u16, 0x7F80u16);
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if value(middle) <= size { below = middle } else { above = middle }
    }
    // The number after the largest finite one, as if the exponents went on.
    let next = if above == 0x7F80 { 2f64.powi(128) } else { value(above) };
    let (down, up) = (size - value(below), next - size);
    let nearest = if down < up || (down == up && below.is_multiple_of(2)) { below } else { above };
    sign | nearest
}

/// A bf16 number as f64, exactly.
pub fn value(bits: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(bits) << 16))
}

/// Significand and exponent of a finite bf16 magnitude.
fn parts(bits: u16) -> (i128, i32) {
    let (field, fraction) = (i32::from(bits >> 7 & 0xFF), i128::from(bits & 0x7F));
    if field == 0 { (fraction, -133) } else { (fraction + 128, field - 134) }
}

/// The reals that round to each value, as integers in units of `2^exponent / 4`; zero values have
/// none. Values must lie within some 60 binades.
pub struct Ends {
    /// (low, high, closed) of each nonzero value.
    pub of_values: Vec<Option<(i128, i128, bool)>>,
    /// The unit is `2^exponent / 4`.
    pub exponent: i32,
}

/// Half-way points around each value.
pub fn ends(values: &[u16; 32]) -> Ends {
    let nonzero = values.iter().filter(|bits| *bits & 0x7FFF != 0);
    let exponent = nonzero.map(|bits| parts(bits & 0x7FFF).1).min().unwrap_or(0);
    let of_values = values
        .iter()
        .map(|bits| {
            let (significand, own) = parts(bits & 0x7FFF);
            if significand == 0 {
                return None;
            }
            let unit = 1i128 << (own - exponent);
            let below_is_denser = significand == 128 && own > -133;
            let low = 4 * significand - if below_is_denser { 1 } else { 2 };
            Some((low * unit, (4 * significand + 2) * unit, significand % 2 == 0))
        })
        .collect();
    Ends { of_values, exponent }
}

/// Codes, sign of the step and the step interval in 840ths of the unit of [`ends`].
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    pub codes: [i8; 32],
    pub negative: bool,
    pub low: i128,
    pub low_closed: bool,
    pub high: i128,
    pub high_closed: bool,
}

/// The rule of the grid written down word by word.
pub fn recover(values: &[u16; 32]) -> Option<Solution> {
    let peak = values.iter().map(|bits| bits & 0x7FFF).max().unwrap();
    if peak == 0 {
        return None;
    }
    for negative in [false, true] {
        for level in 1..=8 {
            let codes: [i128; 32] = std::array::from_fn(|i| {
                let size = round_quotient(values[i] & 0x7FFF, peak, level);
                if (values[i] & 0x8000 != 0) != negative { -size } else { size }
            });
            if let Some(found) = solve(values, &codes, negative) {
                return Some(found);
            }
        }
    }
    None
}

/// `value * level / peak`, half to even, in integers of any size.
fn round_quotient(value: u16, peak: u16, level: i128) -> i128 {
    let ((value, value_exponent), (peak, peak_exponent)) = (parts(value), parts(peak));
    if value == 0 {
        return 0;
    }
    let above = value * level;
    let below = peak << (peak_exponent - value_exponent).min(100);
    let (whole, rest) = (above / below, above % below);
    whole + i128::from(2 * rest > below || (2 * rest == below && whole % 2 == 1))
}

fn solve(values: &[u16; 32], codes: &[i128; 32], negative: bool) -> Option<Solution> {
    let ends = ends(values);
    let (mut low, mut low_closed, mut high, mut high_closed) = (0, true, i128::MAX, true);
    for (code, end) in codes.iter().zip(&ends.of_values) {
        let Some((from, to, closed)) = end else { continue };
        if *code == 0 || !(-8..=7).contains(code) {
            return None;
        }
        // 840 is a multiple of every code, so that these quotients are whole.
        let (from, to) = (from * 840 / code.abs(), to * 840 / code.abs());
        if from > low {
            (low, low_closed) = (from, *closed);
        } else if from == low {
            low_closed &= closed;
        }
        if to < high {
            (high, high_closed) = (to, *closed);
        } else if to == high {
            high_closed &= closed;
        }
    }
    let holds = low < high || (low == high && low_closed && high_closed);
    holds.then(|| Solution {
        codes: std::array::from_fn(|i| codes[i] as i8),
        negative,
        low,
        low_closed,
        high,
        high_closed,
    })
}

/// Every code vector that some real step of either sign turns into the values, whatever the rule:
/// the step is tried at every half-way point divided by every code, and between each two of them.
pub fn every_code_vector(values: &[u16; 32]) -> BTreeSet<([i8; 32], bool)> {
    let ends = ends(values);
    let mut points = BTreeSet::new();
    for (from, to, _) in ends.of_values.iter().flatten() {
        for code in 1..=8 {
            points.insert(2 * from * 840 / code);
            points.insert(2 * to * 840 / code);
        }
    }
    let points: Vec<i128> = points.into_iter().collect();
    let between = points.windows(2).map(|pair| pair[0] + (pair[1] - pair[0]) / 2);
    let mut found = BTreeSet::new();
    for step in points.iter().copied().chain(between) {
        for negative in [false, true] {
            let codes: Option<Vec<i8>> = (0..32)
                .map(|i| {
                    let Some((from, to, closed)) = ends.of_values[i] else { return Some(0) };
                    let (from, to) = (from * 1680, to * 1680);
                    let inside = |product: i128| {
                        from < product && product < to
                            || closed && (from == product || product == to)
                    };
                    let size = (1..=8).find(|&size| inside(step * size))? as i8;
                    let code = if (values[i] & 0x8000 != 0) != negative { -size } else { size };
                    (code != 8).then_some(code)
                })
                .collect();
            if let Some(codes) = codes {
                found.insert((codes.try_into().unwrap(), negative));
            }
        }
    }
    found
}
