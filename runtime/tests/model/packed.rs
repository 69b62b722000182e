//! Packed checkpoints against transformers' float32 logits: written here from the true codes and
//! steps, in all three dtypes of scales, and as the official library packs them.

use crate::support::checkpoint::Draft;
use crate::support::*;
use half::bf16;
use std::path::Path;
use w4pack_format::group::GROUP;
use w4pack_format::scale::ScaleDtype;
use w4pack_runtime::{Matrix, Model, Plain, WeightValues};

/// What the sets' READMEs suggest for a float32 run.
const TOLERANCE: f64 = 1e-3;

/// Codes and steps of one tensor.
type Grid = (Vec<i8>, Vec<f32>);

/// tiny-a: the codes of the Q4_0 rule and its f16 steps, perhaps rounded to bf16.
fn grid_a(set: &Path, dtype: ScaleDtype) -> impl Fn(&str) -> Grid {
    let truth = Tensors::read(&set.join("truth/q4_0.safetensors"));
    move |name| {
        let mut steps = truth.f32(&format!("{name}|scale"));
        if dtype == ScaleDtype::BF16 {
            steps.iter_mut().for_each(|step| *step = bf16::from_f32(*step).to_f32());
        }
        (truth.i8(&format!("{name}|codes")), steps)
    }
}

/// tiny-c: the codes used and their f32 steps, or the reduced codes and the best 16-bit steps.
fn grid_c(set: &Path, dtype: ScaleDtype) -> impl Fn(&str) -> Grid {
    let truth = ["q4_0", "reduced", "steps"]
        .map(|file| Tensors::read(&set.join(format!("truth/{file}.safetensors"))));
    move |name| {
        let [made, reduced, steps] = &truth;
        let reduced = || reduced.i8(&format!("{name}|reduced"));
        match dtype {
            ScaleDtype::F32 => {
                (made.i8(&format!("{name}|codes")), made.f32(&format!("{name}|scale")))
            }
            ScaleDtype::F16 => (reduced(), steps.f32(&format!("{name}|best_fp16"))),
            ScaleDtype::BF16 => (reduced(), steps.f32(&format!("{name}|best_bf16"))),
        }
    }
}

/// The set's text model with every quantized tensor packed.
fn pack(set: &Path, dtype: ScaleDtype, grid: impl Fn(&str) -> Grid) -> Draft {
    let mut draft = Draft::from_folder(&set.join("text"));
    let truth = Tensors::read(&set.join("truth/q4_0.safetensors"));
    let names: Vec<&str> =
        truth.tensors.keys().filter_map(|key| key.strip_suffix("|codes")).collect();
    assert!(names.len() > 70, "the truth covers every matrix");
    for name in names {
        let (mut codes, mut steps) = grid(name);
        for (codes, step) in codes.as_chunks_mut::<GROUP>().0.iter_mut().zip(&mut steps) {
            // A step of 0 is refused; codes of 0 and any step are the same values.
            if *step == 0.0 {
                (*codes, *step) = ([0; GROUP], 1.0);
            }
        }
        draft.pack(&name.replace("model.language_model.", "model."), &codes, &steps, dtype);
    }
    draft
}

fn packed_model(draft: &Draft, weights: WeightValues) -> Model {
    let folder = tempfile::tempdir().expect("a folder");
    draft.write(folder.path());
    load_as(folder.path(), weights)
}

fn check(set: &Path, model: &Model, file: &str, run: &str) {
    let reference = Tensors::read(&set.join("reference").join(file));
    for prompt in prompts(set) {
        let expected = reference.f32(&format!("{run}|{}|prompt_logits", prompt.name));
        let plain = worst(&logits(model, &Plain::<f32>::new(), &prompt.ids), &expected);
        assert!(plain <= TOLERANCE, "{} {run} {}: {plain}", set.display(), prompt.name);
        let allowed = TOLERANCE.max(in_sixteen_bits(&expected));
        let worst = worst(&logits(model, &fast(), &prompt.ids), &expected);
        assert!(worst <= allowed, "{} {run} {}: {worst}, {allowed}", set.display(), prompt.name);
    }
}

#[test]
fn unrounded_values_give_the_logits_of_codes_times_steps() {
    let Some(conformance) = conformance() else { return };
    for (dtype, run) in [(ScaleDtype::F16, "f32_scale_fp16"), (ScaleDtype::BF16, "f32_scale_bf16")]
    {
        let set = conformance.join("tiny-a");
        let model = packed_model(&pack(&set, dtype, grid_a(&set, dtype)), WeightValues::Codes);
        check(&set, &model, "logits_packed.safetensors", run);
    }
    for (dtype, run) in [
        (ScaleDtype::F32, "f32_scale_f32"),
        (ScaleDtype::F16, "f32_scale_fp16"),
        (ScaleDtype::BF16, "f32_scale_bf16"),
    ] {
        let set = conformance.join("tiny-c");
        let model = packed_model(&pack(&set, dtype, grid_c(&set, dtype)), WeightValues::Codes);
        check(&set, &model, "logits_packed.safetensors", run);
    }
}

#[test]
fn rounded_values_are_googles_own() {
    let Some(conformance) = conformance() else { return };
    let a = conformance.join("tiny-a");
    let c = conformance.join("tiny-c");
    let drafts = [
        (&a, pack(&a, ScaleDtype::F32, grid_a(&a, ScaleDtype::F32))),
        (&c, pack(&c, ScaleDtype::F32, grid_c(&c, ScaleDtype::F32))),
    ];
    for (set, draft) in drafts {
        let model = packed_model(&draft, WeightValues::Bf16);
        check(set, &model, "logits.safetensors", "f32");
        // Not only the logits: every value of every matrix, as a number (zeros have no sign).
        let google = load(&set.join("google"));
        for (packed, plain) in matrices(&model).into_iter().zip(matrices(&google)) {
            let (mut found, mut stored) =
                (vec![0.0; packed.columns()], vec![0.0; packed.columns()]);
            for row in 0..packed.rows() {
                packed.view().row_values(row, &mut found);
                plain.view().row_values(row, &mut stored);
                assert_eq!(found, stored, "row {row}");
            }
        }
    }
}

fn matrices(model: &Model) -> Vec<&Matrix> {
    let weights = &model.weights;
    let inputs = weights.per_layer_inputs.as_ref().expect("the sets have per-layer inputs");
    let mut matrices = vec![&weights.embed_tokens, &inputs.embed_tokens, &inputs.model_projection];
    for layer in &weights.layers {
        let block = layer.per_layer_block.as_ref().expect("the sets have per-layer inputs");
        matrices.extend([&layer.q_proj, &layer.o_proj, &layer.gate_proj, &layer.up_proj]);
        matrices.extend([&layer.down_proj, &block.input_gate, &block.projection]);
        if let Some(own) = &layer.keys_and_values {
            matrices.push(&own.k_proj);
            matrices.extend(&own.v_proj);
        }
    }
    matrices
}

/// The official library's packs of one model, in all layouts.
const OFFICIAL: [&str; 4] = ["emb4-tied", "emb4-untied", "linear", "linear-ple4"];

#[test]
fn all_official_layouts_hold_the_same_model() {
    let Some(conformance) = conformance() else { return };
    let set = conformance.join("ct-official");
    let reference = Tensors::read(&set.join("expected-logits.safetensors"));
    let ids: Vec<u32> = reference.i64("input_ids").into_iter().map(|id| id as u32).collect();
    let dense = load(&set.join("dense"));
    let expected: Vec<f32> = ids.chunks(12).flat_map(|ids| logits(&dense, &fast(), ids)).collect();
    for layout in OFFICIAL {
        let model = load_as(&set.join(layout), WeightValues::Bf16);
        assert!(model.weights.lm_head.is_none(), "{layout}: one table serves as head");
        let found: Vec<f32> = ids.chunks(12).flat_map(|ids| logits(&model, &fast(), ids)).collect();
        // The dense model was made as bf16(level·scale), so rounded products are its weights. The
        // kernels sum plain and rounded values in the same order.
        assert_eq!(found, expected, "{layout}");
    }
}

#[test]
fn official_logits_in_bf16_are_as_near_as_bf16_comes() {
    let Some(conformance) = conformance() else { return };
    let set = conformance.join("ct-official");
    let reference = Tensors::read(&set.join("expected-logits.safetensors"));
    let ids: Vec<u32> = reference.i64("input_ids").into_iter().map(|id| id as u32).collect();
    let expected = reference.f32("logits_bf16");
    let model = load_as(&set.join("emb4-tied"), WeightValues::Bf16);
    let found: Vec<f32> = ids.chunks(12).flat_map(|ids| logits(&model, &fast(), ids)).collect();
    // The reference rounds every intermediate result to bf16, we round none. In the two tiny sets
    // transformers' own float32 and bf16 runs differ by 2.0 to 3.5 % of the logits' size on
    // average (their READMEs), over ten layers; here are four. Wrong weights give about 100 %.
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / expected.len() as f64;
    let size = mean(&mut expected.iter().map(|&v| f64::from(v * v))).sqrt();
    let pairs = found.iter().zip(&expected);
    let difference = mean(&mut pairs.map(|(found, bf16)| f64::from((found - bf16).abs())));
    assert!(difference <= 0.04 * size, "{difference} of {size}");
}
