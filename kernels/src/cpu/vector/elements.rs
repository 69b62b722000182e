//! What is done element by element: exponentials, GELU, the softcap, norms.
//!
//! # Safety
//! All functions here require the instruction set of `W`; see [`Wide`].

use super::wide::{LANES, ROUND, Wide};

/// e to the power of each, for numbers up to 88; below -87 it is the smallest normal number or so,
/// which is nothing beside the 1 that a softmax always holds.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2; e^r by its series to the 7th power (less than 1e-8 off), 2^n
/// by its bits. Within two units of the last place. What is no number stays none.
#[inline(always)]
pub(super) unsafe fn exponential<W: Wide>(x: W) -> W {
    const LOWEST: f32 = -87.0;
    // ln 2 in two parts; the product of the first with an integer is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // SAFETY: the instruction set of `W` is the caller's promise.
    unsafe {
        let x = W::splat(LOWEST).larger(x);
        let shifted = x.multiply(W::splat(std::f32::consts::LOG2_E)).add(W::splat(ROUND));
        let n = shifted.subtract(W::splat(ROUND));
        let r = x.subtract(n.multiply(W::splat(LN_2_HIGH)));
        let r = r.subtract(n.multiply(W::splat(LN_2_LOW)));
        let mut series = W::splat(1.0 / 5040.0);
        for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            series = series.multiply(r).add(W::splat(factor));
        }
        series.multiply(shifted.power_of_two())
    }
}

/// 1 / (1 + e^-x) of each: half of one plus the hyperbolic tangent of x/2.
#[inline(always)]
unsafe fn sigmoid<W: Wide>(x: W) -> W {
    /// Here e^-x is far from overflowing, and the result is 0 to all purposes.
    const LOWEST: f32 = -80.0;
    // SAFETY: the instruction set of `W` is the caller's promise.
    unsafe {
        let negative = W::splat(0.0).subtract(W::splat(LOWEST).larger(x));
        let one = W::splat(1.0);
        one.divide(one.add(exponential(negative)))
    }
}

/// `gate = gelu(gate)·other`, GELU in its tanh form: x times the sigmoid of
/// 2·√(2/π)·(x + 0.044715·x³).
#[inline(always)]
pub(super) unsafe fn gelu_times<W: Wide>(gate: &mut [f32], other: &[f32]) {
    let (gates, last) = gate.as_chunks_mut::<LANES>();
    let (others, last_other) = other.as_chunks::<LANES>();
    // SAFETY: the instruction set of `W` is the caller's promise.
    unsafe {
        for (gate, other) in gates.iter_mut().zip(others) {
            gelu::<W>(gate).multiply(W::load(other)).store(gate);
        }
        let mut out = [0.0; LANES];
        let other = padded(last_other);
        gelu::<W>(&padded(last)).multiply(W::load(&other)).store(&mut out);
        last.copy_from_slice(&out[..last.len()]);
    }
}

#[inline(always)]
unsafe fn gelu<W: Wide>(x: &[f32; LANES]) -> W {
    // SAFETY: the instruction set of `W` is the caller's promise.
    unsafe {
        // Below -20 it is nothing, whatever x: a product with the smallest sigmoid would not be.
        let x = W::splat(-20.0).larger(W::load(x));
        let cubed = x.multiply(x).multiply(x);
        let inner = x.add(cubed.multiply(W::splat(0.044_715)));
        x.multiply(sigmoid(inner.multiply(W::splat(2.0 * 0.797_884_6))))
    }
}

/// `x = cap·tanh(x / cap)`.
#[inline(always)]
pub(super) unsafe fn soft_cap<W: Wide>(numbers: &mut [f32], cap: f32) {
    let (chunks, last) = numbers.as_chunks_mut::<LANES>();
    // SAFETY: the instruction set of `W` is the caller's promise.
    unsafe {
        for chunk in chunks {
            capped::<W>(chunk, cap).store(chunk);
        }
        let mut out = [0.0; LANES];
        capped::<W>(&padded(last), cap).store(&mut out);
        last.copy_from_slice(&out[..last.len()]);
    }
}

/// By way of tanh y = 2·sigmoid(2y) - 1.
#[inline(always)]
unsafe fn capped<W: Wide>(x: &[f32; LANES], cap: f32) -> W {
    // SAFETY: the instruction set of `W` is the caller's promise.
    unsafe {
        let y = W::load(x).divide(W::splat(cap));
        let sigmoid = sigmoid(y.add(y));
        sigmoid.add(sigmoid).subtract(W::splat(1.0)).multiply(W::splat(cap))
    }
}

/// Divides a row by its root mean square, then multiplies it by `weight`, if there is one.
///
/// Squares are summed in 64 lanes: chunk c of 16 goes to the lanes of c mod 4.
#[inline(always)]
pub(super) unsafe fn rms_norm<W: Wide>(row: &mut [f32], weight: Option<&[f32]>, epsilon: f32) {
    // SAFETY: the instruction set of `W` is the caller's promise.
    unsafe {
        let mut squares = [W::splat(0.0); 8];
        let (chunks, last) = row.as_chunks::<LANES>();
        for (number, chunk) in chunks.iter().enumerate() {
            let x = W::load(chunk);
            squares[number % 4] = squares[number % 4].add(x.multiply(x));
        }
        let x = W::load(&padded(last));
        squares[0] = squares[0].add(x.multiply(x));
        let [a, b, c, d, ..] = W::sums(squares);
        let mean = ((a + b) + (c + d)) / row.len() as f32;
        let factor = W::splat(1.0 / (mean + epsilon).sqrt());
        let (chunks, last) = row.as_chunks_mut::<LANES>();
        match weight {
            None => {
                for chunk in chunks {
                    W::load(chunk).multiply(factor).store(chunk);
                }
                let mut out = [0.0; LANES];
                W::load(&padded(last)).multiply(factor).store(&mut out);
                last.copy_from_slice(&out[..last.len()]);
            }
            Some(weight) => {
                let (weights, last_weight) = weight.as_chunks::<LANES>();
                for (chunk, weight) in chunks.iter_mut().zip(weights) {
                    W::load(chunk).multiply(factor).multiply(W::load(weight)).store(chunk);
                }
                let mut out = [0.0; LANES];
                let scaled = W::load(&padded(last)).multiply(factor);
                scaled.multiply(W::load(&padded(last_weight))).store(&mut out);
                last.copy_from_slice(&out[..last.len()]);
            }
        }
    }
}

/// The rest of a row behind its whole chunks, zeros behind it.
#[inline(always)]
pub(super) fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut chunk = [0.0; LANES];
    chunk[..rest.len()].copy_from_slice(rest);
    chunk
}
