//! Packs whose codes are right and whose steps follow another rule.

use crate::support::checkpoint::Parts;
use crate::support::{packer, synthetic};
use w4pack_format::scale::ScaleDtype;
use w4pack_verify::arithmetic::recover::{Recovery, recover};
use w4pack_verify::report::{FaultClass, Report, Verdict};
use w4pack_verify::{Options, verify};

fn value(bits: u16) -> f64 {
    crate::oracle::value(bits)
}

/// Rewrites every scale of a pack by a rule of codes and values; no sidecar, no manifest.
fn with_steps(
    source: &Parts,
    dtype: ScaleDtype,
    rule: impl Fn(&[i8; 32], &[u16; 32]) -> f64,
) -> Parts {
    let mut pack = packer::emb4(&source.tensors, &source.files, dtype);
    pack.files.remove(w4pack_format::exact::EXACT_FILE);
    for (name, tensor) in &source.tensors {
        let text = name.replace("model.language_model.", "model.");
        let scales = format!("{}_scale", text);
        let Some(stored) = pack.tensors.get_mut(&scales) else { continue };
        let dtype = ScaleDtype::from_dtype(stored.dtype).unwrap();
        let mut bytes = Vec::new();
        for values in tensor.halves().as_chunks::<32>().0 {
            let step = match recover(values) {
                Recovery::OnGrid(grid) => rule(&grid.codes, values),
                _ => 1.0,
            };
            dtype.write(step as f32, &mut bytes);
        }
        stored.bytes = bytes;
    }
    pack
}

fn least_squares(codes: &[i8; 32], values: &[u16; 32]) -> f64 {
    let code = |i: usize| f64::from(codes[i]);
    let above: f64 = (0..32).map(|i| code(i) * value(values[i])).sum();
    above / (0..32).map(|i| code(i) * code(i)).sum::<f64>()
}

fn of_largest(codes: &[i8; 32], values: &[u16; 32]) -> f64 {
    let place = (0..32).max_by_key(|&i| values[i] & 0x7FFF).unwrap();
    value(values[place]) / f64::from(codes[place])
}

fn judge(pack: &Parts, source: &Parts, allow_step_rounding: bool) -> Report {
    let options = Options { allow_step_rounding, ..Options::default() };
    verify(pack.source(), Some(source.source()), &options, &())
}

#[test]
fn right_codes_under_another_rule_of_steps_are_named() {
    let source = synthetic::source(11);
    for (rule, name) in [
        (least_squares as fn(&[i8; 32], &[u16; 32]) -> f64, "least squares"),
        (of_largest, "largest value / its code"),
    ] {
        let pack = with_steps(&source, ScaleDtype::BF16, rule);
        let report = judge(&pack, &source, false);
        assert_eq!((report.verdict, report.exit_code()), (Verdict::CodesProved, 1), "{report}");
        assert_eq!(report.step_rule, name);
        assert_eq!((report.whole.int4_codes_disagreeing, report.unaccounted), (0, 0));
        assert!(report.whole.elements_differing > 0);
        assert!(report.faults.iter().all(|fault| fault.class == FaultClass::Scale));
        let words = format!("codes proved, steps: {name}, ");
        assert!(report.to_string().contains(&words), "{report}");
        assert_eq!(judge(&pack, &source, true).exit_code(), 0, "every value is within 1/16 step");
    }
}

#[test]
fn steps_that_move_values_by_more_than_a_sixteenth_are_not_forgiven() {
    let source = synthetic::source(12);
    let pack = with_steps(&source, ScaleDtype::F32, |codes, values| {
        of_largest(codes, values) * (1.0 + 1.0 / 64.0)
    });
    let report = judge(&pack, &source, true);
    assert_eq!((report.verdict, report.exit_code()), (Verdict::CodesProved, 1), "{report}");
    assert_eq!(report.step_rule, "of no known rule");
    assert!(report.whole.worst_diff_in_units_of_group_step > 1.0 / 16.0);
}

/// The rule of Q4_0: the largest value is level 8. Groups that reach 7 only lose their values.
#[test]
fn the_rule_largest_value_over_eight_is_named() {
    let source = synthetic::source(14);
    let pack = with_steps(&source, ScaleDtype::BF16, |codes, values| {
        let place = (0..32).max_by_key(|&i| values[i] & 0x7FFF).unwrap();
        of_largest(codes, values) * f64::from(codes[place].abs()) / 8.0
    });
    let report = judge(&pack, &source, true);
    assert_eq!(report.step_rule, "largest value / 8", "{report}");
    assert_eq!((report.verdict, report.exit_code()), (Verdict::Disproved, 1));
    assert_eq!(report.whole.int4_codes_disagreeing, 0);
}

/// The rule that a stock quantizer applies again to values that are on a grid already.
#[test]
fn codes_of_another_grid_are_counted() {
    let source = synthetic::source(13);
    let mut pack = packer::emb4(&source.tensors, &source.files, ScaleDtype::F32);
    pack.files.remove(w4pack_format::exact::EXACT_FILE);
    let module = "model.layers.0.mlp.gate_proj";
    let values = source.tensors["model.language_model.layers.0.mlp.gate_proj.weight"].halves();
    let (mut words, mut scales, mut expected) = (Vec::new(), Vec::new(), 0);
    for values in values.as_chunks::<32>().0 {
        let largest = *values.iter().max_by_key(|bits| *bits & 0x7FFF).unwrap();
        let step = if largest & 0x7FFF == 0 { 1.0 } else { value(largest) / -8.0 };
        let codes: [i8; 32] =
            values.map(|bits| (value(bits) / step).round().clamp(-8.0, 7.0) as i8);
        let recovered = match recover(values) {
            Recovery::OnGrid(grid) => grid.codes,
            _ => [0; 32],
        };
        expected += codes.iter().zip(recovered).filter(|(a, b)| **a != *b).count() as u64;
        let packed = w4pack_format::group::pack(&codes);
        words.extend_from_slice(&w4pack_format::group::words_to_bytes(&packed));
        ScaleDtype::F32.write(step as f32, &mut scales);
    }
    *pack.bytes_mut(&format!("{module}.weight_packed")) = words;
    *pack.bytes_mut(&format!("{module}.weight_scale")) = scales;
    let report = judge(&pack, &source, true);
    assert!(expected > 100);
    assert_eq!(report.whole.int4_codes_disagreeing, expected);
    assert_eq!((report.verdict, report.exit_code()), (Verdict::Disproved, 1));
}
