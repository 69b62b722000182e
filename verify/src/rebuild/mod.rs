//! The source, rebuilt from the pack: what codes, steps and sidecar say, as a [`Source`] that is read
//! like any other.
//!
//! Nothing of it is believed. The headers and config.json come from the manifest, the small files from the
//! pack, the towers from a second checkpoint; the listing's hash of each file (SHA-256, of small files
//! Git's) says whether the bytes are the source's. So a proof against a rebuilt source with the right hashes is a proof against the source.

mod listing;
mod values;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::CONFIG_FILE;
use w4pack_format::dtype::Dtype;
use w4pack_format::header::{Header, TensorInfo};
use w4pack_format::manifest::{MANIFEST_FILE, Manifest};
use w4pack_format::names::NameLayout;
use w4pack_format::source::{LARGEST_WHOLE, Source, SourceFile};
use w4pack_format::{FormatError, Result};

use crate::companions;
use crate::report::{Fault, FaultClass, Report, Verdict};
pub use listing::{ListedCommit, ListedFile, Listing};
use values::PackedValues;

/// A source that is computed from a pack when it is read.
pub struct RebuiltSource {
    label: String,
    name: String,
    revision: Option<String>,
    files: Vec<SourceFile>,
    /// Weight files, and the small files' bytes.
    weights: BTreeMap<String, WeightFile>,
    others: BTreeMap<String, Vec<u8>>,
    pack: Checkpoint,
    towers: Option<Checkpoint>,
}

/// A weight file of the source.
struct WeightFile {
    header: Header,
    origins: Vec<Origin>,
}

/// Where a tensor's bytes come from.
enum Origin {
    /// From codes and steps.
    Packed(Box<Mutex<PackedValues>>),
    /// From a tensor of the pack.
    Copied(String),
    /// From matrices of single experts, one after the other, of so many bytes each.
    Stack(u64, Vec<Origin>),
    /// From the towers' folder.
    Towers,
}

/// A rebuilt source and what could not be rebuilt.
pub struct Rebuilt {
    /// The source.
    pub source: Arc<dyn Source>,
    /// Listed files that neither the pack nor the towers' folder holds.
    absent: Vec<String>,
}

impl Rebuilt {
    /// Enters into the report of a proof against the rebuilt source what the listing says otherwise.
    pub fn hold_against(&self, listing: &Listing, report: &mut Report) {
        let mut faults = Vec::new();
        for file in &listing.files {
            let mut fail = |class, detail| faults.push(Fault::of_file(class, &file.path, detail));
            if self.absent.contains(&file.path) {
                if is_weights(&file.path) {
                    let detail =
                        "the listing names this weight file, the result's manifest does not";
                    fail(FaultClass::Manifest, detail.into());
                } else if companions::is_needed(&file.path) {
                    let detail = "the listing names this file, the result lacks it";
                    fail(FaultClass::CompanionFile, detail.into());
                } else {
                    report.notes.push(format!("`{}` is listed and not at hand", file.path));
                }
                continue;
            }
            match (report.hashes.source.get(&file.path), &file.sha256) {
                (Some(is), Some(said)) if is == said => {
                    let bytes = self.source.size(&file.path).unwrap_or_default();
                    if bytes != file.bytes {
                        let said = file.bytes;
                        let detail = format!("it has {bytes} bytes, the source's has {said}");
                        fail(FaultClass::Size, detail);
                    }
                }
                (Some(is), said) => {
                    let said = said.as_deref().unwrap_or("nothing");
                    let detail = format!(
                        "rebuilt from the result it has SHA-256 {is}, the source's is {said}"
                    );
                    fail(FaultClass::TensorBytes, detail);
                }
                (None, _) => {
                    let content = self.source.read_file(&file.path);
                    if !content.is_ok_and(|content| file.fits(&content)) {
                        let detail = "it does not have the hash that the source's has";
                        fail(FaultClass::CompanionFile, detail.into());
                    }
                }
            }
        }
        for path in report.hashes.source.keys() {
            if !listing.files.iter().any(|file| file.path == *path) {
                let detail = "the result says it comes from this file, the listing has none";
                faults.push(Fault::of_file(FaultClass::Manifest, path, detail));
            }
        }
        if !faults.is_empty() {
            report.verdict = Verdict::Disproved;
            report.faults.extend(faults);
        }
        if report.verdict != Verdict::Disproved {
            let note = "the source was rebuilt from the result, and has the listed hashes";
            report.notes.push(note.into());
        }
    }
}

impl RebuiltSource {
    /// Opens a pack as the source that its manifest describes and `listing` names.
    ///
    /// Errors: no manifest or sidecar that can be read; a tensor that is nowhere; a listing without
    /// a weight file.
    pub fn open(
        packed: &Arc<dyn Source>,
        towers: Option<&Arc<dyn Source>>,
        listing: &Listing,
    ) -> Result<Rebuilt> {
        let pack = Checkpoint::open(packed.clone())?;
        let towers = towers.map(|towers| Checkpoint::open(towers.clone())).transpose()?;
        let manifest = Manifest::parse(&packed.read_file(MANIFEST_FILE)?)?;
        let mut weights = BTreeMap::new();
        for record in &manifest.source.headers {
            let file = manifest.source.files.iter().find(|file| file.path == record.path);
            let bytes = file.map_or(0, |file| file.bytes);
            let header = parse_header(&record.path, bytes, &record.text)?;
            let origins = header.tensors.iter().map(|info| {
                origin(info, &pack, towers.as_ref()).ok_or_else(|| FormatError::Tensor {
                    file: record.path.clone(),
                    tensor: info.name.clone(),
                    problem: missing_words(towers.is_some()).into(),
                })
            });
            let origins = origins.collect::<Result<Vec<_>>>()?;
            weights.insert(record.path.clone(), WeightFile { header, origins });
        }
        let mut others = BTreeMap::new();
        let mut absent = Vec::new();
        let mut has_config = false;
        for file in listing.files.iter().filter(|file| !weights.contains_key(&file.path)) {
            match small_file(file, &manifest, packed, towers.as_ref())? {
                Some(content) => {
                    has_config |= file.path == CONFIG_FILE;
                    others.insert(file.path.clone(), content);
                }
                None => absent.push(file.path.clone()),
            }
        }
        if !has_config {
            return Err(FormatError::Field {
                file: CONFIG_FILE.into(),
                field: "(file)".into(),
                problem: "the source's is nowhere".into(),
            });
        }
        let sizes = weights.iter().map(|(path, file)| (path.clone(), file.header.file_bytes()));
        let small = others.iter().map(|(path, content)| (path.clone(), content.len() as u64));
        let mut files: Vec<SourceFile> =
            sizes.chain(small).map(|(path, bytes)| SourceFile { path, bytes }).collect();
        files.sort();
        // Where the Hub gave the listing it is known whose files they are; else the manifest says so.
        let (name, revision) = match &listing.of {
            Some(of) => (of.name.clone(), Some(of.commit.clone())),
            None => (manifest.source.name, manifest.source.revision),
        };
        let source = RebuiltSource {
            label: format!("{} (rebuilt)", packed.label()),
            name,
            revision,
            files,
            weights,
            others,
            pack,
            towers,
        };
        Ok(Rebuilt { source: Arc::new(source), absent })
    }
}

fn is_weights(path: &str) -> bool {
    path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json")
}

fn missing_words(has_towers: bool) -> &'static str {
    match has_towers {
        true => {
            "neither the pack nor the checkpoint of --towers-from holds what the source has here"
        }
        false => "the pack does not hold what the source has here",
    }
}

/// A header as the manifest has it, of a file of so many bytes.
fn parse_header(path: &str, bytes: u64, text: &str) -> Result<Header> {
    let length = (text.len() as u64).to_le_bytes();
    let prefix: Vec<u8> = length.into_iter().chain(text.bytes()).collect();
    Header::parse(path, bytes, &mut |offset, buffer| {
        let begin = offset as usize;
        let piece = prefix.get(begin..begin + buffer.len());
        let wanted = buffer.len() as u64;
        let shrunk = || FormatError::Shrunk { file: path.into(), offset, wanted };
        buffer.copy_from_slice(piece.ok_or_else(shrunk)?);
        Ok(())
    })
}

/// Where a source tensor's bytes are.
fn origin(info: &TensorInfo, pack: &Checkpoint, towers: Option<&Checkpoint>) -> Option<Origin> {
    let layouts = [NameLayout::Multimodal, NameLayout::MultimodalGemma3, NameLayout::TextOnly];
    let names = layouts.map(NameLayout::prefix);
    let text_name = names.iter().find_map(|prefix| info.name.strip_prefix(prefix));
    let in_pack = names.iter().filter_map(|prefix| Some(format!("{prefix}{}", text_name?)));
    for name in std::iter::once(info.name.clone()).chain(in_pack) {
        let found = in_pack_as(&name, info.dtype, &info.shape, pack);
        if let Some(found) = found.or_else(|| stack(&name, info, pack)) {
            return Some(found);
        }
    }
    let there = towers?.tensor(&info.name)?;
    (there.info.bytes() == info.bytes()).then_some(Origin::Towers)
}

/// A tensor of the pack under this name: packed, or of this type and shape.
fn in_pack_as(name: &str, dtype: Dtype, shape: &[usize], pack: &Checkpoint) -> Option<Origin> {
    let module = name.strip_suffix(".weight").unwrap_or(name);
    if pack.tensor(&format!("{module}.weight_packed")).is_some() {
        return Some(Origin::Packed(Box::new(Mutex::new(PackedValues::of(module.into())))));
    }
    let found = pack.tensor(name)?;
    let same = (found.info.dtype, &*found.info.shape) == (dtype, shape);
    same.then(|| Origin::Copied(name.into()))
}

/// A stack of experts whose matrices the pack holds one by one: `gate_up_proj` is gate and up of the
/// first expert, then of the second; `down_proj` one matrix an expert.
fn stack(name: &str, info: &TensorInfo, pack: &Checkpoint) -> Option<Origin> {
    let &[experts, rows, columns] = &info.shape[..] else { return None };
    let (folder, last) = name.rsplit_once('.')?;
    let parts: &[&str] = match last {
        "gate_up_proj" => &["gate_proj", "up_proj"],
        "down_proj" => &["down_proj"],
        _ => return None,
    };
    let shape = [rows / parts.len(), columns];
    let matrices = (0..experts).flat_map(|expert| parts.iter().map(move |part| (expert, part)));
    let origins = matrices.map(|(expert, part)| {
        in_pack_as(&format!("{folder}.{expert}.{part}.weight"), info.dtype, &shape, pack)
    });
    let origins = origins.collect::<Option<Vec<_>>>()?;
    let each = info.bytes() / (origins.len() as u64).max(1);
    Some(Origin::Stack(each, origins))
}

/// A small file of the source from the manifest, the pack or the towers' checkpoint: the first whose
/// hash is the listed one, else, where a loader needs it, the pack's own, so that it is held against
/// the listing; `None` where nobody has it.
fn small_file(
    file: &ListedFile,
    manifest: &Manifest,
    packed: &Arc<dyn Source>,
    towers: Option<&Checkpoint>,
) -> Result<Option<Vec<u8>>> {
    let text = manifest.source.texts.iter().find(|text| text.path == file.path);
    let text = text.map(|text| text.text.as_bytes().to_vec());
    if text.as_ref().is_some_and(|text| file.fits(text)) {
        return Ok(text);
    }
    let read = |from: &Arc<dyn Source>| {
        let is_small = from.size(&file.path).is_some_and(|bytes| bytes <= LARGEST_WHOLE);
        is_small.then(|| from.read_file(&file.path)).transpose()
    };
    let own = read(packed)?;
    if own.as_ref().is_some_and(|own| file.fits(own)) {
        return Ok(own);
    }
    // Last, since its bytes may have a long way.
    let theirs = towers.map(|towers| read(towers.source())).transpose()?.flatten();
    if theirs.as_ref().is_some_and(|theirs| file.fits(theirs)) {
        return Ok(theirs);
    }
    let is_comparable = file.path != CONFIG_FILE && companions::is_needed(&file.path);
    Ok(own.filter(|_| is_comparable))
}

impl Source for RebuiltSource {
    fn label(&self) -> &str {
        &self.label
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }

    fn files(&self) -> &[SourceFile] {
        &self.files
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| self.size(path).is_none_or(|bytes| end > bytes)) {
            let (file, wanted) = (format!("{}/{path}", self.label), buffer.len() as u64);
            return Err(FormatError::Shrunk { file, offset, wanted });
        }
        if let Some(content) = self.others.get(path) {
            let begin = offset as usize;
            buffer.copy_from_slice(&content[begin..begin + buffer.len()]);
            return Ok(());
        }
        let Some(file) = self.weights.get(path) else {
            unreachable!("a listed file is a weight file or a small one")
        };
        self.read_weights(file, offset, buffer)
    }
}

impl RebuiltSource {
    /// Reads a range that lies inside the file.
    fn read_weights(&self, file: &WeightFile, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let prefix = file.header.prefix();
        let data = prefix.len() as u64;
        let end = offset + buffer.len() as u64;
        if offset < data {
            let begin = offset as usize;
            let stop = end.min(data) as usize;
            buffer[..stop - begin].copy_from_slice(&prefix[begin..stop]);
        }
        let tensors = &file.header.tensors;
        let first = tensors.partition_point(|tensor| data + tensor.end <= offset);
        for (info, origin) in tensors.iter().zip(&file.origins).skip(first) {
            let (begin, stop) = (data + info.begin, data + info.end);
            if begin >= end {
                break;
            }
            let (from, to) = (begin.max(offset), stop.min(end));
            if from >= to {
                continue;
            }
            let piece = &mut buffer[(from - offset) as usize..(to - offset) as usize];
            let inside = from - begin;
            self.read_origin(origin, info, inside, piece)?;
        }
        Ok(())
    }

    /// Reads bytes of a tensor from its byte `inside` on.
    fn read_origin(
        &self,
        origin: &Origin,
        info: &TensorInfo,
        inside: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        match origin {
            Origin::Packed(values) => {
                let mut values = values.lock().unwrap_or_else(PoisonError::into_inner);
                values.read(&self.pack, inside, buffer)
            }
            Origin::Copied(name) => self.pack.read_range(name, inside, buffer),
            Origin::Stack(each, origins) => {
                let (mut at, mut rest) = (inside, buffer);
                while !rest.is_empty() {
                    let (number, begin) = ((at / each) as usize, at % each);
                    let length = rest.len().min((each - begin) as usize);
                    let (piece, later) = rest.split_at_mut(length);
                    self.read_origin(&origins[number], info, begin, piece)?;
                    (at, rest) = (at + length as u64, later);
                }
                Ok(())
            }
            Origin::Towers => match &self.towers {
                Some(towers) => towers.read_range(&info.name, inside, buffer),
                None => Err(self.pack.missing(&info.name)),
            },
        }
    }
}
