//! Where each source tensor's bytes are to be had.

use std::collections::HashMap;

use w4pack_format::checkpoint::{Checkpoint, INDEX_FILE, Located, SINGLE_FILE};
use w4pack_format::config::CONFIG_FILE;
use w4pack_format::dtype::Dtype;
use w4pack_format::group::GROUP;
use w4pack_format::header::{Header, TensorInfo};
use w4pack_format::manifest::{Fate, MANIFEST_FILE, Manifest, SourceRecord, TensorRecord};
use w4pack_format::names::NameLayout;

use crate::ConvertError;

/// A way to a tensor's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// Words and steps of this module of the packed checkpoint.
    Packed(String),
    /// This tensor of the packed checkpoint, as it is.
    Copied(String),
    /// Matrices of single experts, one after the other.
    Stack(Vec<Piece>),
    /// The tensor of the same name in the checkpoint that supplies the towers.
    Towers,
}

/// A matrix of one expert, whose rows are a part of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// [`Origin::Packed`] or [`Origin::Copied`].
    pub origin: Origin,
    /// Rows and columns.
    pub shape: [usize; 2],
}

/// A source tensor as the manifest describes it.
pub(super) struct SourceTensor {
    /// Its entry in the source file's header.
    pub info: TensorInfo,
    /// What was recorded of it.
    pub record: TensorRecord,
    /// `None`: its bytes are nowhere.
    pub origin: Option<Origin>,
}

/// A source file that held tensors.
pub(super) struct SourceShard {
    /// Its name.
    pub path: String,
    /// Its header.
    pub header: Header,
    /// The SHA-256 of the whole file.
    pub sha256: String,
    /// Its tensors in the order of their bytes.
    pub tensors: Vec<SourceTensor>,
}

/// All source tensors and where they are.
pub(super) struct Inventory<'a> {
    /// The manifest that lists them.
    pub manifest: &'a Manifest,
    /// The packed checkpoint.
    pub packed: &'a Checkpoint,
    /// What supplies tensors that it lacks.
    pub towers: Option<&'a Checkpoint>,
    /// The source's weight files.
    pub shards: Vec<SourceShard>,
}

impl<'a> Inventory<'a> {
    /// Errors: a manifest that contradicts itself, or a packed checkpoint that lacks what the
    /// manifest says was packed or copied.
    pub(super) fn new(
        manifest: &'a Manifest,
        packed: &'a Checkpoint,
        towers: Option<&'a Checkpoint>,
    ) -> Result<Self, ConvertError> {
        let mut records: HashMap<(String, String), &TensorRecord> = manifest
            .source
            .tensors
            .iter()
            .map(|record| ((record.file.clone(), record.name.clone()), record))
            .collect();
        let mut shards = Vec::new();
        for header_record in &manifest.source.headers {
            let path = &header_record.path;
            let file = manifest.source.files.iter().find(|file| file.path == *path);
            let file = file.ok_or_else(|| contradiction(packed, format!("no hash of `{path}`")))?;
            let header = parse_header(path, file.bytes, &header_record.text)?;
            let mut tensors = Vec::new();
            for info in &header.tensors {
                let record = records.remove(&(path.clone(), info.name.clone()));
                let record = record.filter(|record| record.bytes == info.bytes());
                let record = record.ok_or_else(|| {
                    contradiction(packed, format!("no record of `{}`", info.name))
                })?;
                let origin = in_packed(packed, info, record.fate)?;
                tensors.push(SourceTensor { info: info.clone(), record: record.clone(), origin });
            }
            let sha256 = file.sha256.clone();
            shards.push(SourceShard { path: path.clone(), header, sha256, tensors });
        }
        if let Some((_, name)) = records.keys().next() {
            return Err(contradiction(packed, format!("`{name}` is in no header")));
        }
        check_texts(manifest, packed)?;
        let mut inventory = Inventory { manifest, packed, towers, shards };
        inventory.find_twins();
        inventory.ask_towers()?;
        Ok(inventory)
    }

    /// A tensor that was left out may be the very bytes of one that was not: a head beside its
    /// table.
    fn find_twins(&mut self) {
        let known: HashMap<String, Origin> = self
            .tensors()
            .filter_map(|tensor| Some((tensor.record.blake3.clone(), tensor.origin.clone()?)))
            .collect();
        for tensor in self.shards.iter_mut().flat_map(|shard| &mut shard.tensors) {
            if tensor.origin.is_none() {
                tensor.origin = known.get(&tensor.record.blake3).cloned();
            }
        }
    }

    /// Whoever is named to supply what is missing must have all of it: a checkpoint that lacks a part
    /// is another one. Whether it has the right bytes, their hashes will say.
    fn ask_towers(&mut self) -> Result<(), ConvertError> {
        let Some(towers) = self.towers else { return Ok(()) };
        let missing = self.shards.iter_mut().flat_map(|shard| &mut shard.tensors);
        for tensor in missing.filter(|tensor| tensor.origin.is_none()) {
            let info = &tensor.info;
            let found = towers.tensor(&info.name);
            if !same_kind(found, info) {
                return Err(ConvertError::OtherTowers {
                    place: towers.source().label().into(),
                    tensor: info.name.clone(),
                    file: tensor.record.file.clone(),
                    found: found.map_or("not there".into(), |found| {
                        format!("{} {:?}", found.info.dtype, found.info.shape)
                    }),
                    wanted: format!("{} {:?}", info.dtype, info.shape),
                });
            }
            tensor.origin = Some(Origin::Towers);
        }
        Ok(())
    }

    /// All tensors, file by file.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &SourceTensor> {
        self.shards.iter().flat_map(|shard| &shard.tensors)
    }
}

/// The manifest keeps config.json and the index word for word, since the packed checkpoint rewrites
/// the one and goes without the other: without them nothing would come back that a loader takes.
fn check_texts(manifest: &Manifest, packed: &Checkpoint) -> Result<(), ConvertError> {
    let SourceRecord { files, headers, texts, .. } = &manifest.source;
    let listed = |path: &str| files.iter().any(|file| file.path == path);
    let has_text = |path: &str| texts.iter().any(|text| text.path == path);
    if let Some(text) = texts.iter().find(|text| !listed(&text.path)) {
        let problem = format!("it has the text of `{}`, which is no file of the source", text.path);
        return Err(contradiction(packed, problem));
    }
    let has_shards = headers.iter().any(|header| header.path != SINGLE_FILE);
    let index = (has_shards || listed(INDEX_FILE)).then_some(INDEX_FILE);
    for path in [CONFIG_FILE].into_iter().chain(index) {
        if !listed(path) || !has_text(path) {
            return Err(contradiction(
                packed,
                format!("the text of the source's `{path}` is missing"),
            ));
        }
    }
    Ok(())
}

/// A text tensor's name in a text-only checkpoint.
pub(super) fn text_only_name(name: &str) -> String {
    let multimodal = [NameLayout::Multimodal, NameLayout::MultimodalGemma3];
    match multimodal.iter().find_map(|layout| name.strip_prefix(layout.prefix())) {
        Some(rest) => NameLayout::TextOnly.full_name(rest),
        None => name.into(),
    }
}

fn in_packed(
    packed: &Checkpoint,
    info: &TensorInfo,
    fate: Fate,
) -> Result<Option<Origin>, ConvertError> {
    let names = [info.name.clone(), text_only_name(&info.name)];
    match fate {
        Fate::Packed if info.shape.len() == 3 => stack(packed, info, &names).map(Some),
        Fate::Packed => {
            let modules = names.iter().map(|name| name.strip_suffix(".weight").unwrap_or(name));
            let found = modules
                .clone()
                .find(|module| packed.tensor(&format!("{module}.weight_packed")).is_some());
            let is_matrix = info.dtype == Dtype::BF16
                && matches!(info.shape[..], [_, columns] if columns.is_multiple_of(GROUP));
            match found {
                Some(module) if is_matrix => Ok(Some(Origin::Packed(module.into()))),
                Some(module) => Err(ConvertError::Tensor {
                    file: packed.place(MANIFEST_FILE),
                    tensor: info.name.clone(),
                    problem: format!(
                        "{} {:?} cannot have been packed as `{module}`",
                        info.dtype, info.shape
                    ),
                }),
                None => Err(packed.missing(&format!("{}.weight_packed", info.name)).into()),
            }
        }
        Fate::Copied | Fate::LeftOut => {
            let found = names.into_iter().find(|name| same_kind(packed.tensor(name), info));
            match found {
                None if fate == Fate::Copied => Err(packed.missing(&info.name).into()),
                found => Ok(found.map(Origin::Copied)),
            }
        }
    }
}

/// The pieces of a stack of experts: `gate_up_proj` has the rows of gate and up of the first
/// expert, then those of the second; `down_proj` one matrix an expert.
fn stack(
    packed: &Checkpoint,
    info: &TensorInfo,
    names: &[String; 2],
) -> Result<Origin, ConvertError> {
    let parts: &[&str] = match info.name.rsplit('.').next() {
        Some("gate_up_proj") => &["gate_proj", "up_proj"],
        _ => &["down_proj"],
    };
    let [experts, rows, columns] = info.shape[..] else { unreachable!("three dimensions") };
    let shape = [rows / parts.len(), columns];
    let mut pieces = Vec::with_capacity(experts * parts.len());
    for expert in 0..experts {
        for part in parts {
            let modules = names.each_ref().map(|name| {
                let folder = name.rsplit_once('.').map_or("", |(folder, _)| folder);
                format!("{folder}.{expert}.{part}")
            });
            let is_packed =
                |module: &&String| packed.tensor(&format!("{module}.weight_packed")).is_some();
            let is_plain = |module: &&String| packed.tensor(&format!("{module}.weight")).is_some();
            let origin = match (modules.iter().find(is_packed), modules.iter().find(is_plain)) {
                (Some(module), _) => Origin::Packed(module.clone()),
                (None, Some(module)) => Origin::Copied(format!("{module}.weight")),
                (None, None) => {
                    return Err(packed.missing(&format!("{}.weight_packed", modules[0])).into());
                }
            };
            pieces.push(Piece { origin, shape });
        }
    }
    Ok(Origin::Stack(pieces))
}

fn same_kind(found: Option<Located<'_>>, info: &TensorInfo) -> bool {
    found.is_some_and(|found| (found.info.dtype, &found.info.shape) == (info.dtype, &info.shape))
}

fn parse_header(path: &str, bytes: u64, text: &str) -> Result<Header, ConvertError> {
    let prefix = [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let name = format!("{MANIFEST_FILE}, header of {path}");
    let header = Header::parse(&name, bytes, &mut |offset, buffer| {
        buffer.copy_from_slice(&prefix[offset as usize..][..buffer.len()]);
        Ok(())
    })?;
    Ok(header)
}

fn contradiction(packed: &Checkpoint, problem: String) -> ConvertError {
    ConvertError::NotRestorable {
        place: packed.source().label().into(),
        problem: format!("its `{MANIFEST_FILE}` contradicts itself: {problem}"),
    }
}
