//! Keys and values of the positions seen so far.
//!
//! Only layers that own keys and values have any here; a KV-shared layer reads those of the layer
//! it names. A sliding layer keeps a ring of `window` positions, since a query sees itself and the
//! `window - 1` before it; a full layer keeps all of them, in blocks that are added as the
//! sequence grows.
//!
//! A pass first *stages* the rows of its own positions beside the stored ones, so that a chunk may
//! be longer than the window: its early queries still find what the ring held before it. When all
//! layers are done, [`Cache::commit`] moves the staged rows into their slots.
//!
//! Between passes a sequence can be cut, copied and put back: `cache/snapshot.rs`.

mod snapshot;

use crate::error::{Result, RuntimeError};
use crate::number::{Kept, Number};
use bytemuck::Pod;
use std::ops::Range;
use w4pack_format::config::{LayerConfig, LayerKind, TextConfig};

/// Positions in a block of storage.
const BLOCK: usize = 256;

/// The cache of one sequence; its numbers are kept as `S`.
#[derive(Debug)]
pub struct Cache<S> {
    /// By layer; `None` where a layer reads another one's.
    layers: Vec<Option<LayerCache<S>>>,
    /// Positions stored.
    length: usize,
    /// The first position that all rings have the row of.
    oldest: usize,
    /// Positions there may be.
    context: usize,
}

/// Keys and values of one layer, each row `[kv_heads, head_dim]`.
#[derive(Debug)]
pub struct LayerCache<S> {
    /// Numbers in a row.
    width: usize,
    /// Slots of the ring; `None` keeps every position.
    ring: Option<usize>,
    /// First staged position.
    length: usize,
    keys: Rows<S>,
    values: Rows<S>,
}

#[derive(Debug)]
struct Rows<S> {
    blocks: Vec<Vec<S>>,
    staged: Vec<S>,
}

impl<S: Pod + Default> Cache<S> {
    /// An empty cache for at most `context` positions. Takes memory only as positions come.
    pub fn new(config: &TextConfig, context: usize) -> Self {
        let layer = |layer: &LayerConfig| LayerCache {
            width: layer.kv_heads * layer.head_dim,
            ring: match layer.kind {
                LayerKind::Sliding => Some(config.sliding_window),
                LayerKind::Full => None,
            },
            length: 0,
            keys: Rows { blocks: Vec::new(), staged: Vec::new() },
            values: Rows { blocks: Vec::new(), staged: Vec::new() },
        };
        let layers =
            config.layers.iter().map(|l| l.kv_source.is_none().then(|| layer(l))).collect();
        Self { layers, length: 0, oldest: 0, context }
    }

    /// Positions stored; the next token's position.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Makes room for `tokens` more positions, so that nothing can fail in the middle of a pass.
    ///
    /// Errors: the context has fewer positions; no memory. Rows staged by a pass that failed are
    /// dropped.
    pub fn begin(&mut self, tokens: usize) -> Result<()> {
        if self.length + tokens > self.context {
            return Err(RuntimeError::ContextExceeded {
                prompt: self.length + tokens,
                max_tokens: 0,
                context: self.context,
            });
        }
        for layer in self.layers.iter_mut().flatten() {
            let slots = layer.slots(self.length + tokens);
            layer.keys.begin(slots, tokens, layer.width)?;
            layer.values.begin(slots, tokens, layer.width)?;
        }
        Ok(())
    }

    /// The cache of a layer that owns keys and values.
    ///
    /// # Panics
    /// When the layer owns none; which do is fixed by the configuration.
    pub fn layer(&self, number: usize) -> &LayerCache<S> {
        self.layers[number].as_ref().expect("the layer owns keys and values")
    }

    /// The same, to stage rows in.
    ///
    /// # Panics
    /// As [`Cache::layer`].
    pub fn layer_mut(&mut self, number: usize) -> &mut LayerCache<S> {
        self.layers[number].as_mut().expect("the layer owns keys and values")
    }

    /// Stores what the pass has staged, of its first `tokens` positions, and drops the rest.
    pub fn commit(&mut self, tokens: usize) {
        for layer in self.layers.iter_mut().flatten() {
            layer.commit(tokens);
        }
        self.length += tokens;
        let window = self.window().unwrap_or(self.length);
        self.oldest = self.oldest.max(self.length.saturating_sub(window));
    }

    /// Rows of a ring; `None`: no layer has one.
    fn window(&self) -> Option<usize> {
        self.layers.iter().flatten().find_map(|layer| layer.ring)
    }
}

impl<S: Pod + Default> LayerCache<S> {
    /// Adds the rows of the positions of the running pass, `[tokens, width]` each.
    pub fn stage<N: Number>(&mut self, keys: &[N], values: &[N])
    where
        S: Kept<N>,
    {
        self.keys.staged.extend(keys.iter().map(|&key| S::keep(key)));
        self.values.staged.extend(values.iter().map(|&value| S::keep(value)));
    }

    /// Numbers in a row: key heads times their size.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The positions that a query at `position` sees, itself included.
    pub fn visible(&self, position: usize) -> std::ops::RangeInclusive<usize> {
        let first = match self.ring {
            Some(window) => (position + 1).saturating_sub(window),
            None => 0,
        };
        first..=position
    }

    /// The key of a visible position, `[kv_heads, head_dim]`.
    pub fn key(&self, position: usize) -> &[S] {
        self.row(&self.keys, position)
    }

    /// The value of a visible position, `[kv_heads, head_dim]`.
    pub fn value(&self, position: usize) -> &[S] {
        self.row(&self.values, position)
    }

    /// Keys and values of visible positions, `[positions, width]` each, in pieces that lie together.
    pub fn runs(&self, positions: Range<usize>) -> Vec<(&[S], &[S])> {
        let mut runs = Vec::new();
        let mut first = positions.start;
        while first < positions.end {
            let rest = positions.end - first;
            let count = match self.length.checked_sub(first) {
                None | Some(0) => rest,
                Some(stored) => {
                    let slot = self.slot(first);
                    let to_wrap = self.ring.map_or(rest, |window| window - slot);
                    rest.min(stored).min(to_wrap).min(BLOCK - slot % BLOCK)
                }
            };
            runs.push((self.rows(&self.keys, first, count), self.rows(&self.values, first, count)));
            first += count;
        }
        runs
    }

    fn row<'a>(&self, rows: &'a Rows<S>, position: usize) -> &'a [S] {
        self.rows(rows, position, 1)
    }

    /// Rows of neighbouring positions that lie together.
    fn rows<'a>(&self, rows: &'a Rows<S>, position: usize, count: usize) -> &'a [S] {
        let numbers = count * self.width;
        match position.checked_sub(self.length) {
            Some(staged) => &rows.staged[staged * self.width..][..numbers],
            None => {
                let slot = self.slot(position);
                &rows.blocks[slot / BLOCK][slot % BLOCK * self.width..][..numbers]
            }
        }
    }

    fn slot(&self, position: usize) -> usize {
        self.ring.map_or(position, |window| position % window)
    }

    fn slots(&self, positions: usize) -> usize {
        self.ring.map_or(positions, |window| positions.min(window))
    }

    fn commit(&mut self, tokens: usize) {
        // Of a chunk longer than the ring only the end stays.
        let first = tokens.saturating_sub(self.slots(tokens));
        for staged in first..tokens {
            let slot = self.slot(self.length + staged);
            self.keys.store(staged, slot, self.width);
            self.values.store(staged, slot, self.width);
        }
        self.keys.staged.clear();
        self.values.staged.clear();
        self.length += tokens;
    }
}

impl<S: Pod + Default> Rows<S> {
    fn begin(&mut self, slots: usize, tokens: usize, width: usize) -> Result<()> {
        let no_memory = |rows: usize| RuntimeError::Memory {
            what: "the cache of keys and values".into(),
            bytes: rows * width * size_of::<S>(),
        };
        self.staged.clear();
        self.staged.try_reserve_exact(tokens * width).map_err(|_| no_memory(tokens))?;
        while self.blocks.len() * BLOCK < slots {
            let mut block = Vec::new();
            block.try_reserve_exact(BLOCK * width).map_err(|_| no_memory(BLOCK))?;
            block.resize(BLOCK * width, S::default());
            self.blocks.push(block);
        }
        Ok(())
    }

    fn store(&mut self, staged: usize, slot: usize, width: usize) {
        self.blocks[slot / BLOCK][slot % BLOCK * width..][..width]
            .copy_from_slice(&self.staged[staged * width..][..width]);
    }
}
