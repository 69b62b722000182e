//! The work space: what lives for a step, for a chunk of a prompt, or for tokens that go together.

use super::ahead::{BEGUN_BY_HOST, Turn};
use super::layout::{Bump, row_bytes};
use super::plan::{TablePlace, Wish};
use crate::model::Weights;
use crate::weights::Stored;
use w4pack_format::config::{LayerConfig, TextConfig};
use w4pack_kernels::cuda::Address;
use w4pack_kernels::cuda::parameters::{
    BATCH_TOKENS, MOST_CHAINED, MOST_PIECES, SLIDING_PIECES, Step, batch_digit_bytes, digit_bytes,
};

/// Addresses and sizes of what lives for a step or a chunk. Numbers are f32 unless said otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    /// Prompt tokens of a pass; fewer when every token goes through every layer.
    pub chunk: usize,
    pub chunk_for_all: usize,
    /// Two residual streams of one token, read and written in turn.
    pub streams: [Address; 2],
    /// Outputs of attention, MLP and per-layer block of one token.
    pub deltas: [Address; 3],
    pub qkv: Address,
    pub attention: Address,
    pub mlp: Address,
    pub gate: Address,
    /// Digits of the embedding and of the three, where a producer makes them.
    pub embedding_digits: Address,
    pub attention_digits: Address,
    pub mlp_digits: Address,
    pub gate_digits: Address,
    pub per_layer: Address,
    /// Pairs of f32.
    pub turns: Address,
    pub logits: Address,
    /// The `Step` of this step, and that of the one before it and behind it, see `ahead.rs`.
    pub step: Address,
    pub other_step: Address,
    pub id: Address,
    pub pieces: Address,
    pub piece_state: Address,
    pub finished: Address,
    /// Blocks that are done, by product of a chain.
    pub done: Address,
    /// Pieces of a full layer's positions at most.
    pub max_pieces: usize,
    /// Rows of the per-layer table, words then steps, when it stays on disk.
    pub table_rows: usize,
    pub table_words: Address,
    pub table_steps: Address,

    pub chunk_ids: Address,
    pub chunk_stream: Address,
    pub chunk_delta: Address,
    pub chunk_qkv: Address,
    pub chunk_attention: Address,
    /// Gate and up; before them the projection of the per-layer inputs; behind them logits.
    pub chunk_wide: Address,
    /// Numbers in it.
    pub wide: usize,
    pub chunk_per_layer: Address,
    pub chunk_turns: Address,
    pub activations: Address,
    /// Numbers in it.
    pub activation_numbers: usize,
    pub activation_scales: Address,
}

impl Work {
    /// That of a step in this turn.
    pub fn in_turn(mut self, turn: Turn) -> Self {
        if turn != BEGUN_BY_HOST {
            std::mem::swap(&mut self.step, &mut self.other_step);
        }
        self
    }
}

/// Addresses of what lives for a decode step of several tokens, of different sequences or tried of one; of
/// every token what `Work` has of one, tokens one after another, but for digits, which lie as those
/// products take them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BatchWork {
    /// Tokens at most; below 2 there is no space.
    pub tokens: usize,
    pub streams: [Address; 2],
    pub deltas: [Address; 3],
    pub qkv: Address,
    /// Those of attention, MLP and gate only on ordinary cores: elsewhere there are digits at once.
    pub attention: Address,
    pub mlp: Address,
    pub gate: Address,
    /// Of what comes behind a norm, and what the products of each token are multiplied by.
    pub digits: Address,
    pub factors: Address,
    pub attention_digits: Address,
    /// On ordinary cores of every input, one after another.
    pub mlp_digits: Address,
    pub gate_digits: Address,
    pub per_layer: Address,
    pub turns: Address,
    pub logits: Address,
    /// A `Step` each, and behind them the slots.
    pub steps: Address,
    pub slots: Address,
    /// What `Step` has of a token, on ordinary cores.
    pub best: Address,
    pub ids: Address,
    pub pieces: Address,
    pub piece_state: Address,
}

/// Widths of q and of k and v of a layer.
fn qkv_width(text: &TextConfig, layer: &LayerConfig) -> (usize, usize) {
    (text.num_attention_heads * layer.head_dim, layer.kv_heads * layer.head_dim)
}

/// Where q, k and v of a token lie, one behind the other from `base` on; 0 for k and v of a layer that
/// owns none.
pub(super) fn qkv_addresses(base: Address, text: &TextConfig, layer: &LayerConfig) -> [Address; 3] {
    let (q_width, k_width) = qkv_width(text, layer);
    let [k, v] = [q_width, q_width + k_width].map(|numbers| base + 4 * numbers as u64);
    if layer.kv_source.is_none() { [base, k, v] } else { [base, 0, 0] }
}

/// The widest of all layers.
struct Widest {
    qkv: usize,
    attention: usize,
    mlp: usize,
}

impl Widest {
    fn of(text: &TextConfig) -> Self {
        let widest =
            |of: &dyn Fn(&LayerConfig) -> usize| text.layers.iter().map(of).max().unwrap_or(0);
        Self {
            qkv: widest(&|layer| {
                let (q, k) = qkv_width(text, layer);
                q + 2 * k
            }),
            attention: widest(&|layer| text.num_attention_heads * layer.head_dim),
            mlp: widest(&|layer| layer.intermediate_size),
        }
    }
}

pub(super) fn lay_out_work(
    text: &TextConfig,
    weights: &Weights<Stored>,
    wish: &Wish,
    context: usize,
    table: TablePlace,
    pairs: usize,
    bump: &mut Bump,
) -> Work {
    let hidden = text.hidden_size;
    let width = text.hidden_size_per_layer_input;
    let heads = text.num_attention_heads;
    let all_layers = text.layers.len() * width;
    let widest = |of: &dyn Fn(&LayerConfig) -> usize| text.layers.iter().map(of).max().unwrap_or(0);
    let Widest { qkv, attention, mlp } = Widest::of(text);
    let owning = &text.layers[..text.owning_layers()];
    let owning_mlp = owning.iter().map(|layer| layer.intermediate_size).max().unwrap_or(mlp);
    // 64 positions at least in a piece; two blocks a multiprocessor fill the card.
    let max_pieces = (2 * wish.multiprocessors).min(context.div_ceil(64));
    let max_pieces = max_pieces.clamp(SLIDING_PIECES, MOST_PIECES);
    let head_dim = widest(&|layer| layer.head_dim);
    let chunk = wish.chunk.min(context);

    let mut work = Work { chunk, max_pieces, ..Work::default() };
    work.streams = [bump.floats(hidden), bump.floats(hidden)];
    work.deltas = [bump.floats(hidden), bump.floats(hidden), bump.floats(hidden)];
    work.qkv = bump.floats(qkv);
    work.attention = bump.floats(attention);
    work.mlp = bump.floats(mlp);
    work.gate = bump.floats(width);
    // 16 bytes more: they are copied 16 at a time, and behind the kernel `digits` lies a scale.
    let digits = |columns: usize| digit_bytes(columns) + 16;
    work.embedding_digits = bump.take(digits(hidden));
    work.attention_digits = bump.take(digits(attention));
    work.mlp_digits = bump.take(digits(mlp));
    work.gate_digits = bump.take(digits(width));
    work.per_layer = bump.floats(all_layers);
    work.turns = bump.floats(2 * pairs);
    work.logits = bump.floats(text.vocab_size);
    [work.step, work.other_step] = [(); 2].map(|()| bump.take(size_of::<Step>()));
    work.id = bump.take(4);
    work.pieces = bump.floats(heads * max_pieces * head_dim);
    work.piece_state = bump.floats(2 * heads * max_pieces);
    work.finished = bump.take(4 * heads);
    work.done = bump.take(4 * MOST_CHAINED);
    if let (Some(inputs), TablePlace::Disk) = (&weights.per_layer_inputs, table) {
        let [words, steps] = row_bytes(&inputs.embed_tokens);
        work.table_rows = chunk.max(tokens_together(wish));
        work.table_words = bump.take(work.table_rows * words);
        work.table_steps = bump.take(work.table_rows * steps);
    }

    work.wide = (chunk * (2 * owning_mlp).max(all_layers)).max(text.vocab_size).max(2 * mlp);
    work.chunk_for_all = (work.wide / (2 * mlp).max(all_layers)).clamp(1, chunk);
    work.activation_numbers =
        (chunk * owning_mlp.max(attention).max(hidden)).max(work.chunk_for_all * mlp);
    work.chunk_ids = bump.take(4 * chunk);
    work.chunk_stream = bump.floats(chunk * hidden);
    work.chunk_delta = bump.floats(chunk * hidden);
    work.chunk_qkv = bump.floats(chunk * qkv);
    work.chunk_attention = bump.floats(chunk * attention);
    work.chunk_wide = bump.floats(work.wide);
    work.chunk_per_layer = bump.floats(chunk * all_layers);
    work.chunk_turns = bump.floats(2 * chunk * pairs);
    work.activations = bump.floats(work.activation_numbers);
    work.activation_scales = bump.floats(chunk);
    work
}

/// Tokens that go through the layers together at most: of several slots, or tried of one.
fn tokens_together(wish: &Wish) -> usize {
    wish.slots.min(BATCH_TOKENS).max(wish.tried)
}

pub(super) fn lay_out_batch(
    text: &TextConfig,
    work: &Work,
    wish: &Wish,
    pairs: usize,
    bump: &mut Bump,
) -> BatchWork {
    let tokens = tokens_together(wish);
    if tokens < 2 {
        return BatchWork::default();
    }
    let (hidden, heads) = (text.hidden_size, text.num_attention_heads);
    let width = text.hidden_size_per_layer_input;
    let Widest { qkv, attention, mlp } = Widest::of(text);
    let head_dim = text.layers.iter().map(|layer| layer.head_dim).max().unwrap_or(0);
    let floats = |bump: &mut Bump, count: usize| bump.floats(tokens * count);
    let digits = |bump: &mut Bump, columns: usize| bump.take(batch_digit_bytes(columns));
    // Pieces are not kept for all tokens on ordinary cores: what is kept instead has their place.
    let instead = attention + mlp + width;
    let pieces = floats(bump, (heads * work.max_pieces * head_dim).max(instead));
    // Steps and slots go to the card in one copy.
    let steps = bump.take(tokens * (size_of::<Step>() + 4));
    BatchWork {
        tokens,
        streams: [floats(bump, hidden), floats(bump, hidden)],
        deltas: [floats(bump, hidden), floats(bump, hidden), floats(bump, hidden)],
        qkv: floats(bump, qkv),
        attention: pieces,
        mlp: pieces + (4 * tokens * attention) as u64,
        gate: pieces + (4 * tokens * (attention + mlp)) as u64,
        digits: digits(bump, hidden),
        factors: floats(bump, 1),
        attention_digits: digits(bump, attention),
        mlp_digits: digits(bump, hidden.max(attention).max(mlp)),
        gate_digits: digits(bump, width),
        per_layer: floats(bump, text.layers.len() * width),
        turns: floats(bump, 2 * pairs),
        logits: floats(bump, text.vocab_size),
        steps,
        slots: steps + (tokens * size_of::<Step>()) as u64,
        best: bump.take(8 * tokens),
        ids: floats(bump, 1),
        pieces,
        piece_state: floats(bump, 2 * heads * work.max_pieces),
    }
}
