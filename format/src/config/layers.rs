//! The layers of a configuration: kinds, head sizes, widths, who lends keys to whom.

use super::Family;
use super::fields::{Fields, as_count};
use super::rope::{Rope, RopeReader};
use crate::Result;
use serde_json::Value;

/// More layers than any release has; keeps a hostile file from asking for memory.
const LAYER_LIMIT: usize = 4096;

/// What a layer attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// The last `sliding_window` positions.
    Sliding,
    /// All positions.
    Full,
}

impl LayerKind {
    /// The name in `layer_types` and `rope_parameters`.
    pub fn name(self) -> &'static str {
        match self {
            LayerKind::Sliding => "sliding_attention",
            LayerKind::Full => "full_attention",
        }
    }
}

/// One layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// Sliding or full.
    pub kind: LayerKind,
    /// Elements of a head.
    pub head_dim: usize,
    /// Heads of keys and values; divides the query heads.
    pub kv_heads: usize,
    /// Width of the MLP, doubled where the model doubles it.
    pub intermediate_size: usize,
    /// `Some(j)`: the layer owns no keys and values and reads those of layer j.
    pub kv_source: Option<usize>,
    /// Whether the values are the keys' projection (before norm and rotation): no `v_proj`.
    pub values_are_keys: bool,
    /// Rotary position embedding.
    pub rope: Rope,
}

pub(super) fn read(
    fields: &mut Fields<'_>,
    family: Family,
    query_heads: usize,
    shared: usize,
) -> Result<Vec<LayerConfig>> {
    let count = fields.size("num_hidden_layers", Some(family.defaults().num_hidden_layers))?;
    if count > LAYER_LIMIT {
        return Err(fields.fail("num_hidden_layers", format!("{count} exceeds {LAYER_LIMIT}")));
    }
    if shared >= count {
        let problem = format!("{shared}, but there are {count} layers");
        return Err(fields.fail("num_kv_shared_layers", problem));
    }
    let kinds = read_kinds(fields, family, count)?;
    let (heads, keys_are_values, doubles) = match family {
        Family::Gemma4 | Family::Gemma4Unified => {
            let keys_are_values = fields.bool("attention_k_eq_v")?.unwrap_or(false);
            let heads = read_heads(fields, &kinds, keys_are_values)?;
            (heads, keys_are_values, fields.bool("use_double_wide_mlp")?.unwrap_or(false))
        }
        Family::Gemma3 => {
            let head_dim = fields.size("head_dim", Some(256))?;
            let kv_heads = fields.size("num_key_value_heads", Some(4))?;
            (vec![(head_dim, kv_heads); count], false, false)
        }
    };
    let ropes = RopeReader::new(fields, family)?;
    let intermediate_size = fields.size("intermediate_size", Some(9216))?;
    let owning = count - shared;
    let mut layers = Vec::with_capacity(count);
    for (number, &kind) in kinds.iter().enumerate() {
        let (head_dim, kv_heads) = heads[number];
        if head_dim % 2 != 0 {
            return Err(fields.fail("head_dim", format!("layer {number}: {head_dim} is odd")));
        }
        if !query_heads.is_multiple_of(kv_heads) {
            let problem = format!("layer {number}: {kv_heads} does not divide {query_heads} heads");
            return Err(fields.fail("num_key_value_heads", problem));
        }
        let kv_source = if number < owning {
            None
        } else {
            let producer = kinds[..owning].iter().rposition(|&other| other == kind);
            Some(producer.ok_or_else(|| {
                let problem = format!("no layer before {owning} lends layer {number} its keys");
                fields.fail("num_kv_shared_layers", problem)
            })?)
        };
        let wide = doubles && kv_source.is_some();
        layers.push(LayerConfig {
            kind,
            head_dim,
            kv_heads,
            intermediate_size: if wide { 2 * intermediate_size } else { intermediate_size },
            kv_source,
            values_are_keys: keys_are_values && kind == LayerKind::Full && kv_source.is_none(),
            rope: ropes.read(fields, family, kind, head_dim)?,
        });
        if let Some(source) = kv_source
            && heads[source] != heads[number]
        {
            let problem = format!("layers {source} and {number} share keys of different sizes");
            return Err(fields.fail("head_dim", problem));
        }
    }
    Ok(layers)
}

fn read_kinds(fields: &mut Fields<'_>, family: Family, count: usize) -> Result<Vec<LayerKind>> {
    let every = match family {
        Family::Gemma4 | Family::Gemma4Unified => 6,
        Family::Gemma3 => fields.size("sliding_window_pattern", Some(6))?,
    };
    let mut kinds: Vec<LayerKind> = match fields.value("layer_types") {
        None => (1..=count)
            .map(|i| if i % every == 0 { LayerKind::Full } else { LayerKind::Sliding })
            .collect(),
        Some(value) => {
            let known = |entry: &Value| match entry.as_str() {
                Some("sliding_attention") => Ok(LayerKind::Sliding),
                Some("full_attention") => Ok(LayerKind::Full),
                _ => Err(fields.fail("layer_types", format!("{entry} is not a kind of layer"))),
            };
            let list = value
                .as_array()
                .ok_or_else(|| fields.fail("layer_types", format!("{value} is not a list")))?;
            list.iter().map(known).collect::<Result<_>>()?
        }
    };
    if kinds.len() != count {
        let problem = format!("{} entries for {count} layers", kinds.len());
        return Err(fields.fail("layer_types", problem));
    }
    if family != Family::Gemma3 {
        // transformers makes the last layer full whatever the list says.
        kinds[count - 1] = LayerKind::Full;
    }
    Ok(kinds)
}

/// (head_dim, kv_heads) of every layer, from `per_layer_config` when it is there, else from
/// `global_head_dim` and `num_global_key_value_heads`, which counts only where `attention_k_eq_v`.
fn read_heads(
    fields: &mut Fields<'_>,
    kinds: &[LayerKind],
    keys_are_values: bool,
) -> Result<Vec<(usize, usize)>> {
    let head_dim = fields.size("head_dim", Some(256))?;
    let kv_heads = fields.size("num_key_value_heads", Some(4))?;
    let global_head_dim = fields.size("global_head_dim", Some(512))?;
    let global_kv_heads = fields.size("num_global_key_value_heads", Some(kv_heads))?;
    if !fields.has("per_layer_config") {
        let full = (global_head_dim, if keys_are_values { global_kv_heads } else { kv_heads });
        let heads = |kind: &LayerKind| match kind {
            LayerKind::Sliding => (head_dim, kv_heads),
            LayerKind::Full => full,
        };
        return Ok(kinds.iter().map(heads).collect());
    }
    let mut heads = vec![(head_dim, kv_heads); kinds.len()];
    let Some(value) = fields.value("per_layer_config") else { return Ok(heads) };
    let fail = |problem: String| fields.fail("per_layer_config", problem);
    let overrides = value.as_object().ok_or_else(|| fail(format!("{value} is not an object")))?;
    for (key, entry) in overrides {
        let layer = key
            .parse::<usize>()
            .ok()
            .and_then(|layer| heads.get_mut(layer))
            .ok_or_else(|| fail(format!("`{key}` is not a layer")))?;
        let entry = entry.as_object().ok_or_else(|| fail(format!("`{key}` is not an object")))?;
        for (name, value) in entry {
            let number = as_count(value).filter(|&number| number > 0);
            let number = number.ok_or_else(|| fail(format!("`{key}.{name}` is {value}")))?;
            match name.as_str() {
                "head_dim" => layer.0 = number,
                "num_key_value_heads" => layer.1 = number,
                _ => return Err(fail(format!("`{key}.{name}` is not a known override"))),
            }
        }
    }
    Ok(heads)
}
