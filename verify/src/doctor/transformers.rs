//! What transformers does (5.24.0 with compressed-tensors 0.20.1; 5.23 does the same).
//!
//! Two ways to load: by default modules are built packed, and unpacked at the first forward pass;
//! with `dequantize` dense modules are built, and weights unpacked while they are read.

use w4pack_format::names::NameLayout;
use w4pack_format::scale::ScaleDtype;

use super::matching::{Matching, Official};
use super::scene::{Module, ModuleKind, Scene, architecture};
use super::scheme::{Scheme, group_is_preset};
use super::{Effect, Finding, GGUF_FILE, about};

/// The rules, in the order in which they are looked at.
pub(super) const RULES: &[&str] = &[
    GGUF_FILE,
    "class-and-names",
    "no-quantization-config",
    "quantization-status",
    "preset-name",
    "unknown-key",
    "other-format",
    "other-weights",
    "several-groups",
    "packed-not-covered",
    "covered-not-packed",
    "missing-weight",
    "missing-part",
    "weight-shape",
    "columns",
    "packed-embedding",
    "tied-packed-head",
    "scales-cast",
    "scales-overflow",
    "faulty-scales",
    "stranger",
    "older-versions",
];

/// The largest f16 number.
const F16_MAX: f32 = 65504.0;

/// The rules that a checkpoint breaks.
pub(super) fn findings(scene: &Scene) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(names(scene));
    let Some(scheme) = &scene.scheme else {
        let packed = scene.packed().map(|module| module.name.clone()).collect();
        findings.extend(about(
            "no-quantization-config",
            Effect::Uninitialised,
            packed,
            "config.json has no `quantization_config`: packed tensors are unexpected keys, and \
             their modules keep random weights",
        ));
        findings.extend(weights_there(scene, None));
        return findings;
    };
    if scheme.text("quantization_status") != Some("compressed") {
        let status = scheme.object.get("quantization_status");
        let found = status.map_or("missing".into(), |status| format!("{status}"));
        findings.extend(about(
            "quantization-status",
            Effect::Uninitialised,
            vec!["quantization_config.quantization_status".into()],
            format!(
                "it is {found}, not \"compressed\": a dense model with random weights is built, \
                     without an error"
            ),
        ));
    }
    findings.extend(scheme_itself(scheme));
    findings.extend(weights_there(scene, Some(scheme)));
    findings.extend(parts(scene));
    findings.extend(unpacking(scene, scheme));
    findings.extend(about(
        "stranger",
        Effect::Note,
        scene.strangers.clone(),
        "these tensors belong to no module: they are reported as unexpected and left out",
    ));
    findings
}

/// The text class takes text-only names, the multimodal one Google's.
fn names(scene: &Scene) -> Option<Finding> {
    let declared = scene.config.layout;
    if declared == scene.names {
        return None;
    }
    let (class, found) = match declared {
        NameLayout::TextOnly => ("the text-only class", "model.language_model.*"),
        NameLayout::Multimodal | NameLayout::MultimodalGemma3 => {
            ("the multimodal class", "model.* without language_model")
        }
    };
    let class = architecture(&scene.config).map_or(class.into(), |name| format!("`{name}`"));
    about(
        "class-and-names",
        Effect::Uninitialised,
        vec!["architectures".into()],
        format!(
            "config.json asks for {class}, the tensors are called {found}: every weight counts as \
                 missing, and stays random with a warning"
        ),
    )
}

/// What is wrong with the scheme whatever it covers.
fn scheme_itself(scheme: &Scheme) -> Vec<Finding> {
    let mut findings = Vec::new();
    let preset = |(name, group): (&String, &serde_json::Value)| {
        group_is_preset(group).then(|| format!("quantization_config.config_groups.{name}"))
    };
    findings.extend(about(
        "preset-name",
        Effect::Refuses,
        scheme.groups().filter_map(preset).collect(),
        "a group given by the name of a preset: W4A16 means groups of 128, and the scales do not fit",
    ));
    findings.extend(about(
        "unknown-key",
        Effect::Refuses,
        scheme.unknown_keys(),
        "compressed-tensors forbids keys that it does not know (\"Extra inputs are not permitted\")",
    ));
    let format = |value: &str| format!("`format` is \"{value}\"");
    let mut others: Vec<String> = scheme
        .text("format")
        .filter(|text| *text != "pack-quantized")
        .map(format)
        .into_iter()
        .collect();
    if scheme.text("quant_method") != Some("compressed-tensors") {
        others.push("`quant_method` is not \"compressed-tensors\"".into());
    }
    let detail = "the tensors are packed as `pack-quantized` of compressed-tensors has it; another \
                  reader is chosen for them";
    findings.extend(about("other-format", Effect::Refuses, others, detail));
    findings.extend(about(
        "other-weights",
        Effect::Misreads,
        scheme.other_weights(),
        "the packed words are symmetric 4-bit integers in groups of 32",
    ));
    let weights = |group: &serde_json::Value| group.get("weights").cloned();
    let mut groups = scheme.groups().map(|(_, group)| weights(group));
    let first = groups.next();
    if scheme.dequantize && groups.any(|other| Some(other) != first) {
        findings.extend(about(
            "several-groups",
            Effect::Misreads,
            vec!["quantization_config.config_groups".into()],
            "with `dequantize` the first group's arguments are taken for every module",
        ));
    }
    findings
}

/// Which weights are there, and whether they are where the class will look for them.
fn weights_there(scene: &Scene, scheme: Option<&Scheme>) -> Vec<Finding> {
    let covered = |module: &&Module| scheme.is_some_and(|scheme| Official.covers(scheme, module));
    let all = || scene.modules.iter().chain(&scene.towers);
    let names = |modules: Vec<&Module>| modules.into_iter().map(|m| m.name.clone()).collect();
    let mut findings = Vec::new();
    if scheme.is_some() {
        findings.extend(about(
            "packed-not-covered",
            Effect::Uninitialised,
            names(all().filter(|m| m.is_packed() && !covered(m)).collect()),
            "packed, but no target covers them (or `ignore` does): unexpected keys, and the modules \
             keep random weights",
        ));
        findings.extend(about(
            "covered-not-packed",
            Effect::Uninitialised,
            names(all().filter(|m| covered(m) && !m.is_packed() && m.plain).collect()),
            "a target covers them, but the file holds plain weights: the packed tensors are missing",
        ));
    }
    let mut missing: Vec<String> =
        all().filter(|m| !m.plain && !m.is_packed()).map(|m| m.name.clone()).collect();
    missing.extend(scene.missing_vectors.iter().cloned());
    if !scene.config.tie_word_embeddings && scene.head().is_none() {
        missing.push("lm_head".into());
    }
    let detail = "config.json demands them, the file has none: they stay random, with a warning";
    findings.extend(about("missing-weight", Effect::Uninitialised, missing, detail));
    findings
}

/// The three tensors of a packed module.
fn parts(scene: &Scene) -> Vec<Finding> {
    let packed = || scene.packed().chain(scene.towers.iter().filter(|tower| tower.is_packed()));
    let mut findings = Vec::new();
    findings.extend(about(
        "missing-part",
        Effect::Refuses,
        packed().flat_map(Module::lacking).collect(),
        "unpacking needs all three tensors of a packed module",
    ));
    let differs = |module: &&Module| {
        let [rows, columns] = module.shape.map(|size| size as i64);
        module.parts[2] && module.stored_shape != Some([rows, columns])
    };
    findings.extend(about(
        "weight-shape",
        Effect::Refuses,
        packed().filter(differs).map(|module| format!("{}.weight_shape", module.name)).collect(),
        "it is not the module's shape by config.json, and unpacked weights take their shape from it",
    ));
    findings.extend(about(
        "columns",
        Effect::Refuses,
        packed().filter(|m| !m.shape[1].is_multiple_of(32)).map(|m| m.name.clone()).collect(),
        "the columns are no multiple of the group size 32",
    ));
    findings.extend(about(
        "faulty-scales",
        Effect::Misreads,
        packed().filter(|m| m.scales.faulty > 0).map(|m| m.name.clone()).collect(),
        "scales of 0, NaN or infinity: their groups come out as that",
    ));
    findings
}

/// What becomes of packed tables, of a tied head, and of the scales.
fn unpacking(scene: &Scene, scheme: &Scheme) -> Vec<Finding> {
    let mut findings = Vec::new();
    let tables: Vec<String> = scene
        .packed()
        .filter(|module| matches!(module.kind, ModuleKind::Embedding(_)))
        .map(|module| module.name.clone())
        .collect();
    let head_covered = {
        let head =
            Module { name: "lm_head".into(), kind: ModuleKind::Head, ..scene.table().clone() };
        Official.covers(scheme, &head)
    };
    if scheme.dequantize {
        let overflows = |module: &&Module| {
            module.scale_dtype == Some(ScaleDtype::F16) && 8.0 * module.scales.largest > F16_MAX
        };
        findings.extend(about(
            "scales-overflow",
            Effect::Misreads,
            scene.packed().filter(overflows).map(|module| module.name.clone()).collect(),
            "with `dequantize` codes are multiplied in f16, and 8 times the largest step is infinite \
             there",
        ));
        findings.extend(about(
            "older-versions",
            Effect::Note,
            tables,
            "versions before 5.23 fail on packed tables; 5.23 and later load them",
        ));
    } else {
        findings.extend(about(
            "packed-embedding",
            Effect::Refuses,
            tables,
            "without `dequantize: true` loading stops at a packed table ('Gemma4TextScaledWordEmbedding' \
             object has no attribute 'weight')",
        ));
        if scene.config.tie_word_embeddings && head_covered {
            findings.extend(about(
                "tied-packed-head",
                Effect::Refuses,
                vec!["lm_head".into()],
                "tied, and covered by a target: without `dequantize: true` tying stops ('Linear' object \
                 has no attribute 'weight')",
            ));
        }
        let cast = |module: &&Module| module.scale_dtype.is_some_and(|d| d != ScaleDtype::BF16);
        findings.extend(about(
            "scales-cast",
            Effect::Misreads,
            scene.packed().filter(cast).map(|module| module.name.clone()).collect(),
            "without `dequantize: true` scales are cast to bf16, which changes some 9 % of the values",
        ));
    }
    findings
}
