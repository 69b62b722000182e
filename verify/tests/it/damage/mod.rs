//! Damage of every class, in three disguises: the manifest as it was, no manifest, and a manifest
//! with every hash recomputed. Each is caught with the right class, file, tensor, row and group.

mod config;
mod files;
mod headers;
mod manifest;
mod quantization;
mod sidecar;

use std::sync::{Arc, OnceLock};

use crate::good_packs::report_of;
use crate::support::checkpoint::Parts;
use crate::support::tensors::Tensor;
use crate::support::{packer, synthetic};
use w4pack_format::dtype::Dtype;
use w4pack_format::exact::EXACT_FILE;
use w4pack_format::manifest::MANIFEST_FILE;
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::Source;
use w4pack_verify::report::{Fault, FaultClass, Report, Verdict};

pub const WEIGHTS: &str = "model.safetensors";
pub const Q_PROJ: &str = "model.layers.0.self_attn.q_proj";

/// A good bf16-scale pack with its manifest, and its source.
pub fn good() -> (Parts, Arc<dyn Source>) {
    static GOOD: OnceLock<(Parts, Arc<dyn Source>)> = OnceLock::new();
    let make = || {
        let parts = synthetic::source(7);
        let source = parts.source();
        let pack = packer::emb4(&parts.tensors, &parts.files, ScaleDtype::BF16);
        (pack.with_manifest(&source, "bf16"), source)
    };
    GOOD.get_or_init(make).clone()
}

/// The damaged pack with the old manifest, without one, and with a recomputed one.
pub fn disguises(pack: &Parts, source: &Arc<dyn Source>) -> [Parts; 3] {
    let mut without = pack.clone();
    without.files.remove(MANIFEST_FILE);
    let recomputed = without.clone().with_manifest(source, "bf16");
    [pack.clone(), without, recomputed]
}

/// The pack as another maker would publish it: nothing of w4pack's own beside it.
pub fn bare(pack: &Parts) -> Parts {
    let mut bare = pack.clone();
    bare.files.remove(MANIFEST_FILE);
    bare.files.remove(EXACT_FILE);
    bare
}

/// Where a fault must be found.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub class: FaultClass,
    pub file: &'a str,
    pub tensor: Option<&'a str>,
    pub group: Option<(u64, u64)>,
}

impl Place<'_> {
    pub fn is_of(&self, fault: &Fault) -> bool {
        fault.class == self.class
            && fault.file == self.file
            && fault.tensor.as_deref() == self.tensor
            && self
                .group
                .is_none_or(|(row, group)| (fault.row, fault.group) == (Some(row), Some(group)))
    }
}

/// Damages a good pack and expects the fault at its place, and no fault elsewhere but those that
/// the old manifest adds. Gives the report of the pack without a manifest.
pub fn caught(place: Place<'_>, damage: impl Fn(&mut Parts)) -> Report {
    let (mut pack, source) = good();
    damage(&mut pack);
    let [before, without, recomputed] =
        disguises(&pack, &source).map(|pack| report_of(&pack, &source));
    for report in [&before, &without, &recomputed] {
        assert!(report.faults.iter().any(|fault| place.is_of(fault)), "{report}");
        assert_eq!(report.exit_code(), 1, "{report}");
    }
    assert!(before.faults.iter().any(|fault| fault.class == FaultClass::Manifest), "{before}");
    for report in [&without, &recomputed] {
        assert!(report.faults.iter().all(|fault| place.is_of(fault)), "{report}");
    }
    without
}

pub fn in_weights(class: FaultClass, tensor: &str) -> Place<'_> {
    Place { class, file: WEIGHTS, tensor: Some(tensor), group: None }
}

pub fn in_file(class: FaultClass, file: &str) -> Place<'_> {
    Place { class, file, tensor: None, group: None }
}

pub fn name(module: &str, suffix: &str) -> String {
    format!("{module}.{suffix}")
}

#[test]
fn field_case_13_one_flipped_nibble_is_one_code() {
    let packed = name(Q_PROJ, "weight_packed");
    // Rows have 64 columns, 32 bytes: byte 3 * 32 + 20 lies in row 3, group 1.
    let place = Place { group: Some((3, 1)), ..in_weights(FaultClass::Code, &packed) };
    let report = caught(place, |pack| pack.bytes_mut(&packed)[3 * 32 + 20] ^= 0x10);
    assert_eq!(report.verdict, Verdict::Disproved);
    assert_eq!(report.whole.int4_codes_disagreeing, 1);
    assert_eq!(report.int4_codes_of(Q_PROJ), 1);
    assert_eq!(report.faults.len(), 1);
    assert!(report.faults[0].detail.contains("column 41"), "{report}");
}

#[test]
fn field_case_13_swapped_rows_count_what_they_are() {
    let packed = name(Q_PROJ, "weight_packed");
    let swap = |pack: &mut Parts| {
        let bytes = pack.bytes_mut(&packed);
        let (first, rest) = bytes.split_at_mut(5 * 32);
        first[2 * 32..3 * 32].swap_with_slice(&mut rest[..32]);
    };
    let (mut pack, _) = good();
    let bytes = pack.bytes_mut(&packed).clone();
    let nibbles = |row: usize| (0..64).map(move |i| (row * 32 + i / 2, 4 * (i % 2)));
    let differing = nibbles(2).zip(nibbles(5)).filter(|((a, shift_a), (b, shift_b))| {
        bytes[*a] >> shift_a & 15 != bytes[*b] >> shift_b & 15
    });
    let expected = 2 * differing.count() as u64;
    let report = caught(in_weights(FaultClass::Code, &packed), swap);
    assert_eq!(report.whole.int4_codes_disagreeing, expected);
    assert!(report.faults.iter().all(|fault| [Some(2), Some(5)].contains(&fault.row)));
}

#[test]
fn field_case_13_two_tensors_under_each_others_names() {
    let (mut pack, source) = good();
    let (key, value) = ("model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj");
    for suffix in ["weight_packed", "weight_scale"] {
        let (a, b) = (name(key, suffix), name(value, suffix));
        let first = pack.tensors[&a].clone();
        let second = pack.tensors.insert(b, first).unwrap();
        pack.tensors.insert(a, second);
    }
    for pack in disguises(&pack, &source) {
        let report = report_of(&pack, &source);
        for module in [key, value] {
            for (class, suffix) in
                [(FaultClass::Code, "weight_packed"), (FaultClass::Scale, "weight_scale")]
            {
                let tensor = name(module, suffix);
                assert!(report.faults.iter().any(|fault| in_weights(class, &tensor).is_of(fault)));
            }
        }
        assert_eq!((report.verdict, report.exit_code()), (Verdict::Disproved, 1));
    }
}

#[test]
fn field_case_13_one_scale_by_one_last_place() {
    let scales = name(Q_PROJ, "weight_scale");
    // Row 10, group 1: two groups in a row.
    let place = Place { group: Some((10, 1)), ..in_weights(FaultClass::Scale, &scales) };
    let report = caught(place, |pack| pack.bytes_mut(&scales)[2 * 21] ^= 1);
    assert_eq!((report.faults.len(), report.whole.int4_codes_disagreeing), (1, 0));
    assert_eq!(report.verdict, Verdict::CodesProved);
    assert_eq!(report.groups.steps_canonical, report.groups.all - 1);
}

#[test]
fn field_case_13_one_norm_value_and_a_layer_scalar() {
    for tensor in ["model.layers.2.self_attn.q_norm.weight", "model.layers.3.layer_scalar"] {
        let report = caught(in_weights(FaultClass::TensorBytes, tensor), |pack| {
            pack.bytes_mut(tensor)[1] ^= 2;
        });
        assert_eq!((report.faults.len(), report.verdict), (1, Verdict::Disproved));
    }
}

#[test]
fn field_case_04_unusable_steps() {
    let scales = name(Q_PROJ, "weight_scale");
    for bits in [0x7FC0u16, 0x7F80, 0xFF80, 0x0000, 0x8000] {
        let place = Place { group: Some((4, 0)), ..in_weights(FaultClass::Scale, &scales) };
        let damage = |pack: &mut Parts| {
            pack.bytes_mut(&scales)[16..18].copy_from_slice(&bits.to_le_bytes());
        };
        let report = caught(place, damage);
        assert_eq!(report.verdict, Verdict::Disproved, "{bits:#06x}");
        assert!(report.faults[0].detail.contains("not a usable number"));
        // Without the source it is seen as well.
        let (mut pack, _) = good();
        damage(&mut pack);
        pack.files.remove(MANIFEST_FILE);
        let alone = w4pack_verify::verify(pack.source(), None, &Default::default(), &());
        assert!(place.is_of(&alone.faults[0]), "{alone}");
        assert_eq!(alone.exit_code(), 1);
    }
}

#[test]
fn a_turned_step_is_damage_and_no_rule() {
    let scales = name(Q_PROJ, "weight_scale");
    let place = Place { group: Some((0, 0)), ..in_weights(FaultClass::Scale, &scales) };
    let report = caught(place, |pack| pack.bytes_mut(&scales)[1] ^= 0x80);
    assert_eq!(report.verdict, Verdict::Disproved);
}

#[test]
fn shapes_in_32_bits_are_accepted_and_noted() {
    let (mut pack, source) = good();
    let shape = pack.tensors.get_mut(&name(Q_PROJ, "weight_shape")).unwrap();
    let numbers: &[[u8; 8]] = shape.bytes.as_chunks().0;
    shape.bytes = numbers.iter().flat_map(|number| number[..4].to_vec()).collect();
    shape.dtype = Dtype::I32;
    let [_, without, recomputed] = disguises(&pack, &source);
    for pack in [without, recomputed] {
        let report = report_of(&pack, &source);
        assert_eq!(report.verdict, Verdict::Proved, "{report}");
        let notes = report.notes.iter().filter(|note| note.contains("weight_shape of 1 packed"));
        assert_eq!(notes.count(), 1, "{report}");
    }
}

#[test]
fn missing_and_extra_tensors() {
    let norm = "model.norm.weight";
    caught(in_weights(FaultClass::TensorMissing, norm), |pack| {
        pack.tensors.remove(norm);
    });
    let shape = name(Q_PROJ, "weight_shape");
    caught(in_weights(FaultClass::TensorMissing, &shape), |pack| {
        pack.tensors.remove(&shape);
    });
    for extra in ["model.layers.2.self_attn.k_norm.weight", "model.layers.0.mlp.up_proj.bias"] {
        caught(in_weights(FaultClass::TensorExtra, extra), |pack| {
            pack.tensors.insert(extra.into(), Tensor::of_halves(&[2], &[1, 2]));
        });
    }
}

#[test]
fn field_case_06_a_second_head_is_proved_to_be_the_table() {
    let (mut pack, source) = good();
    pack.files.remove(MANIFEST_FILE);
    packer::untie(&mut pack);
    let report = report_of(&pack, &source);
    assert_eq!(report.faults, [], "{report}");
    assert_eq!((report.verdict, report.tied_copies_identical), (Verdict::Proved, Some(true)));
    let tied = report.whole.elements;

    let mut other = pack.clone();
    other.bytes_mut("lm_head.weight_packed")[100] ^= 1;
    let report = report_of(&other, &source);
    assert!(in_weights(FaultClass::Tie, "lm_head.weight_packed").is_of(&report.faults[0]));
    assert_eq!((report.faults.len(), report.tied_copies_identical), (1, Some(false)));
    assert_eq!((report.whole.elements, report.exit_code()), (tied, 1));

    let mut lies = pack.clone();
    lies.edit_config(|config| config["tie_word_embeddings"] = true.into());
    let report = report_of(&lies, &source);
    assert!(in_file(FaultClass::Tie, "config.json").is_of(&report.faults[0]), "{report}");
}

/// Another source altogether: everything may disagree, and the manifest does not name it.
#[test]
fn another_source_is_not_this_packs_source() {
    let (pack, _) = good();
    let report = report_of(&pack, &synthetic::source(9).source());
    assert_eq!(report.verdict, Verdict::Disproved);
    for class in
        [FaultClass::Code, FaultClass::Scale, FaultClass::TensorBytes, FaultClass::Manifest]
    {
        assert!(report.faults.iter().any(|fault| fault.class == class), "{class:?}");
    }
    // Listed groups are few, the totals exact.
    assert!(report.whole.int4_codes_disagreeing > report.whole.elements / 2);
    assert!(report.faults.len() < 4000, "{}", report.faults.len());
}

#[test]
fn field_case_04_source_values_off_the_grid() {
    let mut source = synthetic::source(7);
    let pack = packer::emb4(&source.tensors, &source.files, ScaleDtype::BF16);
    let tensor = "model.language_model.layers.0.self_attn.q_proj.weight";
    for (bits, row, group) in [(0x7FC0u16, 1, 0), (0x7F80, 6, 1), (0x7000, 9, 1)] {
        let first = 2 * (row * 64 + group * 32 + 7);
        source.bytes_mut(tensor)[first..first + 2].copy_from_slice(&bits.to_le_bytes());
        let report = report_of(&pack, &source.source());
        let place = Place {
            class: FaultClass::OffGrid,
            file: WEIGHTS,
            tensor: Some(tensor),
            group: Some((row as u64, group as u64)),
        };
        assert!(report.faults.iter().any(|fault| place.is_of(fault)), "{report}");
        assert_eq!(report.verdict, Verdict::Disproved);
    }
    let report = report_of(&pack, &source.source());
    assert_eq!((report.faults.len(), report.groups.off_grid), (3, 3));
}

trait OfModule {
    fn int4_codes_of(&self, module: &str) -> u64;
}

impl OfModule for Report {
    /// Disagreeing codes of one packed tensor.
    fn int4_codes_of(&self, module: &str) -> u64 {
        let packed = self.packed.iter().find(|packed| packed.module == module).unwrap();
        packed.counts.int4_codes_disagreeing
    }
}
