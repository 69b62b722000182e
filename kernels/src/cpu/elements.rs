//! What is done element by element: exponentials, GELU, the softcap, norms.
//!
//! # Safety
//! All functions here require the instruction set of `N`; see [`Numbers`].

use super::numbers::{LANES, Numbers, ROUND};

/// e to the power of each, for numbers up to 88; below -87 it is the smallest normal number or so,
/// which is nothing beside the 1 that a softmax always holds.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2; e^r by its series to the 7th power (less than 1e-8 off), 2^n
/// by its bits. Within two units of the last place. What is no number stays none.
#[inline(always)]
pub(super) unsafe fn exponential<N: Numbers>(x: N) -> N {
    const LOWEST: f32 = -87.0;
    // ln 2 in two parts; the product of the first with an integer is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // SAFETY: the instruction set of `N` is the caller's promise.
    unsafe {
        let x = N::splat(LOWEST).larger(x);
        let shifted = x.multiply(N::splat(std::f32::consts::LOG2_E)).add(N::splat(ROUND));
        let n = shifted.subtract(N::splat(ROUND));
        let r = x.subtract(n.multiply(N::splat(LN_2_HIGH)));
        let r = r.subtract(n.multiply(N::splat(LN_2_LOW)));
        let mut series = N::splat(1.0 / 5040.0);
        for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            series = series.multiply(r).add(N::splat(factor));
        }
        series.multiply(shifted.power_of_two())
    }
}

/// 1 / (1 + e^-x) of each: half of one plus the hyperbolic tangent of x/2.
#[inline(always)]
unsafe fn sigmoid<N: Numbers>(x: N) -> N {
    /// Here e^-x is far from overflowing, and the result is 0 to all purposes.
    const LOWEST: f32 = -80.0;
    // SAFETY: the instruction set of `N` is the caller's promise.
    unsafe {
        let negative = N::splat(0.0).subtract(N::splat(LOWEST).larger(x));
        let one = N::splat(1.0);
        one.divide(one.add(exponential(negative)))
    }
}

/// `gate = gelu(gate)·other`, GELU in its tanh form: x times the sigmoid of
/// 2·√(2/π)·(x + 0.044715·x³).
#[inline(always)]
pub(super) unsafe fn gelu_times<N: Numbers>(gate: &mut [f32], other: &[f32]) {
    let (gates, last) = gate.as_chunks_mut::<LANES>();
    let (others, last_other) = other.as_chunks::<LANES>();
    // SAFETY: the instruction set of `N` is the caller's promise.
    unsafe {
        for (gate, other) in gates.iter_mut().zip(others) {
            gelu::<N>(gate).multiply(N::load(other)).store(gate);
        }
        let mut out = [0.0; LANES];
        let other = padded(last_other);
        gelu::<N>(&padded(last)).multiply(N::load(&other)).store(&mut out);
        last.copy_from_slice(&out[..last.len()]);
    }
}

#[inline(always)]
unsafe fn gelu<N: Numbers>(x: &[f32; LANES]) -> N {
    // SAFETY: the instruction set of `N` is the caller's promise.
    unsafe {
        // Below -20 it is nothing, whatever x: a product with the smallest sigmoid would not be.
        let x = N::splat(-20.0).larger(N::load(x));
        let cubed = x.multiply(x).multiply(x);
        let inner = x.add(cubed.multiply(N::splat(0.044_715)));
        x.multiply(sigmoid(inner.multiply(N::splat(2.0 * 0.797_884_6))))
    }
}

/// `x = cap·tanh(x / cap)`.
#[inline(always)]
pub(super) unsafe fn soft_cap<N: Numbers>(numbers: &mut [f32], cap: f32) {
    let (chunks, last) = numbers.as_chunks_mut::<LANES>();
    // SAFETY: the instruction set of `N` is the caller's promise.
    unsafe {
        for chunk in chunks {
            capped::<N>(chunk, cap).store(chunk);
        }
        let mut out = [0.0; LANES];
        capped::<N>(&padded(last), cap).store(&mut out);
        last.copy_from_slice(&out[..last.len()]);
    }
}

/// By way of tanh y = 2·sigmoid(2y) - 1.
#[inline(always)]
unsafe fn capped<N: Numbers>(x: &[f32; LANES], cap: f32) -> N {
    // SAFETY: the instruction set of `N` is the caller's promise.
    unsafe {
        let y = N::load(x).divide(N::splat(cap));
        let sigmoid = sigmoid(y.add(y));
        sigmoid.add(sigmoid).subtract(N::splat(1.0)).multiply(N::splat(cap))
    }
}

/// Divides a row by its root mean square, then multiplies it by `weight`, if there is one.
///
/// Squares are summed in 64 lanes: chunk c of 16 goes to the lanes of c mod 4.
#[inline(always)]
pub(super) unsafe fn rms_norm<N: Numbers>(row: &mut [f32], weight: Option<&[f32]>, epsilon: f32) {
    // SAFETY: the instruction set of `N` is the caller's promise.
    unsafe {
        let mut squares = [N::splat(0.0); 8];
        let (chunks, last) = row.as_chunks::<LANES>();
        for (number, chunk) in chunks.iter().enumerate() {
            let x = N::load(chunk);
            squares[number % 4] = squares[number % 4].add(x.multiply(x));
        }
        let x = N::load(&padded(last));
        squares[0] = squares[0].add(x.multiply(x));
        let [a, b, c, d, ..] = N::sums(squares);
        let mean = ((a + b) + (c + d)) / row.len() as f32;
        let factor = N::splat(1.0 / (mean + epsilon).sqrt());
        let (chunks, last) = row.as_chunks_mut::<LANES>();
        match weight {
            None => {
                for chunk in chunks {
                    N::load(chunk).multiply(factor).store(chunk);
                }
                let mut out = [0.0; LANES];
                N::load(&padded(last)).multiply(factor).store(&mut out);
                last.copy_from_slice(&out[..last.len()]);
            }
            Some(weight) => {
                let (weights, last_weight) = weight.as_chunks::<LANES>();
                for (chunk, weight) in chunks.iter_mut().zip(weights) {
                    N::load(chunk).multiply(factor).multiply(N::load(weight)).store(chunk);
                }
                let mut out = [0.0; LANES];
                let scaled = N::load(&padded(last)).multiply(factor);
                scaled.multiply(N::load(&padded(last_weight))).store(&mut out);
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
