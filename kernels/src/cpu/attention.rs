//! Attention of some query heads over a run of positions of the key head that they share.
//!
//! ```text
//! scores(row, position) = q[row]·k[position]        lanes over the head, then their sum
//! largest(row), then e^(score - largest), their sum
//! out(row) = Σ e^… · v[position]                    position by position
//! ```
//! What comes out is not yet divided by the sum: [`Partial`]s of several runs are merged first, in the
//! order of positions. A run of [`POSITIONS`] begins at a multiple of it, so that the same positions
//! are always summed in the same order, whoever does it and however many there are.
//!
//! A key is converted once for eight query heads, which is what E2B has; scores of a run stay in the
//! first cache, and sums of values in registers. Keys are asked for some positions ahead, values while
//! the scores are computed.
//!
//! Tried (Zen 4, AVX-512, heads of 512 in f16): two keys at once, 336 ns a position for 299, since the compiler
//! then uses half of the registers.
//!
//! # Safety
//! All functions here require the instruction set of `N`; see [`Numbers`].

use super::elements::{exponential, padded};
use super::numbers::{LANES, Numbers, Stored};

/// Positions in a run.
pub const POSITIONS: usize = 256;

/// Query heads that share a pass over keys and values.
const ROWS: usize = 8;
/// How many positions ahead keys are asked for; values are asked for while the scores are computed.
const KEYS_AHEAD: usize = 8;

/// Keys or values of a key head at neighbouring positions.
#[derive(Debug, Clone, Copy)]
pub struct Heads<'a, S> {
    /// The first position's head is at the beginning, the next one's `width` numbers behind it.
    pub numbers: &'a [S],
    /// Numbers from a position to the next.
    pub width: usize,
}

/// Positions whose keys and whose values lie together.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a, S> {
    /// How many.
    pub positions: usize,
    /// Their keys.
    pub keys: Heads<'a, S>,
    /// Their values.
    pub values: Heads<'a, S>,
}

/// The softmax over some positions, not yet divided by its sum.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Partial {
    /// The largest score of each row.
    pub largest: Vec<f32>,
    /// The sum of the exponentials of each row.
    pub sums: Vec<f32>,
    /// `[rows, head]`: the sum of the values under the exponentials.
    pub out: Vec<f32>,
    /// `[rows, POSITIONS]`, to work in.
    scores: Vec<f32>,
    /// `[rows, lines of a head]`: the queries.
    lines: Vec<Line>,
}

/// Sixteen numbers in a cache line of their own, the last of a head with zeros behind it: half of what is loaded for
/// a key would else lie across two lines.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(align(64))]
struct Line([f32; LANES]);

/// Attention of `queries` (`[rows, head]`) over `segments`, [`POSITIONS`] in all at most, into
/// `partial`.
#[inline(always)]
pub(super) unsafe fn attend<N: Numbers, S: Stored>(
    queries: &[f32],
    head: usize,
    segments: &[Segment<'_, S>],
    partial: &mut Partial,
) {
    let rows = queries.len() / head;
    let Partial { largest, sums, out, scores, lines } = partial;
    lines.clear();
    for query in queries.chunks_exact(head) {
        lines.extend(query.chunks(LANES).map(|chunk| Line(padded(chunk))));
    }
    largest.resize(rows, 0.0);
    sums.resize(rows, 0.0);
    scores.resize(rows * POSITIONS, 0.0);
    out.clear();
    out.resize(rows * head, 0.0);
    let mut first = 0;
    while first < rows {
        let begin = first * head;
        // SAFETY: the instruction set of `N` is the caller's promise.
        let taken = unsafe {
            let (lines, out) = (&lines[first * head.div_ceil(LANES)..], &mut out[begin..]);
            let (largest, sums) = (&mut largest[first..], &mut sums[first..]);
            match rows - first {
                8.. => rows_of::<N, S, 8>(lines, head, segments, largest, sums, out, scores),
                4.. => rows_of::<N, S, 4>(lines, head, segments, largest, sums, out, scores),
                2.. => rows_of::<N, S, 2>(lines, head, segments, largest, sums, out, scores),
                _ => rows_of::<N, S, 1>(lines, head, segments, largest, sums, out, scores),
            }
        };
        first += taken;
    }
}

/// The same for the first `R` rows; returns `R`.
#[inline(always)]
unsafe fn rows_of<N: Numbers, S: Stored, const R: usize>(
    queries: &[Line],
    head: usize,
    segments: &[Segment<'_, S>],
    largest: &mut [f32],
    sums: &mut [f32],
    out: &mut [f32],
    scores: &mut [f32],
) -> usize {
    // SAFETY: the instruction set of `N` is the caller's promise.
    unsafe {
        let mut count = 0;
        for segment in segments {
            for position in 0..segment.positions {
                ask_for::<N, S>(&segment.keys, position + KEYS_AHEAD, head);
                ask_for::<N, S>(&segment.values, position, head);
                let key = &segment.keys.numbers[position * segment.keys.width..][..head];
                let products = products::<N, S, R>(queries, key);
                for row in 0..R {
                    scores[row * POSITIONS + count] = products[row];
                }
                count += 1;
            }
        }
        for row in 0..R {
            let scores = &mut scores[row * POSITIONS..][..count];
            (largest[row], sums[row]) = exponentials::<N>(scores);
        }
        let mut begin = 0;
        for segment in segments {
            add_values::<N, S, R>(segment, head, &scores[begin..], out);
            begin += segment.positions;
        }
    }
    R
}

/// Asks for the numbers of a position, if there is one, before they are needed.
#[inline(always)]
unsafe fn ask_for<N: Numbers, S: Stored>(heads: &Heads<'_, S>, position: usize, head: usize) {
    let Some(numbers) = heads.numbers.get(position * heads.width..) else { return };
    let bytes = head.min(numbers.len()) * size_of::<S>();
    for line in (0..bytes).step_by(64) {
        // SAFETY: the instruction set of `N` is the caller's promise.
        unsafe { N::prefetch(numbers.as_ptr().cast::<u8>().wrapping_add(line)) };
    }
}

/// Dot products of `R` queries (`[R, lines of a head]`) with a key.
#[inline(always)]
unsafe fn products<N: Numbers, S: Stored, const R: usize>(
    queries: &[Line],
    key: &[S],
) -> [f32; ROWS] {
    let (chunks, last) = key.as_chunks::<LANES>();
    let lines = key.len().div_ceil(LANES);
    assert!(queries.len() >= R * lines);
    // SAFETY: the instruction set of `N` is the caller's promise; there are `R` rows of lines, as asserted.
    unsafe {
        let mut lanes = [N::splat(0.0); ROWS];
        for (chunk, key) in chunks.iter().enumerate() {
            let key = S::load::<N>(key);
            for row in 0..R {
                let query = N::load(&queries.get_unchecked(row * lines + chunk).0);
                lanes[row] = lanes[row].add(key.multiply(query));
            }
        }
        if !last.is_empty() {
            let mut key = [S::default(); LANES];
            key[..last.len()].copy_from_slice(last);
            let key = S::load::<N>(&key);
            for row in 0..R {
                let query = N::load(&queries.get_unchecked(row * lines + chunks.len()).0);
                lanes[row] = lanes[row].add(key.multiply(query));
            }
        }
        N::sums(lanes)
    }
}

/// Replaces scores by the exponentials of their distances from the largest; returns the largest and
/// the sum of the exponentials.
#[inline(always)]
unsafe fn exponentials<N: Numbers>(scores: &mut [f32]) -> (f32, f32) {
    // SAFETY: the instruction set of `N` is the caller's promise.
    unsafe {
        let largest = largest_of::<N>(scores);
        let (chunks, last) = scores.as_chunks_mut::<LANES>();
        let mut sums = [N::splat(0.0); ROWS];
        for chunk in chunks {
            let powers = exponential(N::load(chunk).subtract(N::splat(largest)));
            powers.store(chunk);
            sums[0] = sums[0].add(powers);
        }
        if !last.is_empty() {
            let mut powers = [0.0; LANES];
            let padded = padded(last);
            exponential(N::load(&padded).subtract(N::splat(largest))).store(&mut powers);
            powers[last.len()..].fill(0.0);
            sums[0] = sums[0].add(N::load(&powers));
            last.copy_from_slice(&powers[..last.len()]);
        }
        (largest, N::sums(sums)[0])
    }
}

/// The largest number. What is no number is passed over; the exponentials keep it.
#[inline(always)]
unsafe fn largest_of<N: Numbers>(numbers: &[f32]) -> f32 {
    let (chunks, last) = numbers.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    lanes[..last.len()].copy_from_slice(last);
    // SAFETY: the instruction set of `N` is the caller's promise.
    unsafe {
        let mut largest = N::load(&lanes).larger(N::splat(f32::NEG_INFINITY));
        for chunk in chunks {
            largest = N::load(chunk).larger(largest);
        }
        largest.store(&mut lanes);
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// Adds the values of a segment under `weights` (`[rows, POSITIONS]`, from the segment's first
/// position on) to `R` rows of `out`.
#[inline(always)]
unsafe fn add_values<N: Numbers, S: Stored, const R: usize>(
    segment: &Segment<'_, S>,
    head: usize,
    weights: &[f32],
    out: &mut [f32],
) {
    let Segment { positions, values, .. } = segment;
    if *positions == 0 {
        return;
    }
    let whole = head / LANES * LANES;
    let wide = if N::MANY_REGISTERS { head / (2 * LANES) * (2 * LANES) } else { 0 };
    assert!((positions - 1) * values.width + head <= values.numbers.len());
    assert!((R - 1) * POSITIONS + positions <= weights.len() && R * head <= out.len());
    // SAFETY: the instruction set of `N` is the caller's promise; what `add_chunks` needs is asserted above.
    unsafe {
        for begin in (0..wide).step_by(2 * LANES) {
            add_chunks::<N, S, R, 2>(values, *positions, head, begin, weights, out);
        }
        for begin in (wide..whole).step_by(LANES) {
            if N::MANY_REGISTERS || R <= 4 {
                add_chunks::<N, S, R, 1>(values, *positions, head, begin, weights, out);
            } else {
                // As many sums as there are registers for.
                let (later, out_later) = (&weights[4 * POSITIONS..], 4 * head);
                add_chunks::<N, S, 4, 1>(values, *positions, head, begin, weights, out);
                add_chunks::<N, S, 4, 1>(
                    values,
                    *positions,
                    head,
                    begin,
                    later,
                    &mut out[out_later..],
                );
            }
        }
        // Heads of no whole chunks are those of tests: number by number, in the same order.
        for place in whole..head {
            for position in 0..*positions {
                let mut value = [S::default(); LANES];
                value[0] = values.numbers[position * values.width + place];
                let mut wide = [0.0; LANES];
                S::load::<N>(&value).store(&mut wide);
                for row in 0..R {
                    out[row * head + place] += weights[row * POSITIONS + position] * wide[0];
                }
            }
        }
    }
}

/// The same for `C` chunks of every row, which stay in registers, from number `begin` on.
///
/// # Safety
/// `R` rows of `out` have these numbers, all positions of `values` have them, and of `weights` there are
/// `R` rows with as many positions.
#[inline(always)]
unsafe fn add_chunks<N: Numbers, S: Stored, const R: usize, const C: usize>(
    values: &Heads<'_, S>,
    positions: usize,
    head: usize,
    begin: usize,
    weights: &[f32],
    out: &mut [f32],
) {
    // SAFETY: the caller's promises.
    unsafe {
        let mut sums = [[N::splat(0.0); C]; R];
        for row in 0..R {
            for c in 0..C {
                sums[row][c] = N::load(&*out.as_ptr().add(row * head + begin + c * LANES).cast());
            }
        }
        for position in 0..positions {
            let numbers = values.numbers.as_ptr().add(position * values.width + begin);
            let mut value = [N::splat(0.0); C];
            for c in 0..C {
                value[c] = S::load::<N>(&*numbers.add(c * LANES).cast());
            }
            for row in 0..R {
                let weight = N::splat(*weights.as_ptr().add(row * POSITIONS + position));
                for c in 0..C {
                    sums[row][c] = sums[row][c].add(weight.multiply(value[c]));
                }
            }
        }
        for row in 0..R {
            for c in 0..C {
                let place = out.as_mut_ptr().add(row * head + begin + c * LANES);
                sums[row][c].store(&mut *place.cast());
            }
        }
    }
}

impl Partial {
    /// Adds a partial of later positions.
    pub fn merge(&mut self, later: &Partial) {
        let head = self.out.len() / self.largest.len();
        for row in 0..self.largest.len() {
            let (own, other) = (self.largest[row], later.largest[row]);
            let largest = if other > own { other } else { own };
            let (own, other) = (power(own - largest), power(other - largest));
            self.largest[row] = largest;
            self.sums[row] = self.sums[row] * own + later.sums[row] * other;
            let out = &mut self.out[row * head..][..head];
            for (out, later) in out.iter_mut().zip(&later.out[row * head..]) {
                *out = *out * own + later * other;
            }
        }
    }

    /// Divides by the sums, into `out` (`[rows, head]`).
    pub fn finish(&self, out: &mut [f32]) {
        let head = self.out.len() / self.largest.len();
        for ((out, own), sum) in
            out.chunks_exact_mut(head).zip(self.out.chunks_exact(head)).zip(&self.sums)
        {
            for (out, own) in out.iter_mut().zip(own) {
                *out = own / sum;
            }
        }
    }
}

/// One exponential, the same on every machine.
fn power(x: f32) -> f32 {
    // SAFETY: plain lanes need no instruction set.
    let powers: [f32; LANES] = unsafe { exponential([x; LANES]) };
    powers[0]
}
