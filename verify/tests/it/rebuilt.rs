//! A pack against the hashes of its source's files, and against a statement.

use std::sync::Arc;

use crate::support::checkpoint::Parts;
use crate::support::{packer, synthetic};
use w4pack_format::digest::sha256;
use w4pack_format::manifest::MANIFEST_FILE;
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::Source;
use w4pack_verify::report::{FaultClass, Report, Verdict};
use w4pack_verify::{Listing, Options, statement, verify, verify_rebuilt};

const WEIGHTS: &str = "model.safetensors";

/// A source, and a pack of it with a manifest.
fn pair(seed: u64, dtype: ScaleDtype) -> (Parts, Parts) {
    let source = synthetic::source(seed);
    let pack = packer::emb4(&source.tensors, &source.files, dtype);
    let pack = pack.with_manifest(&source.source(), dtype.name());
    (source, pack)
}

/// `SHA256 SIZE PATH` of every file.
fn lines(source: &Arc<dyn Source>) -> String {
    let line = |file: &w4pack_format::source::SourceFile| {
        format!("{} {} {}\n", sha256(&source.read_file(&file.path).unwrap()), file.bytes, file.path)
    };
    source.files().iter().map(line).collect()
}

fn rebuilt(pack: &Parts, towers: Option<&Parts>, listing: &str) -> Report {
    let listing = Listing::parse("listing", listing.as_bytes()).unwrap();
    let towers = towers.map(Parts::source);
    verify_rebuilt(pack.source(), towers, &listing, &Options::default(), &())
}

/// Signed zeros, negative steps, groups that need a finer step: every byte comes back.
#[test]
fn a_source_that_is_rebuilt_has_the_listed_hashes() {
    for (seed, dtype) in ScaleDtype::ALL.into_iter().enumerate() {
        let (source, pack) = pair(40 + seed as u64, dtype);
        let report = rebuilt(&pack, Some(&source), &lines(&source.source()));
        assert_eq!(report.faults, [], "{report}");
        assert_eq!((report.verdict, report.exit_code()), (Verdict::Proved, 0), "{report}");
        assert_eq!(report.unaccounted, 0);
        let direct = verify(pack.source(), Some(source.source()), &Options::default(), &());
        assert_eq!(report.whole, direct.whole);
    }
}

/// A listing is held against all that it says: sizes, and weight files that the result knows
/// nothing of. Its paths lead nowhere.
#[test]
fn a_listing_counts_whole() {
    let (source, pack) = pair(45, ScaleDtype::F16);
    let listing = lines(&source.source());
    let size = format!(" {} {WEIGHTS}", source.source().size(WEIGHTS).unwrap());
    assert!(listing.contains(&size));
    let other = listing.replace(&size, &size.replacen(' ', " 1", 1));
    let report = rebuilt(&pack, Some(&source), &other);
    assert_eq!((report.faults[0].class, &*report.faults[0].file), (FaultClass::Size, WEIGHTS));
    assert_eq!(report.verdict, Verdict::Disproved);
    let more = format!("{listing}{} 10 model-2.safetensors\n", "0".repeat(64));
    let report = rebuilt(&pack, Some(&source), &more);
    assert_eq!(report.faults[0].class, FaultClass::Manifest, "{report}");
    for path in ["../model.safetensors", "/etc/model.safetensors", "a/../../b"] {
        let line = format!("{listing}{} 10 {path}\n", "0".repeat(64));
        let error = Listing::parse("listing", line.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(path), "{error}");
    }
}

#[test]
fn damage_shows_as_another_hash() {
    let (source, good) = pair(50, ScaleDtype::F16);
    let listing = lines(&source.source());
    let module = "model.layers.1.self_attn.q_proj";
    let damages: [&dyn Fn(&mut Parts); 4] = [
        &|pack| pack.bytes_mut(&format!("{module}.weight_packed"))[100] ^= 0x30,
        &|pack| pack.bytes_mut(&format!("{module}.weight_scale"))[1] ^= 0x04,
        &|pack| pack.bytes_mut("model.layers.1.layer_scalar")[0] ^= 1,
        &|pack| pack.bytes_mut("model.norm.weight")[9] ^= 1,
    ];
    for damage in damages {
        let mut pack = good.clone();
        damage(&mut pack);
        // Whatever the manifest says: the listing is the judge.
        let pack = Parts { ..pack }.with_manifest(&source.source(), "f16");
        let report = rebuilt(&pack, Some(&source), &listing);
        let rebuilt_otherwise = |fault: &w4pack_verify::report::Fault| {
            fault.class == FaultClass::TensorBytes && fault.file == WEIGHTS
        };
        assert!(report.faults.iter().any(rebuilt_otherwise), "{report}");
        assert_eq!((report.verdict, report.exit_code()), (Verdict::Disproved, 1));
    }
    let mut pack = good.clone();
    pack.files.insert("tokenizer.json".into(), b"{}".to_vec());
    let lacks_towers_copy = Parts { files: Default::default(), ..source.clone() };
    let mut towers = lacks_towers_copy;
    towers.files.insert("config.json".into(), source.files["config.json"].clone());
    let report = rebuilt(&pack, Some(&towers), &listing);
    let tokenizer = report.faults.iter().find(|fault| fault.file == "tokenizer.json").unwrap();
    assert_eq!((tokenizer.class, report.exit_code()), (FaultClass::CompanionFile, 1), "{report}");
}

#[test]
fn what_is_nowhere_is_named_and_nothing_is_proved() {
    let (source, pack) = pair(51, ScaleDtype::F16);
    let listing = lines(&source.source());
    let report = rebuilt(&pack, None, &listing);
    assert_eq!((report.verdict, report.exit_code()), (Verdict::Unreadable, 2), "{report}");
    assert!(report.to_string().contains("--towers-from"), "{report}");
    let mut without = pack.clone();
    without.files.remove(MANIFEST_FILE);
    assert_eq!(rebuilt(&without, Some(&source), &listing).exit_code(), 2);

    // Another revision's listing.
    let other = lines(&synthetic::source(52).source());
    let report = rebuilt(&pack, Some(&source), &other);
    assert_eq!(report.exit_code(), 1, "{report}");
    assert!(report.faults.iter().any(|fault| fault.file == WEIGHTS), "{report}");
}

/// Written after a proof only, true of these files only.
#[test]
fn a_statement_speaks_of_every_file() {
    let (source, pack) = pair(53, ScaleDtype::F16);
    let options = Options { hash_files: true, ..Options::default() };
    let proof = verify(pack.source(), Some(source.source()), &options, &());
    let text = statement::write(&proof).unwrap().to_string();
    let said: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(said["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(said["predicate"]["verdict"], "proved");
    assert_eq!(said["subject"].as_array().unwrap().len(), pack.to_files().len());
    assert_eq!(said["predicate"]["whole"]["int4_codes_disagreeing"], 0);

    let checked = |pack: &Parts| {
        let mut report = verify(pack.source(), None, &Options::default(), &());
        statement::check(&mut report, &pack.source(), "statement", text.as_bytes()).unwrap();
        report
    };
    let report = checked(&pack);
    assert_eq!(report.exit_code(), 2);
    assert!(report.to_string().ends_with("matches the statement, not proved: no source was given"));
    let damages: [&dyn Fn(&mut Parts); 3] = [
        &|pack| pack.bytes_mut("model.norm.weight")[0] ^= 1,
        &|pack| drop(pack.files.insert("extra.md".into(), b"x".to_vec())),
        &|pack| drop(pack.files.remove("chat_template.jinja")),
    ];
    for damage in damages {
        let mut pack = pack.clone();
        damage(&mut pack);
        let pack = pack.with_manifest(&source.source(), "f16");
        assert_eq!(checked(&pack).exit_code(), 1);
        let bad = verify(pack.source(), Some(synthetic::source(54).source()), &options, &());
        assert!(statement::write(&bad).unwrap_err().contains("disproved"));
    }
    assert!(statement::write(&report).unwrap_err().contains("--source"));

    // The files are right, what is said of them is not.
    let lies: [(&str, serde_json::Value, &str); 7] = [
        ("/predicate/verdict", "self-consistent".into(), "predicate.verdict"),
        ("/predicate/unaccounted", 1.into(), "predicate.unaccounted"),
        ("/predicate/whole/elements", 32.into(), "predicate.whole.elements"),
        ("/predicate/groups/all", 1.into(), "predicate.groups.all"),
        ("/predicate/source/files", serde_json::json!([]), "names no file"),
        ("/predicate/source/files/0/name", "other".into(), "has no `other`"),
        ("/predicate/source/files/0/digest/sha256", "00".into(), "has SHA-256"),
    ];
    let pack = pack.with_manifest(&source.source(), "f16");
    for (field, lie, words) in lies {
        let mut said = said.clone();
        *said.pointer_mut(field).unwrap() = lie;
        // A manifest changes with the time: the statement speaks of the pack as it is now.
        for subject in said["subject"].as_array_mut().unwrap() {
            let name = subject["name"].as_str().unwrap();
            let content = &pack.to_files()[name];
            subject["digest"]["sha256"] = sha256(content).into();
        }
        for source in [None, Some(source.source())] {
            let mut report = verify(pack.source(), source, &Options::default(), &());
            let said = said.to_string();
            statement::check(&mut report, &pack.source(), "it", said.as_bytes()).unwrap();
            assert_eq!(report.exit_code(), 1, "{field}");
            let found = report.faults.iter().any(|fault| fault.detail.contains(words));
            assert!(found, "{field}: {report}");
        }
    }
    for wrong in ["{}", "[]", r#"{"_type":"https://in-toto.io/Statement/v1"}"#, "no JSON"] {
        let mut report = verify(pack.source(), None, &Options::default(), &());
        let checked = statement::check(&mut report, &pack.source(), "it", wrong.as_bytes());
        assert!(checked.is_err(), "{wrong}");
    }
}
