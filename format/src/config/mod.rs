//! `config.json` of a Gemma 4, in every spelling that its writers use.
//!
//! Source: transformers 5.24 `configuration_gemma4.py`. Google nests the text model under
//! `text_config` and writes `global_head_dim`; transformers, when it saves, writes
//! `per_layer_config` instead. Below this module both are one list of [`LayerConfig`].

mod fields;
mod layers;

pub use layers::{LayerConfig, LayerKind, Rope};

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
    /// Multimodal (`text_config` inside) or text-only.
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
    /// Rows of `embed_tokens`.
    pub vocab_size: usize,
    /// Rows of `embed_tokens_per_layer`.
    pub vocab_size_per_layer_input: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Query heads, the same in both kinds of layers.
    pub num_attention_heads: usize,
    /// The layers in order.
    pub layers: Vec<LayerConfig>,
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
        let layout = match model_type.as_str() {
            "gemma4" => NameLayout::Multimodal,
            "gemma4_text" => NameLayout::TextOnly,
            other => {
                let known = "w4pack reads \"gemma4\" and \"gemma4_text\"";
                return Err(top.fail("model_type", format!("\"{other}\", but {known}")));
            }
        };
        let quantization = match top.value("quantization_config") {
            Some(value) => Some(Quantization::parse(file, value)?),
            None => None,
        };
        let top_tie = top.bool("tie_word_embeddings")?;
        let top_eos = top.ids("eos_token_id")?;
        let (text, text_tie, text_eos, mut unknown) = match layout {
            NameLayout::TextOnly => {
                let text = TextConfig::read(&mut top)?;
                (text, None, None, Vec::new())
            }
            NameLayout::Multimodal => {
                let nested = top.value("text_config").ok_or_else(|| {
                    top.fail("text_config", "it is missing from a multimodal config".into())
                })?;
                let mut inner = Fields::new(file, "text_config.", nested)?;
                let text = TextConfig::read(&mut inner)?;
                if inner.value("quantization_config").is_some() {
                    let problem = "it belongs to the top level; loaders look for it there".into();
                    return Err(inner.fail("quantization_config", problem));
                }
                match inner.value("model_type") {
                    None => {}
                    Some(Value::String(kind)) if kind == "gemma4_text" => {}
                    Some(other) => {
                        let problem = format!("{other}, but w4pack reads \"gemma4_text\"");
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
        unknown.extend(top.unread());
        unknown.sort();
        Ok(Config { raw, layout, text, quantization, tie_word_embeddings, eos_token_ids, unknown })
    }
}

impl TextConfig {
    fn read(fields: &mut Fields<'_>) -> Result<TextConfig> {
        refuse_other_models(fields)?;
        let vocab_size = fields.size("vocab_size", Some(262_144))?;
        let hidden_size = fields.size("hidden_size", Some(2304))?;
        let num_attention_heads = fields.size("num_attention_heads", Some(8))?;
        let num_kv_shared_layers = fields.count("num_kv_shared_layers", 0)?;
        let layers = layers::read(fields, num_attention_heads, num_kv_shared_layers)?;
        let text = TextConfig {
            vocab_size,
            vocab_size_per_layer_input: fields.size("vocab_size_per_layer_input", Some(262_144))?,
            hidden_size,
            num_attention_heads,
            layers,
            num_kv_shared_layers,
            sliding_window: fields.size("sliding_window", Some(512))?,
            rms_norm_eps: fields.positive("rms_norm_eps")?.unwrap_or(1e-6),
            final_logit_softcapping: fields.positive("final_logit_softcapping")?,
            hidden_size_per_layer_input: fields.count("hidden_size_per_layer_input", 256)?,
            max_position_embeddings: fields.size("max_position_embeddings", Some(131_072))?,
            bos_token_id: fields.id("bos_token_id")?.unwrap_or(2),
            pad_token_id: fields.id("pad_token_id")?.unwrap_or(0),
        };
        Ok(text)
    }

    /// Layers that own their keys and values: the first so many.
    pub fn owning_layers(&self) -> usize {
        self.layers.len() - self.num_kv_shared_layers
    }
}

/// Models of the family that differ in ways w4pack does not implement.
fn refuse_other_models(fields: &mut Fields<'_>) -> Result<()> {
    let refused = [
        ("enable_moe_block", "mixture-of-experts models are not supported"),
        ("attention_k_eq_v", "models whose values are their keys are not supported"),
        ("attention_bias", "linears with a bias are not supported"),
    ];
    for (key, reason) in refused {
        if fields.bool(key)? == Some(true) {
            return Err(fields.fail(key, format!("true: {reason}")));
        }
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
        Some(Value::String(kind)) if kind == "vision" => {}
        Some(other) => {
            return Err(fields.fail("use_bidirectional_attention", format!("{other} is not known")));
        }
    }
    Ok(())
}
