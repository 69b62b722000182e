//! What was proved, as an in-toto Statement v1 that others can sign and check: the result's files
//! with their SHA-256 as subjects, source and counts as the predicate.
//!
//! Source: <https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md>.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use w4pack_format::source::Source;
use w4pack_format::{FormatError, Result, json as strict};

use crate::ranges::Range;
use crate::report::{Fault, FaultClass, Report, Verdict};

const TYPE: &str = "https://in-toto.io/Statement/v1";

/// The predicate's type: what [`write`] says.
pub const PREDICATE: &str = "https://w4pack.dev/attestation/proof/v1";

/// The statement of a proof; `None` unless the report's exit code is 0 and its files were hashed.
pub fn write(report: &Report) -> Option<Value> {
    if report.exit_code() != 0 || report.hashes.result.is_empty() {
        return None;
    }
    let digest =
        |(path, sha256): (&String, &String)| json!({"name": path, "digest": {"sha256": sha256}});
    let subjects: Vec<Value> = report.hashes.result.iter().map(digest).collect();
    let sources: Vec<Value> = report.hashes.source.iter().map(digest).collect();
    Some(json!({
        "_type": TYPE,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {
            "w4pack_version": env!("CARGO_PKG_VERSION"),
            "verdict": report.verdict,
            "step_rule": report.step_rule,
            "source": {
                "name": report.hashes.source_name,
                "revision": report.hashes.source_revision,
                "files": sources,
            },
            "whole": report.whole,
            "groups": report.groups,
            "unaccounted": report.unaccounted,
        },
    }))
}

/// Holds a result's files against a statement, and enters what differs into the report of a check
/// that was made before.
///
/// Without a proof the best verdict is "matches the statement, not proved". Errors: the statement is
/// none; a file cannot be read.
pub fn check(
    report: &mut Report,
    result: &Arc<dyn Source>,
    label: &str,
    content: &[u8],
) -> Result<()> {
    let subjects = subjects(label, content)?;
    let mut faults = Vec::new();
    let mut fail = |path: &str, detail: String| {
        faults.push(Fault::of_file(FaultClass::Manifest, path, detail));
    };
    for (path, said) in &subjects {
        if result.size(path).is_none() {
            fail(path, "the statement speaks of this file, which is not there".into());
            continue;
        }
        let is = match report.hashes.result.get(path) {
            Some(sha256) => sha256.clone(),
            None => Range::of_file(&**result, path).sha256(&())?,
        };
        if is != *said {
            fail(path, format!("it has SHA-256 {is}, the statement says {said}"));
        }
    }
    for file in result.files().iter().filter(|file| !subjects.contains_key(&file.path)) {
        fail(&file.path, "the statement does not speak of this file".into());
    }
    if faults.is_empty() {
        report.matches_statement = true;
    } else {
        report.faults.extend(faults);
        if report.verdict != Verdict::Unreadable {
            report.verdict = Verdict::Disproved;
        }
    }
    Ok(())
}

/// Files and their SHA-256.
fn subjects(label: &str, content: &[u8]) -> Result<BTreeMap<String, String>> {
    let statement = strict::parse(label, content)?;
    let fail = |field: &str, problem: String| FormatError::Field {
        file: label.into(),
        field: field.into(),
        problem,
    };
    for (field, wanted) in [("_type", TYPE), ("predicateType", PREDICATE)] {
        if statement[field] != wanted {
            return Err(fail(field, format!("{}, it must be \"{wanted}\"", statement[field])));
        }
    }
    let mut subjects = BTreeMap::new();
    for (number, subject) in statement["subject"].as_array().into_iter().flatten().enumerate() {
        let at = format!("subject[{number}]");
        let (name, hash) = (subject["name"].as_str(), subject["digest"]["sha256"].as_str());
        let (Some(name), Some(hash)) = (name, hash) else {
            return Err(fail(&at, "it has no name or no SHA-256".into()));
        };
        if subjects.insert(name.to_string(), hash.to_ascii_lowercase()).is_some() {
            return Err(fail(&at, format!("it names `{name}` a second time")));
        }
    }
    if subjects.is_empty() {
        return Err(fail("subject", "it names no file".into()));
    }
    Ok(subjects)
}
