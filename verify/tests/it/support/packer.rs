//! A small writer of packs, so that the verifier's tests need no converter.
//!
//! It takes codes and steps from `arithmetic`, which other tests hold against truth and oracles.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use w4pack_format::config::Config;
use w4pack_format::dtype::Dtype;
use w4pack_format::exact::{EXACT_FILE, Part};
use w4pack_format::group::{pack, words_to_bytes};
use w4pack_format::names::text_tensors;
use w4pack_format::scale::ScaleDtype;
use w4pack_verify::arithmetic::canonical::canonical_step;
use w4pack_verify::arithmetic::judge::{StepFinding, judge};
use w4pack_verify::arithmetic::recover::{Recovery, recover};

use super::checkpoint::Parts;
use super::tensors::{Tensor, Tensors, to_bytes};

/// A group as it is stored, and what the sidecar says about it.
struct Packed {
    values: [u16; 32],
    codes: [i8; 32],
    step: f32,
    finding: StepFinding,
}

fn pack_group(values: [u16; 32], dtype: ScaleDtype) -> Packed {
    let (codes, step) = match recover(&values) {
        Recovery::OnGrid(grid) => {
            let size = canonical_step(&grid, &values, dtype).to_f32();
            (grid.codes, if grid.negative { -size } else { size })
        }
        Recovery::Zero => ([0; 32], 1.0),
        other => panic!("the source is off the grid: {other:?}"),
    };
    Packed { values, codes, step, finding: judge(&values, &codes, step, dtype).step }
}

/// Packs a tensor; f32 where the dtype is too coarse for one of its groups.
fn pack_tensor(tensor: &Tensor, dtype: ScaleDtype) -> (Vec<Packed>, ScaleDtype) {
    let values = tensor.halves();
    let all = |dtype| -> Vec<Packed> {
        values.as_chunks().0.iter().map(|&values| pack_group(values, dtype)).collect()
    };
    let groups = all(dtype);
    let good = |group: &Packed| matches!(group.finding, StepFinding::Canonical { .. });
    if groups.iter().all(good) { (groups, dtype) } else { (all(ScaleDtype::F32), ScaleDtype::F32) }
}

/// The text-only `emb4` pack of a source in either layout, sidecar included, without a manifest.
pub fn emb4(source: &Tensors, files: &BTreeMap<String, Vec<u8>>, dtype: ScaleDtype) -> Parts {
    let config = Config::parse("config.json", &files["config.json"]).unwrap();
    let mut parts = Parts::default();
    let mut sidecar = Tensors::new();
    for tensor in text_tensors(&config.text) {
        let values = &source[&config.layout.full_name(&tensor.name)];
        if !tensor.is_matrix() {
            parts.tensors.insert(format!("model.{}", tensor.name), values.clone());
            continue;
        }
        let module = format!("model.{}", tensor.module());
        let (groups, dtype) = pack_tensor(values, dtype);
        let (rows, columns) = (tensor.shape[0], tensor.shape[1]);
        let mut scales = Vec::new();
        groups.iter().for_each(|group| dtype.write(group.step, &mut scales));
        let words = groups.iter().flat_map(|group| words_to_bytes(&pack(&group.codes))).collect();
        let shape = [rows as i64, columns as i64].iter().flat_map(|n| n.to_le_bytes()).collect();
        for (suffix, dtype, shape, bytes) in [
            ("weight_packed", Dtype::I32, vec![rows, columns / 8], words),
            ("weight_scale", dtype.dtype(), vec![rows, columns / 32], scales),
            ("weight_shape", Dtype::I64, vec![2], shape),
        ] {
            parts.tensors.insert(format!("{module}.{suffix}"), Tensor { dtype, shape, bytes });
        }
        add_to_sidecar(&module, &groups, &mut sidecar);
    }
    parts.files = files
        .iter()
        .filter(|(path, _)| !path.contains("safetensors") && *path != "README.md")
        .map(|(path, content)| (path.clone(), content.clone()))
        .collect();
    parts.files.insert("README.md".into(), b"a card".to_vec());
    parts.files.insert(EXACT_FILE.into(), to_bytes(&sidecar));
    parts.edit_config(|config| *config = emb4_config(config));
    parts
}

/// Adds an identical head under its own name: layout `emb4-untied`.
pub fn untie(parts: &mut Parts) {
    for suffix in ["weight_packed", "weight_scale", "weight_shape"] {
        let copy = parts.tensors[&format!("model.embed_tokens.{suffix}")].clone();
        parts.tensors.insert(format!("lm_head.{suffix}"), copy);
    }
    parts.edit_config(|config| {
        config["tie_word_embeddings"] = false.into();
        let scheme = &mut config["quantization_config"];
        scheme["config_groups"]["group_0"]["targets"]
            .as_array_mut()
            .unwrap()
            .push("re:.*lm_head$".into());
        scheme["ignore"] = json!([]);
    });
}

/// Keeps a module in bf16, as `--allow-off-grid` does; its entry in `ignore` is the caller's.
pub fn keep(parts: &mut Parts, module: &str, source: &Tensors) {
    for suffix in ["weight_packed", "weight_scale", "weight_shape"] {
        parts.tensors.remove(&format!("{module}.{suffix}")).unwrap();
    }
    let values = &source[&format!("{}.weight", module.replace("model.", "model.language_model."))];
    parts.tensors.insert(format!("{module}.weight"), values.clone());
    let mut sidecar = super::tensors::parse(&parts.files[EXACT_FILE]);
    sidecar.retain(|name, _| !name.starts_with(&format!("{module}|")));
    parts.files.insert(EXACT_FILE.into(), to_bytes(&sidecar));
}

/// The text-only configuration of layout `emb4`.
fn emb4_config(source: &Value) -> Value {
    let mut config = source.get("text_config").unwrap_or(source).clone();
    if source.get("text_config").is_some() {
        let keys = source.as_object().unwrap();
        let shared =
            |key: &str| ["token_id", "_config", "token_index"].iter().any(|end| key.ends_with(end));
        for (key, value) in keys {
            let of_towers = shared(key) || key == "vision_soft_tokens_per_image";
            if key == "eos_token_id" || !(of_towers || config.get(key).is_some()) {
                config[key] = value.clone();
            }
        }
    }
    config["architectures"] = json!(["Gemma4ForCausalLM"]);
    config["model_type"] = "gemma4_text".into();
    config["tie_word_embeddings"] = true.into();
    config["quantization_config"] = json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "quantization_status": "compressed", "version": "0.20.1", "dequantize": true,
        "config_groups": {"group_0": {"format": "pack-quantized",
            "targets": ["Linear", "re:.*embed_tokens$", "re:.*embed_tokens_per_layer$"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                "group_size": 32, "dynamic": false},
            "input_activations": null, "output_activations": null}},
        "ignore": ["re:.*lm_head$"], "kv_cache_scheme": null, "global_compression_ratio": null,
        "sparsity_config": {}, "transform_config": {}
    });
    config
}

/// Group numbers as differences; 255 goes on.
fn gap_list(groups: impl Iterator<Item = usize>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut next = 0;
    for group in groups {
        let mut difference = group - next;
        while difference >= 255 {
            bytes.push(255);
            difference -= 255;
        }
        bytes.push(difference as u8);
        next = group + 1;
    }
    bytes
}

fn add_to_sidecar(module: &str, groups: &[Packed], sidecar: &mut Tensors) {
    let mut add = |part: Part, dtype: Dtype, bytes: Vec<u8>| {
        if !bytes.is_empty() {
            let shape = vec![bytes.len() / dtype.size()];
            sidecar.insert(part.tensor_name(module), Tensor { dtype, shape, bytes });
        }
    };
    let finer = |group: &Packed| match group.finding {
        StepFinding::Canonical { finer } => finer,
        _ => None,
    };
    let numbered = || groups.iter().enumerate();
    let coarse = || numbered().filter_map(|(number, group)| Some((number, finer(group)?)));
    add(Part::StepGaps, Dtype::U8, gap_list(coarse().map(|(number, _)| number)));
    add(Part::StepValues, Dtype::F32, coarse().flat_map(|(_, step)| step.to_le_bytes()).collect());

    // Zeros: exceptions to either default, or bits, whichever takes the fewest bytes.
    let zeros = |group: &Packed| mask(group, |bits| bits & 0x7FFF == 0);
    let exceptions = |of_step: bool| -> Vec<(usize, u32)> {
        numbered()
            .map(|(number, group)| {
                let default = if of_step && group.step < 0.0 { zeros(group) } else { 0 };
                (number, default ^ mask(group, |bits| bits == 0x8000))
            })
            .filter(|(_, mask)| *mask != 0)
            .collect()
    };
    let mut bits = Vec::new();
    let values = groups.iter().flat_map(|group| group.values);
    for (place, value) in values.filter(|bits| bits & 0x7FFF == 0).enumerate() {
        if place % 8 == 0 {
            bits.push(0);
        }
        *bits.last_mut().unwrap() |= u8::from(value == 0x8000) << (place % 8);
    }
    let size =
        |list: &[(usize, u32)]| gap_list(list.iter().map(|(n, _)| *n)).len() + 4 * list.len();
    let (positive, of_step) = (exceptions(false), exceptions(true));
    let sizes = [size(&positive), size(&of_step) + 1, bits.len() + 1];
    let rule = (0..3).min_by_key(|&rule| sizes[rule]).unwrap();
    if rule > 0 {
        add(Part::ZeroRule, Dtype::U8, vec![rule as u8]);
    }
    if rule == 2 {
        add(Part::ZeroBits, Dtype::U8, bits);
        return;
    }
    let list = if rule == 0 { positive } else { of_step };
    add(Part::ZeroGaps, Dtype::U8, gap_list(list.iter().map(|(number, _)| *number)));
    let masks = list.iter().flat_map(|(_, mask)| mask.to_le_bytes()).collect();
    add(Part::ZeroMasks, Dtype::U32, masks);
}

fn mask(group: &Packed, set: impl Fn(u16) -> bool) -> u32 {
    (0..32).fold(0, |bits, i| bits | u32::from(set(group.values[i])) << i)
}
