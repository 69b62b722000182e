//! Everything about a checkpoint but its matrices: what it is, its vectors, and where each matrix lies.

use super::inventory::{self, Entry, LM_HEAD, Storage, fault};
use crate::error::{Result, RuntimeError};
use crate::model::{
    Expert, Experts, KeysAndValues, LayerWeights, PerLayerBlock, PerLayerInputs, Weights,
};
use half::bf16;
use std::collections::BTreeMap;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::{Config, ExpertsConfig, Family};
use w4pack_format::group::GROUP;

/// Bytes of one read of a matrix: little memory, and progress is seen.
pub(super) const PIECE: usize = 64 << 20;

/// A matrix in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Full name of the tensor when it is plain; of the module when it is packed.
    pub name: String,
    pub rows: usize,
    pub columns: usize,
    pub storage: Storage,
}

impl Stored {
    /// Bytes of its words and steps, or of its values.
    pub fn bytes(&self) -> u64 {
        let elements = (self.rows * self.columns) as u64;
        match self.storage {
            Storage::Plain | Storage::Stacked { .. } => 2 * elements,
            Storage::Packed(scale) => elements / 2 + elements / GROUP as u64 * scale.bytes() as u64,
        }
    }
}

/// What is known of a checkpoint once it is surveyed.
pub(crate) struct Survey {
    pub config: Config,
    pub weights: Weights<Stored>,
    /// What the checkpoint holds and the model does not use, in words.
    pub notes: Vec<String>,
    /// Bytes of all matrices.
    pub bytes: u64,
    /// How many there are.
    pub matrices: usize,
}

/// Checks names, dtypes and shapes of all tensors against config.json, and reads the vectors.
pub(crate) fn survey(checkpoint: &Checkpoint) -> Result<Survey> {
    let config = Config::load(&**checkpoint.source())?;
    if config.text.family == Family::Gemma3 {
        return Err(RuntimeError::Unsupported {
            place: checkpoint.source().label().into(),
            what: "a Gemma 3, which w4pack converts and verifies; it runs Gemma 4".into(),
        });
    }
    let inventory = inventory::take(checkpoint, &config)?;
    let surveyor = Surveyor { checkpoint, entries: inventory.entries };
    let weights = surveyor.weights(&config)?;
    let (mut bytes, mut matrices) = (0, 0);
    let weights = weights.try_map(&mut |stored: Stored| {
        bytes += stored.bytes();
        matrices += 1;
        Ok::<_, RuntimeError>(stored)
    })?;
    Ok(Survey { config, weights, notes: inventory.notes, bytes, matrices })
}

struct Surveyor<'a> {
    checkpoint: &'a Checkpoint,
    entries: BTreeMap<String, Entry>,
}

impl Surveyor<'_> {
    /// Every weight by its name, in the order of the data's way.
    fn weights(&self, config: &Config) -> Result<Weights<Stored>> {
        let embed_tokens = self.matrix("embed_tokens")?;
        let has_per_layer_inputs = config.text.hidden_size_per_layer_input > 0;
        let per_layer_inputs = match has_per_layer_inputs {
            true => Some(PerLayerInputs {
                embed_tokens: self.matrix("embed_tokens_per_layer")?,
                model_projection: self.matrix("per_layer_model_projection")?,
                projection_norm: self.vector("per_layer_projection_norm")?,
            }),
            false => None,
        };
        let mut layers = Vec::with_capacity(config.text.layers.len());
        for (number, layer) in config.text.layers.iter().enumerate() {
            let name = |rest: &str| format!("layers.{number}.{rest}");
            let keys_and_values = match layer.kv_source {
                None => Some(KeysAndValues {
                    k_proj: self.matrix(&name("self_attn.k_proj"))?,
                    k_norm: self.vector(&name("self_attn.k_norm"))?,
                    v_proj: match layer.values_are_keys {
                        true => None,
                        false => Some(self.matrix(&name("self_attn.v_proj"))?),
                    },
                }),
                Some(_) => None,
            };
            let per_layer_block = match has_per_layer_inputs {
                true => Some(PerLayerBlock {
                    input_gate: self.matrix(&name("per_layer_input_gate"))?,
                    projection: self.matrix(&name("per_layer_projection"))?,
                    post_norm: self.vector(&name("post_per_layer_input_norm"))?,
                }),
                false => None,
            };
            let experts = match &config.text.experts {
                Some(experts) => Some(self.experts(number, experts)?),
                None => None,
            };
            layers.push(LayerWeights {
                input_norm: self.vector(&name("input_layernorm"))?,
                q_proj: self.matrix(&name("self_attn.q_proj"))?,
                q_norm: self.vector(&name("self_attn.q_norm"))?,
                keys_and_values,
                o_proj: self.matrix(&name("self_attn.o_proj"))?,
                post_attention_norm: self.vector(&name("post_attention_layernorm"))?,
                pre_mlp_norm: self.vector(&name("pre_feedforward_layernorm"))?,
                gate_proj: self.matrix(&name("mlp.gate_proj"))?,
                up_proj: self.matrix(&name("mlp.up_proj"))?,
                down_proj: self.matrix(&name("mlp.down_proj"))?,
                experts,
                post_mlp_norm: self.vector(&name("post_feedforward_layernorm"))?,
                per_layer_block,
                scalar: self.vector(&name("layer_scalar"))?[0],
            });
        }
        let norm = self.vector("norm")?;
        let lm_head = self.head(config, &embed_tokens)?;
        Ok(Weights { embed_tokens, per_layer_inputs, layers, norm, lm_head })
    }

    /// The experts of a layer, one matrix after the other.
    fn experts(&self, layer: usize, config: &ExpertsConfig) -> Result<Experts<Stored>> {
        let name = |rest: &str| format!("layers.{layer}.{rest}");
        let mut experts = Vec::with_capacity(config.count);
        for number in 0..config.count {
            let name = |rest: &str| name(&format!("experts.{number}.{rest}"));
            experts.push(Expert {
                gate_proj: self.matrix(&name("gate_proj"))?,
                up_proj: self.matrix(&name("up_proj"))?,
                down_proj: self.matrix(&name("down_proj"))?,
            });
        }
        Ok(Experts {
            router: self.matrix(&name("router.proj"))?,
            router_scale: self.vector(&name("router.scale"))?,
            per_expert_scale: self.vector(&name("router.per_expert_scale"))?,
            post_mlp_norm: self.vector(&name("post_feedforward_layernorm_1"))?,
            pre_norm: self.vector(&name("pre_feedforward_layernorm_2"))?,
            post_norm: self.vector(&name("post_feedforward_layernorm_2"))?,
            experts,
        })
    }

    /// A head of its own, unless it is a copy of the embedding table: then that one is kept.
    fn head(&self, config: &Config, embed_tokens: &Stored) -> Result<Option<Stored>> {
        if !self.entries.contains_key(LM_HEAD) {
            return Ok(None);
        }
        let head = self.matrix(LM_HEAD)?;
        let (mut is_copy, mut faulty) = (head.storage == embed_tokens.storage, None);
        if is_copy {
            for (tensor, other) in tensors_of(&head).into_iter().zip(tensors_of(embed_tokens)) {
                is_copy &= self.are_equal(&tensor, &other)?;
                faulty.get_or_insert(tensor);
            }
        }
        match is_copy {
            true => Ok(None),
            false if config.tie_word_embeddings => {
                let problem = "it differs from `embed_tokens`, but config.json ties the two";
                let name = faulty.unwrap_or_else(|| tensors_of(&head).swap_remove(0));
                Err(fault(self.checkpoint, &name, problem.into()))
            }
            false => Ok(Some(head)),
        }
    }

    /// Whether two tensors of one size hold the same bytes.
    fn are_equal(&self, one: &str, other: &str) -> Result<bool> {
        let size =
            |name: &str| self.checkpoint.tensor(name).map_or(0, |t| t.info.end - t.info.begin);
        let total = size(one);
        if total != size(other) {
            return Ok(false);
        }
        let mut buffers = [vec![0; PIECE.min(total as usize)], vec![0; PIECE.min(total as usize)]];
        let mut first = 0;
        while first < total {
            let length = (total - first).min(PIECE as u64) as usize;
            let [a, b] = &mut buffers;
            self.checkpoint.read_range(one, first, &mut a[..length])?;
            self.checkpoint.read_range(other, first, &mut b[..length])?;
            if a[..length] != b[..length] {
                return Ok(false);
            }
            first += length as u64;
        }
        Ok(true)
    }

    /// A matrix, by its module's name without prefix.
    fn matrix(&self, module: &str) -> Result<Stored> {
        let Entry { name, shape, storage } = self.entry(module)?;
        let stored = Stored { name, rows: shape[0], columns: shape[1], storage };
        if let Storage::Packed(_) = storage {
            self.check_weight_shape(&stored)?;
        }
        Ok(stored)
    }

    /// A vector, exactly in f32.
    fn vector(&self, module: &str) -> Result<Vec<f32>> {
        let Entry { name, shape, .. } = self.entry(module)?;
        let mut values = vec![bf16::ZERO; shape[0]];
        self.checkpoint.read_range(&name, 0, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values.into_iter().map(bf16::to_f32).collect())
    }

    fn check_weight_shape(&self, stored: &Stored) -> Result<()> {
        let tensor = format!("{}.weight_shape", stored.name);
        // The inventory has seen two numbers of 64 or 32 bits.
        let bytes = self.checkpoint.read(&tensor)?;
        let shape = match bytes.as_chunks::<8>() {
            ([rows, columns], []) => [*rows, *columns].map(i64::from_le_bytes),
            _ => std::array::from_fn(|i| {
                i32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * i + byte])).into()
            }),
        };
        let expected = [stored.rows, stored.columns];
        if shape != expected.map(|size| size as i64) {
            let problem = format!("it says {shape:?}, but config.json makes it {expected:?}");
            return Err(fault(self.checkpoint, &tensor, problem));
        }
        Ok(())
    }

    fn entry(&self, module: &str) -> Result<Entry> {
        let entry = self.entries.get(module).cloned();
        entry.ok_or_else(|| self.checkpoint.missing(module).into())
    }
}

/// The tensors of a matrix: its values, or its words and its steps.
pub(crate) fn tensors_of(stored: &Stored) -> Vec<String> {
    match stored.storage {
        Storage::Plain | Storage::Stacked { .. } => vec![stored.name.clone()],
        Storage::Packed(_) => {
            ["weight_packed", "weight_scale"].map(|part| format!("{}.{part}", stored.name)).into()
        }
    }
}
