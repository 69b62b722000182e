//! Parameters of the kernels that take a chunk of a prompt, and how those on tensor cores are launched.

use super::{Kind, KvLayer, Matrix};
use crate::cuda::Address;
use crate::cuda::images::Target;

/// How a kernel is launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkLaunch {
    /// Its name.
    pub kernel: String,
    /// Blocks.
    pub grid: [usize; 2],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
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

/// Products of a chunk's activations with up to three matrices, rows after rows.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Gemm {
    /// The weights, all with the same columns.
    pub part: [Matrix; 3],
    /// `[tokens, columns]`.
    pub x: Activations,
    /// `[tokens, out_stride]`.
    pub out: Address,
    /// Numbers.
    pub out_stride: u64,
    /// Matrices in `part`.
    pub parts: i32,
    /// Tokens.
    pub tokens: i32,
}

impl Gemm {
    /// Tokens of a block.
    const TOKENS: usize = 64;

    /// Whether tensor cores take these matrices: packed ones.
    pub fn on_tensor_cores(parts: &[Matrix]) -> bool {
        parts.iter().all(|part| part.kind != Kind::PlainBf16 as i32)
    }

    /// The launch for activations in their format, on a card with this many multiprocessors. Blocks of
    /// many rows read activations less often; they pay once there are about five for each
    /// multiprocessor. The result is the same.
    pub fn launch(&self, target: &Target, multiprocessors: usize) -> ChunkLaunch {
        let blocks = |rows: usize| {
            let parts = self.part[..self.parts as usize].iter();
            let tiles = parts.map(|part| (part.rows as usize).div_ceil(rows)).sum();
            [tiles, (self.tokens as usize).div_ceil(Self::TOKENS)]
        };
        if self.x.format == 0 {
            let kernel = "gemm_ffma".into();
            return ChunkLaunch { kernel, grid: blocks(64), threads: 256, shared: 0 };
        }
        let wide = blocks(256);
        let (rows, kernel, threads) = match wide[0] * wide[1] * 10 >= 48 * multiprocessors {
            true => (256, "gemm_mma_wide", 256),
            false => (64, "gemm_mma", 128),
        };
        let stages = if target.copies_ahead() { 3 } else { 2 };
        // Two f16 for each of 64 columns of the tokens; of a row eight words and two steps.
        let stage = Self::TOKENS * 64 * 4 + rows * (8 * 4 + 2 * 4);
        ChunkLaunch { kernel: kernel.into(), grid: blocks(rows), threads, shared: stages * stage }
    }
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

/// What `attend_mma.cu` takes of a card's shared memory.
struct AttendShape {
    /// Rows of a block: tokens times the query heads that share keys and values.
    rows: usize,
    /// Bytes of a slice of keys or values.
    slice: usize,
    /// Slices at once.
    stages: usize,
}

impl AttendShape {
    fn of(target: &Target) -> Self {
        let (rows, slice, stages) = match target.name {
            "sm_90" | "sm_100" => (64, 32 << 10, 3),
            "sm_80" => (64, 32 << 10, 2),
            _ if target.copies_ahead() => (32, 16 << 10, 2),
            _ => (32, 16 << 10, 1),
        };
        Self { rows, slice, stages }
    }
}

impl Attend {
    /// The launch on tensor cores, for keys and values in f16; `None` where there is no kernel for the
    /// shape.
    pub fn launch_mma(&self, target: &Target) -> Option<ChunkLaunch> {
        const TILE: usize = 64;
        let AttendShape { rows, slice, stages } = AttendShape::of(target);
        let (head_dim, kv_heads) = (self.cache.head_dim as usize, self.cache.kv_heads as usize);
        let heads_per_kv = self.heads as usize / kv_heads;
        if ![64, 256, 512].contains(&head_dim) || !rows.is_multiple_of(heads_per_kv) {
            return None;
        }
        let key_dims = head_dim.min(slice / 2 / TILE);
        let stages = if head_dim > 256 { stages } else { stages.min(2) };
        let tokens = rows / heads_per_kv;
        Some(ChunkLaunch {
            kernel: format!("attend_mma_{head_dim}"),
            grid: [(self.tokens as usize).div_ceil(tokens), kv_heads],
            threads: 256,
            shared: 2 * rows * (head_dim + TILE) + stages * 2 * TILE * key_dims,
        })
    }
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
    use crate::cuda::images::targets;
    use crate::cuda::parameters::{Rows, STATIC_SHARED};

    #[test]
    fn sizes_are_those_of_the_kernels() {
        assert_eq!(size_of::<Activations>(), 32);
        assert_eq!(size_of::<NormRows>(), 4 * 8 + 32 + 16);
        assert_eq!(size_of::<MapRows>(), 2 * 8 + 32 + 2 * 8 + 8);
        assert_eq!(size_of::<Gemm>(), 3 * 32 + 32 + 16 + 8);
        assert_eq!(size_of::<RopeRows>(), 80 + 7 * 8 + 6 * 4);
        assert_eq!(size_of::<Attend>(), 80 + 24 + 16);
        assert_eq!(size_of::<Commit>(), 88);
    }

    /// Bytes of shared memory that a block may have on the cards of a target.
    fn room(target: &str) -> usize {
        match target {
            "sm_75" | "compute_75" => 64 << 10,
            "sm_80" => 163 << 10,
            "sm_90" | "sm_100" => 227 << 10,
            _ => 99 << 10,
        }
    }

    #[test]
    fn every_launch_fits_into_the_shared_memory_of_its_cards() {
        let cache = |kv_heads, head_dim| KvLayer {
            stored: Rows::default(),
            staged: Rows::default(),
            kv_heads,
            head_dim,
            window: 0,
            ring: 0,
        };
        let x = Activations { values: 0, scales: 0, plane: 0, format: 1, padding: 0 };
        for target in targets() {
            let room = room(target.name) - STATIC_SHARED;
            for head_dim in [64, 256, 512] {
                for kv_heads in [1, 2, 8] {
                    let attend = Attend {
                        cache: cache(kv_heads, head_dim),
                        q: 0,
                        out: 0,
                        stride: 0,
                        first: 0,
                        staged_first: 0,
                        tokens: 100,
                        heads: 8,
                    };
                    let launch = attend.launch_mma(target).expect("there is a kernel");
                    assert!(launch.shared <= room, "{} {head_dim}: {}", target.name, launch.shared);
                }
            }
            let part = [Matrix { rows: 1536, columns: 1536, ..Matrix::NONE }; 3];
            for tokens in [1, 64, 4096] {
                let gemm = Gemm { part, x, out: 0, out_stride: 0, parts: 2, tokens };
                let launch = gemm.launch(target, 132);
                assert!(launch.shared <= room, "{}: {}", target.name, launch.shared);
                let rows = if launch.kernel == "gemm_mma" { 64 } else { 256 };
                assert_eq!(launch.grid[0], 2 * 1536 / rows);
                assert_eq!(launch.kernel == "gemm_mma_wide", tokens == 4096, "{tokens} tokens");
            }
        }
    }

    #[test]
    fn heads_that_do_not_share_evenly_have_no_kernel() {
        let cache = KvLayer {
            stored: Rows::default(),
            staged: Rows::default(),
            kv_heads: 1,
            head_dim: 256,
            window: 0,
            ring: 0,
        };
        let attend = Attend {
            cache,
            q: 0,
            out: 0,
            stride: 0,
            first: 0,
            staged_first: 0,
            tokens: 1,
            heads: 6,
        };
        assert!(targets().iter().all(|target| attend.launch_mma(target).is_none()));
    }
}
