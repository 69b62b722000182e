//! Files that cannot be trusted are refused before a weight is looked at.

use std::sync::Arc;

use crate::damage::good;
use crate::support::memory::{Files, MemorySource};
use w4pack_format::source::Source;
use w4pack_verify::report::{FaultClass, Report, Verdict};
use w4pack_verify::{Options, verify};

const WEIGHTS: &str = "model.safetensors";

fn refused(report: &Report, class: FaultClass) {
    assert_eq!((report.verdict, report.exit_code()), (Verdict::Unreadable, 2), "{report}");
    assert_eq!(report.faults.len(), 1, "{report}");
    assert_eq!(report.faults[0].class, class, "{report}");
    assert!(report.faults[0].file.contains(WEIGHTS), "{report}");
    assert_eq!(report.whole.elements, 0);
    // JSON can be printed all the same.
    assert!(serde_json::to_string(report).unwrap().contains("\"unreadable\""));
}

fn damaged(damage: impl Fn(&mut Vec<u8>)) -> [Report; 2] {
    let (pack, source) = good();
    let mut files: Files = pack.to_files();
    damage(files.get_mut(WEIGHTS).unwrap());
    let result = MemorySource::shared(files);
    // A side that is cut is refused as the result and as the source.
    [
        verify(result.clone(), Some(source), &Options::default(), &()),
        verify(pack.source(), Some(result), &Options::default(), &()),
    ]
}

#[test]
fn field_case_10_hostile_headers_in_a_pack() {
    let length =
        |length: u64| move |file: &mut Vec<u8>| file[..8].copy_from_slice(&length.to_le_bytes());
    let first = |from: &'static str, to: &'static str| {
        move |file: &mut Vec<u8>| {
            let place = file.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
            file[place..place + from.len()].copy_from_slice(to.as_bytes());
        }
    };
    type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
    let damages: [(FaultClass, Damage); 9] = [
        (FaultClass::Header, &length(0)),
        (FaultClass::Header, &length(1 << 63)),
        (FaultClass::Header, &length(1 << 40)),
        (FaultClass::Size, &|file| {
            let past_end = file.len() as u64 - 7;
            file[..8].copy_from_slice(&past_end.to_le_bytes());
        }),
        (FaultClass::Header, &first("\"data_offsets\":[0,", "\"data_offsets\":[1,")),
        (FaultClass::Header, &first("\"dtype\":\"I32\"", "\"dtype\":\"I33\"")),
        (FaultClass::Header, &first("weight_packed", "weight_pack\u{1}d")),
        (FaultClass::Header, &|file| file[20] = 0xFF),
        (FaultClass::Size, &|file| file.push(0)),
    ];
    for (number, (class, damage)) in damages.into_iter().enumerate() {
        eprintln!("damage {number}");
        damaged(damage).iter().for_each(|report| refused(report, class));
    }
}

#[test]
fn field_case_11_truncated_files() {
    for bytes in [1, 4096] {
        let cut = |file: &mut Vec<u8>| file.truncate(file.len() - bytes);
        for report in damaged(cut) {
            refused(&report, FaultClass::Size);
            assert!(report.notes[0].starts_with("hint: "), "{report}");
        }
    }
}

#[test]
fn field_case_11_a_file_cut_while_it_is_read() {
    let (pack, source) = good();
    let files = pack.to_files();
    let middle = files[WEIGHTS].len() as u64 / 2;
    let mut result = MemorySource::new(files);
    result.cut = Some((WEIGHTS.into(), middle));
    let result: Arc<dyn Source> = Arc::new(result);
    refused(&verify(result, Some(source), &Options::default(), &()), FaultClass::SourceChanged);
}

/// A result is no source: there is nothing to prove against it.
#[test]
fn a_packed_source_is_named_as_such_in_one_fault() {
    let (pack, _) = good();
    let report = verify(pack.source(), Some(pack.source()), &Options::default(), &());
    refused(&report, FaultClass::TensorExtra);
    assert!(report.faults[0].detail.contains("the source is packed already"), "{report}");
    assert!(report.notes[0].starts_with("hint: "), "{report}");

    let mut said = crate::support::synthetic::source(7);
    let config: serde_json::Value = serde_json::from_slice(&pack.files["config.json"]).unwrap();
    said.edit_config(|of_source| {
        of_source["quantization_config"] = config["quantization_config"].clone();
    });
    let report = verify(pack.source(), Some(said.source()), &Options::default(), &());
    assert_eq!((report.faults.len(), report.exit_code()), (1, 2), "{report}");
    assert_eq!(report.faults[0].class, FaultClass::Config, "{report}");
    assert!(report.faults[0].detail.contains("the source is packed already"), "{report}");
}
