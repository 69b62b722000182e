//! The kernels' parameter structs, field for field as in `kernels/cuda/`.

mod token;

pub use token::{
    ATTENTION_HEADS, ATTENTION_THREADS, MOST_PIECES, PRODUCT_THREADS, SLIDING_PIECES,
    STATIC_SHARED, Span, TokenAttention, TokenLaunch, TokenProduct, TokenResult,
};

use super::memory::Address;

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
    pub fn plain(stream: Address) -> Self {
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

/// Rows of the cache.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Rows {
    /// Keys.
    pub keys: Address,
    /// Values.
    pub values: Address,
    /// Steps of q8 keys.
    pub key_steps: Address,
    /// Steps of q8 values.
    pub value_steps: Address,
}

/// The cache of one layer; see `kv.cuh`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvLayer {
    /// All positions, or the ring.
    pub stored: Rows,
    /// Those of the running chunk, in sliding layers.
    pub staged: Rows,
    /// Heads.
    pub kv_heads: i32,
    /// Numbers of a head.
    pub head_dim: i32,
    /// Slots of the ring; 0: a full layer.
    pub window: i32,
    /// None.
    pub padding: i32,
}

/// Attention of one token.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Attention {
    /// The layer's, or the one's it reads.
    pub cache: KvLayer,
    /// `[heads, head_dim]`, raw.
    pub q: Address,
    /// `[kv_heads, head_dim]`, raw; 0: the layer owns none.
    pub k: Address,
    /// The same.
    pub v: Address,
    /// `[head_dim]`.
    pub q_norm: Address,
    /// `[head_dim]`.
    pub k_norm: Address,
    /// `[pairs]` of cosine and sine.
    pub turns: Address,
    /// `[heads, head_dim]`.
    pub out: Address,
    /// `[heads, max_pieces, head_dim]`.
    pub pieces: Address,
    /// `[heads, max_pieces]` of two f32.
    pub piece_state: Address,
    /// A u32 a block of heads, 0 between launches.
    pub finished: Address,
    /// The [`Step`].
    pub step: Address,
    /// Of the norms.
    pub epsilon: f32,
    /// That turn.
    pub pairs: i32,
    /// Query heads.
    pub heads: i32,
    /// Pieces there may be.
    pub max_pieces: i32,
    /// Whether the last block joins the pieces.
    pub join_here: i32,
    /// None.
    pub padding: i32,
}

/// What a decode step is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// Of the token.
    pub position: i32,
    /// Its id; -1: the one that the previous step chose.
    pub token: i32,
    /// What the head chose; see [`Step::chosen`].
    pub best: u64,
}

impl Step {
    /// The id in `best`.
    pub fn chosen(best: u64) -> u32 {
        !(best as u32)
    }

    /// Whether the logit of that id is NaN: then no comparison ranks.
    pub fn is_nan(best: u64) -> bool {
        best >> 32 == u64::from(u32::MAX)
    }
}

/// Activations of a chunk; see `activations.cuh`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Activations {
    /// Numbers, or two planes of halves.
    pub values: Address,
    /// `[tokens]`.
    pub scales: Address,
    /// Halves of a plane.
    pub plane: u64,
    /// 0: f32, 1: two f16.
    pub format: i32,
    /// None.
    pub padding: i32,
}

/// Norms and residual additions of a chunk.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct NormRows {
    /// `[tokens, columns]`, in and out.
    pub stream: Address,
    /// 0: nothing is added.
    pub delta: Address,
    /// `[columns]`.
    pub delta_norm: Address,
    /// 0: no norm.
    pub norm: Address,
    /// The result.
    pub out: Activations,
    /// Multiplies the stream after the addition.
    pub scalar: f32,
    /// Of the norms.
    pub epsilon: f32,
    /// Width.
    pub columns: i32,
    /// None.
    pub padding: i32,
}

/// Gates of a chunk.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct MapRows {
    /// `[tokens, in_stride]`.
    pub input: Address,
    /// 0: the input as it is; else `gelu(input) * with`.
    pub with: Address,
    /// The result.
    pub out: Activations,
    /// Numbers.
    pub in_stride: u64,
    /// Numbers.
    pub with_stride: u64,
    /// Width.
    pub columns: i32,
    /// None.
    pub padding: i32,
}

/// A matrix product of a chunk.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Gemm {
    /// The weight.
    pub weight: Matrix,
    /// `[tokens, columns]`.
    pub x: Activations,
    /// `[tokens, out_stride]`.
    pub out: Address,
    /// Numbers.
    pub out_stride: u64,
    /// Tokens.
    pub tokens: i32,
    /// None.
    pub padding: i32,
}

/// Norms, rotations and storing of a chunk's q, k and v.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RopeRows {
    /// The layer's own, or the one's it reads.
    pub cache: KvLayer,
    /// `[tokens, stride]`, in place.
    pub q: Address,
    /// 0: the layer owns none.
    pub k: Address,
    /// The same.
    pub v: Address,
    /// `[head_dim]`.
    pub q_norm: Address,
    /// `[head_dim]`.
    pub k_norm: Address,
    /// `[tokens, turns_stride]` of cosine and sine.
    pub turns: Address,
    /// Numbers.
    pub stride: u64,
    /// Pairs.
    pub turns_stride: i32,
    /// That turn.
    pub pairs: i32,
    /// Position of the first token.
    pub first: i32,
    /// Query heads.
    pub heads: i32,
    /// Of the norms.
    pub epsilon: f32,
    /// None.
    pub padding: i32,
}

/// Attention of a chunk.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Attend {
    /// The layer's own, or the one's it reads.
    pub cache: KvLayer,
    /// `[tokens, stride]`.
    pub q: Address,
    /// `[tokens, heads, head_dim]`.
    pub out: Address,
    /// Numbers.
    pub stride: u64,
    /// Position of the first token.
    pub first: i32,
    /// Position of the first staged row.
    pub staged_first: i32,
    /// Tokens.
    pub tokens: i32,
    /// Query heads.
    pub heads: i32,
}

/// Moves staged rows into the ring.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Commit {
    /// Of a sliding layer that owns keys.
    pub cache: KvLayer,
    /// Position of the first staged row.
    pub first: i32,
    /// Rows.
    pub tokens: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the CUDA compiler makes of the same structs, by the same rules of alignment.
    #[test]
    fn sizes_are_those_of_the_kernels() {
        assert_eq!(size_of::<Matrix>(), 32);
        assert_eq!(size_of::<Input>(), 48);
        assert_eq!(size_of::<Gemv>(), 3 * 32 + 48 + 5 * 8 + 9 * 4 + 4);
        assert_eq!(size_of::<KvLayer>(), 80);
        assert_eq!(size_of::<Attention>(), 80 + 11 * 8 + 6 * 4);
        assert_eq!(size_of::<Step>(), 16);
        assert_eq!(size_of::<Activations>(), 32);
        assert_eq!(size_of::<NormRows>(), 4 * 8 + 32 + 16);
        assert_eq!(size_of::<MapRows>(), 2 * 8 + 32 + 2 * 8 + 8);
        assert_eq!(size_of::<Gemm>(), 32 + 32 + 16 + 8);
        assert_eq!(size_of::<RopeRows>(), 80 + 7 * 8 + 6 * 4);
        assert_eq!(size_of::<Attend>(), 80 + 24 + 16);
        assert_eq!(size_of::<Commit>(), 88);
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
