//! The reference sets: grids of known truth, and checkpoints of the official writer.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use w4pack_convert::recover::{Misfit, Recovered, recover};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::header::Header;
use w4pack_format::scale::ScaleDtype;

use crate::end_to_end::assert_restored;
use crate::support::restore::{packed, rounded};
use crate::support::{bf16_bits, copy_folder, open, options, reference, run};

/// A safetensors file of the test's own, read whole.
struct File {
    header: Header,
    bytes: Vec<u8>,
}

impl File {
    fn open(path: &Path) -> File {
        let bytes = fs::read(path).unwrap();
        let name = path.display().to_string();
        let header = Header::parse(&name, bytes.len() as u64, &mut |offset, buffer| {
            buffer.copy_from_slice(&bytes[offset as usize..][..buffer.len()]);
            Ok(())
        });
        File { header: header.unwrap(), bytes }
    }

    fn tensor(&self, name: &str) -> &[u8] {
        let info = self.header.tensors.iter().find(|tensor| tensor.name == name).unwrap();
        let start = self.header.data_start();
        &self.bytes[(start + info.begin) as usize..(start + info.end) as usize]
    }

    /// The names before `|part`.
    fn names(&self, part: &str) -> Vec<&str> {
        let names = self.header.tensors.iter().map(|tensor| tensor.name.as_str());
        names.filter_map(|name| name.strip_suffix(part)).collect()
    }
}

fn codes(bytes: &[u8]) -> Vec<[i8; 32]> {
    bytes.as_chunks::<32>().0.iter().map(|group| group.map(|byte| byte as i8)).collect()
}

fn doubles(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
}

fn groups(checkpoint: &Checkpoint, name: &str) -> Vec<[u16; 32]> {
    bf16_bits(&checkpoint.read(name).unwrap()).as_chunks::<32>().0.to_vec()
}

/// The module in the output of a tensor under its multimodal name.
fn module_of(name: &str) -> String {
    name.replacen("model.language_model.", "model.", 1).strip_suffix(".weight").unwrap().into()
}

#[test]
fn tiny_c_codes_are_the_reduced_truth_in_every_group() {
    let Some(set) = reference("tiny-c") else { return };
    let truth = File::open(&set.join("truth/reduced.safetensors"));
    let source = open(&set.join("google"));
    let mut compared = 0;
    for name in truth.names("|reduced") {
        let expected = codes(truth.tensor(&format!("{name}|reduced")));
        for (number, (bits, expected)) in groups(&source, name).iter().zip(expected).enumerate() {
            assert_eq!(recover(bits).unwrap().codes, expected, "{name} group {number}");
            compared += 1;
        }
    }
    assert_eq!(compared, 26_432);
}

#[test]
fn tiny_c_steps_are_canonical_in_every_dtype() {
    let Some(set) = reference("tiny-c") else { return };
    let truth = File::open(&set.join("truth/steps.safetensors"));
    let source = open(&set.join("google"));
    let mut wrong: BTreeMap<ScaleDtype, u64> = BTreeMap::new();
    for name in truth.names("|lo") {
        let part = |part: &str| truth.tensor(&format!("{name}|{part}"));
        let (low, high) = (doubles(part("lo")), doubles(part("hi")));
        for (number, bits) in groups(&source, name).iter().enumerate() {
            let recovered = recover(bits).unwrap();
            for (dtype, label) in
                [(ScaleDtype::F16, "fp16"), (ScaleDtype::BF16, "bf16"), (ScaleDtype::F32, "f32")]
            {
                let step = recovered.step(dtype);
                let place = format!("{name} group {number} {dtype}: {step:?}");
                assert!(step.value.is_finite() && step.value > 0.0, "{place}");
                let inside = (low[number]..=high[number]).contains(&f64::from(step.value));
                let feasible = part(&format!("feasible_{label}"))[number] == 1;
                assert_eq!(inside, feasible, "{place}");
                assert_eq!(step.wrong == 0, inside, "{place}");
                if !feasible {
                    let fewest = part(&format!("wrong_{label}"))[number];
                    at_best(bits, &recovered, step.value, step.wrong, fewest, &place);
                }
                *wrong.entry(dtype).or_default() += u64::from(step.wrong);
            }
        }
    }
    assert_eq!(wrong[&ScaleDtype::F32], 0);
    // The README's sums of what is least possible.
    assert_eq!(wrong[&ScaleDtype::F16], 15_263);
    assert_eq!(wrong[&ScaleDtype::BF16], 76_478);
}

/// No more values wrong than the truth says is least, and that many when counted by rounding.
fn at_best(bits: &[u16; 32], recovered: &Recovered, step: f32, wrong: u8, fewest: u8, place: &str) {
    let pairs = recovered.codes.iter().zip(bits);
    let counted =
        pairs.filter(|&(&code, &bits)| rounded(code, step) != bf16::from_bits(bits)).count();
    assert_eq!(usize::from(wrong), counted, "{place}");
    assert!(wrong <= fewest, "{place}: {fewest} is possible");
}

/// A copy of tiny-c's google folder in which groups of some classes became zeros.
fn without_classes(set: &Path, classes: &[u8], to: &Path) -> PathBuf {
    let truth = File::open(&set.join("truth/q4_0.safetensors"));
    let folder = to.join("source");
    copy_folder(&set.join("google"), &folder);
    let source = open(&folder);
    for shard in source.shards() {
        let path = folder.join(&shard.path);
        let mut bytes = fs::read(&path).unwrap();
        for info in &shard.header.tensors {
            let class = format!("{}|class", info.name);
            if !truth.header.tensors.iter().any(|tensor| tensor.name == class) {
                continue;
            }
            let begin = (shard.header.data_start() + info.begin) as usize;
            for (number, class) in truth.tensor(&class).iter().enumerate() {
                if classes.contains(class) {
                    bytes[begin + 64 * number..][..64].fill(0);
                }
            }
        }
        fs::write(path, bytes).unwrap();
    }
    folder
}

#[test]
fn tiny_c_within_f16_gets_f16_scales_everywhere() {
    let Some(set) = reference("tiny-c") else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = without_classes(&set, &[8, 9, 11], folder.path());
    let out = folder.path().join("out");
    let report = run(&source, &out, &options(ScaleDtype::F16)).unwrap();
    assert_eq!(report.passes, 1);
    assert!(report.packed.iter().all(|tensor| tensor.scale_dtype == "f16"));
    // The README's "values wrong, best fp16" of the classes that are left.
    assert_eq!(report.total.values_differing, 15_263 - 5_033 - 8_189 - 332);
    assert_restored(&source, &out);
}

#[test]
fn tiny_c_as_it_is_falls_back_to_f32_and_loses_nothing() {
    let Some(set) = reference("tiny-c") else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let report = run(&set.join("google"), &out, &options(ScaleDtype::F16)).unwrap();
    assert_restored(&set.join("google"), &out);
    for tensor in &report.packed {
        assert_eq!(tensor.fell_back.is_some(), tensor.scale_dtype == "f32", "{}", tensor.module);
        assert!(tensor.scale_dtype == "f16" || tensor.tally.values_differing == 0);
    }
    assert!(report.packed.iter().any(|tensor| tensor.scale_dtype == "f32"));
}

#[test]
fn both_layouts_of_a_set_give_the_same_packed_tensors() {
    for name in ["tiny-a", "tiny-c"] {
        let Some(set) = reference(name) else { return };
        let folder = tempfile::tempdir().unwrap();
        let outs = ["google", "text"].map(|layout| {
            let out = folder.path().join(layout);
            run(&set.join(layout), &out, &options(ScaleDtype::F16)).unwrap();
            out
        });
        for file in ["model.safetensors", "w4pack/exact.safetensors"] {
            let [one, other] = outs.each_ref().map(|out| fs::read(out.join(file)).unwrap());
            assert!(one == other, "{name}: {file}");
        }
    }
}

#[test]
fn tiny_a_follows_the_rule_of_its_solutions() {
    let Some(set) = reference("tiny-a") else { return };
    let truth = File::open(&set.join("truth/q4_0.safetensors"));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let report = run(&set.join("google"), &out, &options(ScaleDtype::F16)).unwrap();
    assert_restored(&set.join("google"), &out);
    assert!(report.total.negative > 10_000, "half of its groups have a negative step");
    let (source, out) = (open(&set.join("google")), open(&out));
    for name in truth.names("|codes") {
        let part = |part: &str| truth.tensor(&format!("{name}|{part}"));
        let true_codes = codes(part("codes"));
        let true_steps = bf16_bits(part("scale"));
        let solutions = part("n_solutions");
        let packed = packed(&out, &module_of(name));
        for (number, bits) in groups(&source, name).iter().enumerate() {
            let place = format!("{name} group {number}");
            let (codes, step) = (packed.codes[number], packed.steps[number]);
            let true_step = f16::from_bits(true_steps[number]).to_f32();
            if true_step == 0.0 {
                assert_eq!(codes, [0; 32], "{place}");
            } else if solutions[number] == 1 {
                assert_eq!(codes, true_codes[number], "{place}");
                assert!((step / true_step - 1.0).abs() <= 2.0_f32.powi(-8), "{place}");
            } else {
                for (code, bits) in codes.iter().zip(bits) {
                    let error = f32::from(*code) * step - bf16::from_bits(*bits).to_f32();
                    assert!(error.abs() <= 0.0625 * true_step.abs(), "{place}");
                }
            }
        }
    }
}

#[test]
fn packed_words_scales_and_shapes_equal_the_official_writers() {
    let Some(set) = reference("ct-official") else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    run(&set.join("dense"), &out, &options(ScaleDtype::BF16)).unwrap();
    let (ours, official) = (open(&out), open(&set.join("emb4-tied")));
    let names: Vec<&str> = official.names().collect();
    assert_eq!(ours.names().collect::<Vec<_>>(), names);
    let mut packed_tensors = 0;
    for name in names {
        let (our_info, info) =
            (ours.tensor(name).unwrap().info, official.tensor(name).unwrap().info);
        assert_eq!((our_info.dtype, &our_info.shape), (info.dtype, &info.shape), "{name}");
        assert!(ours.read(name).unwrap() == official.read(name).unwrap(), "{name}");
        packed_tensors += usize::from(name.ends_with(".weight_packed"));
    }
    assert!(packed_tensors > 30, "{packed_tensors}");
}

/// Towers hold names such as q_proj too, and values off every grid: one taken for text could not
/// be packed.
#[test]
fn towers_are_left_out_and_listed() {
    let Some(set) = reference("tiny-c") else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = open(&set.join("google"));
    let report =
        run(&set.join("google"), &folder.path().join("out"), &options(ScaleDtype::F16)).unwrap();
    let towers: Vec<&str> =
        source.names().filter(|name| !name.starts_with("model.language_model.")).collect();
    let mut listed: Vec<&str> =
        report.left_out.iter().map(|tensor| tensor.tensor.as_str()).collect();
    listed.sort_unstable();
    assert_eq!(listed, towers);
    let projection = towers.iter().find(|name| name.ends_with("q_proj.linear.weight")).unwrap();
    let off_grid = |bits| matches!(recover(bits), Err(Misfit::OffGrid(_)));
    assert!(groups(&source, projection).iter().any(off_grid));
}
