//! Headers and indices: every byte of them must say something.

use super::{Place, Q_PROJ, WEIGHTS, bare, caught, disguises, good, in_file, in_weights, name};
use crate::good_packs::report_of;
use crate::support::checkpoint::Parts;
use serde_json::{Value, json};
use w4pack_format::dtype::Dtype;
use w4pack_format::exact::EXACT_FILE;
use w4pack_format::manifest::MANIFEST_FILE;
use w4pack_verify::report::{FaultClass, Verdict};

#[test]
fn headers_that_say_something_else() {
    let norm = "model.norm.weight";
    caught(in_weights(FaultClass::Header, norm), |pack| {
        pack.tensors.get_mut(norm).unwrap().dtype = Dtype::F16;
    });
    let packed = name(Q_PROJ, "weight_packed");
    caught(in_weights(FaultClass::Header, &packed), |pack| {
        pack.tensors.get_mut(&packed).unwrap().shape.reverse();
    });
    let shape = name(Q_PROJ, "weight_shape");
    caught(in_weights(FaultClass::Header, &shape), |pack| pack.bytes_mut(&shape)[0] ^= 1);
}

/// Rewrites the header text of a safetensors file.
fn edit_header(pack: &mut Parts, file: &str, edit: impl Fn(&str) -> String) {
    let bytes = pack.to_files().remove(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let text = edit(std::str::from_utf8(&bytes[8..8 + length]).unwrap().trim_end());
    let mut edited = (text.len() as u64).to_le_bytes().to_vec();
    edited.extend_from_slice(text.as_bytes());
    edited.extend_from_slice(&bytes[8 + length..]);
    pack.files.insert(file.into(), edited);
}

const METADATA: &str = r#""__metadata__":{"format":"pt"}"#;

#[test]
fn nothing_hides_in_a_header() {
    let smuggled = format!(r#""__metadata__":{{"format":"pt","payload":"{}"}}"#, "A".repeat(9999));
    let edits: [&dyn Fn(&str) -> String; 8] = [
        &|text| format!("{text}{}", " ".repeat(8)),
        &|text| format!(" {text}"),
        &|text| text.replacen(":{", ": {", 1),
        &|text| format!("{text}\n"),
        &|text| text.replacen(&format!("{METADATA},"), "", 1),
        &|text| text.replacen(METADATA, r#""__metadata__":{"format":"tf"}"#, 1),
        &|text| text.replacen(METADATA, r#""__metadata__":{}"#, 1),
        &|text| text.replacen(METADATA, &smuggled, 1),
    ];
    for file in [WEIGHTS, EXACT_FILE] {
        for edit in edits {
            let place = Place { file, ..in_file(FaultClass::Header, WEIGHTS) };
            let report = caught(place, |pack| edit_header(pack, file, edit));
            assert!(report.faults[0].detail.len() < 400, "a flood is cut short: {report}");
        }
    }
    for edit in edits {
        let (pack, source) = good();
        let mut pack = bare(&pack);
        edit_header(&mut pack, WEIGHTS, edit);
        assert!(in_file(FaultClass::Header, WEIGHTS).is_of(&report_of(&pack, &source).faults[0]));
    }
}

#[test]
fn padding_to_eight_bytes_is_no_fault_and_another_order_is_noted() {
    let (pack, source) = good();
    for padding in 0..8 {
        let mut pack = pack.clone();
        pack.files.remove(MANIFEST_FILE);
        edit_header(&mut pack, WEIGHTS, |text| format!("{text}{}", " ".repeat(padding)));
        assert_eq!(report_of(&pack, &source).faults, []);
    }
    let mut pack = pack;
    pack.files.remove(MANIFEST_FILE);
    edit_header(&mut pack, WEIGHTS, |text| {
        let entries = text.replacen(&format!("{METADATA},"), "", 1);
        format!("{},{METADATA}}}", &entries[..entries.len() - 1])
    });
    let report = report_of(&pack, &source);
    assert_eq!(report.verdict, Verdict::Proved, "{report}");
    assert!(report.notes.iter().any(|note| note.contains("another way")), "{report}");
}

#[test]
fn nothing_hides_in_an_index() {
    let file = "model.safetensors.index.json";
    let index = |pack: &Parts, edit: &dyn Fn(&mut Value)| {
        let map: serde_json::Map<_, _> =
            pack.tensors.keys().map(|name| (name.clone(), WEIGHTS.into())).collect();
        let sum: usize = pack.tensors.values().map(|tensor| tensor.bytes.len()).sum();
        let mut index = json!({"metadata": {"total_size": sum}, "weight_map": map});
        edit(&mut index);
        index.to_string()
    };
    let edits: [&dyn Fn(&mut Value); 4] = [
        &|index| index["evil"] = "E".repeat(9999).into(),
        &|index| index["metadata"]["x"] = json!({"y": 1}),
        &|index| index["metadata"] = json!([1]),
        &|index| index["metadata"]["total_size"] = "many".into(),
    ];
    for edit in edits {
        caught(in_file(FaultClass::Index, file), |pack| {
            let content = index(pack, edit).into_bytes();
            pack.files.insert(file.into(), content);
        });
    }
    caught(in_file(FaultClass::Index, file), |pack| {
        let content = index(pack, &|_| {}) + &" ".repeat(5000);
        pack.files.insert(file.into(), content.into_bytes());
    });
    let (mut pack, source) = good();
    let content = index(&pack, &|index| index["metadata"]["total_parameters"] = 7.into());
    pack.files.insert(file.into(), content.into_bytes());
    for pack in &disguises(&pack, &source)[1..] {
        let report = report_of(pack, &source);
        assert_eq!(report.verdict, Verdict::Proved, "{report}");
        assert!(report.notes.iter().any(|note| note.contains("total_parameters")), "{report}");
    }
}

#[test]
fn the_index_fits_the_files() {
    let index = |pack: &Parts, total: i64| {
        let map: serde_json::Map<_, _> =
            pack.tensors.keys().map(|name| (name.clone(), WEIGHTS.into())).collect();
        let sum: usize = pack.tensors.values().map(|tensor| tensor.bytes.len()).sum();
        let size = sum as i64 + total;
        json!({"metadata": {"total_size": size}, "weight_map": map}).to_string().into_bytes()
    };
    let file = "model.safetensors.index.json";
    caught(in_file(FaultClass::Index, file), |pack| {
        let content = index(pack, 2);
        pack.files.insert(file.into(), content);
    });
    let (mut pack, source) = good();
    pack.files.remove(MANIFEST_FILE);
    let content = index(&pack, 0);
    pack.files.insert(file.into(), content.clone());
    assert_eq!(report_of(&pack, &source).verdict, Verdict::Proved);
    let text = String::from_utf8(content).unwrap();
    let broken = text.replacen("model.norm.weight", "model.norm.height", 1).into_bytes();
    pack.files.insert(file.into(), broken);
    let report = report_of(&pack, &source);
    assert_eq!((report.verdict, report.exit_code()), (Verdict::Unreadable, 2));
    assert_eq!(report.faults[0].class, FaultClass::Index);
}

/// Headers alone say that this is another model: it is refused before any weight is read.
#[test]
fn another_models_pack_is_refused_by_its_headers() {
    struct Stages(std::sync::Mutex<Vec<String>>);
    impl w4pack_verify::Progress for Stages {
        fn begin(&self, stage: &str, _bytes: u64) {
            self.0.lock().unwrap().push(stage.into());
        }
        fn advance(&self, _bytes: u64) {}
    }
    let (mut pack, source) = super::good();
    for tensor in pack
        .tensors
        .values_mut()
        .filter(|tensor| tensor.shape.len() == 2 && tensor.shape[1] % 2 == 0)
    {
        tensor.shape = vec![tensor.shape[0] * 2, tensor.shape[1] / 2];
    }
    let stages = Stages(Default::default());
    let report = w4pack_verify::verify(pack.source(), Some(source), &Default::default(), &stages);
    assert_eq!((report.exit_code(), report.unaccounted), (1, report.bytes), "{report}");
    assert!(report.notes.iter().any(|note| note.contains("another model")), "{report}");
    assert!(stages.0.lock().unwrap().is_empty());
}
