//! `config.json` of a Gemma 4 or Gemma 3, in every spelling that its writers use.
//!
//! Source: transformers 5.24 `configuration_gemma4.py` and its siblings ([`Family`]). Google nests
//! the text model under `text_config` and writes `global_head_dim`; transformers, when it saves,
//! writes `per_layer_config` instead. Below this module both are one list of [`LayerConfig`].

mod family;
mod fields;
mod layers;
mod rope;

pub use family::Family;
pub use layers::{LayerConfig, LayerKind};
pub use rope::Rope;

use crate::names::NameLayout;
use crate::quantization::Quantization;
use crate::source::Source;
use crate::{FormatError, Result, json};
use fields::Fields;
use serde_json::Value;

/// The file.
pub const CONFIG_FILE: &str = "config.json";

/// A parsed and checked `config.json`.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file as it is, keys in their order.
    pub raw: Value,
    /// Multimodal (usually with `text_config` inside) or text-only.
    pub layout: NameLayout,
    /// The text model.
    pub text: TextConfig,
    /// How the weights are packed, if they are.
    pub quantization: Option<Quantization>,
    /// Whether the head is `embed_tokens`.
    pub tie_word_embeddings: bool,
    /// Ids that end an answer, as config.json has them (generation_config.json knows better).
    pub eos_token_ids: Vec<u32>,
    /// Keys that w4pack does not know, with their path. Their effect on the model is unknown too.
    pub unknown: Vec<String>,
}

/// The text model's shape and constants.
#[derive(Debug, Clone, PartialEq)]
pub struct TextConfig {
    /// Whose text model it is.
    pub family: Family,
    /// Rows of `embed_tokens`.
    pub vocab_size: usize,
    /// Rows of `embed_tokens_per_layer`; without meaning in models without that table.
    pub vocab_size_per_layer_input: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Query heads, the same in both kinds of layers.
    pub num_attention_heads: usize,
    /// The layers in order.
    pub layers: Vec<LayerConfig>,
    /// Experts beside the MLP of every layer; `None`: the MLP is alone.
    pub experts: Option<ExpertsConfig>,
    /// The last so many layers read earlier layers' keys and values.
    pub num_kv_shared_layers: usize,
    /// Keys that a sliding query sees, itself included.
    pub sliding_window: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f64,
    /// Logits become `c * tanh(logits / c)`.
    pub final_logit_softcapping: Option<f64>,
    /// Width of the per-layer input; 0: the model has none.
    pub hidden_size_per_layer_input: usize,
    /// Positions the model was made for.
    pub max_position_embeddings: usize,
    /// Id of `<bos>`.
    pub bos_token_id: u32,
    /// Id of `<pad>`.
    pub pad_token_id: u32,
}

/// The experts of a layer: small MLPs of which a token uses a few.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// Experts of a layer.
    pub count: usize,
    /// How many of them a token uses.
    pub used: usize,
    /// Width of one.
    pub intermediate_size: usize,
}

impl Config {
    /// Reads `config.json` of a source.
    pub fn load(source: &dyn Source) -> Result<Config> {
        if source.size(CONFIG_FILE).is_none() {
            return Err(FormatError::NoCheckpoint {
                place: source.label().into(),
                problem: format!("no `{CONFIG_FILE}`"),
            });
        }
        Self::parse(CONFIG_FILE, &source.read_file(CONFIG_FILE)?)
    }

    /// Parses and checks the bytes of a `config.json`, named `file` in errors.
    ///
    /// Errors name the field: missing, of the wrong kind, or a model that w4pack cannot read.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Config> {
        let raw = json::parse(file, bytes)?;
        let mut top = Fields::new(file, "", &raw)?;
        let model_type = top.text("model_type")?;
        let (family, layout) = Family::of(&model_type).ok_or_else(|| {
            let known = Family::known_types();
            top.fail("model_type", format!("\"{model_type}\", but w4pack reads {known}"))
        })?;
        let quantization = match top.value("quantization_config") {
            Some(value) => Some(Quantization::parse(file, value)?),
            None => None,
        };
        let top_tie = top.bool("tie_word_embeddings")?;
        let top_eos = top.ids("eos_token_id")?;
        // A unified configuration may hold the text model's keys beside those of the whole.
        let is_flat = layout == NameLayout::TextOnly
            || (family == Family::Gemma4Unified && !top.has("text_config"));
        let (text, text_tie, text_eos, mut unknown) = match is_flat {
            true => (TextConfig::read(&mut top, family)?, None, None, Vec::new()),
            false => {
                let nested = top.value("text_config").ok_or_else(|| {
                    top.fail("text_config", "it is missing from a multimodal config".into())
                })?;
                let mut inner = Fields::new(file, "text_config.", nested)?;
                let text = TextConfig::read(&mut inner, family)?;
                if inner.value("quantization_config").is_some() {
                    let problem = "it belongs to the top level; loaders look for it there".into();
                    return Err(inner.fail("quantization_config", problem));
                }
                match inner.value("model_type") {
                    None => {}
                    Some(Value::String(kind)) if kind == family.text_type() => {}
                    Some(other) => {
                        let expected = family.text_type();
                        let problem = format!("{other}, but w4pack reads \"{expected}\" there");
                        return Err(inner.fail("model_type", problem));
                    }
                }
                let tie = inner.bool("tie_word_embeddings")?;
                let eos = inner.ids("eos_token_id")?;
                (text, tie, eos, inner.unread())
            }
        };
        let tie_word_embeddings = match (top_tie, text_tie) {
            (Some(top_tie), Some(text_tie)) if top_tie != text_tie => {
                let problem = format!("{top_tie}, but text_config says {text_tie}");
                return Err(top.fail("tie_word_embeddings", problem));
            }
            (one, other) => one.or(other).unwrap_or(true),
        };
        let eos_token_ids = top_eos.or(text_eos).unwrap_or_else(|| vec![1]);
        // Writers of unified configurations repeat keys of the text model at the top.
        let repeated = |key: &String| raw.pointer(&format!("/text_config/{key}")) == raw.get(key);
        unknown.extend(top.unread().into_iter().filter(|key| !repeated(key)));
        unknown.sort();
        Ok(Config { raw, layout, text, quantization, tie_word_embeddings, eos_token_ids, unknown })
    }
}

impl TextConfig {
    fn read(fields: &mut Fields<'_>, family: Family) -> Result<TextConfig> {
        refuse_other_models(fields, family)?;
        let defaults = family.defaults();
        let vocab_size = fields.size("vocab_size", Some(defaults.vocab_size))?;
        let hidden_size = fields.size("hidden_size", Some(2304))?;
        let num_attention_heads = fields.size("num_attention_heads", Some(8))?;
        let num_kv_shared_layers = match family {
            Family::Gemma4 | Family::Gemma4Unified => fields.count("num_kv_shared_layers", 0)?,
            Family::Gemma3 => 0,
        };
        let layers = layers::read(fields, family, num_attention_heads, num_kv_shared_layers)?;
        // Only Gemma 4's configuration has the keys of the per-layer table and of experts; under
        // another family they stay unread, and are reported.
        let ((vocab_size_per_layer_input, hidden_size_per_layer_input), experts) = match family {
            Family::Gemma4 => (read_per_layer_table(fields)?, read_experts(fields)?),
            Family::Gemma4Unified => (refuse_per_layer_table(fields)?, None),
            Family::Gemma3 => ((0, 0), None),
        };
        Ok(TextConfig {
            family,
            vocab_size,
            vocab_size_per_layer_input,
            hidden_size,
            num_attention_heads,
            layers,
            experts,
            num_kv_shared_layers,
            sliding_window: fields.size("sliding_window", Some(defaults.sliding_window))?,
            rms_norm_eps: fields.positive("rms_norm_eps")?.unwrap_or(1e-6),
            final_logit_softcapping: fields.positive("final_logit_softcapping")?,
            hidden_size_per_layer_input,
            max_position_embeddings: fields
                .size("max_position_embeddings", Some(defaults.max_position_embeddings))?,
            bos_token_id: fields.id("bos_token_id")?.unwrap_or(2),
            pad_token_id: fields.id("pad_token_id")?.unwrap_or(0),
        })
    }

    /// Layers that own their keys and values: the first so many.
    pub fn owning_layers(&self) -> usize {
        self.layers.len() - self.num_kv_shared_layers
    }
}

/// `enable_moe_block` and the sizes that it makes necessary.
fn read_experts(fields: &mut Fields<'_>) -> Result<Option<ExpertsConfig>> {
    if fields.bool("enable_moe_block")? != Some(true) {
        return Ok(None);
    }
    let count = fields.size("num_experts", None)?;
    let used = fields.size("top_k_experts", None)?;
    if used > count {
        let problem = format!("{used}, but a layer has {count} experts");
        return Err(fields.fail("top_k_experts", problem));
    }
    let intermediate_size = fields.size("moe_intermediate_size", None)?;
    Ok(Some(ExpertsConfig { count, used, intermediate_size }))
}

/// Rows of the per-layer table and its width for one layer; models without it may give it no rows.
fn read_per_layer_table(fields: &mut Fields<'_>) -> Result<(usize, usize)> {
    let width = fields.count("hidden_size_per_layer_input", 256)?;
    let rows = match width {
        0 => fields.count("vocab_size_per_layer_input", 0)?,
        _ => fields.size("vocab_size_per_layer_input", Some(262_144))?,
    };
    Ok((rows, width))
}

/// The unified text model has neither per-layer inputs nor experts. Writers may say so; a
/// configuration that says otherwise describes another model.
fn refuse_per_layer_table(fields: &mut Fields<'_>) -> Result<(usize, usize)> {
    if fields.bool("enable_moe_block")? == Some(true) {
        return Err(fields.fail("enable_moe_block", "true: unified models have no experts".into()));
    }
    let rows = fields.count("vocab_size_per_layer_input", 0)?;
    match fields.count("hidden_size_per_layer_input", 0)? {
        0 => Ok((rows, 0)),
        width => {
            let problem = format!("{width}, but unified models have no per-layer inputs");
            Err(fields.fail("hidden_size_per_layer_input", problem))
        }
    }
}

/// Models of the families that differ in ways w4pack does not implement.
fn refuse_other_models(fields: &mut Fields<'_>, family: Family) -> Result<()> {
    if fields.bool("attention_bias")? == Some(true) {
        let problem = "true: linears with a bias are not supported".into();
        return Err(fields.fail("attention_bias", problem));
    }
    match fields.value("hidden_activation") {
        None => {}
        Some(Value::String(name)) if name == "gelu_pytorch_tanh" => {}
        Some(other) => {
            let problem = format!("{other}, but w4pack computes \"gelu_pytorch_tanh\"");
            return Err(fields.fail("hidden_activation", problem));
        }
    }
    match fields.value("use_bidirectional_attention") {
        // "vision" changes what image tokens see, and nothing for text.
        None => {}
        Some(Value::String(kind)) if kind == "vision" && family != Family::Gemma3 => {}
        Some(Value::Bool(false)) if family == Family::Gemma3 => {}
        Some(other) => {
            return Err(fields.fail("use_bidirectional_attention", format!("{other} is not known")));
        }
    }
    if family == Family::Gemma3 {
        // They change attention and no tensor; whoever converts does not need them.
        fields.positive("query_pre_attn_scalar")?;
        fields.positive("attn_logit_softcapping")?;
    }
    Ok(())
}
