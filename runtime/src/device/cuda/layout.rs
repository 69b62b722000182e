//! What lies where in the one allocation on the card.
//!
//! [`lay_out`] hands out addresses from a [`Bump`] that only counts: with a base of 0 it is the
//! plan, with the arena's address it is the real thing. So the plan cannot differ from what is
//! used.

use super::plan::{KvType, Sizes, TablePlace, Wish, driver_bytes};
use super::work_space::{BatchWork, Work, lay_out_batch, lay_out_work};
use crate::device::MOST_TRIED;
use crate::error::RuntimeError;
use crate::model::{LayerWeights, PerLayerInputs, Weights};
use crate::weights::{Storage, Stored};
use w4pack_format::config::{LayerConfig, LayerKind, TextConfig};
use w4pack_format::scale::ScaleDtype;
use w4pack_kernels::cuda::Address;
use w4pack_kernels::cuda::parameters::{Kind, KvLayer, Matrix, Rows};

/// Counts addresses up, everything aligned to 256 bytes.
pub(super) struct Bump {
    next: Address,
}

impl Bump {
    pub fn take(&mut self, bytes: usize) -> Address {
        let address = self.next;
        self.next += (bytes as Address).next_multiple_of(256);
        address
    }

    pub fn floats(&mut self, count: usize) -> Address {
        self.take(4 * count)
    }
}

/// Every address on the card.
pub(super) struct Layout {
    pub sizes: Sizes,
    pub weights: Weights<Placed>,
    pub vectors: Vectors,
    /// By slot, then by layer; `None` where a layer reads another one's.
    pub caches: Vec<Vec<Option<KvLayer>>>,
    pub work: Work,
    pub batch: BatchWork,
    /// Tokens of one sequence that are tried together at most; 1: none are.
    pub tried: usize,
    /// Query heads.
    pub heads: usize,
}

/// A matrix and where it goes; with values of 0 it is not on the card.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub stored: Stored,
    pub matrix: Matrix,
}

/// Addresses of the vectors.
pub(super) struct Vectors {
    pub projection_norm: Address,
    pub norm: Address,
    pub layers: Vec<LayerVectors>,
    /// Radians a position, of every kind of layer, one after another.
    pub frequencies: Address,
    /// What is uploaded where.
    pub contents: Vec<(Address, Vec<f32>)>,
    /// Pairs of all kinds.
    pub pairs: usize,
}

/// Addresses of a layer's vectors; 0 where it has none.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerVectors {
    pub input_norm: Address,
    pub q_norm: Address,
    pub k_norm: Address,
    pub post_attention_norm: Address,
    pub pre_mlp_norm: Address,
    pub post_mlp_norm: Address,
    pub post_block_norm: Address,
    /// Where its pairs begin among all.
    pub first_pair: usize,
}

/// Hands out every address from `base` on.
pub(super) fn lay_out(
    text: &TextConfig,
    weights: &Weights<Stored>,
    wish: &Wish,
    context: usize,
    table: TablePlace,
    base: Address,
) -> Layout {
    let mut bump = Bump { next: base };
    let mut seen = base;
    let mut section = |bump: &Bump| {
        let bytes = (bump.next - seen) as usize;
        seen = bump.next;
        bytes
    };
    let mut sizes = Sizes::default();

    let vectors = lay_out_vectors(text, weights, &mut bump);
    let table_name = weights.per_layer_inputs.as_ref().map(|i| i.embed_tokens.name.clone());
    let mut placed = weights
        .clone()
        .try_map(&mut |stored: Stored| {
            let is_table = Some(&stored.name) == table_name.as_ref();
            let matrix = match is_table {
                true => Matrix::NONE,
                false => place(&stored, &mut bump),
            };
            Ok::<_, RuntimeError>(Placed { stored, matrix })
        })
        .unwrap_or_else(|_| unreachable!("placing a matrix cannot fail"));
    sizes.weights = section(&bump);
    if let (Some(inputs), TablePlace::Gpu) = (&mut placed.per_layer_inputs, table) {
        inputs.embed_tokens.matrix = place(&inputs.embed_tokens.stored, &mut bump);
    }
    sizes.table = section(&bump);

    let mut caches = vec![vec![None; text.layers.len()]; wish.slots];
    let of_kind = |kind: LayerKind| {
        let owned = text.layers.iter().enumerate();
        owned.filter(move |(_, layer)| layer.kind == kind && layer.kv_source.is_none())
    };
    for slot in &mut caches {
        for (number, layer) in of_kind(LayerKind::Full) {
            let stored = rows(layer, context, wish.kv, &mut bump);
            slot[number] = Some(kv_layer(layer, stored, 0, 0));
        }
    }
    sizes.full = section(&bump);
    for slot in &mut caches {
        for (number, layer) in of_kind(LayerKind::Sliding) {
            let ring = ring_rows(text.sliding_window);
            let stored = rows(layer, ring, wish.kv, &mut bump);
            slot[number] = Some(kv_layer(layer, stored, text.sliding_window, ring));
        }
    }
    sizes.sliding = section(&bump);

    let chunk = wish.chunk.min(context);
    // Staged rows are of the running chunk, so all slots share them.
    for (number, layer) in of_kind(LayerKind::Sliding) {
        let staged = rows(layer, chunk, wish.kv, &mut bump);
        for slot in &mut caches {
            if let Some(cache) = &mut slot[number] {
                cache.staged = staged;
            }
        }
    }
    let work = lay_out_work(text, weights, wish, context, table, vectors.pairs, &mut bump);
    // A chunk of a prompt and tokens that go together are never under way at once: the same memory.
    let behind_chunk = std::mem::replace(&mut bump.next, work.chunk_ids);
    let batch = lay_out_batch(text, &work, wish, vectors.pairs, &mut bump);
    bump.next = bump.next.max(behind_chunk);
    sizes.work = section(&bump);
    let mapped = match (&placed.per_layer_inputs, table) {
        (Some(inputs), TablePlace::Host) => inputs.embed_tokens.stored.bytes() as usize,
        _ => 0,
    };
    sizes.driver = driver_bytes(text.layers.len(), wish, mapped);
    let (tried, heads) = (wish.tried, text.num_attention_heads);
    Layout { sizes, weights: placed, vectors, caches, work, batch, tried, heads }
}

/// The kernels' word for how a matrix is stored.
pub(super) fn kind_of(storage: Storage) -> Kind {
    match storage {
        Storage::Plain | Storage::Stacked { .. } => Kind::PlainBf16,
        Storage::Packed(ScaleDtype::F16) => Kind::PackedF16,
        Storage::Packed(ScaleDtype::BF16) => Kind::PackedBf16,
        Storage::Packed(ScaleDtype::F32) => Kind::PackedF32,
    }
}

/// Bytes of a row's words (or values) and of its steps.
pub(super) fn row_bytes(stored: &Stored) -> [usize; 2] {
    match stored.storage {
        Storage::Plain | Storage::Stacked { .. } => [2 * stored.columns, 0],
        Storage::Packed(dtype) => [stored.columns / 2, stored.columns / 32 * dtype.bytes()],
    }
}

fn place(stored: &Stored, bump: &mut Bump) -> Matrix {
    let [values, steps] = row_bytes(stored).map(|bytes| bump.take(stored.rows * bytes));
    let kind = kind_of(stored.storage);
    let (rows, columns) = (stored.rows as i32, stored.columns as i32);
    Matrix { values, steps, rows, columns, kind: kind as i32, padding: 0 }
}

fn lay_out_vectors(text: &TextConfig, weights: &Weights<Stored>, bump: &mut Bump) -> Vectors {
    let mut contents = Vec::new();
    let mut put = |vector: &[f32]| {
        let address = bump.floats(vector.len());
        contents.push((address, vector.to_vec()));
        address
    };
    // Layers of one kind turn alike; a kind's frequencies are stored once.
    let mut kinds: Vec<(Vec<f32>, usize)> = Vec::new();
    let mut pairs = 0;
    let layers = text
        .layers
        .iter()
        .zip(&weights.layers)
        .map(|(config, layer): (&LayerConfig, &LayerWeights<Stored>)| {
            let frequencies = crate::attention::frequencies(&config.rope, config.head_dim);
            let known = kinds.iter().find(|(known, _)| *known == frequencies);
            let first_pair = known.map_or(pairs, |(_, first)| *first);
            if known.is_none() {
                pairs += frequencies.len();
                kinds.push((frequencies, first_pair));
            }
            LayerVectors {
                input_norm: put(&layer.input_norm),
                q_norm: put(&layer.q_norm),
                k_norm: layer.keys_and_values.as_ref().map_or(0, |own| put(&own.k_norm)),
                post_attention_norm: put(&layer.post_attention_norm),
                pre_mlp_norm: put(&layer.pre_mlp_norm),
                post_mlp_norm: put(&layer.post_mlp_norm),
                post_block_norm: layer
                    .per_layer_block
                    .as_ref()
                    .map_or(0, |block| put(&block.post_norm)),
                first_pair,
            }
        })
        .collect();
    let norm = put(&weights.norm);
    let inputs: Option<&PerLayerInputs<Stored>> = weights.per_layer_inputs.as_ref();
    let projection_norm = inputs.map_or(0, |inputs| put(&inputs.projection_norm));
    let all: Vec<f32> = kinds.into_iter().flat_map(|(frequencies, _)| frequencies).collect();
    let frequencies = put(&all);
    Vectors { projection_norm, norm, layers, frequencies, contents, pairs }
}

fn rows(layer: &LayerConfig, positions: usize, kv: KvType, bump: &mut Bump) -> Rows {
    let numbers = positions * layer.kv_heads * layer.head_dim;
    let (keys, values) =
        (bump.take(numbers * kv.number_bytes()), bump.take(numbers * kv.number_bytes()));
    let mut steps = || if kv == KvType::Q8 { bump.take(2 * numbers.div_ceil(32)) } else { 0 };
    Rows { keys, values, key_steps: steps(), value_steps: steps() }
}

/// Rows of a sliding layer's ring: tokens that are tried behind a position overwrite nothing that it
/// sees, nor what the one before it would see.
pub(super) fn ring_rows(window: usize) -> usize {
    window + MOST_TRIED
}

fn kv_layer(layer: &LayerConfig, stored: Rows, window: usize, ring: usize) -> KvLayer {
    KvLayer {
        stored,
        staged: Rows::default(),
        kv_heads: layer.kv_heads as i32,
        head_dim: layer.head_dim as i32,
        window: window as i32,
        ring: ring as i32,
    }
}
