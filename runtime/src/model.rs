//! The whole model: its configuration and its weights.

use crate::error::Result;
use crate::weights::{LoadOptions, LoadProgress, Matrix, load, load_without_table};
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::{Config, LayerKind};

/// A Gemma 4 text model in memory, of any size and class.
#[derive(Debug)]
pub struct Model {
    /// `config.json`, checked.
    pub config: Config,
    /// Every weight.
    pub weights: Weights,
    /// What the checkpoint holds and the model does not use, in words: towers, stray files.
    pub notes: Vec<String>,
}

/// The weights, in the order of the data's way through them. `M` is a matrix: in memory, on a
/// device, or still in its file.
#[derive(Debug, Clone)]
pub struct Weights<M = Matrix> {
    /// `[vocabulary, hidden]`; also the head, unless there is another.
    pub embed_tokens: M,
    /// What makes the per-layer inputs; `None` in models without them.
    pub per_layer_inputs: Option<PerLayerInputs<M>>,
    /// The layers.
    pub layers: Vec<LayerWeights<M>>,
    /// The norm before the head, `[hidden]`.
    pub norm: Vec<f32>,
    /// A head of its own, `[vocabulary, hidden]`; `None` when it is `embed_tokens`, or a copy.
    pub lm_head: Option<M>,
}

impl<M> Weights<M> {
    /// The matrix that makes logits.
    pub fn head(&self) -> &M {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens)
    }

    /// The same weights with every matrix replaced, in the order of the data's way.
    pub(crate) fn try_map<N, E>(
        self,
        map: &mut impl FnMut(M) -> Result<N, E>,
    ) -> Result<Weights<N>, E> {
        Ok(Weights {
            embed_tokens: map(self.embed_tokens)?,
            per_layer_inputs: match self.per_layer_inputs {
                None => None,
                Some(inputs) => Some(PerLayerInputs {
                    embed_tokens: map(inputs.embed_tokens)?,
                    model_projection: map(inputs.model_projection)?,
                    projection_norm: inputs.projection_norm,
                }),
            },
            layers: self.layers.into_iter().map(|l| l.try_map(map)).collect::<Result<_, E>>()?,
            norm: self.norm,
            lm_head: self.lm_head.map(map).transpose()?,
        })
    }
}

impl<M> LayerWeights<M> {
    fn try_map<N, E>(self, map: &mut impl FnMut(M) -> Result<N, E>) -> Result<LayerWeights<N>, E> {
        Ok(LayerWeights {
            input_norm: self.input_norm,
            q_proj: map(self.q_proj)?,
            q_norm: self.q_norm,
            keys_and_values: match self.keys_and_values {
                None => None,
                Some(own) => Some(KeysAndValues {
                    k_proj: map(own.k_proj)?,
                    k_norm: own.k_norm,
                    v_proj: own.v_proj.map(&mut *map).transpose()?,
                }),
            },
            o_proj: map(self.o_proj)?,
            post_attention_norm: self.post_attention_norm,
            pre_mlp_norm: self.pre_mlp_norm,
            gate_proj: map(self.gate_proj)?,
            up_proj: map(self.up_proj)?,
            down_proj: map(self.down_proj)?,
            experts: self.experts.map(|experts| experts.try_map(map)).transpose()?,
            post_mlp_norm: self.post_mlp_norm,
            per_layer_block: match self.per_layer_block {
                None => None,
                Some(block) => Some(PerLayerBlock {
                    input_gate: map(block.input_gate)?,
                    projection: map(block.projection)?,
                    post_norm: block.post_norm,
                }),
            },
            scalar: self.scalar,
        })
    }
}

impl<M> Experts<M> {
    fn try_map<N, E>(self, map: &mut impl FnMut(M) -> Result<N, E>) -> Result<Experts<N>, E> {
        Ok(Experts {
            router: map(self.router)?,
            router_scale: self.router_scale,
            per_expert_scale: self.per_expert_scale,
            post_mlp_norm: self.post_mlp_norm,
            pre_norm: self.pre_norm,
            post_norm: self.post_norm,
            experts: self
                .experts
                .into_iter()
                .map(|expert| {
                    Ok(Expert {
                        gate_proj: map(expert.gate_proj)?,
                        up_proj: map(expert.up_proj)?,
                        down_proj: map(expert.down_proj)?,
                    })
                })
                .collect::<Result<_, E>>()?,
        })
    }
}

/// Weights of the per-layer inputs, for all layers at once.
#[derive(Debug, Clone)]
pub struct PerLayerInputs<M = Matrix> {
    /// `[vocabulary, layers * per-layer width]`.
    pub embed_tokens: M,
    /// `[layers * per-layer width, hidden]`.
    pub model_projection: M,
    /// `[per-layer width]`, the same for all layers.
    pub projection_norm: Vec<f32>,
}

/// The weights of one layer. Norms are vectors of factors.
#[derive(Debug, Clone)]
pub struct LayerWeights<M = Matrix> {
    /// Before attention, `[hidden]`.
    pub input_norm: Vec<f32>,
    /// `[heads * head_dim, hidden]`.
    pub q_proj: M,
    /// For each head, `[head_dim]`.
    pub q_norm: Vec<f32>,
    /// `None` in layers that read another layer's keys and values.
    pub keys_and_values: Option<KeysAndValues<M>>,
    /// `[hidden, heads * head_dim]`.
    pub o_proj: M,
    /// Behind attention, `[hidden]`.
    pub post_attention_norm: Vec<f32>,
    /// Before the MLP, `[hidden]`.
    pub pre_mlp_norm: Vec<f32>,
    /// `[intermediate, hidden]`.
    pub gate_proj: M,
    /// `[intermediate, hidden]`.
    pub up_proj: M,
    /// `[hidden, intermediate]`.
    pub down_proj: M,
    /// Beside the MLP; `None` in models without experts.
    pub experts: Option<Experts<M>>,
    /// Behind the MLP, and behind its sum with the experts, `[hidden]`.
    pub post_mlp_norm: Vec<f32>,
    /// `None` in models without per-layer inputs.
    pub per_layer_block: Option<PerLayerBlock<M>>,
    /// Multiplies the whole stream at the end of the layer.
    pub scalar: f32,
}

/// Projections of a layer that owns keys and values.
#[derive(Debug, Clone)]
pub struct KeysAndValues<M = Matrix> {
    /// `[kv_heads * head_dim, hidden]`.
    pub k_proj: M,
    /// For each head, `[head_dim]`.
    pub k_norm: Vec<f32>,
    /// `[kv_heads * head_dim, hidden]`; values are normed without a weight. `None`: they are what
    /// `k_proj` gives, before the keys' norm and rotation.
    pub v_proj: Option<M>,
}

/// The experts of a layer and what chooses among them.
#[derive(Debug, Clone)]
pub struct Experts<M = Matrix> {
    /// Scores of the experts, `[experts, hidden]`.
    pub router: M,
    /// Multiplies the router's normed input, `[hidden]`.
    pub router_scale: Vec<f32>,
    /// Multiplies an expert's share, `[experts]`.
    pub per_expert_scale: Vec<f32>,
    /// Behind the MLP and before its sum with the experts, `[hidden]`.
    pub post_mlp_norm: Vec<f32>,
    /// Before the experts, `[hidden]`.
    pub pre_norm: Vec<f32>,
    /// Behind the sum of the experts, `[hidden]`.
    pub post_norm: Vec<f32>,
    /// The experts.
    pub experts: Vec<Expert<M>>,
}

/// One expert.
#[derive(Debug, Clone)]
pub struct Expert<M = Matrix> {
    /// `[width, hidden]`.
    pub gate_proj: M,
    /// `[width, hidden]`.
    pub up_proj: M,
    /// `[hidden, width]`.
    pub down_proj: M,
}

/// The end of a layer, where its per-layer input comes in.
#[derive(Debug, Clone)]
pub struct PerLayerBlock<M = Matrix> {
    /// `[per-layer width, hidden]`.
    pub input_gate: M,
    /// `[hidden, per-layer width]`.
    pub projection: M,
    /// `[hidden]`.
    pub post_norm: Vec<f32>,
}

/// The bytes that a model takes on the CPU device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights but for the per-layer table.
    pub weights: usize,
    /// The per-layer table, of which a token reads one row.
    pub per_layer_table: usize,
    /// Cache of the sliding layers, for each position they hold.
    pub sliding_per_token: usize,
    /// Positions that the sliding layers hold at most.
    pub sliding_window: usize,
    /// Cache of the full layers, for each position.
    pub full_per_token: usize,
}

impl MemoryPlan {
    /// All bytes with `positions` in the cache of one sequence.
    pub fn total(&self, positions: usize) -> usize {
        self.weights + self.per_layer_table + self.cache(positions)
    }

    /// The bytes of one sequence's cache with `positions` in it.
    pub fn cache(&self, positions: usize) -> usize {
        let sliding = self.sliding_per_token * positions.min(self.sliding_window);
        sliding + self.full_per_token * positions
    }
}

impl Model {
    /// Reads a checkpoint of any layout into memory: packed words stay packed.
    ///
    /// Before any weight is read, names, dtypes and shapes of all tensors are checked against
    /// config.json. Errors name the file and the tensor; a scale of 0, NaN or infinity is refused
    /// with row and group.
    pub fn load(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Model> {
        load(checkpoint, options, progress)
    }

    /// The same, but rows of the per-layer table are read from the file as tokens need them; a
    /// faulty scale among them is refused then.
    pub fn load_without_table(
        checkpoint: &Arc<Checkpoint>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Model> {
        load_without_table(checkpoint, options, progress)
    }

    /// The bytes this model takes, with keys and values of `kept_bytes` a number.
    pub fn memory_plan(&self, kept_bytes: usize) -> MemoryPlan {
        let text = &self.config.text;
        let per_layer_table =
            self.weights.per_layer_inputs.as_ref().map_or(0, |inputs| inputs.embed_tokens.bytes());
        let row = |kind: LayerKind| -> usize {
            text.layers
                .iter()
                .filter(|layer| layer.kind == kind && layer.kv_source.is_none())
                .map(|layer| 2 * layer.kv_heads * layer.head_dim * kept_bytes)
                .sum()
        };
        MemoryPlan {
            weights: self.weights.bytes(),
            per_layer_table,
            sliding_per_token: row(LayerKind::Sliding),
            sliding_window: text.sliding_window,
            full_per_token: row(LayerKind::Full),
        }
    }
}

impl<M> LayerWeights<M> {
    /// Its matrices but those of single experts.
    pub(crate) fn linears(&self) -> Vec<&M> {
        let mut linears = vec![&self.q_proj, &self.o_proj];
        linears.extend([&self.gate_proj, &self.up_proj, &self.down_proj]);
        if let Some(own) = &self.keys_and_values {
            linears.push(&own.k_proj);
            linears.extend(&own.v_proj);
        }
        linears.extend(self.experts.iter().map(|block| &block.router));
        if let Some(block) = &self.per_layer_block {
            linears.extend([&block.input_gate, &block.projection]);
        }
        linears
    }

    /// The matrices of its experts.
    pub(crate) fn expert_linears(&self) -> Vec<&M> {
        let experts = self.experts.iter().flat_map(|block| &block.experts);
        experts.flat_map(|expert| [&expert.gate_proj, &expert.up_proj, &expert.down_proj]).collect()
    }
}

impl<M> Weights<M> {
    /// All matrices but the per-layer table.
    pub(crate) fn matrices(&self) -> Vec<&M> {
        let mut matrices = vec![&self.embed_tokens];
        matrices.extend(&self.lm_head);
        matrices.extend(self.per_layer_inputs.iter().map(|inputs| &inputs.model_projection));
        for layer in &self.layers {
            matrices.extend(layer.linears());
            matrices.extend(layer.expert_linears());
        }
        matrices
    }

    fn vectors(&self) -> Vec<&Vec<f32>> {
        let mut vectors = vec![&self.norm];
        vectors.extend(self.per_layer_inputs.iter().map(|inputs| &inputs.projection_norm));
        for layer in &self.layers {
            vectors.extend([&layer.input_norm, &layer.q_norm, &layer.post_attention_norm]);
            vectors.extend([&layer.pre_mlp_norm, &layer.post_mlp_norm]);
            vectors.extend(layer.keys_and_values.iter().map(|own| &own.k_norm));
            if let Some(block) = &layer.experts {
                vectors.extend([&block.router_scale, &block.per_expert_scale]);
                vectors.extend([&block.post_mlp_norm, &block.pre_norm, &block.post_norm]);
            }
            vectors.extend(layer.per_layer_block.iter().map(|block| &block.post_norm));
        }
        vectors
    }
}

impl Weights {
    /// Bytes of all matrices but the per-layer table, and of all vectors.
    pub fn bytes(&self) -> usize {
        let vectors =
            self.vectors().iter().map(|vector| vector.len() * size_of::<f32>()).sum::<usize>();
        self.matrices().iter().map(|matrix| matrix.bytes()).sum::<usize>() + vectors
    }
}
