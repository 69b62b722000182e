//! `quantization_config`: which modules of a compressed-tensors checkpoint are packed.
//!
//! Only what w4pack can read passes: one scheme of 4-bit symmetric integers in groups of 32,
//! format `pack-quantized`. Source: compressed-tensors 0.20 `quantization/quant_config.py`.

use crate::{FormatError, Result};
use regex::Regex;
use serde_json::{Map, Value};

/// What kind of module a name belongs to, for targets that name classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleClass {
    /// `torch.nn.Linear`, the head included.
    Linear,
    /// `Gemma4TextScaledWordEmbedding`, an `nn.Embedding`.
    Embedding,
}

impl ModuleClass {
    fn names(self) -> &'static [&'static str] {
        match self {
            ModuleClass::Linear => &["Linear"],
            ModuleClass::Embedding => &["Gemma4TextScaledWordEmbedding", "Embedding"],
        }
    }
}

/// An entry of `targets` or `ignore`.
#[derive(Debug, Clone)]
pub enum Target {
    /// A class name or the exact name of a module.
    Name(String),
    /// `re:` and a pattern; matches at the beginning of the name, as Python's `re.match` does.
    Pattern(Regex),
}

impl Target {
    fn matches(&self, module: &str, class: ModuleClass) -> bool {
        match self {
            Target::Name(name) => name == module || class.names().contains(&name.as_str()),
            Target::Pattern(pattern) => pattern.is_match(module),
        }
    }
}

/// The parts of `quantization_config` that decide how a checkpoint is read.
#[derive(Debug, Clone)]
pub struct Quantization {
    /// What is packed.
    pub targets: Vec<Target>,
    /// What is not; wins over targets.
    pub ignore: Vec<Target>,
    /// transformers (5.23 and later) unpacks while loading.
    pub dequantize: bool,
    /// The writer's compressed-tensors version, for messages.
    pub version: Option<String>,
}

/// Keys that change nothing for a reader of packed weights when they hold null or nothing.
const EMPTY_KEYS: [&str; 7] = [
    "kv_cache_scheme",
    "global_compression_ratio",
    "sparsity_config",
    "transform_config",
    "moe_sparsity_config",
    "input_activations",
    "output_activations",
];

impl Quantization {
    /// Checks the object `quantization_config` of `file`.
    ///
    /// Errors name the field: another method, format, width, group size, a second scheme, a key
    /// that is not known.
    pub fn parse(file: &str, value: &Value) -> Result<Quantization> {
        let reader = Reader { file, path: "quantization_config".into() };
        let object = reader.object(value)?;
        reader.expect(object, "quant_method", "compressed-tensors")?;
        reader.expect(object, "format", "pack-quantized")?;
        // Without this key transformers builds a dense model and runs on random weights.
        reader.expect(object, "quantization_status", "compressed")?;
        let mut targets: Option<(Vec<Target>, &Value)> = None;
        let mut ignore = Vec::new();
        let mut dequantize = false;
        let mut version = None;
        for (key, value) in object {
            match key.as_str() {
                "quant_method" | "format" | "quantization_status" => {}
                "config_groups" => targets = Some((reader.groups(value)?, value)),
                "ignore" => ignore = reader.targets("ignore", value)?,
                "dequantize" => {
                    dequantize = value
                        .as_bool()
                        .ok_or_else(|| reader.fail(key, format!("{value} is not a bool")))?;
                }
                "version" => version = value.as_str().map(str::to_string),
                // Deprecated spellings of `not dequantize`; the weights are the same.
                "run_compressed" | "use_optimized_inference" => {}
                key if EMPTY_KEYS.contains(&key) && is_empty(value) => {}
                key => return Err(reader.fail(key, unsupported(value))),
            }
        }
        let Some((targets, _)) = targets else {
            return Err(reader.fail("config_groups", "it is missing".into()));
        };
        Ok(Quantization { targets, ignore, dequantize, version })
    }

    /// Whether a module (full name without `.weight`) is stored packed.
    pub fn covers(&self, module: &str, class: ModuleClass) -> bool {
        let any = |targets: &[Target]| targets.iter().any(|target| target.matches(module, class));
        any(&self.targets) && !any(&self.ignore)
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(entries) => entries.is_empty(),
        // The ratio is a remark of the writer.
        Value::Number(_) => true,
        _ => false,
    }
}

fn unsupported(value: &Value) -> String {
    format!("{value} is not supported by w4pack")
}

/// Reads fields below `path` and names them in errors.
struct Reader<'a> {
    file: &'a str,
    path: String,
}

impl Reader<'_> {
    fn fail(&self, key: &str, problem: String) -> FormatError {
        let field = format!("{}.{key}", self.path);
        FormatError::Field { file: self.file.into(), field, problem }
    }

    fn object<'v>(&self, value: &'v Value) -> Result<&'v Map<String, Value>> {
        value.as_object().ok_or_else(|| FormatError::Field {
            file: self.file.into(),
            field: self.path.clone(),
            problem: format!("{value} is not an object"),
        })
    }

    fn expect(&self, object: &Map<String, Value>, key: &str, wanted: &str) -> Result<()> {
        match object.get(key) {
            Some(Value::String(text)) if text == wanted => Ok(()),
            Some(other) => Err(self.fail(key, format!("{other}, but w4pack reads \"{wanted}\""))),
            None => Err(self.fail(key, format!("it is missing and must be \"{wanted}\""))),
        }
    }

    fn groups(&self, value: &Value) -> Result<Vec<Target>> {
        let reader = Reader { file: self.file, path: format!("{}.config_groups", self.path) };
        let groups = reader.object(value)?;
        let mut targets = Vec::new();
        for (name, group) in groups {
            let reader = Reader { file: self.file, path: format!("{}.{name}", reader.path) };
            for (key, value) in reader.object(group)? {
                match key.as_str() {
                    "targets" => targets.extend(reader.targets("targets", value)?),
                    "weights" => reader.weights(value)?,
                    "format" if value.is_null() || value == "pack-quantized" => {}
                    key if EMPTY_KEYS.contains(&key) && is_empty(value) => {}
                    key => return Err(reader.fail(key, unsupported(value))),
                }
            }
            for key in ["targets", "weights"] {
                if group.get(key).is_none() {
                    return Err(reader.fail(key, "it is missing".into()));
                }
            }
        }
        if groups.is_empty() {
            return Err(self.fail("config_groups", "it is empty".into()));
        }
        Ok(targets)
    }

    /// `num_bits: 4, type: "int", symmetric: true, strategy: "group", group_size: 32`.
    fn weights(&self, value: &Value) -> Result<()> {
        let reader = Reader { file: self.file, path: format!("{}.weights", self.path) };
        let weights = reader.object(value)?;
        let wanted: [(&str, Value); 5] = [
            ("num_bits", 4.into()),
            ("type", "int".into()),
            ("symmetric", true.into()),
            ("strategy", "group".into()),
            ("group_size", 32.into()),
        ];
        for (key, wanted) in &wanted {
            let found = weights.get(*key).unwrap_or(&Value::Null);
            if found != wanted {
                return Err(reader.fail(key, format!("{found}, but w4pack reads {wanted}")));
            }
        }
        for (key, value) in weights {
            let known = wanted.iter().any(|(wanted, _)| wanted == key);
            let harmless = match key.as_str() {
                "dynamic" => value == &Value::Bool(false) || value.is_null(),
                // How the writer chose the steps; they are in the file.
                "observer" | "observer_kwargs" => true,
                "actorder" | "block_structure" | "scale_dtype" | "zp_dtype" => value.is_null(),
                _ => known,
            };
            if !harmless {
                return Err(reader.fail(key, unsupported(value)));
            }
        }
        Ok(())
    }

    fn targets(&self, key: &str, value: &Value) -> Result<Vec<Target>> {
        let list =
            value.as_array().ok_or_else(|| self.fail(key, format!("{value} is not a list")))?;
        list.iter()
            .map(|entry| {
                let text = entry
                    .as_str()
                    .ok_or_else(|| self.fail(key, format!("{entry} is not a string")))?;
                match text.strip_prefix("re:") {
                    None => Ok(Target::Name(text.into())),
                    Some(pattern) => Regex::new(&format!("^(?:{pattern})"))
                        .map(Target::Pattern)
                        .map_err(|error| self.fail(key, format!("`{text}`: {error}"))),
                }
            })
            .collect()
    }
}
