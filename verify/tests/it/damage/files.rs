//! Files beside the weights, in whatever folder they lie.

use super::{bare, caught, disguises, good, in_file};
use crate::good_packs::report_of;
use crate::support::memory::MemorySource;
use crate::support::synthetic;
use w4pack_format::manifest::{MANIFEST_FILE, STATEMENT_FILE};
use w4pack_verify::report::{FaultClass, Verdict};

#[test]
fn companion_files_are_the_sources_or_nobodys() {
    type Edit = fn(&mut Vec<u8>);
    let edits: [(&str, Edit); 3] = [
        ("tokenizer.json", |content| content[3] ^= 1),
        ("chat_template.jinja", |content| content.push(b' ')),
        ("generation_config.json", |content| content[20] = b'2'),
    ];
    for (file, edit) in edits {
        caught(in_file(FaultClass::CompanionFile, file), |pack| {
            edit(pack.files.get_mut(file).unwrap());
        });
        caught(in_file(FaultClass::CompanionFile, file), |pack| {
            pack.files.remove(file);
        });
    }
    let extra = "added_tokens.json";
    let report = caught(in_file(FaultClass::CompanionFile, extra), |pack| {
        pack.files.insert(extra.into(), b"{}".to_vec());
    });
    assert_eq!(report.unaccounted, 2);
}

/// Loaders find templates, code and weights in subfolders too.
#[test]
fn files_that_nobody_knows_are_seen_in_every_folder() {
    for (class, path) in [
        (FaultClass::CompanionFile, "additional_chat_templates/evil.jinja"),
        (FaultClass::CompanionFile, "sub/x.bin"),
        (FaultClass::CompanionFile, "w4pack/sub/evil"),
        (FaultClass::CompanionFile, "w4pack/README.md"),
        (FaultClass::CompanionFile, "sub/README.md"),
        (FaultClass::CompanionFile, ".chat_template.jinja"),
        (FaultClass::CompanionFile, "LICENSE.py"),
        (FaultClass::CompanionFile, "evil.py"),
        (FaultClass::TensorExtra, "original/model.safetensors"),
        (FaultClass::TensorExtra, "w4pack/evil.safetensors"),
        (FaultClass::TensorExtra, "model-extra.safetensors"),
        (FaultClass::TensorExtra, "LICENSE.safetensors"),
    ] {
        for content in [&b""[..], b"evil"] {
            let report = caught(in_file(class, path), |pack| {
                pack.files.insert(path.into(), content.to_vec());
            });
            assert_eq!(report.unaccounted, content.len() as u64, "{path}");
            assert_eq!(report.faults.len(), 1, "{report}");
        }
    }
}

/// Weights beside the checkpoint are no companion, even where the source has the same.
#[test]
fn weights_of_subfolders_are_not_copied_and_other_files_are_listed() {
    let mut source = synthetic::source(7);
    source.files.insert("original/model.safetensors".into(), b"weights".to_vec());
    source.files.insert("original/params.json".into(), b"{}".to_vec());
    let shared = source.source();
    let (pack, _) = good();
    let [_, without, recomputed] = disguises(&pack, &shared);
    for pack in [without, recomputed] {
        let report = report_of(&pack, &shared);
        assert_eq!(report.verdict, Verdict::Proved, "{report}");
        let left_out: Vec<&str> = report.left_out.iter().map(|item| &*item.file).collect();
        for path in ["original/model.safetensors", "original/params.json"] {
            assert!(left_out.contains(&path), "{left_out:?}");
        }
    }
    let mut pack = bare(&pack);
    pack.files.insert("original/params.json".into(), b"{}".to_vec());
    assert_eq!(report_of(&pack, &shared).verdict, Verdict::Proved);
    pack.files.insert("original/model.safetensors".into(), b"weights".to_vec());
    let report = report_of(&pack, &shared);
    assert!(
        in_file(FaultClass::TensorExtra, "original/model.safetensors").is_of(&report.faults[0])
    );
}

#[test]
fn a_results_own_documentation_is_named_in_a_note() {
    let (mut pack, source) = good();
    for path in ["notes.md", "LICENSE", ".gitattributes"] {
        pack.files.insert(path.into(), b"words".to_vec());
    }
    for pack in &disguises(&pack, &source)[1..] {
        let report = report_of(pack, &source);
        assert_eq!(report.verdict, Verdict::Proved, "{report}");
        for path in ["README.md", "notes.md", "LICENSE", ".gitattributes"] {
            let named = |note: &&String| note.contains(&format!("`{path}`"));
            assert_eq!(report.notes.iter().filter(named).count(), 1, "{path}: {report}");
        }
    }
}

/// Statement, card and the Hub's own file come after the conversion, so that no manifest speaks of
/// them. (A card that it does speak of must be that one.)
#[test]
fn what_publishing_adds_is_no_stranger() {
    let (mut pack, source) = good();
    for path in [STATEMENT_FILE, ".gitattributes"] {
        pack.files.insert(path.into(), b"words".to_vec());
    }
    let report = report_of(&pack, &source);
    assert_eq!(report.verdict, Verdict::Proved, "{report}");
    let result = MemorySource::shared(pack.to_files());
    let report = w4pack_verify::verify(result, None, &Default::default(), &());
    assert_eq!(report.verdict, Verdict::SelfConsistent, "{report}");
}

#[test]
fn strange_files_are_seen_without_a_source() {
    for (class, path) in [
        (FaultClass::TensorExtra, "original/model.safetensors"),
        (FaultClass::TensorExtra, "model-extra.safetensors"),
        (FaultClass::CompanionFile, "w4pack/evil"),
    ] {
        let (mut pack, _) = good();
        pack.files.remove(MANIFEST_FILE);
        pack.files.insert(path.into(), b"evil".to_vec());
        let result = MemorySource::shared(pack.to_files());
        let report = w4pack_verify::verify(result, None, &Default::default(), &());
        assert_eq!((report.faults.len(), report.exit_code()), (1, 1), "{report}");
        assert!(in_file(class, path).is_of(&report.faults[0]), "{report}");
    }
}
