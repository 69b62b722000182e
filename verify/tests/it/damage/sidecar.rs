//! The sidecar: every word of it is held against the source.

use super::{Place, caught, good, in_file, in_weights};
use crate::good_packs::report_of;
use crate::support::checkpoint::Parts;
use crate::support::tensors::{Tensor, Tensors, parse, to_bytes};
use std::collections::BTreeMap;
use w4pack_format::dtype::Dtype;
use w4pack_format::exact::EXACT_FILE;
use w4pack_format::manifest::MANIFEST_FILE;
use w4pack_verify::report::{Fault, FaultClass, Verdict};

/// Changes the sidecar's tensors.
fn edit_sidecar(pack: &mut Parts, edit: impl FnOnce(&mut Tensors)) {
    let mut tensors = parse(&pack.files[EXACT_FILE]);
    edit(&mut tensors);
    pack.files.insert(EXACT_FILE.into(), to_bytes(&tensors));
}

#[test]
fn every_word_of_the_sidecar_is_held_against_the_source() {
    let (pack, source) = good();
    let entries = parse(&pack.files[EXACT_FILE]);
    let kind = |entry: &str| entry.split('|').nth(1).unwrap().to_string();
    let mut by_kind: BTreeMap<String, Vec<&String>> = BTreeMap::new();
    entries.keys().for_each(|entry| by_kind.entry(kind(entry)).or_default().push(entry));
    for wanted in ["step.gaps", "step.values", "zero.rule", "zero.bits", "zero.masks"] {
        assert!(by_kind.contains_key(wanted), "{wanted}");
    }
    for entry in by_kind.values().flat_map(|entries| entries.iter().take(2).copied()) {
        let module = entry.split('|').next().unwrap();
        let damages: [&dyn Fn(&mut Tensors); 2] =
            [&|tensors| tensors.get_mut(entry).unwrap().bytes[0] ^= 2, &|tensors| {
                tensors.remove(entry);
            }];
        for damage in damages {
            let mut pack = pack.clone();
            edit_sidecar(&mut pack, |tensors| damage(tensors));
            pack.files.remove(MANIFEST_FILE);
            let report = report_of(&pack, &source);
            let about = |fault: &Fault| {
                let tensor = fault.tensor.as_deref().unwrap_or_default();
                fault.class == FaultClass::Sidecar
                    && fault.file == EXACT_FILE
                    && tensor.starts_with(module)
            };
            assert!(
                !report.faults.is_empty() && report.faults.iter().all(about),
                "{entry}: {report}"
            );
            assert_eq!(report.verdict, Verdict::Disproved);
        }
    }
    let stranger = "model.norm|step.gaps";
    let place = Place { file: EXACT_FILE, ..in_weights(FaultClass::Sidecar, stranger) };
    caught(place, |pack| {
        edit_sidecar(pack, |tensors| {
            let entry = Tensor { dtype: Dtype::U8, shape: vec![1], bytes: vec![0] };
            tensors.insert(stranger.into(), entry);
        });
    });
    caught(in_file(FaultClass::Sidecar, EXACT_FILE), |pack| {
        pack.files.get_mut(EXACT_FILE).unwrap().truncate(20);
    });
}
