//! `w4pack/manifest.json`: what a packed checkpoint was made of, and what came out.
//!
//! With the source's headers and the hash of every source tensor in it, `restore` can prove each
//! tensor that it gives back, and rebuild the source's files where the towers are at hand.

use crate::source::check_relative_path;
use crate::{FormatError, Result, json};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Path of the file below a checkpoint.
pub const MANIFEST_FILE: &str = "w4pack/manifest.json";

/// Path of the proof's statement below a published checkpoint. It speaks of the other files, so that no
/// list of files can speak of it.
pub const STATEMENT_FILE: &str = "w4pack/statement.json";

/// Path of a published checkpoint's card.
pub const CARD_FILE: &str = "README.md";

/// The line that says that w4pack wrote a card, and may write it anew.
pub const CARD_MARK: &str = "<!-- written by w4pack publish -->";

/// The value of [`Manifest::schema`] that this version writes and reads.
pub const SCHEMA: &str = "w4pack-manifest/2";

/// The whole manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of w4pack that wrote it.
    pub w4pack_version: String,
    /// When, in RFC 3339, UTC. The only thing that differs between two equal conversions.
    pub created: String,
    /// What was asked for.
    pub options: Options,
    /// What was read.
    pub source: SourceRecord,
    /// What was written, this file excepted; sorted by path.
    pub files: Vec<FileRecord>,
}

/// The options that shape the output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// `emb4`, ...
    pub layout: String,
    /// `f16`, `f32` or `bf16`.
    pub scale_dtype: String,
    /// `drop` or `keep`.
    pub towers: String,
    /// Whether tensors off the grid were kept in bf16.
    pub allow_off_grid: bool,
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceRecord {
    /// `owner/name` on the Hub, a folder's own name on a disk.
    pub name: String,
    /// The commit, where there is one.
    pub revision: Option<String>,
    /// Every file of the source, sorted by path.
    pub files: Vec<FileRecord>,
    /// The header of every safetensors file, as it stands there (padding included).
    pub headers: Vec<HeaderRecord>,
    /// config.json and, where there is one, the index: the output rewrites the one and goes without
    /// the other.
    pub texts: Vec<TextRecord>,
    /// Every tensor of the source, in the order of the files and of the bytes in them.
    pub tensors: Vec<TensorRecord>,
}

/// A file and its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Path below the checkpoint.
    pub path: String,
    /// Size.
    pub bytes: u64,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

/// A source header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderRecord {
    /// The file.
    pub path: String,
    /// The JSON text between the length field and the data section.
    pub text: String,
}

/// A small source file, word for word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextRecord {
    /// The file.
    pub path: String,
    /// All of it.
    pub text: String,
}

/// A source tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorRecord {
    /// Full name in the source.
    pub name: String,
    /// The file it lies in.
    pub file: String,
    /// Size.
    pub bytes: u64,
    /// BLAKE3 (256 bits) of its bytes in lower-case hexadecimal. Every source byte is under its file's
    /// SHA-256 already; a second hash for each tensor must cost little.
    pub blake3: String,
    /// SHA-256 of its bytes, where they were copied or left out: what reports list can be checked with
    /// tools that everybody has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// What became of it.
    pub fate: Fate,
}

/// What became of a source tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// Packed in 4 bits.
    Packed,
    /// Copied byte for byte.
    Copied,
    /// Not in the output: a tower, or keys and values that nothing reads.
    LeftOut,
}

impl fmt::Display for Fate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Fate::Packed => "packed",
            Fate::Copied => "copied",
            Fate::LeftOut => "left out",
        })
    }
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// Errors: not JSON, a field missing, unknown or of the wrong kind, another schema; a path that
    /// could leave the folder.
    pub fn parse(bytes: &[u8]) -> Result<Manifest> {
        let value = json::parse(MANIFEST_FILE, bytes)?;
        let fail = |field: &str, problem: String| FormatError::Field {
            file: MANIFEST_FILE.into(),
            field: field.into(),
            problem,
        };
        // First the schema, so that a later version is named as such and not by its new fields.
        match value.get("schema").and_then(serde_json::Value::as_str) {
            Some(SCHEMA) => {}
            other => {
                let found = other.map_or("nothing".into(), |schema| format!("\"{schema}\""));
                return Err(fail("schema", format!("{found}, this version reads \"{SCHEMA}\"")));
            }
        }
        let manifest: Manifest =
            serde_json::from_value(value).map_err(|error| fail("(manifest)", error.to_string()))?;
        // Files are written under these names, by whoever gives the source back.
        let source = &manifest.source;
        let paths = source.files.iter().chain(&manifest.files).map(|file| &file.path);
        let headers = source.headers.iter().map(|header| &header.path);
        let texts = source.texts.iter().map(|text| &text.path);
        for path in paths.chain(headers).chain(texts) {
            check_relative_path(path, MANIFEST_FILE)?;
        }
        Ok(manifest)
    }

    /// The file's content: indented JSON with a final newline.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self)
            .expect("strings, numbers and lists of them always serialize");
        bytes.push(b'\n');
        bytes
    }
}
