//! Every group of the reference sets against what their makers wrote down.

use crate::support::conformance;
use crate::support::tensors::{Tensors, read_folder, read_safetensors};
use w4pack_format::scale::ScaleDtype;
use w4pack_verify::arithmetic::canonical::canonical_step;
use w4pack_verify::arithmetic::judge::judge;
use w4pack_verify::arithmetic::ratio::Ratio;
use w4pack_verify::arithmetic::recover::{Recovery, recover};

fn group<T: Copy>(elements: &[T], number: usize) -> [T; 32] {
    elements.as_chunks().0[number]
}

/// Names of the packed tensors: those that have an entry `NAME|suffix`.
fn names(truth: &Tensors, suffix: &str) -> Vec<String> {
    truth.keys().filter_map(|name| Some(name.strip_suffix(suffix)?.to_string())).collect()
}

fn as_f64(ratio: &Ratio) -> f64 {
    ratio.numerator as f64 / ratio.denominator as f64 * 2f64.powi(ratio.exponent)
}

#[test]
fn tiny_c_codes_intervals_and_steps_are_those_of_truth() {
    let Some(set) = conformance("tiny-c") else { return };
    let weights = read_folder(&set.join("google"));
    let reduced = read_safetensors(&set.join("truth/reduced.safetensors"));
    let steps = read_safetensors(&set.join("truth/steps.safetensors"));
    let (mut groups, mut many_peaks) = (0, 0);
    for name in names(&reduced, "|reduced") {
        let values = weights[&name].halves();
        let codes = reduced[&format!("{name}|reduced")].signed_bytes();
        let truth = |what: &str| &steps[&format!("{name}|{what}")];
        let (low, high) = (truth("lo").doubles(), truth("hi").doubles());
        for number in 0..values.len() / 32 {
            let at = format!("{name}, group {number}");
            groups += 1;
            let values = group(&values, number);
            let grid = match recover(&values) {
                Recovery::OnGrid(grid) => grid,
                Recovery::Zero => {
                    assert_eq!(group(&codes, number), [0; 32], "{at}");
                    assert_eq!(high[number], f64::INFINITY, "{at}");
                    continue;
                }
                other => panic!("{at}: {other:?}"),
            };
            assert_eq!(grid.codes, group(&codes, number), "{at}");
            assert!(!grid.negative, "{at}");
            assert_eq!(grid.peaks, truth("peaks").bytes[number], "{at}");
            many_peaks += usize::from(grid.peaks.count_ones() > 1);
            // Truth has the outermost f64 inside; ours are the exact ends.
            let close = |ours: &Ratio, theirs: f64| (as_f64(ours) / theirs - 1.0).abs() < 1e-15;
            assert!(close(&grid.steps.low, low[number]), "{at}");
            assert!(close(&grid.steps.high, high[number]), "{at}");
            for (dtype, format) in [(ScaleDtype::F16, "fp16"), (ScaleDtype::BF16, "bf16")] {
                let step = canonical_step(&grid, &values, dtype).to_f32();
                let inside = (low[number]..=high[number]).contains(&f64::from(step));
                let feasible = truth(&format!("feasible_{format}")).bytes[number] == 1;
                assert_eq!(inside, feasible, "{at}, {format}");
                if !feasible {
                    let best = &truth(&format!("best_{format}")).bytes[2 * number..];
                    assert_eq!(step, dtype.read(best), "{at}, {format}");
                }
                let wrong = judge(&values, &grid.codes, step, dtype).elements_differing;
                let least = u32::from(truth(&format!("wrong_{format}")).bytes[number]);
                assert_eq!(wrong.count_ones(), least, "{at}, {format}");
            }
            let step = f64::from(canonical_step(&grid, &values, ScaleDtype::F32).to_f32());
            assert!((low[number]..=high[number]).contains(&step), "{at}");
        }
    }
    assert_eq!((groups, many_peaks), (26_432, 787));
}

#[test]
fn tiny_a_codes_are_the_true_ones_wherever_these_are_unique() {
    let Some(set) = conformance("tiny-a") else { return };
    let weights = read_folder(&set.join("google"));
    let truth = read_safetensors(&set.join("truth/q4_0.safetensors"));
    let (mut groups, mut unique, mut negative) = (0, 0, 0);
    for name in names(&truth, "|codes") {
        let values = weights[&name].halves();
        let codes = truth[&format!("{name}|codes")].signed_bytes();
        let scales = &truth[&format!("{name}|scale")].bytes;
        for number in 0..values.len() / 32 {
            let at = format!("{name}, group {number}");
            groups += 1;
            let values = group(&values, number);
            let true_codes = group(&codes, number);
            let true_step = f64::from(ScaleDtype::F16.read(&scales[2 * number..]));
            let grid = match recover(&values) {
                Recovery::OnGrid(grid) => grid,
                Recovery::Zero => {
                    assert_eq!(true_codes, [0; 32], "{at}");
                    continue;
                }
                other => panic!("{at}: {other:?}"),
            };
            let size = f64::from(canonical_step(&grid, &values, ScaleDtype::F32).to_f32());
            let step = if grid.negative { -size } else { size };
            negative += usize::from(grid.negative);
            if truth[&format!("{name}|n_solutions")].bytes[number] == 1 {
                unique += 1;
                assert_eq!(grid.codes, true_codes, "{at}");
                assert!((step / true_step - 1.0).abs() <= 2f64.powi(-8), "{at}");
            } else {
                for (bits, code) in values.iter().zip(grid.codes) {
                    let distance = (f64::from(code) * step - crate::oracle::value(*bits)).abs();
                    assert!(distance <= 0.0625 * true_step.abs(), "{at}");
                }
            }
        }
    }
    assert_eq!(groups, 36_192);
    assert!(unique > 34_000 && negative > 10_000, "{unique} unique, {negative} negative");
}
