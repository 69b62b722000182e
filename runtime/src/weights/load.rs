//! Reads the weights that the inventory has found.

use super::inventory::{self, Entry, LM_HEAD, Storage, fault, file_of};
use super::matrix::{Matrix, Scales, WeightValues};
use crate::error::{Result, RuntimeError};
use crate::model::{
    Expert, Experts, KeysAndValues, LayerWeights, Model, PerLayerBlock, PerLayerInputs, Weights,
};
use bytemuck::Pod;
use half::bf16;
use std::collections::BTreeMap;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::{Config, ExpertsConfig, Family};
use w4pack_format::group::GROUP;
use w4pack_format::scale::ScaleDtype;

// Tensors are little-endian and are read straight into the memory of their elements.
#[cfg(target_endian = "big")]
compile_error!("w4pack reads checkpoints on little-endian machines only");

/// How a checkpoint is loaded.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// What packed weights stand for.
    pub weights: WeightValues,
}

/// How far loading has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes read so far.
    pub bytes: u64,
    /// Bytes to read in all.
    pub total: u64,
}

/// Bytes of one read, so that progress is seen.
const PIECE: usize = 64 << 20;

pub(crate) fn load(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Model> {
    let config = Config::load(&**checkpoint.source())?;
    if config.text.family == Family::Gemma3 {
        return Err(RuntimeError::Unsupported {
            place: checkpoint.source().label().into(),
            what: "a Gemma 3, which w4pack converts and verifies; it runs Gemma 4".into(),
        });
    }
    let inventory = inventory::take(checkpoint, &config)?;
    let mut loader = Loader {
        checkpoint,
        options,
        progress,
        seen: LoadProgress { bytes: 0, total: inventory.entries.values().map(bytes_of).sum() },
        entries: inventory.entries,
    };
    let weights = read_weights(&mut loader, &config)?;
    Ok(Model { config, weights, notes: inventory.notes })
}

/// Every weight by its name, in the order of the data's way.
fn read_weights(loader: &mut Loader<'_>, config: &Config) -> Result<Weights> {
    let embed_tokens = loader.matrix("embed_tokens")?;
    let has_per_layer_inputs = config.text.hidden_size_per_layer_input > 0;
    let per_layer_inputs = match has_per_layer_inputs {
        true => Some(PerLayerInputs {
            embed_tokens: loader.matrix("embed_tokens_per_layer")?,
            model_projection: loader.matrix("per_layer_model_projection")?,
            projection_norm: loader.vector("per_layer_projection_norm")?,
        }),
        false => None,
    };
    let mut layers = Vec::with_capacity(config.text.layers.len());
    for (number, layer) in config.text.layers.iter().enumerate() {
        let name = |rest: &str| format!("layers.{number}.{rest}");
        let keys_and_values = match layer.kv_source {
            None => Some(KeysAndValues {
                k_proj: loader.matrix(&name("self_attn.k_proj"))?,
                k_norm: loader.vector(&name("self_attn.k_norm"))?,
                v_proj: match layer.values_are_keys {
                    true => None,
                    false => Some(loader.matrix(&name("self_attn.v_proj"))?),
                },
            }),
            Some(_) => None,
        };
        let per_layer_block = match has_per_layer_inputs {
            true => Some(PerLayerBlock {
                input_gate: loader.matrix(&name("per_layer_input_gate"))?,
                projection: loader.matrix(&name("per_layer_projection"))?,
                post_norm: loader.vector(&name("post_per_layer_input_norm"))?,
            }),
            false => None,
        };
        let experts = match &config.text.experts {
            Some(experts) => Some(read_experts(loader, number, experts)?),
            None => None,
        };
        layers.push(LayerWeights {
            input_norm: loader.vector(&name("input_layernorm"))?,
            q_proj: loader.matrix(&name("self_attn.q_proj"))?,
            q_norm: loader.vector(&name("self_attn.q_norm"))?,
            keys_and_values,
            o_proj: loader.matrix(&name("self_attn.o_proj"))?,
            post_attention_norm: loader.vector(&name("post_attention_layernorm"))?,
            pre_mlp_norm: loader.vector(&name("pre_feedforward_layernorm"))?,
            gate_proj: loader.matrix(&name("mlp.gate_proj"))?,
            up_proj: loader.matrix(&name("mlp.up_proj"))?,
            down_proj: loader.matrix(&name("mlp.down_proj"))?,
            experts,
            post_mlp_norm: loader.vector(&name("post_feedforward_layernorm"))?,
            per_layer_block,
            scalar: loader.vector(&name("layer_scalar"))?[0],
        });
    }
    let norm = loader.vector("norm")?;
    let lm_head = read_head(loader, config, &embed_tokens)?;
    Ok(Weights { embed_tokens, per_layer_inputs, layers, norm, lm_head })
}

/// The experts of a layer, one matrix after the other.
fn read_experts(loader: &mut Loader<'_>, layer: usize, config: &ExpertsConfig) -> Result<Experts> {
    let name = |rest: &str| format!("layers.{layer}.{rest}");
    let mut experts = Vec::with_capacity(config.count);
    for number in 0..config.count {
        let name = |rest: &str| name(&format!("experts.{number}.{rest}"));
        experts.push(Expert {
            gate_proj: loader.matrix(&name("gate_proj"))?,
            up_proj: loader.matrix(&name("up_proj"))?,
            down_proj: loader.matrix(&name("down_proj"))?,
        });
    }
    Ok(Experts {
        router: loader.matrix(&name("router.proj"))?,
        router_scale: loader.vector(&name("router.scale"))?,
        per_expert_scale: loader.vector(&name("router.per_expert_scale"))?,
        post_mlp_norm: loader.vector(&name("post_feedforward_layernorm_1"))?,
        pre_norm: loader.vector(&name("pre_feedforward_layernorm_2"))?,
        post_norm: loader.vector(&name("post_feedforward_layernorm_2"))?,
        experts,
    })
}

/// A head of its own, unless it is a copy of the embedding table: then that one is kept.
fn read_head(
    loader: &mut Loader<'_>,
    config: &Config,
    embed_tokens: &Matrix,
) -> Result<Option<Matrix>> {
    let Some(entry) = loader.entries.get(LM_HEAD) else { return Ok(None) };
    let name = match entry.storage {
        Storage::Plain | Storage::Stacked { .. } => entry.name.clone(),
        Storage::Packed(_) => format!("{}.weight_packed", entry.name),
    };
    let head = loader.matrix(LM_HEAD)?;
    match head == *embed_tokens {
        true => Ok(None),
        false if config.tie_word_embeddings => {
            let problem = "it differs from `embed_tokens`, but config.json ties the two";
            Err(fault(loader.checkpoint, &name, problem.into()))
        }
        false => Ok(Some(head)),
    }
}

fn bytes_of(entry: &Entry) -> u64 {
    let elements: usize = entry.shape.iter().product();
    let bytes = match entry.storage {
        Storage::Plain | Storage::Stacked { .. } => 2 * elements,
        Storage::Packed(scale) => elements / 2 + elements / GROUP * scale.bytes(),
    };
    bytes as u64
}

struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    options: &'a LoadOptions,
    entries: BTreeMap<String, Entry>,
    progress: &'a mut dyn FnMut(LoadProgress),
    seen: LoadProgress,
}

impl Loader<'_> {
    /// A matrix, by its module's name without prefix.
    fn matrix(&mut self, module: &str) -> Result<Matrix> {
        let Entry { name, shape, storage } = self.entry(module)?;
        let (rows, columns) = (shape[0], shape[1]);
        match storage {
            Storage::Plain => {
                let values = self.read(&name, rows * columns)?;
                Ok(Matrix::Bf16 { rows, columns, values })
            }
            Storage::Stacked { first_row } => {
                let values = self.read_from(&name, first_row * columns, rows * columns)?;
                Ok(Matrix::Bf16 { rows, columns, values })
            }
            Storage::Packed(dtype) => {
                self.check_weight_shape(&name, rows, columns)?;
                let words = self.read(&format!("{name}.weight_packed"), rows * columns / 8)?;
                let scales = self.scales(&name, dtype, rows, columns)?;
                Ok(Matrix::Packed { rows, columns, words, scales, values: self.options.weights })
            }
        }
    }

    /// A vector, exactly in f32.
    fn vector(&mut self, module: &str) -> Result<Vec<f32>> {
        let Entry { name, shape, .. } = self.entry(module)?;
        let values: Vec<bf16> = self.read(&name, shape[0])?;
        Ok(values.into_iter().map(bf16::to_f32).collect())
    }

    fn scales(
        &mut self,
        module: &str,
        dtype: ScaleDtype,
        rows: usize,
        columns: usize,
    ) -> Result<Scales> {
        let tensor = format!("{module}.weight_scale");
        let groups = columns / GROUP;
        let scales = match dtype {
            ScaleDtype::F16 => Scales::F16(self.read(&tensor, rows * groups)?),
            ScaleDtype::BF16 => Scales::Bf16(self.read(&tensor, rows * groups)?),
            ScaleDtype::F32 => Scales::F32(self.read(&tensor, rows * groups)?),
        };
        match scales.first_fault() {
            None => Ok(scales),
            Some((index, value)) => Err(RuntimeError::Scale {
                file: file_of(self.checkpoint, &tensor),
                tensor,
                row: index / groups,
                group: index % groups,
                value,
            }),
        }
    }

    fn check_weight_shape(&self, module: &str, rows: usize, columns: usize) -> Result<()> {
        let tensor = format!("{module}.weight_shape");
        // The inventory has seen two numbers of 64 or 32 bits.
        let bytes = self.checkpoint.read(&tensor)?;
        let shape = match bytes.as_chunks::<8>() {
            ([rows, columns], []) => [*rows, *columns].map(i64::from_le_bytes),
            _ => std::array::from_fn(|i| {
                i32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * i + byte])).into()
            }),
        };
        if shape != [rows as i64, columns as i64] {
            let problem =
                format!("it says {shape:?}, but config.json makes it {:?}", [rows, columns]);
            return Err(fault(self.checkpoint, &tensor, problem));
        }
        Ok(())
    }

    fn entry(&self, module: &str) -> Result<Entry> {
        let entry = self.entries.get(module).cloned();
        entry.ok_or_else(|| self.checkpoint.missing(module).into())
    }

    /// The elements of a tensor whose size the inventory has checked.
    fn read<T: Pod>(&mut self, tensor: &str, elements: usize) -> Result<Vec<T>> {
        self.read_from(tensor, 0, elements)
    }

    /// The same for some of them, from number `begin` on.
    fn read_from<T: Pod>(&mut self, tensor: &str, begin: usize, elements: usize) -> Result<Vec<T>> {
        let no_memory = || RuntimeError::Memory {
            what: format!("tensor `{tensor}`"),
            bytes: elements * size_of::<T>(),
        };
        let mut values: Vec<T> =
            bytemuck::allocation::try_zeroed_vec(elements).map_err(|()| no_memory())?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        let mut first = (begin * size_of::<T>()) as u64;
        for piece in bytes.chunks_mut(PIECE) {
            self.checkpoint.read_range(tensor, first, piece)?;
            first += piece.len() as u64;
            self.seen.bytes += piece.len() as u64;
            (self.progress)(self.seen);
        }
        Ok(values)
    }
}
