//! Shape and constants of the model under llama.cpp's keys.

use w4pack_format::config::{Config, LayerConfig, LayerKind, TextConfig};
use w4pack_format::gguf::{Array, Kind, Value};

use super::refuse;
use crate::ConvertError;

/// `llama.h`, `LLAMA_FTYPE_MOSTLY_Q4_0`.
const MOSTLY_Q4_0: u32 = 2;

/// A factor that leaves a pair of elements as it is: its angle becomes 0 for every position.
const UNTURNED: f32 = 1e30;

type Entry = (String, Value);

/// What the file is.
pub(super) fn general(name: &str) -> Vec<Entry> {
    let text = |value: &str| Value::String(value.into());
    vec![
        ("general.architecture".into(), text("gemma4")),
        ("general.type".into(), text("model")),
        ("general.name".into(), text(name)),
        ("general.file_type".into(), Value::U32(MOSTLY_Q4_0)),
    ]
}

/// Keys below `gemma4.`.
///
/// Errors: a model that llama.cpp's Gemma 4 would compute in another way, by the field at fault.
pub(super) fn of_model(config: &Config) -> Result<Vec<Entry>, ConvertError> {
    let text = &config.text;
    check_shared_layers(text)?;
    let (full, sliding) =
        (Uniform::of(text, LayerKind::Full)?, Uniform::of(text, LayerKind::Sliding)?);
    check_sliding_rope(&sliding)?;
    let Some(softcap) = text.final_logit_softcapping else {
        // Left out, llama.cpp would take its default.
        return Err(refuse("its logits have no softcap, and llama.cpp always applies one".into()));
    };
    let number = |value: usize| Value::U32(value as u32);
    let widths = text.layers.iter().map(|layer| layer.intermediate_size).collect::<Vec<_>>();
    let kv_heads = text.layers.iter().map(|layer| layer.kv_heads).collect::<Vec<_>>();
    let is_sliding = text.layers.iter().map(|layer| layer.kind == LayerKind::Sliding);
    let entries = [
        ("block_count", number(text.layers.len())),
        ("context_length", number(text.max_position_embeddings)),
        ("embedding_length", number(text.hidden_size)),
        ("feed_forward_length", one_or_all(&widths)),
        ("attention.head_count", number(text.num_attention_heads)),
        ("attention.head_count_kv", one_or_all(&kv_heads)),
        ("rope.freq_base", Value::F32(full.0.rope.theta as f32)),
        ("rope.freq_base_swa", Value::F32(sliding.0.rope.theta as f32)),
        ("attention.layer_norm_rms_epsilon", Value::F32(text.rms_norm_eps as f32)),
        ("attention.key_length", number(full.0.head_dim)),
        ("attention.value_length", number(full.0.head_dim)),
        ("final_logit_softcapping", Value::F32(softcap as f32)),
        ("attention.sliding_window", number(text.sliding_window)),
        ("attention.shared_kv_layers", number(text.num_kv_shared_layers)),
        ("embedding_length_per_layer_input", number(text.hidden_size_per_layer_input)),
        (
            "attention.sliding_window_pattern",
            Value::Array(Array::of_values(Kind::Bool, is_sliding.map(Value::Bool))),
        ),
        ("attention.key_length_swa", number(sliding.0.head_dim)),
        ("attention.value_length_swa", number(sliding.0.head_dim)),
        ("rope.dimension_count", number(full.0.head_dim)),
        ("rope.dimension_count_swa", number(sliding.0.head_dim)),
    ];
    Ok(entries.map(|(key, value)| (format!("gemma4.{key}"), value)).into())
}

/// What llama.cpp divides the angles of the full layers by: one factor a pair of a head.
///
/// Its rotation knows no "proportional" kind; pairs that stay as they are get a huge factor.
pub fn rope_factors(text: &TextConfig) -> Result<Vec<f32>, ConvertError> {
    let full = Uniform::of(text, LayerKind::Full)?.0;
    let factor =
        |pair| if pair < full.rope.rotated_pairs { full.rope.factor as f32 } else { UNTURNED };
    Ok((0..full.head_dim / 2).map(factor).collect())
}

/// A number for all layers, or one each.
fn one_or_all(values: &[usize]) -> Value {
    match values {
        [first, rest @ ..] if rest.iter().all(|value| value == first) => Value::U32(*first as u32),
        values => {
            let values = values.iter().map(|&value| Value::I32(value as i32));
            Value::Array(Array::of_values(Kind::I32, values))
        }
    }
}

/// A layer that stands for all of its kind.
struct Uniform<'a>(&'a LayerConfig);

impl<'a> Uniform<'a> {
    fn of(text: &'a TextConfig, kind: LayerKind) -> Result<Self, ConvertError> {
        let mut layers = text.layers.iter().filter(|layer| layer.kind == kind);
        let Some(first) = layers.next() else {
            return Err(refuse(format!("it has no layer of the kind `{}`", kind.name())));
        };
        match layers.find(|layer| (layer.head_dim, layer.rope) != (first.head_dim, first.rope)) {
            None => Ok(Uniform(first)),
            Some(_) => Err(refuse(format!(
                "its `{}` layers differ in head size or rotary angles, and llama.cpp has one of \
                 each for all",
                kind.name()
            ))),
        }
    }
}

fn check_sliding_rope(sliding: &Uniform<'_>) -> Result<(), ConvertError> {
    let LayerConfig { head_dim, rope, .. } = sliding.0;
    if 2 * rope.rotated_pairs != *head_dim || rope.factor != 1.0 {
        let problem = "its sliding layers turn a part of a head or divide their angles, and \
                       llama.cpp's do neither";
        return Err(refuse(problem.into()));
    }
    Ok(())
}

/// llama.cpp lends keys and values from the last two layers that own some: the last to full layers,
/// the one before to sliding ones.
fn check_shared_layers(text: &TextConfig) -> Result<(), ConvertError> {
    let owning = text.owning_layers();
    for (number, layer) in text.layers.iter().enumerate() {
        let Some(source) = layer.kv_source else { continue };
        let lent = match layer.kind {
            LayerKind::Full => owning.checked_sub(1),
            LayerKind::Sliding => owning.checked_sub(2),
        };
        if lent != Some(source) {
            let lent = lent.map_or("none".into(), |lent| lent.to_string());
            return Err(refuse(format!(
                "its layer {number} reads keys and values of layer {source}, in llama.cpp of \
                 layer {lent}"
            )));
        }
    }
    Ok(())
}
