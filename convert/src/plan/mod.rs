//! Which source tensor becomes what, decided from headers and configuration alone.
//!
//! Every tensor and every file of the source gets exactly one fate here, or the plan is refused.

mod companions;
mod demand;
mod display;
mod forecast;
mod head;
mod packed;

pub use companions::{Companion, CompanionFate};
pub use forecast::{FileForecast, Forecast, Probe, TensorForecast, forecast};
pub use packed::Part;

use std::ops::Range;

use w4pack_format::checkpoint::{Checkpoint, Located};
use w4pack_format::config::{Config, Family};
use w4pack_format::dtype::Dtype;
use w4pack_format::gguf::names::{ROPE_FREQS, to_gguf};
use w4pack_format::names::{NameLayout, TextTensor, is_tower, text_tensors};
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::Source;

use crate::pack::GgufForm;
use crate::{ConvertError, Layout, Options, Towers, llama_cpp};

/// What a conversion will do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The source, as the user named it.
    pub source: String,
    /// The configuration of the source.
    pub config: Config,
    /// The names of the source.
    pub source_names: NameLayout,
    /// The layout of the output.
    pub layout: Layout,
    /// The names of the output: text-only, or Google's where the towers are kept.
    pub names: NameLayout,
    /// The scale dtype asked for.
    pub scale_dtype: ScaleDtype,
    /// The text model's tensors in the order of the data's way through it.
    pub text: Vec<TextTensor>,
    /// By position in [`Plan::text`]: the dtype of the steps, where the source has the tensor packed.
    pub relayed: Vec<Option<ScaleDtype>>,
    /// The tensors of the vision and audio side that are kept, in the order of the source.
    pub towers: Vec<TowerTensor>,
    /// The tensors of each source file, in the order of their bytes.
    pub shards: Vec<PlannedShard>,
    /// Every other file of the source.
    pub companions: Vec<Companion>,
    /// What a GGUF file holds beside the source's tensors, if the output is one.
    pub gguf: Option<GgufForm>,
    /// What the user should know before it starts.
    pub warnings: Vec<String>,
}

/// A tensor of the vision or audio side, the same in source and output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TowerTensor {
    /// Full name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Vec<usize>,
}

/// A source file and what becomes of its tensors.
#[derive(Debug, Clone)]
pub struct PlannedShard {
    /// The file.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Its tensors, in the order of their bytes.
    pub tensors: Vec<PlannedTensor>,
}

/// A source tensor and its fate.
#[derive(Debug, Clone)]
pub struct PlannedTensor {
    /// Full name in the source.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// What becomes of it.
    pub treatment: Treatment,
}

/// What becomes of a source tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// Packed in 4 bits; the position in [`Plan::text`].
    Pack(usize),
    /// Part of a module that is packed already: codes and steps go over as they are; the position
    /// in [`Plan::text`].
    Relay(usize, Part),
    /// Cut into the matrices of single experts, each packed by itself; they follow each other in
    /// [`Plan::text`] as their rows do in the tensor.
    PackEach {
        /// Position of the first.
        first: usize,
        /// How many there are.
        count: usize,
    },
    /// Copied byte for byte under its name in the output; the position in [`Plan::text`].
    Copy(usize),
    /// Copied byte for byte; the position in [`Plan::towers`].
    KeepTower(usize),
    /// Not in the output.
    LeaveOut(Reason),
}

impl Treatment {
    /// Positions in [`Plan::text`] of what the tensor becomes, in the order of its bytes.
    pub fn positions(self) -> Range<usize> {
        match self {
            Treatment::Pack(position)
            | Treatment::Relay(position, _)
            | Treatment::Copy(position) => position..position + 1,
            Treatment::PackEach { first, count } => first..first + count,
            Treatment::KeepTower(_) | Treatment::LeaveOut(_) => 0..0,
        }
    }
}

/// Why a tensor is not in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The vision or audio side.
    Tower,
    /// Keys or values of a layer that reads another layer's.
    UnusedSharedKv,
    /// A head with the very bytes of `embed_tokens`.
    TiedCopy,
}

impl Reason {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Reason::Tower => "vision or audio side",
            Reason::UnusedSharedKv => "keys and values of layers that read another layer's",
            Reason::TiedCopy => "head identical to embed_tokens",
        }
    }
}

/// Decides what becomes of every tensor and file of a checkpoint.
///
/// Reads headers and small files only, and of the weights nothing but an `lm_head` and its table,
/// to compare them.
///
/// A source may be another maker's pack, or one of w4pack's: what it has packed is laid out anew
/// without touching a code or a step.
///
/// Errors: a tensor missing, unknown, of the wrong shape or dtype, or not divisible into groups; an
/// `lm_head` of its own; a model of the family that is not supported; a layout that would have to
/// unpack what the source has packed.
pub fn plan(checkpoint: &Checkpoint, options: &Options) -> Result<Plan, ConvertError> {
    let source = checkpoint.source();
    let mut config = Config::load(&**source)?;
    if config.layout.is_multimodal() {
        // The configuration does not tell which of two prefixes the names carry.
        config.layout = NameLayout::of_names(checkpoint.names());
    }
    let is_packed = packed::is_packed(checkpoint);
    if config.quantization.is_some() && !is_packed {
        return Err(ConvertError::NothingPacked { place: source.label().into() });
    }
    // Other makers' configurations do not always say how their tensors are called.
    let source_names = match is_packed {
        true => NameLayout::of_names(checkpoint.names()),
        false => config.layout,
    };
    let has_head = checkpoint.names().any(|name| name.starts_with("lm_head."));
    if !config.tie_word_embeddings && !has_head {
        return Err(ConvertError::MissingTensor {
            place: source.label().into(),
            tensor: head::HEAD.into(),
            shape: vec![config.text.vocab_size, config.text.hidden_size],
        });
    }
    let names = output_names(checkpoint, &config, options.towers)?;
    let (gguf, of_gguf) = match options.layout {
        Layout::Gguf => {
            let (form, warnings) = gguf_form(&**source, &config, options)?;
            (Some(form), warnings)
        }
        _ => (None, Vec::new()),
    };
    let text = text_tensors(&config.text);
    let mut towers = Vec::new();
    let relayed = demand::relayed(checkpoint, source_names, &text, options.layout)?;
    let demanded = demand::demanded(checkpoint, source_names, &text, &relayed, options.layout)?;
    let mut shards = Vec::new();
    for shard in checkpoint.shards() {
        let mut tensors = Vec::new();
        for info in &shard.header.tensors {
            let located = Located { shard, info };
            let treatment = match demanded.get(info.name.as_str()) {
                Some(&treatment) => treatment,
                None if options.towers == Towers::Keep && is_tower(&info.name) => {
                    demand::check_tower(located)?;
                    let (name, shape) = (info.name.clone(), info.shape.clone());
                    towers.push(TowerTensor { name, dtype: info.dtype, shape });
                    Treatment::KeepTower(towers.len() - 1)
                }
                None => Treatment::LeaveOut(demand::left_out(
                    checkpoint,
                    &config,
                    source_names,
                    located,
                )?),
            };
            tensors.push(PlannedTensor { name: info.name.clone(), bytes: info.bytes(), treatment });
        }
        shards.push(PlannedShard { path: shard.path.clone(), bytes: shard.bytes, tensors });
    }
    let (companions, mut warnings) = companions::choose(checkpoint, options.layout)?;
    warnings.extend(of_gguf);
    warnings.extend(config.unknown.iter().map(|key| {
        format!("config.json: `{key}` is not known to w4pack; whether it changes the model is not known either")
    }));
    if let Some((stated, real)) = checkpoint.index_total_size().filter(|(one, other)| one != other)
    {
        warnings.push(format!(
            "model.safetensors.index.json: total_size is {stated}, the tensors have {real} bytes"
        ));
    }
    if is_packed {
        warnings.extend(of_packed_source(&config, &relayed, options));
    }
    Ok(Plan {
        source: source.label().into(),
        config,
        source_names,
        layout: options.layout,
        names,
        scale_dtype: options.scale_dtype,
        text,
        relayed,
        towers,
        shards,
        companions,
        gguf,
        warnings,
    })
}

/// What a GGUF file holds beside the tensors, and warnings.
///
/// Errors: options that it has no room for; a model that llama.cpp computes in another way.
fn gguf_form(
    source: &dyn Source,
    config: &Config,
    options: &Options,
) -> Result<(GgufForm, Vec<String>), ConvertError> {
    let refuse =
        |problem: &str| ConvertError::Layout { layout: Layout::Gguf, problem: problem.into() };
    if options.towers == Towers::Keep {
        return Err(refuse("llama.cpp reads towers from a file of their own (--towers drop)"));
    }
    if options.scale_dtype != ScaleDtype::F16 {
        return Err(refuse("the steps of Q4_0 blocks are f16 (--scale-dtype f16)"));
    }
    let text = &config.text;
    if text.family != Family::Gemma4 {
        let kind = text.family.multimodal_type();
        return Err(refuse(&format!("w4pack writes it for model_type gemma4, not for {kind}")));
    }
    if text.experts.is_some() || text.layers.iter().any(|layer| layer.values_are_keys) {
        let problem = "w4pack writes it for models without experts whose layers all have a v_proj";
        return Err(refuse(problem));
    }
    let factors = llama_cpp::rope_factors(&config.text)?;
    let described = llama_cpp::metadata(source, config)?;
    let tensors = vec![(ROPE_FREQS.into(), factors)];
    Ok((GgufForm { metadata: described.metadata, tensors }, described.warnings))
}

/// The names of the output. Towers can be kept only where the source has them.
fn output_names(
    checkpoint: &Checkpoint,
    config: &Config,
    towers: Towers,
) -> Result<NameLayout, ConvertError> {
    let place = || checkpoint.source().label().to_string();
    match towers {
        Towers::Drop => Ok(NameLayout::TextOnly),
        Towers::Keep if config.layout == NameLayout::TextOnly => {
            let problem = "its config.json describes a text-only model";
            Err(ConvertError::NoTowers { place: place(), problem })
        }
        Towers::Keep if !checkpoint.names().any(is_tower) => {
            let problem = "none of its tensors belongs to a vision or audio tower";
            Err(ConvertError::NoTowers { place: place(), problem })
        }
        Towers::Keep if config.text.family != Family::Gemma4 => {
            let problem = "w4pack keeps the towers of Gemma 4's encoder models only";
            Err(ConvertError::NoTowers { place: place(), problem })
        }
        Towers::Keep if config.layout == NameLayout::MultimodalGemma3 => {
            let problem =
                "its tensors have older names, under which no loader reads a packed model";
            Err(ConvertError::NoTowers { place: place(), problem })
        }
        Towers::Keep => Ok(NameLayout::Multimodal),
    }
}

/// What the user should know of a source that is packed.
fn of_packed_source(
    config: &Config,
    relayed: &[Option<ScaleDtype>],
    options: &Options,
) -> Vec<String> {
    let mut warnings = vec![
        "the source is packed: codes and steps go over as they are, and the result has no manifest \
         (its values were not compared with Google's)"
            .to_string(),
    ];
    if config.quantization.is_none() {
        warnings.push("the source's config.json does not say that it is packed".into());
    }
    let asked = options.scale_dtype;
    let others: Vec<_> = relayed.iter().flatten().filter(|dtype| **dtype != asked).collect();
    if let Some(other) = others.first().filter(|_| options.layout != Layout::Gguf) {
        warnings.push(format!("{} modules keep their {other} steps", others.len()));
    }
    warnings
}

impl Plan {
    /// Whether anything is packed in the source already.
    pub fn relays(&self) -> bool {
        self.relayed.iter().any(Option::is_some)
    }

    /// The name of the source tensor that holds a text tensor; of its module, where the source has
    /// it packed.
    pub fn source_name(&self, position: usize) -> String {
        let tensor = &self.text[position];
        match self.relayed[position] {
            Some(_) => self.source_names.full_name(tensor.module()),
            None => self.source_names.full_name(tensor.dense_name()),
        }
    }

    /// The name of a text tensor in the output.
    pub fn output_name(&self, position: usize) -> String {
        let name = &self.text[position].name;
        // llama.cpp has a name for every tensor of the model; its tests hold the list against ours.
        let in_gguf = self.gguf.as_ref().and_then(|_| to_gguf(name));
        in_gguf.unwrap_or_else(|| self.names.full_name(name))
    }

    /// The name of a text tensor's module in the output; in a GGUF file, of the tensor.
    pub fn output_module(&self, position: usize) -> String {
        match self.gguf {
            Some(_) => self.output_name(position),
            None => self.names.full_name(self.text[position].module()),
        }
    }

    /// All tensors with the file they lie in.
    pub fn tensors(&self) -> impl Iterator<Item = (&PlannedShard, &PlannedTensor)> {
        self.shards.iter().flat_map(|shard| shard.tensors.iter().map(move |tensor| (shard, tensor)))
    }

    /// Bytes of the files beside the weights that will be in the output.
    pub fn companion_bytes(&self) -> u64 {
        let written =
            self.companions.iter().filter(|file| !matches!(file.fate, CompanionFate::NotCopied(_)));
        written.map(|file| file.bytes).sum()
    }

    /// Bytes of all source files that hold tensors.
    pub fn source_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes).sum()
    }
}
