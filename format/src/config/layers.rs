//! The layers of a configuration: kinds, head sizes, widths, rotary angles, who lends keys to whom.

use super::fields::{Fields, as_count};
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
    /// Rotary position embedding.
    pub rope: Rope,
}

/// Rotary angles: `position * theta^(-2j / head_dim) / factor` for pair `j < rotated_pairs`, whose
/// elements are `j` and `j + head_dim / 2`; the other pairs stay as they are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// How many pairs turn.
    pub rotated_pairs: usize,
    /// Divides the frequencies.
    pub factor: f64,
}

pub(super) fn read(
    fields: &mut Fields<'_>,
    query_heads: usize,
    shared: usize,
) -> Result<Vec<LayerConfig>> {
    let count = fields.size("num_hidden_layers", Some(30))?;
    if count > LAYER_LIMIT {
        return Err(fields.fail("num_hidden_layers", format!("{count} exceeds {LAYER_LIMIT}")));
    }
    if shared >= count {
        let problem = format!("{shared}, but there are {count} layers");
        return Err(fields.fail("num_kv_shared_layers", problem));
    }
    let kinds = read_kinds(fields, count)?;
    let heads = read_heads(fields, &kinds)?;
    let rope_parameters = fields.value("rope_parameters");
    check_rope_keys(fields, rope_parameters)?;
    let intermediate_size = fields.size("intermediate_size", Some(9216))?;
    let doubles = fields.bool("use_double_wide_mlp")?.unwrap_or(false);
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
            rope: read_rope(fields, rope_parameters, kind, head_dim)?,
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

fn read_kinds(fields: &mut Fields<'_>, count: usize) -> Result<Vec<LayerKind>> {
    let mut kinds: Vec<LayerKind> = match fields.value("layer_types") {
        None => (1..=count)
            .map(|i| if i % 6 == 0 { LayerKind::Full } else { LayerKind::Sliding })
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
    // transformers makes the last layer full whatever the list says.
    kinds[count - 1] = LayerKind::Full;
    Ok(kinds)
}

/// (head_dim, kv_heads) of every layer, from `per_layer_config` when it is there, else from
/// `global_head_dim`.
fn read_heads(fields: &mut Fields<'_>, kinds: &[LayerKind]) -> Result<Vec<(usize, usize)>> {
    let head_dim = fields.size("head_dim", Some(256))?;
    let kv_heads = fields.size("num_key_value_heads", Some(4))?;
    let global_head_dim = fields.size("global_head_dim", Some(512))?;
    if !fields.has("per_layer_config") {
        let dim = |kind: &LayerKind| match kind {
            LayerKind::Sliding => head_dim,
            LayerKind::Full => global_head_dim,
        };
        return Ok(kinds.iter().map(|kind| (dim(kind), kv_heads)).collect());
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

/// Every key must be one that [`read_rope`] reads: an unknown one could change the angles.
fn check_rope_keys(fields: &Fields<'_>, parameters: Option<&Value>) -> Result<()> {
    let fail = |key: &str, problem: String| Err(fields.fail(key, problem));
    let Some(parameters) = parameters else { return Ok(()) };
    let Some(kinds) = parameters.as_object() else {
        return fail("rope_parameters", format!("{parameters} is not an object"));
    };
    for (kind, given) in kinds {
        let path = format!("rope_parameters.{kind}");
        if ![LayerKind::Sliding.name(), LayerKind::Full.name()].contains(&kind.as_str()) {
            return fail(&path, "it is not a kind of layer".into());
        }
        let Some(given) = given.as_object() else {
            return fail(&path, format!("{given} is not an object"));
        };
        let known = ["rope_type", "rope_theta", "partial_rotary_factor", "factor"];
        if let Some(key) = given.keys().find(|key| !known.contains(&key.as_str())) {
            return fail(&format!("{path}.{key}"), "w4pack does not know this setting".into());
        }
    }
    Ok(())
}

fn read_rope(
    fields: &Fields<'_>,
    parameters: Option<&Value>,
    kind: LayerKind,
    head_dim: usize,
) -> Result<Rope> {
    let path = |key: &str| format!("rope_parameters.{}.{key}", kind.name());
    let given = parameters.and_then(|parameters| parameters.get(kind.name()));
    let number = |key: &str, default: f64| match given.and_then(|given| given.get(key)) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value
            .as_f64()
            .filter(|number| *number > 0.0 && number.is_finite())
            .ok_or_else(|| fields.fail(&path(key), format!("{value} is not a positive number"))),
    };
    let default_type = match kind {
        LayerKind::Sliding => "default",
        LayerKind::Full => "proportional",
    };
    let rope_type = match given.and_then(|given| given.get("rope_type")) {
        None | Some(Value::Null) => default_type,
        Some(value) => value.as_str().unwrap_or("?"),
    };
    let theta = number("rope_theta", if kind == LayerKind::Full { 1e6 } else { 1e4 })?;
    let factor = number("factor", 1.0)?;
    let pairs = head_dim / 2;
    let rotated_pairs = match rope_type {
        "default" => {
            if number("partial_rotary_factor", 1.0)? != 1.0 {
                let problem = "only the proportional kind turns a part of a head".into();
                return Err(fields.fail(&path("partial_rotary_factor"), problem));
            }
            pairs
        }
        "proportional" => {
            let share = number("partial_rotary_factor", 0.25)?;
            if share > 1.0 {
                let problem = format!("{share} is more than the whole head");
                return Err(fields.fail(&path("partial_rotary_factor"), problem));
            }
            ((share * pairs as f64).floor() as usize).min(pairs)
        }
        other => {
            let problem = format!("\"{other}\" is neither \"default\" nor \"proportional\"");
            return Err(fields.fail(&path("rope_type"), problem));
        }
    };
    Ok(Rope { theta, rotated_pairs, factor })
}
