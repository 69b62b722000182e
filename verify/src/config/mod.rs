//! config.json: what the layout makes of the source's, computed here and compared key by key.

mod keys;
mod scheme;

use serde_json::{Map, Value};
use w4pack_format::config::CONFIG_FILE;
use w4pack_format::json;
use w4pack_format::names::NameLayout;
use w4pack_format::source::Source;

use crate::findings::Findings;
use crate::ledger::{Class, Side};
use crate::report::{Fault, FaultClass, class_of};
pub use scheme::{Facts, check_scheme};

/// What a check of the configuration says about one key.
pub enum Word {
    /// It is wrong.
    Wrong(FaultClass, String),
    /// It is an accepted variant.
    Variant(String),
}

/// Reads a config.json as an object, or says what is wrong with it.
pub fn read(source: &dyn Source) -> Result<Map<String, Value>, Fault> {
    if source.size(CONFIG_FILE).is_none() {
        return Err(Fault::of_file(FaultClass::Config, CONFIG_FILE, "the file is missing"));
    }
    let content = source.read_file(CONFIG_FILE).and_then(|bytes| json::parse(CONFIG_FILE, &bytes));
    match content {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Fault::of_file(FaultClass::Config, CONFIG_FILE, "it is not a JSON object")),
        Err(error) => Err(Fault::of_file(class_of(&error), CONFIG_FILE, error.to_string())),
    }
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
    words.extend(check_scheme(&ours, facts));
    enter(words, findings);
}

/// Sorts words into faults and notes.
pub fn enter(words: Vec<Word>, findings: &mut Findings) {
    for word in words {
        match word {
            Word::Wrong(class, detail) => {
                findings.faults.push(Fault::of_file(class, CONFIG_FILE, detail));
            }
            Word::Variant(note) => findings.note(format!("{CONFIG_FILE}: {note}")),
        }
    }
}

/// The layout that a configuration declares.
pub fn layout_of(config: &Map<String, Value>) -> NameLayout {
    if config.contains_key("text_config") { NameLayout::Multimodal } else { NameLayout::TextOnly }
}
