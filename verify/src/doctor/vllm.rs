//! What vLLM 0.33.0 does. Its multimodal class was read, not run.

use w4pack_format::scale::ScaleDtype;

use super::matching::{Matching, Vllm};
use super::scene::{Module, ModuleKind, Scene};
use super::scheme::Scheme;
use super::{Effect, Finding, GGUF_FILE, about};

/// The rules, in the order in which they are looked at.
pub(super) const RULES: &[&str] = &[
    GGUF_FILE,
    "no-quantization-config",
    "other-format",
    "other-weights",
    "kv-cache-scheme",
    "sparsity",
    "tied-packed-table",
    "tied-head-target",
    "packed-not-covered",
    "covered-not-packed",
    "missing-weight",
    "missing-part",
    "zero-point",
    "mixed-fusion",
    "packed-tower",
    "columns",
    "faulty-scales",
    "scales-cast",
    "stranger",
    "unused-keys",
];

/// Modules that are fused into one, of which vLLM reads the first one's scheme.
const FUSED: [&[&str]; 2] = [
    &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    &["mlp.gate_proj", "mlp.up_proj"],
];

/// The rules that a checkpoint breaks.
pub(super) fn findings(scene: &Scene) -> Vec<Finding> {
    let mut findings = Vec::new();
    match &scene.scheme {
        None => findings.extend(about(
            "no-quantization-config",
            Effect::Refuses,
            scene.packed().map(|module| format!("{}.weight_packed", module.name)).collect(),
            "config.json has no `quantization_config`, and no parameter has these names",
        )),
        Some(scheme) => {
            findings.extend(scheme_itself(scheme));
            findings.extend(head(scene, scheme));
            findings.extend(covering(scene, scheme));
        }
    }
    findings.extend(tensors(scene));
    findings
}

fn scheme_itself(scheme: &Scheme) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut others = Vec::new();
    for (key, wanted) in [("quant_method", "compressed-tensors"), ("format", "pack-quantized")] {
        if scheme.text(key) != Some(wanted) {
            let found = scheme.object.get(key).map_or("missing".into(), |value| value.to_string());
            others.push(format!("`{key}` is {found}, not \"{wanted}\""));
        }
    }
    let detail = "the 4-bit kernels are chosen for exactly these two";
    findings.extend(about("other-format", Effect::Refuses, others, detail));
    findings.extend(about(
        "other-weights",
        Effect::Refuses,
        scheme.other_weights(),
        "the packed words are symmetric 4-bit integers in groups of 32",
    ));
    let key = |key: &str| format!("quantization_config.{key}");
    let is_fp8 = |value: &serde_json::Value| {
        value.get("num_bits") == Some(&8.into()) && value.get("type") == Some(&"float".into())
    };
    let cache = scheme.object.get("kv_cache_scheme").filter(|value| !value.is_null());
    findings.extend(about(
        "kv-cache-scheme",
        Effect::Refuses,
        cache.filter(|value| !is_fp8(value)).map(|_| key("kv_cache_scheme")).into_iter().collect(),
        "only 8-bit floats are accepted there",
    ));
    let sparsity = scheme.object.get("sparsity_config").and_then(|value| value.as_object());
    findings.extend(about(
        "sparsity",
        Effect::Refuses,
        sparsity
            .filter(|value| !value.is_empty())
            .map(|_| key("sparsity_config"))
            .into_iter()
            .collect(),
        "sparse formats were removed",
    ));
    findings
}

/// The head, tied or of its own.
fn head(scene: &Scene, scheme: &Scheme) -> Vec<Finding> {
    let reader = Vllm(scene);
    let table = scene.table();
    let head = Module { name: "lm_head".into(), kind: ModuleKind::Head, ..table.clone() };
    let mut findings = Vec::new();
    if !scene.config.tie_word_embeddings {
        return findings;
    }
    if reader.covers(scheme, table) {
        findings.extend(about(
            "tied-packed-table",
            Effect::Refuses,
            vec![table.name.clone()],
            "a packed table cannot be tied to the head ('VocabParallelEmbedding' object has no \
             attribute 'weight')",
        ));
    } else if reader.covers(scheme, &head) {
        findings.extend(about(
            "tied-head-target",
            Effect::Uninitialised,
            vec!["lm_head".into()],
            "a target names the head of a tied model: its packed parameters are made and never filled, \
             and logits come from uninitialised memory",
        ));
    }
    findings
}

/// Whether what is packed is covered, and the other way round.
fn covering(scene: &Scene, scheme: &Scheme) -> Vec<Finding> {
    let reader = Vllm(scene);
    let covered = |module: &Module| reader.covers(scheme, module);
    let mut findings = Vec::new();
    // A tied model has no parameters for a head, whatever the file holds.
    let modules = || scene.modules.iter();
    findings.extend(about(
        "packed-not-covered",
        Effect::Refuses,
        modules()
            .filter(|module| module.is_packed() && !covered(module))
            .map(|module| format!("{}.weight_packed", module.name))
            .collect(),
        "packed, but no target covers them (or `ignore` does): \"There is no module or parameter \
         named …\". The head is matched by a name or pattern only, not by `Linear`",
    ));
    findings.extend(about(
        "covered-not-packed",
        Effect::Refuses,
        modules()
            .filter(|module| module.plain && !module.is_packed() && covered(module))
            .map(|module| module.name.clone())
            .collect(),
        "a target covers them, but the file holds plain weights: no parameter has their names",
    ));
    let mut mixed = Vec::new();
    for parts in FUSED {
        for first in modules().filter(|module| module.name.ends_with(parts[0])) {
            let layer = &first.name[..first.name.len() - parts[0].len()];
            let names: Vec<String> = parts.iter().map(|part| format!("{layer}{part}")).collect();
            let other = modules()
                .find(|other| names.contains(&other.name) && covered(other) != covered(first));
            mixed.extend(other.map(|other| format!("{} and {}", first.name, other.name)));
        }
    }
    findings.extend(about(
        "mixed-fusion",
        Effect::Refuses,
        mixed,
        "fused into one module: all must be packed or none (\"requires all to use the same scheme\")",
    ));
    if scene.is_multimodal() {
        findings.extend(about(
            "packed-tower",
            Effect::Refuses,
            scene
                .towers
                .iter()
                .filter(|tower| covered(tower) && !tower.is_packed())
                .map(|tower| tower.name.clone())
                .collect(),
            "`Linear` covers the towers too; their weights are plain, so `ignore` must name them",
        ));
    }
    findings
}

/// The tensors themselves.
fn tensors(scene: &Scene) -> Vec<Finding> {
    let modules = || scene.modules.iter();
    let mut findings = Vec::new();
    let mut missing: Vec<String> = modules()
        .filter(|module| !module.plain && !module.is_packed())
        .map(|module| module.name.clone())
        .collect();
    missing.extend(scene.missing_vectors.iter().cloned());
    if !scene.config.tie_word_embeddings && scene.head().is_none() {
        missing.push("lm_head".into());
    }
    findings.extend(about(
        "missing-weight",
        Effect::Uninitialised,
        missing,
        "config.json demands them, the file has none; of packed checkpoints vLLM does not check that \
         every parameter was filled",
    ));
    findings.extend(about(
        "missing-part",
        Effect::Uninitialised,
        // The shape is not looked at.
        scene.packed().flat_map(Module::lacking).filter(|n| !n.ends_with("_shape")).collect(),
        "a part of a packed module is missing, and its parameter is never filled",
    ));
    findings.extend(about(
        "zero-point",
        Effect::Refuses,
        modules()
            .filter(|m| m.zero_point)
            .map(|m| format!("{}.weight_zero_point", m.name))
            .collect(),
        "symmetric modules have no such parameter",
    ));
    findings.extend(about(
        "columns",
        Effect::Refuses,
        scene.packed().filter(|m| !m.shape[1].is_multiple_of(32)).map(|m| m.name.clone()).collect(),
        "the columns are no multiple of the group size 32",
    ));
    findings.extend(about(
        "faulty-scales",
        Effect::Misreads,
        scene.packed().filter(|m| m.scales.faulty > 0).map(|m| m.name.clone()).collect(),
        "scales of 0, NaN or infinity: their groups come out as that",
    ));
    let narrow = |module: &&Module| module.scale_dtype.is_some_and(|d| d != ScaleDtype::BF16);
    findings.extend(about(
        "scales-cast",
        Effect::Note,
        scene.packed().filter(narrow).map(|module| module.name.clone()).collect(),
        "scales are cast to the serving dtype with a warning each: f16 ones stay as they are under \
         `--dtype half`, under bf16 some 9 % of the values change",
    ));
    findings.extend(about(
        "stranger",
        Effect::Refuses,
        scene.strangers.iter().filter(|name| !name.ends_with(".bias")).cloned().collect(),
        "no parameter has these names",
    ));
    findings.extend(about(
        "unused-keys",
        Effect::Note,
        scene.unused_kv.clone(),
        "keys and values of layers that read another layer's: dropped",
    ));
    findings
}
