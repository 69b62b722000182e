//! config.json: what the layout makes of the source's, computed here and compared key by key.
//!
//! [`keys`] compares the model's keys ([`head_sizes`] those with two spellings); [`scheme`] looks
//! at `quantization_config`, which [`layouts`] computes; [`facts`] is what both hold it against.

mod facts;
mod fused;
mod head_sizes;
mod keys;
mod layouts;
mod patterns;
mod scheme;

use serde_json::{Map, Value};
use w4pack_format::config::{CONFIG_FILE, Family};
use w4pack_format::json;
use w4pack_format::laid_out::LAID_OUT_FILE;
use w4pack_format::names::NameLayout;
use w4pack_format::source::Source;

use crate::findings::Findings;
use crate::ledger::{Class, Side};
use crate::report::{Fault, FaultClass, class_of};
use crate::spelling::{LONGEST_SPACE, white_space};
pub use facts::{Facts, Module};
pub use fused::mixtures;
pub use layouts::Layout;

/// What a check of the configuration says about one key.
enum Word {
    /// It is wrong.
    Wrong(FaultClass, String),
    /// Sound, but not what w4pack writes: accepted in another maker's pack only.
    Variant(String),
}

/// Reads a config.json as an object, or says what is wrong with it.
fn read(source: &dyn Source) -> Result<Map<String, Value>, Fault> {
    let fault = |class, detail: String| Fault::of_file(class, CONFIG_FILE, detail);
    if source.size(CONFIG_FILE).is_none() {
        return Err(fault(FaultClass::Config, "the file is missing".into()));
    }
    let content = |error: &_| fault(class_of(error), error.to_string());
    let bytes = source.read_file(CONFIG_FILE).map_err(|error| content(&error))?;
    let space = white_space(&bytes).longest;
    if space > LONGEST_SPACE {
        let detail = format!("it holds {space} bytes of white space in one place");
        return Err(fault(FaultClass::Config, detail));
    }
    match json::parse(CONFIG_FILE, &bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(fault(FaultClass::Config, "it is not a JSON object".into())),
        Err(error) => Err(content(&error)),
    }
}

/// Whether a result carries what only w4pack writes.
pub fn is_ours(result: &dyn Source) -> bool {
    result.files().iter().any(|file| file.path.starts_with("w4pack/") && file.path != LAID_OUT_FILE)
}

/// Compares the result's configuration with the source's under what its tensors show.
pub fn check(source: &dyn Source, result: &dyn Source, facts: &Facts, findings: &mut Findings) {
    let (theirs, ours) = match (read(source), read(result)) {
        (Ok(theirs), Ok(ours)) => (theirs, ours),
        (theirs, ours) => {
            findings.faults.extend([theirs.err(), ours.err()].into_iter().flatten());
            return;
        }
    };
    findings.ledger.claim_file(Side::Source, CONFIG_FILE, Class::Config);
    findings.ledger.claim_file(Side::Result, CONFIG_FILE, Class::Config);
    let mut words = keys::compare(&theirs, &ours, facts);
    words.extend(scheme::check_scheme(&ours, facts));
    enter(words, facts, findings);
}

/// Checks the `quantization_config` of a result alone.
pub fn check_alone(result: &dyn Source, facts: &Facts, findings: &mut Findings) {
    match read(result) {
        Ok(object) => enter(scheme::check_scheme(&object, facts), facts, findings),
        Err(fault) => findings.faults.push(fault),
    }
}

/// Sorts words into faults and notes. What calls itself w4pack's must be so to the letter.
fn enter(words: Vec<Word>, facts: &Facts, findings: &mut Findings) {
    for word in words {
        match word {
            Word::Wrong(class, detail) => {
                findings.faults.push(Fault::of_file(class, CONFIG_FILE, detail));
            }
            Word::Variant(detail) if facts.ours => {
                let detail = format!("{detail}; a result with a folder `w4pack/` has no variants");
                findings.faults.push(Fault::of_file(FaultClass::Config, CONFIG_FILE, detail));
            }
            Word::Variant(note) => findings.note(format!("{CONFIG_FILE}: {note}")),
        }
    }
}

/// The layout that a configuration declares: by its `model_type`, or else by its shape.
fn layout_of(config: &Map<String, Value>) -> NameLayout {
    let declared = config.get("model_type").and_then(Value::as_str).and_then(Family::of);
    match declared {
        Some((_, layout)) => layout,
        None if config.contains_key("text_config") => NameLayout::Multimodal,
        None => NameLayout::TextOnly,
    }
}
