//! Linears that vLLM fuses into one: it takes the scheme of the first for all of them.

use std::collections::BTreeMap;

use super::facts::Facts;

const FUSED: [&[&str]; 2] = [
    &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    &["mlp.gate_proj", "mlp.up_proj"],
];

/// What is mixed: fused linears, or experts of a layer, of which some are packed and some are not.
pub fn mixtures(facts: &Facts) -> Vec<String> {
    let mut found = Vec::new();
    for parts in FUSED {
        // Layers that read another layer's keys and values have the first part only.
        for first in &facts.modules {
            let Some(layer) = first.name.strip_suffix(parts[0]) else { continue };
            let names: Vec<String> = parts.iter().map(|part| format!("{layer}{part}")).collect();
            let other = facts
                .modules
                .iter()
                .find(|other| names.contains(&other.name) && other.packed != first.packed);
            if let Some(other) = other {
                let (packed, dense) = if first.packed { (first, other) } else { (other, first) };
                found.push(format!(
                    "`{}` is packed and `{}` is not: vLLM refuses such a mixture",
                    packed.name, dense.name
                ));
            }
        }
    }
    found.extend(mixed_experts(facts));
    found
}

/// The experts of a layer are one linear to vLLM.
fn mixed_experts(facts: &Facts) -> Vec<String> {
    let mut layers: BTreeMap<&str, [Option<&str>; 2]> = BTreeMap::new();
    for module in &facts.modules {
        if let Some((layer, _)) = module.name.split_once(".experts.") {
            let first = &mut layers.entry(layer).or_default()[usize::from(module.packed)];
            first.get_or_insert(&module.name);
        }
    }
    let mixed = layers.into_values().filter_map(|[dense, packed]| Some((dense?, packed?)));
    mixed
        .map(|(dense, packed)| {
            format!("`{packed}` is packed and `{dense}` is not: vLLM refuses such a mixture")
        })
        .collect()
}
