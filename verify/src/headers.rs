//! The bytes of the result's headers and of its index: every one of them must say something.

use serde_json::Value;
use w4pack_format::Result;
use w4pack_format::checkpoint::{Checkpoint, INDEX_FILE};
use w4pack_format::dtype::Dtype;
use w4pack_format::header::Header;
use w4pack_format::json;

use crate::findings::Findings;
use crate::report::{Fault, FaultClass};
use crate::spelling::{LONGEST_SPACE, shortened, white_space};

/// Spaces that may end a header, to begin the data at a multiple of 8.
const PADDING: usize = 7;

/// Checks the headers of a result's shards, and its index.
pub fn check(result: &Checkpoint, findings: &mut Findings) -> Result<()> {
    for shard in result.shards() {
        check_header(&shard.path, &shard.header, findings);
    }
    match result.index_path() {
        Some(_) => check_index(result, findings),
        None => Ok(()),
    }
}

/// A header holds its entries, the metadata `{"format":"pt"}`, and nothing besides.
pub fn check_header(file: &str, header: &Header, findings: &mut Findings) {
    let mut fail = |detail| findings.faults.push(Fault::of_file(FaultClass::Header, file, detail));
    let padding = header.text.iter().rev().take_while(|byte| **byte == b' ').count();
    let text = &header.text[..header.text.len() - padding];
    let mut sound = true;
    if padding > PADDING {
        sound = false;
        fail(format!("its header ends in {padding} spaces, {PADDING} at most align the data"));
    }
    let space = white_space(text).all;
    if space > 0 {
        sound = false;
        fail(format!("its header holds {space} bytes of white space between its entries"));
    }
    let metadata = &header.metadata;
    if metadata.len() != 1 || metadata.get("format").is_none_or(|format| format != "pt") {
        sound = false;
        let found = shortened(&serde_json::to_string(metadata).unwrap_or_default());
        fail(format!("its metadata is {found}, it must be {{\"format\": \"pt\"}}"));
    }
    if sound && !is_spelled_as_usual(header, text) {
        findings.note(format!("{file}: its header orders or spells its entries in another way"));
    }
}

/// Whether a header reads as every writer in use spells these entries.
fn is_spelled_as_usual(header: &Header, text: &[u8]) -> bool {
    let entries: Vec<(String, Dtype, Vec<usize>)> = header
        .tensors
        .iter()
        .map(|tensor| (tensor.name.clone(), tensor.dtype, tensor.shape.clone()))
        .collect();
    Header::lay_out(&entries).is_ok_and(|usual| usual.text.trim_ascii_end() == text)
}

/// The index's map is held against the headers when it is opened; here the rest of it.
fn check_index(result: &Checkpoint, findings: &mut Findings) -> Result<()> {
    let mut fail =
        |detail| findings.faults.push(Fault::of_file(FaultClass::Index, INDEX_FILE, detail));
    let content = result.source().read_file(INDEX_FILE)?;
    let index = json::parse(INDEX_FILE, &content)?;
    let space = white_space(&content).longest;
    if space > LONGEST_SPACE {
        fail(format!("it holds {space} bytes of white space in one place"));
    }
    for (key, value) in index.as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            ("weight_map", _) => {}
            ("metadata", Value::Object(metadata)) => {
                for (key, value) in metadata {
                    let known = ["total_size", "total_parameters"].contains(&key.as_str());
                    if !known || !value.is_number() {
                        let value = shortened(&value.to_string());
                        fail(format!("its `metadata.{key}` is {value}, which nothing reads"));
                    }
                }
            }
            (key, value) => {
                let value = shortened(&value.to_string());
                fail(format!("its `{key}` is {value}, which nothing reads"));
            }
        }
    }
    if let Some((stated, sum)) = result.index_total_size().filter(|(stated, sum)| stated != sum) {
        fail(format!("its total_size is {stated}, the tensors have {sum} bytes"));
    }
    if let Some(count) = index.pointer("/metadata/total_parameters") {
        findings.note(format!("{INDEX_FILE}: its total_parameters ({count}) are not checked"));
    }
    Ok(())
}
