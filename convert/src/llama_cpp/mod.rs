//! What llama.cpp wants to know of a model: metadata and vocabulary of a GGUF file.
//!
//! Written from what llama.cpp's own converter makes of Gemma 4 (`conversion/base.py`,
//! `conversion/gemma.py`) and its GGUF library of a tokenizer (`gguf-py/gguf/vocab.py`).

mod hyperparameters;
mod vocabulary;

use w4pack_format::config::Config;
use w4pack_format::gguf::Value;
use w4pack_format::source::Source;

use crate::{ConvertError, Layout};

pub use hyperparameters::rope_factors;

/// The file of the layout `gguf`.
pub const GGUF_FILE: &str = "model-Q4_0.gguf";

/// What a file says beside its tensors.
pub struct Described {
    /// Keys and values.
    pub metadata: Vec<(String, Value)>,
    /// What of the model they leave out.
    pub warnings: Vec<String>,
}

/// Metadata of the file, in the order of llama.cpp's converter.
///
/// Errors: a model that llama.cpp computes in another way; a tokenizer that is not there, or not of
/// Gemma 4's kind.
pub fn metadata(source: &dyn Source, config: &Config) -> Result<Described, ConvertError> {
    let mut metadata = hyperparameters::general(source.name());
    metadata.extend(hyperparameters::of_model(config)?);
    let vocabulary = vocabulary::vocabulary(source, config)?;
    metadata.extend(vocabulary.metadata);
    metadata.push(("general.quantization_version".into(), Value::U32(2)));
    Ok(Described { metadata, warnings: vocabulary.warnings })
}

/// A model that the layout cannot hold.
fn refuse(problem: String) -> ConvertError {
    ConvertError::Layout { layout: Layout::Gguf, problem }
}
