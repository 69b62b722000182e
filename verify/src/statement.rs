//! What was proved, as an in-toto Statement v1 that others can sign and check: the result's files
//! with their SHA-256 as subjects, source and counts as the predicate.
//!
//! Source: <https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md>.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::group::GROUP;
use w4pack_format::manifest::{MANIFEST_FILE, Manifest, STATEMENT_FILE};
use w4pack_format::source::{Source, SourceFile};
use w4pack_format::{FormatError, Result, json as strict};

use crate::companions::comes_later;
use crate::ranges::Range;
use crate::report::{Fault, FaultClass, Report, Verdict};

const TYPE: &str = "https://in-toto.io/Statement/v1";

/// The predicate's type: what [`write`] says.
pub const PREDICATE: &str = "https://w4pack.dev/attestation/proof/v1";

/// The statement of a proof; the reason why there is none otherwise.
pub fn write(report: &Report) -> std::result::Result<Value, &'static str> {
    let worst = report.whole.worst_diff_in_units_of_group_step;
    match report.verdict {
        Verdict::Proved => {}
        Verdict::CodesProved if report.exit_code() == 0 => {}
        Verdict::CodesProved if report.allow_step_rounding && worst > 1.0 / 16.0 => {
            return Err("values are off by more than 1/16 step, and a statement speaks of a proof");
        }
        Verdict::CodesProved => {
            return Err("its codes are proved, its steps follow another rule: \
                        --allow-step-rounding accepts that");
        }
        Verdict::Disproved => return Err("the checkpoint is disproved"),
        Verdict::SelfConsistent => {
            return Err("nothing was proved: that needs --source or --hashes");
        }
        Verdict::Unreadable => return Err("a side could not be read, so nothing was proved"),
    }
    if report.hashes.result.is_empty() {
        return Err("the files were not hashed");
    }
    let digest =
        |(path, sha256): (&String, &String)| json!({"name": path, "digest": {"sha256": sha256}});
    let spoken_of = |(path, _): &(&String, &String)| *path != STATEMENT_FILE;
    let subjects: Vec<Value> = report.hashes.result.iter().filter(spoken_of).map(digest).collect();
    let sources: Vec<Value> = report.hashes.source.iter().map(digest).collect();
    Ok(json!({
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

/// Holds a result against a statement, its files and what the predicate says of source and counts,
/// and enters what differs into the report of a check that was made before.
///
/// Without a proof the best verdict is "matches the statement, not proved". Errors: the statement is
/// none; a file cannot be read.
pub fn check(
    report: &mut Report,
    result: &Arc<dyn Source>,
    label: &str,
    content: &[u8],
) -> Result<()> {
    let statement = strict::parse(label, content)?;
    let subjects = subjects(label, &statement)?;
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
    let unknown =
        |file: &&SourceFile| !subjects.contains_key(&file.path) && !comes_later(&file.path);
    for file in result.files().iter().filter(unknown) {
        fail(&file.path, "the statement does not speak of this file".into());
    }
    let predicate = Predicate { said: &statement["predicate"], report, result };
    let (wrong, other) = predicate.check();
    faults.extend(
        wrong.into_iter().map(|detail| Fault::of_file(FaultClass::Manifest, label, detail)),
    );
    report.notes.extend(other);
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

/// What a statement says of source and counts, and what is known of them: from the report, if there
/// was a source, else from the result's manifest and tensors.
struct Predicate<'a> {
    said: &'a Value,
    report: &'a Report,
    result: &'a Arc<dyn Source>,
}

impl Predicate<'_> {
    /// What is wrong, and what is only otherwise: a source has the same bytes under any name.
    fn check(&self) -> (Vec<String>, Vec<String>) {
        let (mut wrong, mut other) = (Vec::new(), Vec::new());
        let verdicts = ["proved", "codes-proved"];
        if !self.said["verdict"].as_str().is_some_and(|verdict| verdicts.contains(&verdict)) {
            wrong.push(format!("predicate.verdict is {}, which is no proof", self.said["verdict"]));
        }
        if self.said["unaccounted"] != 0 {
            wrong.push(format!("predicate.unaccounted is {}, not 0", self.said["unaccounted"]));
        }
        wrong.extend(self.counts());
        let manifest = self.result.read_file(MANIFEST_FILE).ok();
        let manifest = manifest.and_then(|bytes| Manifest::parse(&bytes).ok());
        wrong.extend(self.source_files(manifest.as_ref()));
        let mut named = |field: &str, said: &Value, is: Option<&str>| {
            if said.as_str() != is {
                let is = is.unwrap_or("nothing");
                other.push(format!("the statement's {field} is {said}, the manifest says {is}"));
            }
        };
        if let Some(manifest) = &manifest {
            let source = &self.said["source"];
            named("source.name", &source["name"], Some(&manifest.source.name));
            named("source.revision", &source["revision"], manifest.source.revision.as_deref());
            named("w4pack_version", &self.said["w4pack_version"], Some(&manifest.w4pack_version));
        }
        (wrong, other)
    }

    /// All counts of a proof that was made again; else how many codes and groups there are.
    fn counts(&self) -> Vec<String> {
        let proved = self.report.whole.elements > 0;
        let known = match proved {
            true => [json!(self.report.whole), json!(self.report.groups)],
            false => {
                let Ok(checkpoint) = Checkpoint::open(self.result.clone()) else {
                    // The report says why it cannot be read.
                    return Vec::new();
                };
                // A head is the table once more, and not counted again.
                let words = checkpoint
                    .names()
                    .filter(|name| {
                        name.ends_with(".weight_packed") && !name.ends_with("lm_head.weight_packed")
                    })
                    .filter_map(|name| checkpoint.tensor(name));
                let elements: u64 = words.map(|words| 2 * words.info.bytes()).sum();
                [json!({"elements": elements}), json!({"all": elements / GROUP as u64})]
            }
        };
        let mut wrong = Vec::new();
        for (field, known) in ["whole", "groups"].into_iter().zip(known) {
            for (key, is) in known.as_object().into_iter().flatten() {
                let said = &self.said[field][key];
                if !is_same_number(said, is) {
                    wrong.push(format!("predicate.{field}.{key} is {said}, the checkpoint's {is}"));
                }
            }
        }
        wrong
    }

    /// The source's weight files must be those of the source at hand, or of the manifest.
    fn source_files(&self, manifest: Option<&Manifest>) -> Vec<String> {
        let mut known = self.report.hashes.source.clone();
        if known.is_empty() {
            let files = manifest.into_iter().flat_map(|manifest| &manifest.source.files);
            known.extend(files.map(|file| (file.path.clone(), file.sha256.clone())));
        }
        let Some(files) = self.said["source"]["files"].as_array().filter(|list| !list.is_empty())
        else {
            return vec!["predicate.source.files names no file".into()];
        };
        let mut wrong = Vec::new();
        for file in files.iter().filter(|_| !known.is_empty()) {
            let name = file["name"].as_str().unwrap_or_default();
            let said = &file["digest"]["sha256"];
            match known.get(name) {
                Some(is) if said == is => {}
                Some(is) => {
                    let detail = format!("predicate.source.files: `{name}` has SHA-256 {said}");
                    wrong.push(format!("{detail}, the source's has {is}"));
                }
                None => wrong.push(format!("predicate.source.files: the source has no `{name}`")),
            }
        }
        wrong
    }
}

/// Whether two counts are the same; fractions may have lost their last place on the way through text.
fn is_same_number(said: &Value, is: &Value) -> bool {
    said == is
        || said.as_f64().zip(is.as_f64()).is_some_and(|(said, is)| {
            (said - is).abs() <= 1e-12 * is.abs() && !(said.fract() == 0.0 && is.fract() == 0.0)
        })
}

/// Files and their SHA-256.
fn subjects(label: &str, statement: &Value) -> Result<BTreeMap<String, String>> {
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
