//! The manifest: what it says about either side must be true.

use super::{good, in_file};
use crate::good_packs::report_of;
use crate::support::checkpoint::Parts;
use crate::support::memory::MemorySource;
use crate::support::{packer, synthetic};
use serde_json::{Value, json};
use std::sync::Arc;
use w4pack_format::exact::EXACT_FILE;
use w4pack_format::manifest::MANIFEST_FILE;
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::Source;
use w4pack_verify::report::{Fault, FaultClass, Report, Verdict};

#[test]
fn a_missing_sidecar_or_manifest_is_reported_and_no_fault() {
    let (mut pack, source) = good();
    pack.files.remove(MANIFEST_FILE);
    pack.files.remove(EXACT_FILE);
    let report = report_of(&pack, &source);
    assert_eq!((report.verdict, report.exit_code()), (Verdict::Proved, 0));
    for file in [MANIFEST_FILE, EXACT_FILE] {
        assert!(report.notes.iter().any(|note| note.contains(file)), "{file}");
    }
}

#[test]
fn a_manifest_that_lies_about_either_side() {
    let (pack, source) = good();
    let manifest = String::from_utf8(pack.files[MANIFEST_FILE].clone()).unwrap();
    let parsed: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let tensors = parsed["source"]["tensors"].as_array().unwrap();
    let copied = tensors.iter().position(|tensor| tensor["fate"] == "copied").unwrap();
    let sha256_of_copied = format!("/source/tensors/{copied}/sha256");
    let lies = [
        (&*sha256_of_copied, json!("0".repeat(64))),
        (&*sha256_of_copied, json!(null)),
        ("/source/files/0/sha256", json!("0".repeat(64))),
        ("/source/files/1/bytes", json!(1)),
        ("/source/files/2/path", json!("elsewhere.json")),
        ("/source/headers/0/text", json!("{}")),
        ("/source/texts/0/text", json!("{}")),
        ("/source/texts/0/path", json!("elsewhere.json")),
        ("/source/headers/0/path", json!("elsewhere.safetensors")),
        ("/source/tensors/3/blake3", json!("0".repeat(64))),
        ("/source/tensors/4/name", json!("elsewhere")),
        ("/source/tensors/5/fate", json!("left-out")),
        ("/source/tensors/6/bytes", json!(1)),
        ("/files/0/sha256", json!("0".repeat(64))),
        ("/files/1/path", json!("elsewhere.json")),
        ("/schema", json!("w4pack-manifest/1")),
        ("/w4pack_version", json!("0.1.0x")),
        ("/w4pack_version", json!("")),
        ("/created", json!("2026-01-01T00:00:00z")),
        ("/created", json!("once")),
        ("/options/layout", json!("linear")),
        ("/options/layout", json!("EMB4")),
        ("/options/scale_dtype", json!("f16")),
        ("/options/scale_dtype", json!("f32")),
        ("/options/scale_dtype", json!("BF16")),
        ("/options/towers", json!("keep")),
        ("/options/towers", json!("")),
        ("/source/tensors/0/fate", json!("copied")),
        ("/source/tensors/0/file", json!("config.json")),
    ];
    for (field, lie) in lies {
        let mut changed = parsed.clone();
        *changed.pointer_mut(field).unwrap() = lie;
        let mut pack = pack.clone();
        pack.files.insert(MANIFEST_FILE.into(), changed.to_string().into_bytes());
        let report = report_of(&pack, &source);
        assert_eq!(report.exit_code(), 1, "{field}");
        let about =
            |fault: &Fault| fault.class == FaultClass::Manifest && fault.file == MANIFEST_FILE;
        assert!(report.faults.iter().all(about), "{field}: {report}");
    }
}

/// The report of a good pack whose manifest is changed.
fn with_edited_manifest(edit: impl Fn(&mut Value)) -> Report {
    let (mut pack, source) = good();
    let mut manifest: Value = serde_json::from_slice(&pack.files[MANIFEST_FILE]).unwrap();
    edit(&mut manifest);
    let text = serde_json::to_string_pretty(&manifest).unwrap() + "\n";
    pack.files.insert(MANIFEST_FILE.into(), text.into_bytes());
    report_of(&pack, &source)
}

#[test]
fn every_list_of_a_manifest_is_complete_and_names_nothing_twice() {
    for list in ["/files", "/source/files", "/source/headers", "/source/texts", "/source/tensors"] {
        for twice in [false, true] {
            let report = with_edited_manifest(|manifest| {
                let records = manifest.pointer_mut(list).unwrap().as_array_mut().unwrap();
                if twice {
                    records.push(records[0].clone());
                } else {
                    records.pop();
                }
            });
            let fault = in_file(FaultClass::Manifest, MANIFEST_FILE);
            assert_eq!((report.faults.len(), report.exit_code()), (1, 1), "{list}: {report}");
            assert!(fault.is_of(&report.faults[0]), "{list}: {report}");
        }
    }
}

#[test]
fn what_nothing_can_check_is_named() {
    let has = |report: &Report, text: &str| report.notes.iter().any(|note| note.contains(text));
    let report = with_edited_manifest(|_| {});
    assert_eq!(report.faults, [], "{report}");
    assert!(has(&report, "2026-01-01T00:00:00Z") && has(&report, "w4pack 0.1.0"), "{report}");
    assert!(!has(&report, "spelled in another way"), "{report}");
    let report = with_edited_manifest(|manifest| {
        manifest["created"] = "1999-01-01T00:00:00Z".into();
        manifest["w4pack_version"] = "9.9.9".into();
        manifest["source"]["name"] = "somebody/else".into();
        manifest["source"]["revision"] = "abc".into();
        manifest["options"]["allow_off_grid"] = true.into();
    });
    assert_eq!(report.verdict, Verdict::Proved, "{report}");
    for text in ["1999-01-01", "9.9.9", "somebody/else", "revision abc", "off the grid"] {
        assert!(has(&report, text), "{text}: {report}");
    }
    let report = with_edited_manifest(|manifest| {
        manifest["source"].as_object_mut().unwrap().remove("revision");
    });
    assert!(has(&report, "spelled in another way"), "{report}");
}

/// A source with a revision of its own knows better.
#[test]
fn the_revision_is_the_sources_where_it_has_one() {
    let report = |said: Option<&str>| {
        let (pack, source) = good();
        let files = source.files().iter();
        let files = files.map(|file| (file.path.clone(), source.read_file(&file.path).unwrap()));
        let mut revised = MemorySource::new(files.collect());
        revised.revision = Some("0123abcd".into());
        let revised: Arc<dyn Source> = Arc::new(revised);
        let mut manifest: Value = serde_json::from_slice(&pack.files[MANIFEST_FILE]).unwrap();
        manifest["source"]["revision"] = said.into();
        let mut pack: Parts = pack;
        pack.files.insert(MANIFEST_FILE.into(), manifest.to_string().into_bytes());
        report_of(&pack, &revised)
    };
    assert_eq!(report(Some("0123abcd")).faults, []);
    let other = report(Some("4567cdef"));
    assert_eq!(other.faults.len(), 1, "{other}");
    assert!(in_file(FaultClass::Manifest, MANIFEST_FILE).is_of(&other.faults[0]));
    // Converted from a folder that names no commit: nothing false was said, and the bytes are proved.
    let none = report(None);
    assert_eq!(none.faults, [], "{none}");
    assert!(none.notes.iter().any(|note| note.contains("names no source revision")), "{none}");
}

/// A page of text beside the source may come and go after the conversion: that is told, and the
/// proof stands. A tokenizer file may not.
#[test]
fn what_nothing_depends_on_may_differ_between_two_copies_of_a_source() {
    let parts = synthetic::source(7);
    let converted_from = parts.source();
    let pack = packer::emb4(&parts.tensors, &parts.files, ScaleDtype::BF16)
        .with_manifest(&converted_from, "bf16");
    for (path, proved) in [("NOTES.md", true), ("added_tokens.json", false)] {
        let mut now = synthetic::source(7);
        now.files.insert(path.into(), b"{}".to_vec());
        let report = report_of(&pack, &now.source());
        assert_eq!(report.exit_code() == 0, proved, "{path}: {report}");
        assert_eq!(report.notes.iter().any(|note| note.contains(path)), proved, "{path}: {report}");
    }
}
