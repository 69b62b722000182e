//! The four layouts, and the `quantization_config` that w4pack writes for each.

use serde_json::{Value, json};
use w4pack_format::names::Role;

use super::facts::{Facts, Module};

/// Patterns of the towers, for multimodal names.
const TOWERS: [&str; 4] =
    ["re:.*vision_tower.*", "re:.*audio_tower.*", "re:.*embed_vision.*", "re:.*embed_audio.*"];

/// Which tensors are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Everything, the head being the table.
    Emb4,
    /// Everything, and the table once more as the head.
    Emb4Untied,
    /// The linears.
    Linear,
    /// The linears and the per-layer table.
    LinearPle4,
}

impl Layout {
    const ALL: [Layout; 4] = [Layout::Emb4, Layout::Emb4Untied, Layout::Linear, Layout::LinearPle4];

    /// As `--layout` and the manifest spell it.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Emb4 => "emb4",
            Layout::Emb4Untied => "emb4-untied",
            Layout::Linear => "linear",
            Layout::LinearPle4 => "linear-ple4",
        }
    }

    /// The layouts that a result can be of, the one that leaves out least first.
    pub fn possible(facts: &Facts) -> Vec<Layout> {
        let packs_all = |layout: &Layout| {
            facts.modules.iter().all(|module| !module.packed || layout.packs(module.role))
        };
        let mut possible: Vec<Layout> = Layout::ALL
            .into_iter()
            .filter(|layout| (*layout == Layout::Emb4Untied) == facts.has_head)
            .filter(packs_all)
            .collect();
        possible.sort_by_key(|layout| layout.kept(facts).count());
        possible
    }

    /// Whether the layout packs matrices of this role.
    fn packs(self, role: Role) -> bool {
        match role {
            Role::Linear => true,
            Role::EmbedTokens => matches!(self, Layout::Emb4 | Layout::Emb4Untied),
            Role::EmbedTokensPerLayer => self != Layout::Linear,
            Role::Router | Role::Vector => false,
        }
    }

    /// Matrices that the layout packs and the result does not.
    pub fn kept(self, facts: &Facts) -> impl Iterator<Item = &Module> {
        facts.modules.iter().filter(move |module| !module.packed && self.packs(module.role))
    }

    /// Whether `dequantize` is written: without it transformers cannot load packed tables, and
    /// casts scales to bf16.
    pub fn wants_dequantize(self, facts: &Facts) -> bool {
        self != Layout::Linear || !facts.all_scales_bf16()
    }

    /// `quantization_config` by the rule of the layout.
    pub fn scheme(self, facts: &Facts) -> Value {
        let pattern = |name: &str| format!("re:.*{}$", name.replace('.', r"\."));
        let mut targets = vec!["Linear".to_string()];
        if self.packs(Role::EmbedTokens) {
            targets.push(pattern("embed_tokens"));
        }
        if self.packs(Role::EmbedTokensPerLayer) {
            targets.push(pattern("embed_tokens_per_layer"));
        }
        let mut ignore = Vec::new();
        let head = if self == Layout::Emb4Untied { &mut targets } else { &mut ignore };
        head.push(pattern("lm_head"));
        if facts.modules.iter().any(|module| module.role == Role::Router) {
            ignore.push(pattern("router.proj"));
        }
        if self == Layout::LinearPle4 {
            ignore.push(pattern("embed_tokens"));
        }
        let prefix = facts.layout.prefix();
        ignore.extend(
            self.kept(facts)
                .map(|module| pattern(module.name.strip_prefix(prefix).unwrap_or(&module.name))),
        );
        if facts.layout.is_multimodal() {
            ignore.extend(TOWERS.map(String::from));
        }
        let mut scheme = json!({
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "version": "0.20.1",
            "config_groups": {"group_0": {
                "format": "pack-quantized",
                "targets": targets,
                "weights": {
                    "num_bits": 4, "type": "int", "symmetric": true,
                    "strategy": "group", "group_size": 32, "dynamic": false
                },
                "input_activations": null,
                "output_activations": null
            }},
            "ignore": ignore,
            "kv_cache_scheme": null,
            "global_compression_ratio": null,
            "sparsity_config": {},
            "transform_config": {}
        });
        if self.wants_dequantize(facts) {
            scheme["dequantize"] = true.into();
        }
        scheme
    }
}
