//! Rotary position embeddings: per kind of layer, in each family's spelling.

use super::fields::Fields;
use super::{Family, LayerKind};
use crate::Result;
use serde_json::Value;

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

/// The settings of a configuration, checked for keys that nobody knows.
pub(super) enum RopeReader<'v> {
    /// `rope_parameters`: settings by kind of layer.
    ByKind(Option<&'v Value>),
    /// Gemma 3's older spelling: `rope_local_base_freq` for sliding layers, `rope_theta` and
    /// `rope_scaling` for full ones.
    Flat { sliding_theta: f64, full_theta: f64, full_factor: f64 },
}

impl<'v> RopeReader<'v> {
    pub(super) fn new(fields: &mut Fields<'v>, family: Family) -> Result<Self> {
        let parameters = fields.value("rope_parameters");
        match (family, parameters) {
            (Family::Gemma3, None) => {
                let sliding_theta = fields.positive("rope_local_base_freq")?.unwrap_or(1e4);
                let full_theta = fields.positive("rope_theta")?.unwrap_or(1e6);
                let full_factor = linear_factor(fields)?;
                Ok(RopeReader::Flat { sliding_theta, full_theta, full_factor })
            }
            _ => {
                check_rope_keys(fields, parameters)?;
                Ok(RopeReader::ByKind(parameters))
            }
        }
    }

    /// The angles of a layer.
    pub(super) fn read(
        &self,
        fields: &Fields<'_>,
        family: Family,
        kind: LayerKind,
        head_dim: usize,
    ) -> Result<Rope> {
        match *self {
            RopeReader::ByKind(parameters) => read_rope(fields, parameters, family, kind, head_dim),
            RopeReader::Flat { sliding_theta, full_theta, full_factor } => {
                let (theta, factor) = match kind {
                    LayerKind::Sliding => (sliding_theta, 1.0),
                    LayerKind::Full => (full_theta, full_factor),
                };
                Ok(Rope { theta, rotated_pairs: head_dim / 2, factor })
            }
        }
    }
}

/// The factor of Gemma 3's `rope_scaling`: `{"rope_type": "linear", "factor": 8.0}`.
fn linear_factor(fields: &mut Fields<'_>) -> Result<f64> {
    let Some(scaling) = fields.value("rope_scaling") else { return Ok(1.0) };
    let parts = scaling.as_object().filter(|parts| parts.len() == 2);
    let linear = parts.filter(|parts| {
        parts.get("rope_type").or(parts.get("type")).and_then(Value::as_str) == Some("linear")
    });
    let factor = linear.and_then(|parts| parts.get("factor")).and_then(Value::as_f64);
    factor.filter(|factor| *factor > 0.0 && factor.is_finite()).ok_or_else(|| {
        let known = "w4pack knows {\"rope_type\": \"linear\", \"factor\": …}";
        fields.fail("rope_scaling", format!("{scaling}, but {known}"))
    })
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
    family: Family,
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
    let default_type = match (family, kind) {
        (Family::Gemma3, _) | (_, LayerKind::Sliding) => "default",
        (_, LayerKind::Full) => "proportional",
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
        "linear" if family == Family::Gemma3 => pairs,
        "proportional" if family != Family::Gemma3 => {
            let share = number("partial_rotary_factor", 0.25)?;
            if share > 1.0 {
                let problem = format!("{share} is more than the whole head");
                return Err(fields.fail(&path("partial_rotary_factor"), problem));
            }
            ((share * pairs as f64).floor() as usize).min(pairs)
        }
        other => {
            let known = match family {
                Family::Gemma4 | Family::Gemma4Unified => "\"proportional\"",
                Family::Gemma3 => "\"linear\"",
            };
            let problem = format!("\"{other}\" is neither \"default\" nor {known}");
            return Err(fields.fail(&path("rope_type"), problem));
        }
    };
    Ok(Rope { theta, rotated_pairs, factor })
}
