//! Matrices, and their products with vectors on ordinary cores.

use crate::cuda::Address;

/// How the values of a matrix are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    /// Packed words, f16 steps.
    PackedF16 = 0,
    /// Packed words, bf16 steps.
    PackedBf16 = 1,
    /// Packed words, f32 steps.
    PackedF32 = 2,
    /// Plain bf16.
    PlainBf16 = 3,
}

/// A weight matrix on the card.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Matrix {
    /// Words or values.
    pub values: Address,
    /// Steps; 0 for plain values.
    pub steps: Address,
    /// Outputs.
    pub rows: i32,
    /// Inputs.
    pub columns: i32,
    /// A [`Kind`].
    pub kind: i32,
    /// None.
    pub padding: i32,
}

impl Matrix {
    /// No matrix, in lists that are not full.
    pub const NONE: Matrix =
        Matrix { values: 0, steps: 0, rows: 0, columns: 0, kind: 0, padding: 0 };
}

/// Where a matrix-vector product's input comes from; see `digits.cuh`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Input {
    /// `[columns]`.
    pub stream: Address,
    /// What is added to the stream first; 0: nothing.
    pub delta: Address,
    /// The norm of that.
    pub delta_norm: Address,
    /// The norm of the result; 0: none.
    pub norm: Address,
    /// Where the stream goes; 0: nowhere.
    pub stream_out: Address,
    /// Multiplies the stream after the addition.
    pub scalar: f32,
    /// Of the norms.
    pub epsilon: f32,
}

impl Input {
    /// A vector as it is.
    pub const fn plain(stream: Address) -> Self {
        Self { stream, delta: 0, delta_norm: 0, norm: 0, stream_out: 0, scalar: 1.0, epsilon: 0.0 }
    }
}

/// What becomes of a product; see `gemv.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Epilogue {
    /// It is stored.
    Store = 0,
    /// `gelu(gate) * up`.
    Geglu = 1,
    /// `gelu(y) * gate_with`.
    Gated = 2,
    /// Softcap and argmax.
    Logits = 3,
}

/// A matrix-vector product.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Gemv {
    /// Up to three matrices, rows after rows; with [`Epilogue::Geglu`] gate and up.
    pub part: [Matrix; 3],
    /// Of one token.
    pub input: Input,
    /// Of several tokens, made by the kernel `digits`.
    pub digits: Address,
    /// `[tokens, rows]`.
    pub out: Address,
    /// With [`Epilogue::Gated`].
    pub gate_with: Address,
    /// With [`Epilogue::Logits`]: a u64 a token.
    pub best: Address,
    /// Bytes.
    pub digit_stride: u64,
    /// Numbers.
    pub gate_stride: i32,
    /// Softcap; 0: none.
    pub cap: f32,
    /// Matrices in `part`.
    pub parts: i32,
    /// Rows of the result.
    pub rows: i32,
    /// Columns of every part.
    pub columns: i32,
    /// Lanes of a row.
    pub lanes: i32,
    /// Slices of a row.
    pub slices: i32,
    /// Row pairs of a block.
    pub pairs_per_block: i32,
    /// An [`Epilogue`].
    pub epilogue: i32,
}

/// Threads of `gemv_m*` and `digits`.
pub const GEMV_THREADS: u32 = 256;

/// Bytes of a vector's digits; behind those of several tokens lies one f32 each, in 16 bytes.
pub fn digit_bytes(columns: usize) -> usize {
    columns / 32 * (6 * 16 + 8)
}

/// How a row is shared among lanes and slices: by its length alone.
pub fn row_shape(columns: usize) -> (i32, i32) {
    let groups = columns / 32;
    let lanes = match groups {
        0..=8 => 8,
        9..=16 => 16,
        // 48 groups are three for each of 16 lanes.
        _ if groups == 48 => 16,
        _ => 32,
    };
    let per_lane = (groups as i32 + lanes - 1) / lanes;
    (lanes, (per_lane + 2) / 3)
}

impl Gemv {
    /// Row pairs of all blocks; with [`Epilogue::Geglu`] a gate row and its up row.
    pub fn pairs(&self) -> usize {
        let is_geglu = self.epilogue == Epilogue::Geglu as i32;
        if is_geglu { self.rows as usize } else { (self.rows as usize).div_ceil(2) }
    }

    /// The kernel for one token: one that asks nothing at run time where all parts have f16 steps
    /// and every lane the same number of groups, else the one for everything.
    pub fn kernel(&self) -> &'static str {
        let groups = self.columns / 32;
        let per_lane = groups / self.lanes;
        let is_even = groups % self.lanes == 0 && per_lane % self.slices == 0;
        let mut parts = self.part[..self.parts as usize].iter();
        if !is_even || !parts.all(|part| part.kind == Kind::PackedF16 as i32) {
            return "gemv_m1";
        }
        ["gemv_m1", "gemv_f16_1", "gemv_f16_2", "gemv_f16_3"][(per_lane / self.slices) as usize]
    }
}

/// The product of one token with a matrix of many rows; see `gemv_tall.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct TallGemv {
    /// Packed, with f16 steps.
    pub matrix: Matrix,
    /// Of the token.
    pub input: Input,
    /// `[rows]`.
    pub out: Address,
    /// A u64, or 0: no row is looked for.
    pub best: Address,
    /// Softcap; 0: none.
    pub cap: f32,
    /// Lanes of a row.
    pub lanes: i32,
}

impl TallGemv {
    /// The same product for many rows and the kernel that makes it, if there is one: of one matrix in f16 steps, whose rows
    /// are one slice, the same number of groups for every lane, and whole units of a warp.
    pub fn of(gemv: &Gemv) -> Option<(Self, &'static str)> {
        let is_plain = [Epilogue::Store, Epilogue::Logits].map(|kind| kind as i32);
        let kernel = match gemv.kernel() {
            "gemv_f16_1" => "gemv_tall_1",
            "gemv_f16_2" => "gemv_tall_2",
            "gemv_f16_3" => "gemv_tall_3",
            _ => return None,
        };
        let unit = 2 * 32 / gemv.lanes;
        let fits = gemv.parts == 1 && gemv.slices == 1 && gemv.rows % unit == 0;
        let is_logits = gemv.epilogue == Epilogue::Logits as i32;
        let (best, cap) = if is_logits { (gemv.best, gemv.cap) } else { (0, 0.0) };
        let (matrix, input, out) = (gemv.part[0], gemv.input, gemv.out);
        let tall = Self { matrix, input, out, best, cap, lanes: gemv.lanes };
        (fits && is_plain.contains(&gemv.epilogue)).then_some((tall, kernel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels() {
        assert_eq!(size_of::<Matrix>(), 32);
        assert_eq!(size_of::<Input>(), 48);
        assert_eq!(size_of::<Gemv>(), 3 * 32 + 48 + 5 * 8 + 9 * 4 + 4);
        assert_eq!(size_of::<TallGemv>(), 32 + 48 + 2 * 8 + 8);
    }

    #[test]
    fn rows_of_e2b_are_shared_evenly() {
        for (columns, shape) in [
            (256, (8, 1)),
            (1536, (16, 1)),
            (2048, (32, 1)),
            (4096, (32, 2)),
            (6144, (32, 2)),
            (12288, (32, 4)),
        ] {
            assert_eq!(row_shape(columns), shape, "{columns} columns");
        }
    }

    #[test]
    fn a_lane_never_has_more_than_three_groups_of_a_slice() {
        for groups in 1..2000usize {
            let (lanes, slices) = row_shape(32 * groups);
            let per_lane = (groups as i32 + lanes - 1) / lanes;
            assert!((per_lane + slices - 1) / slices <= 3, "{groups} groups");
            // Only whole-warp rows have slices: the kernel gives a slice to a warp.
            assert!(slices == 1 || lanes == 32, "{groups} groups");
        }
    }
}
