//! What a loader finds in a checkpoint: modules, their tensors, and what config.json says.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::{CONFIG_FILE, Config, Family};
use w4pack_format::names::{NameLayout, Role, is_tower, is_unused_shared_kv, text_tensors};
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::Source;
use w4pack_format::{FormatError, Result, json};

use super::scales::ScaleFacts;
use super::scheme::Scheme;

/// The parts of a packed module.
const PARTS: [&str; 3] = ["weight_packed", "weight_scale", "weight_shape"];

/// What a module is, as classes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModuleKind {
    Linear,
    /// One of the two tables.
    Embedding(Role),
    /// `lm_head`.
    Head,
    /// A linear of the vision or audio side.
    Tower,
}

/// A module and the tensors that the file holds of it.
#[derive(Debug, Clone)]
pub(super) struct Module {
    /// Name in transformers: `model.layers.0.mlp.up_proj`.
    pub name: String,
    pub kind: ModuleKind,
    /// `[rows, columns]` by config.json; of a tower's linear by the file.
    pub shape: [usize; 2],
    /// `.weight`.
    pub plain: bool,
    /// Which of [`PARTS`] are there.
    pub parts: [bool; 3],
    /// The dtype of `.weight_scale`.
    pub scale_dtype: Option<ScaleDtype>,
    /// `.weight_zero_point`.
    pub zero_point: bool,
    /// The numbers of `.weight_shape`, if they are two.
    pub stored_shape: Option<[i64; 2]>,
    /// What the scales are like.
    pub scales: ScaleFacts,
}

impl Module {
    /// Whether the file holds any part of a packed module.
    pub(super) fn is_packed(&self) -> bool {
        self.parts.contains(&true)
    }

    /// Names of the parts that are not there.
    pub(super) fn lacking(&self) -> Vec<String> {
        let parts = PARTS.iter().zip(self.parts).filter(|(_, there)| !there);
        parts.map(|(part, _)| format!("{}.{part}", self.name)).collect()
    }
}

/// The checkpoint as a loader sees it.
pub(super) struct Scene {
    pub config: Config,
    /// `quantization_config`; `None` if there is none.
    pub scheme: Option<Scheme>,
    /// Names that the tensors carry.
    pub names: NameLayout,
    /// The text model's matrices in the order of the model, and `lm_head` if the file holds one.
    pub modules: Vec<Module>,
    /// Linears of the towers that the file holds.
    pub towers: Vec<Module>,
    /// Norms and scalars that are not there.
    pub missing_vectors: Vec<String>,
    /// Keys and values that nothing reads.
    pub unused_kv: Vec<String>,
    /// Tensors that belong to nothing.
    pub strangers: Vec<String>,
}

impl Scene {
    /// Opens a checkpoint whose `quantization_config` may be anything.
    pub(super) fn open(source: Arc<dyn Source>) -> Result<Scene> {
        let checkpoint = Checkpoint::open(source)?;
        let (config, scheme) = read_config(&**checkpoint.source())?;
        check_known(&config)?;
        let names = NameLayout::of_names(checkpoint.names());
        let mut tensors: BTreeMap<&str, ()> = checkpoint.names().map(|name| (name, ())).collect();
        let (mut modules, mut missing_vectors) = (Vec::new(), Vec::new());
        for tensor in text_tensors(&config.text) {
            let kind = match tensor.role {
                Role::Linear => ModuleKind::Linear,
                Role::EmbedTokens | Role::EmbedTokensPerLayer => ModuleKind::Embedding(tensor.role),
                Role::Vector | Role::Router => {
                    let name = names.full_name(&tensor.name);
                    if tensors.remove(name.as_str()).is_none() {
                        missing_vectors.push(name);
                    }
                    continue;
                }
            };
            let name = names.full_name(tensor.module());
            let shape = [tensor.shape[0], tensor.shape[1]];
            modules.push(take_module(&checkpoint, &mut tensors, name, kind, shape)?);
        }
        if tensors.keys().any(|name| name.starts_with("lm_head.")) {
            let shape = [config.text.vocab_size, config.text.hidden_size];
            let (name, kind) = ("lm_head".into(), ModuleKind::Head);
            modules.push(take_module(&checkpoint, &mut tensors, name, kind, shape)?);
        }
        let towers = take_towers(&checkpoint, &mut tensors)?;
        let (mut unused_kv, mut strangers) = (Vec::new(), Vec::new());
        for name in tensors.into_keys() {
            let text_name = name.strip_prefix(names.prefix()).unwrap_or(name);
            let whole = ["_packed", "_scale", "_shape"]
                .iter()
                .find_map(|part| text_name.strip_suffix(part))
                .unwrap_or(text_name);
            match is_unused_shared_kv(&config.text, whole) {
                true => unused_kv.push(name.to_string()),
                false => strangers.push(name.to_string()),
            }
        }
        Ok(Scene { config, scheme, names, modules, towers, missing_vectors, unused_kv, strangers })
    }

    /// Whether config.json asks for the multimodal class.
    pub(super) fn is_multimodal(&self) -> bool {
        self.config.layout == NameLayout::Multimodal
    }

    /// `embed_tokens`.
    pub(super) fn table(&self) -> &Module {
        let wanted = ModuleKind::Embedding(Role::EmbedTokens);
        let found = self.modules.iter().find(|module| module.kind == wanted);
        found.expect("every text model has the table")
    }

    /// `lm_head`, if the file holds one.
    pub(super) fn head(&self) -> Option<&Module> {
        self.modules.iter().find(|module| module.kind == ModuleKind::Head)
    }

    /// Packed modules, the head included.
    pub(super) fn packed(&self) -> impl Iterator<Item = &Module> {
        self.modules.iter().filter(|module| module.is_packed())
    }
}

/// The rules were learned from loaders of Gemma 4 without experts; of others they know nothing.
fn check_known(config: &Config) -> Result<()> {
    let other = match (config.text.family, &config.text.experts) {
        (Family::Gemma3, _) => "a Gemma 3",
        (_, Some(_)) => "a model with experts",
        _ => return Ok(()),
    };
    Err(FormatError::Field {
        file: CONFIG_FILE.into(),
        field: "architectures".into(),
        problem: format!("this is {other}, doctor knows loaders of Gemma 4 without experts"),
    })
}

/// config.json, and its `quantization_config` apart: the rest must describe a Gemma 4.
fn read_config(source: &dyn Source) -> Result<(Config, Option<Scheme>)> {
    if source.size(CONFIG_FILE).is_none() {
        return Err(FormatError::NoCheckpoint {
            place: source.label().into(),
            problem: format!("no `{CONFIG_FILE}`"),
        });
    }
    let mut raw = json::parse(CONFIG_FILE, &source.read_file(CONFIG_FILE)?)?;
    let scheme = raw.as_object_mut().and_then(|object| object.shift_remove("quantization_config"));
    let config = Config::parse(CONFIG_FILE, raw.to_string().as_bytes())?;
    Ok((config, scheme.filter(|value| !value.is_null()).as_ref().map(Scheme::read)))
}

/// A module's facts; its tensors are taken out of `tensors`.
fn take_module(
    checkpoint: &Checkpoint,
    tensors: &mut BTreeMap<&str, ()>,
    name: String,
    kind: ModuleKind,
    shape: [usize; 2],
) -> Result<Module> {
    let mut take = |part: &str| tensors.remove(format!("{name}.{part}").as_str()).is_some();
    let plain = take("weight");
    let parts = PARTS.map(&mut take);
    let zero_point = take("weight_zero_point");
    let scale = checkpoint.tensor(&format!("{name}.weight_scale"));
    let scale_dtype = scale.and_then(|scale| ScaleDtype::from_dtype(scale.info.dtype));
    let scales = match scale_dtype {
        Some(dtype) => ScaleFacts::of(checkpoint, &format!("{name}.weight_scale"), dtype)?,
        None => ScaleFacts::default(),
    };
    let stored_shape = match parts[2] {
        true => stored_shape(checkpoint, &format!("{name}.weight_shape"))?,
        false => None,
    };
    Ok(Module { name, kind, shape, plain, parts, scale_dtype, zero_point, stored_shape, scales })
}

/// Linears of the towers; every other tensor of theirs is as it is for every loader.
fn take_towers(checkpoint: &Checkpoint, tensors: &mut BTreeMap<&str, ()>) -> Result<Vec<Module>> {
    let names: Vec<&str> = tensors.keys().copied().filter(|name| is_tower(name)).collect();
    let mut modules: Vec<(String, [usize; 2])> = Vec::new();
    for name in &names {
        let module = [".weight_packed", ".weight"].iter().find_map(|end| name.strip_suffix(end));
        let shape = checkpoint.tensor(name).map(|found| found.info.shape.clone());
        let Some(([rows, columns], module)) = shape
            .as_deref()
            .and_then(|shape| match shape {
                [rows, columns] => Some([*rows, *columns]),
                _ => None,
            })
            .zip(module)
        else {
            continue;
        };
        modules.push((module.into(), [rows, columns]));
    }
    let taken = modules
        .into_iter()
        .map(|(name, shape)| take_module(checkpoint, tensors, name, ModuleKind::Tower, shape))
        .collect();
    tensors.retain(|name, ()| !is_tower(name));
    taken
}

fn stored_shape(checkpoint: &Checkpoint, name: &str) -> Result<Option<[i64; 2]>> {
    let bytes = checkpoint.read(name)?;
    Ok(match (bytes.as_chunks::<8>(), bytes.as_chunks::<4>()) {
        (([rows, columns], []), _) => Some([rows, columns].map(|b| i64::from_le_bytes(*b))),
        (_, ([rows, columns], [])) => Some([rows, columns].map(|b| i32::from_le_bytes(*b).into())),
        _ => None,
    })
}

/// Whether config.json names one of the classes that read these names.
pub(super) fn architecture(config: &Config) -> Option<&str> {
    config.raw.get("architectures").and_then(Value::as_array)?.first()?.as_str()
}
