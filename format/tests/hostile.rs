//! The files of `fixtures/hostile/`: each is refused by the error that names what is wrong with it.

#[path = "../../testing/in_time.rs"]
mod in_time;

use in_time::in_time;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use w4pack_format::Result;
use w4pack_format::checkpoint::{Checkpoint, INDEX_FILE};
use w4pack_format::config::Config;
use w4pack_format::gguf::Gguf;
use w4pack_format::header::Header;
use w4pack_format::manifest::Manifest;
use w4pack_format::source::FolderSource;

/// File, and words of its error.
const FILES: [(&str, &str); 35] = [
    ("config-key-twice.json", "duplicate key `hidden_size`"),
    ("config-negative-size.json", "hidden_size"),
    ("config-trillion-layers.json", "num_hidden_layers"),
    ("deep-nesting.safetensors", "not valid JSON"),
    ("duplicate-key.safetensors", "`a` appears twice"),
    ("empty-header.safetensors", "length is 0"),
    ("gap.safetensors", "`b`"),
    ("gguf-2-to-the-60-tensors.gguf", "claims 1152921504606846976"),
    ("gguf-another-magic.gguf", "does not begin with the bytes `GGUF`"),
    ("gguf-cut.gguf", "more than its 50 bytes have room for"),
    ("gguf-string-past-the-end.gguf", "1099511627776 bytes wanted"),
    ("gguf-version-99.gguf", "version is 99"),
    ("header-of-2-to-the-63.safetensors", "exceeds the limit"),
    ("header-of-a-terabyte.safetensors", "exceeds the limit"),
    ("header-past-the-end.safetensors", "the file has"),
    ("index-absolute.json", "absolute path"),
    ("index-backslash.json", "backslash"),
    ("index-nowhere.json", "which is not there"),
    ("index-parent.json", "`..`"),
    ("index-subfolder.json", "subfolder"),
    ("index-without-map.json", "no `weight_map`"),
    ("manifest-of-another-schema.json", "w4pack-manifest/1"),
    ("manifest-unknown-field.json", "unknown field `extra`"),
    ("name-that-steers-a-terminal.safetensors", "control characters"),
    ("not-utf8.safetensors", "not UTF-8"),
    ("offsets-inverted.safetensors", "before its beginning"),
    ("offsets-missing.safetensors", "0 data_offsets"),
    ("one-offset.safetensors", "1 data_offsets"),
    ("overflowing-shape.safetensors", "overflows 64 bits"),
    ("overlap.safetensors", "overlap"),
    ("size-of-another-dtype.safetensors", "needs 8 bytes"),
    ("too-short.safetensors", "too few"),
    ("trailing-bytes.safetensors", "behind"),
    ("truncated.safetensors", "the file has"),
    ("unknown-dtype.safetensors", "unknown dtype `Q4`"),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/hostile")
}

/// Reads a file as what its name says it is.
fn open(name: &str, content: &[u8]) -> Result<()> {
    let mut read = |offset: u64, buffer: &mut [u8]| {
        let begin = offset as usize;
        buffer.copy_from_slice(&content[begin..begin + buffer.len()]);
        Ok(())
    };
    let bytes = content.len() as u64;
    match name.split(['-', '.']).next().unwrap() {
        "config" => Config::parse("config.json", content).map(drop),
        "manifest" => Manifest::parse(content).map(drop),
        "gguf" => Gguf::parse(name, bytes, &mut read).map(drop),
        "index" => {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join(INDEX_FILE), content).unwrap();
            Checkpoint::open(Arc::new(FolderSource::open(folder.path())?)).map(drop)
        }
        _ => Header::parse(name, bytes, &mut read).map(drop),
    }
}

#[test]
fn every_hostile_file_is_refused_by_name() {
    let mut expected: BTreeMap<&str, &str> = FILES.into_iter().collect();
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let Some(words) = expected.remove(name) else { panic!("{name} has no expectation") };
        let content = std::fs::read(&path).unwrap();
        let error = in_time(name, Duration::from_secs(1), || open(name, &content));
        let said = error.expect_err(name).to_string();
        if !said.contains(words) {
            wrong.push(format!("{name}: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(expected.is_empty(), "not there: {expected:?}");
}
