//! A GGUF file seen as a packed checkpoint: config.json, tokenizer and one `model.safetensors`.
//!
//! Nothing is unpacked and nothing is written: [`GgufSource`] is a [`Source`] whose files are made
//! of the GGUF file's bytes while they are read. So whatever reads packed checkpoints reads GGUF.
//!
//! Q4_0 tensors become packed words and f16 scales, code for code and step for step. Everything
//! else becomes bf16: exactly, or, for Q6_K, rounded once. A group with a step of 0 is all zeros
//! whatever its codes; it becomes codes 0 with step 1, since no other reader takes a step of 0.

mod config;
mod tensors;
mod tokenizer;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Gguf;
use crate::checkpoint::{INDEX_FILE, SINGLE_FILE};
use crate::config::CONFIG_FILE;
use crate::source::{Source, SourceFile};
use crate::{FormatError, Result};
use tensors::Weights;

/// The GGUF file of a source that holds one and no safetensors: then it is the model.
///
/// Errors: several of them. Each may be a model of its own, or a part of one.
pub fn model_file(source: &dyn Source) -> Result<Option<&str>> {
    if source.size(SINGLE_FILE).is_some() || source.size(INDEX_FILE).is_some() {
        return Ok(None);
    }
    let of_top_level = source.files().iter().map(|file| file.path.as_str());
    let found: Vec<&str> =
        of_top_level.filter(|path| path.ends_with(".gguf") && !path.contains('/')).collect();
    match found[..] {
        [] => Ok(None),
        [path] => Ok(Some(path)),
        _ => Err(FormatError::NoCheckpoint {
            place: source.label().into(),
            problem: format!(
                "it holds {} GGUF files, each a model of its own (`{}`): name one of them",
                found.len(),
                found.join("`, `")
            ),
        }),
    }
}

/// A source, or what it holds if that is a GGUF file.
pub fn open(source: Arc<dyn Source>) -> Result<Arc<dyn Source>> {
    match model_file(&*source)?.map(str::to_string) {
        Some(path) => Ok(Arc::new(GgufSource::open(source, &path)?)),
        None => Ok(source),
    }
}

/// A GGUF file as the files of a packed checkpoint.
pub struct GgufSource {
    inner: Arc<dyn Source>,
    path: String,
    files: Vec<SourceFile>,
    texts: BTreeMap<&'static str, Vec<u8>>,
    weights: Weights,
}

impl GgufSource {
    /// Reads the header of the file `path` of a source.
    ///
    /// Errors: a file that cannot be trusted; a model that is no Gemma 4; a tensor of a type that
    /// w4pack does not read, or that belongs to no text model.
    pub fn open(inner: Arc<dyn Source>, path: &str) -> Result<GgufSource> {
        let bytes = inner.size(path).unwrap_or(0);
        let gguf =
            Gguf::parse(path, bytes, &mut |offset, buffer| inner.read_at(path, offset, buffer))?;
        let metadata = Metadata { file: path, gguf: &gguf };
        let rope_factors = tensors::rope_factors(&*inner, path, &gguf)?;
        let mut texts = tokenizer::files(&metadata)?;
        let mut config = config::config(&metadata, &rope_factors)?;
        let weights = Weights::new(path, &gguf)?;
        config["quantization_config"] = config::quantization(&weights.packed_modules());
        texts.insert(CONFIG_FILE, format!("{config:#}\n").into_bytes());
        let mut files: Vec<SourceFile> = texts
            .iter()
            .map(|(path, text)| SourceFile { path: path.to_string(), bytes: text.len() as u64 })
            .collect();
        files.push(SourceFile { path: SINGLE_FILE.into(), bytes: weights.bytes() });
        files.sort();
        Ok(GgufSource { path: path.into(), inner, files, texts, weights })
    }
}

impl Source for GgufSource {
    fn label(&self) -> &str {
        self.inner.label()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn revision(&self) -> Option<&str> {
        self.inner.revision()
    }

    fn files(&self) -> &[SourceFile] {
        &self.files
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let wanted = buffer.len() as u64;
        let end = offset.checked_add(wanted);
        if self.size(path).zip(end).is_none_or(|(size, end)| end > size) {
            return Err(FormatError::Shrunk { file: path.into(), offset, wanted });
        }
        match self.texts.get(path) {
            Some(text) => buffer.copy_from_slice(&text[offset as usize..][..buffer.len()]),
            None => self.weights.read(&*self.inner, &self.path, offset, buffer)?,
        }
        Ok(())
    }
}

/// Metadata by key, with errors that name it.
struct Metadata<'g> {
    file: &'g str,
    gguf: &'g Gguf,
}

impl<'g> Metadata<'g> {
    fn fail(&self, key: &str, problem: impl Into<String>) -> FormatError {
        FormatError::Field { file: self.file.into(), field: key.into(), problem: problem.into() }
    }

    fn get(&self, key: &str) -> Option<&'g super::Value> {
        self.gguf.value(key)
    }

    fn wanted(&self, key: &str) -> Result<&'g super::Value> {
        self.get(key).ok_or_else(|| self.fail(key, "it is missing"))
    }

    fn number(&self, key: &str) -> Result<u64> {
        let number = self.wanted(key)?.as_u64();
        number.ok_or_else(|| self.fail(key, "it is not a whole number from 0"))
    }

    /// A number with a fraction, as the shortest decimal that is this f32: 1e-6 and not
    /// 9.99999997e-7.
    fn fraction(&self, key: &str) -> Result<f64> {
        let value = self.wanted(key)?.as_f64();
        let value = value.ok_or_else(|| self.fail(key, "it is not a number with a fraction"))?;
        Ok((value as f32).to_string().parse().unwrap_or(value))
    }

    /// One number for all layers, or one each.
    fn numbers(&self, key: &str, layers: usize) -> Result<Vec<u64>> {
        let value = self.wanted(key)?;
        let bad = || self.fail(key, format!("it is neither a whole number nor {layers} of them"));
        match value.as_array() {
            None => Ok(vec![value.as_u64().ok_or_else(bad)?; layers]),
            Some(array) => {
                let numbers: Option<Vec<u64>> =
                    array.values().ok_or_else(bad)?.map(|value| value.as_u64()).collect();
                numbers.filter(|numbers| numbers.len() == layers).ok_or_else(bad)
            }
        }
    }
}
