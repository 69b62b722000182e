//! The configurations of other releases than E2B.

use crate::{e2b_text, parse, refusal};
use serde_json::{Value, json};
use w4pack_format::config::{Family, LayerKind};
use w4pack_format::names::{NameLayout, dense_tensors, text_tensors};

/// Text fields of a release without per-layer inputs, as its public configurations have them: of
/// every six layers the last is full.
fn large_text(model_type: &str, layers: usize) -> Value {
    let kind = |layer| if layer % 6 == 5 { "full_attention" } else { "sliding_attention" };
    json!({
        "model_type": model_type, "vocab_size": 262144, "num_hidden_layers": layers,
        "layer_types": (0..layers).map(kind).collect::<Vec<_>>(),
        "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": true,
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0, "sliding_window": 1024,
        "use_bidirectional_attention": "vision", "final_logit_softcapping": 30.0,
    })
}

fn with(mut config: Value, fields: &[(&str, usize)]) -> Value {
    for (key, value) in fields {
        config[key] = json!(value);
    }
    config
}

#[test]
fn e4b_shares_its_last_18_layers_and_doubles_none() {
    let kind = |layer| if layer % 6 == 5 { "full_attention" } else { "sliding_attention" };
    let mut value = with(
        e2b_text(),
        &[("hidden_size", 2560), ("intermediate_size", 10240), ("num_hidden_layers", 42)],
    );
    value["layer_types"] = (0..42).map(kind).collect::<Vec<_>>().into();
    value["use_double_wide_mlp"] = json!(false);
    let text =
        parse(&with(value, &[("num_kv_shared_layers", 18), ("num_key_value_heads", 2)])).text;
    for (number, layer) in text.layers.iter().enumerate() {
        let producer = if layer.kind == LayerKind::Full { 23 } else { 22 };
        assert_eq!(layer.kv_source, (number >= 24).then_some(producer), "layer {number}");
        assert_eq!((layer.intermediate_size, layer.kv_heads), (10240, 2), "layer {number}");
    }
}

/// In 12B and 31B full layers have other heads of keys than sliding ones, and no `v_proj`.
#[test]
fn full_layers_of_12b_and_31b_take_their_values_from_the_keys() {
    let of_31b = [
        ("hidden_size", 5376),
        ("intermediate_size", 21504),
        ("num_attention_heads", 32),
        ("num_key_value_heads", 16),
        ("num_global_key_value_heads", 4),
    ];
    let of_12b = [
        ("hidden_size", 3840),
        ("intermediate_size", 15360),
        ("num_attention_heads", 16),
        ("num_key_value_heads", 8),
        ("num_global_key_value_heads", 1),
    ];
    for (config, family, [hidden, sliding, full]) in [
        (with(large_text("gemma4_text", 60), &of_31b), Family::Gemma4, [5376, 16, 4]),
        (with(large_text("gemma4_unified_text", 48), &of_12b), Family::Gemma4Unified, [3840, 8, 1]),
    ] {
        let config = parse(&config);
        assert_eq!(config.unknown, [] as [String; 0]);
        assert_eq!(config.text.family, family);
        let tensors = text_tensors(&config.text);
        let shape = |name: &str| {
            tensors.iter().find(|tensor| tensor.name == name).map(|tensor| &tensor.shape[..])
        };
        let attention =
            |layer: usize, part: &str| format!("layers.{layer}.self_attn.{part}.weight");
        assert_eq!(shape(&attention(4, "k_proj")), Some(&[sliding * 256, hidden][..]));
        assert_eq!(shape(&attention(4, "v_proj")), Some(&[sliding * 256, hidden][..]));
        assert_eq!(shape(&attention(5, "k_proj")), Some(&[full * 512, hidden][..]));
        assert_eq!(shape(&attention(5, "v_proj")), None);
        assert_eq!(shape("embed_tokens_per_layer.weight"), None);
        assert_eq!(shape("layers.0.per_layer_input_gate.weight"), None);
        assert_eq!(shape("layers.0.layer_scalar"), Some(&[1][..]));
    }
    // Without attention_k_eq_v the other number of heads has no effect, as in transformers.
    let mut plain = with(large_text("gemma4_text", 60), &of_31b);
    plain["attention_k_eq_v"] = json!(false);
    assert!(parse(&plain).text.layers.iter().all(|layer| layer.kv_heads == 16));
}

/// Every expert is a matrix of its own, and together they are the stacks of the bf16 checkpoint.
#[test]
fn the_experts_of_26b_fill_their_stacks_row_by_row() {
    let mut value = with(
        large_text("gemma4_text", 30),
        &[
            ("hidden_size", 2816),
            ("intermediate_size", 2112),
            ("num_attention_heads", 16),
            ("num_key_value_heads", 8),
            ("num_global_key_value_heads", 2),
            ("num_experts", 128),
            ("top_k_experts", 8),
            ("moe_intermediate_size", 704),
        ],
    );
    value["enable_moe_block"] = json!(true);
    let text = parse(&value).text;
    let experts = text_tensors(&text).into_iter().filter(|tensor| tensor.stack.is_some());
    let mut ends = std::collections::BTreeMap::new();
    for tensor in experts {
        let stack = tensor.stack.as_ref().unwrap();
        let [count, rows, columns] = stack.shape[..] else { panic!("{stack:?}") };
        let end = ends.entry(stack.name.clone()).or_insert((0, count * rows));
        assert_eq!((stack.first_row, columns), (end.0, tensor.shape[1]), "{}", tensor.name);
        end.0 += tensor.shape[0];
    }
    assert_eq!(ends.len(), 2 * 30);
    assert!(ends.values().all(|(filled, rows)| filled == rows));

    let dense = dense_tensors(&text);
    let shape = |name: &str| {
        dense.iter().find(|tensor| tensor.name == name).map(|tensor| &tensor.shape[..])
    };
    assert_eq!(shape("layers.7.experts.gate_up_proj"), Some(&[128, 1408, 2816][..]));
    assert_eq!(shape("layers.7.experts.down_proj"), Some(&[128, 2816, 704][..]));
    assert_eq!(shape("layers.7.router.proj.weight"), Some(&[128, 2816][..]));
    assert_eq!(shape("layers.7.router.scale"), Some(&[2816][..]));
    assert_eq!(shape("layers.7.router.per_expert_scale"), Some(&[128][..]));

    value["top_k_experts"] = json!(129);
    assert!(refusal(&value).contains("129, but a layer has 128 experts"));
    let mut unified = large_text("gemma4_unified_text", 6);
    unified["enable_moe_block"] = json!(true);
    assert!(refusal(&unified).contains("unified models have no experts"));
    let with_table =
        with(large_text("gemma4_unified_text", 6), &[("hidden_size_per_layer_input", 8)]);
    assert!(refusal(&with_table).contains("no per-layer inputs"));
}

/// Unified configurations hold the text model's keys under `text_config`, beside it, or both.
#[test]
fn unified_text_keys_may_lie_flat_or_nested() {
    let text = large_text("gemma4_unified_text", 6);
    let alone = parse(&text);
    assert_eq!(alone.layout, NameLayout::TextOnly);
    let nested = json!({
        "model_type": "gemma4_unified", "text_config": text, "vision_config": {},
        "audio_config": {}, "tie_word_embeddings": true, "eoa_token_index": 258883,
    });
    let mut both = nested.clone();
    both["sliding_window"] = json!(1024);
    let mut flat = text.clone();
    flat["model_type"] = json!("gemma4_unified");
    flat["vision_config"] = json!({});
    for spelling in [&nested, &both, &flat] {
        let config = parse(spelling);
        assert_eq!(config.layout, NameLayout::Multimodal);
        assert_eq!(config.text, alone.text);
        assert_eq!(config.unknown, [] as [String; 0]);
    }
    // A key that the text model contradicts is one whose effect nobody knows.
    both["sliding_window"] = json!(512);
    assert_eq!(parse(&both).unknown, ["sliding_window"]);
}

#[test]
fn gemma_3_is_read_in_both_spellings_of_its_angles() {
    let old = json!({
        "model_type": "gemma3", "mm_tokens_per_image": 256, "boi_token_index": 255999,
        "eoi_token_index": 256000, "image_token_index": 262144, "vision_config": {},
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
    });
    let mut new = old.clone();
    new["text_config"].as_object_mut().unwrap().remove("rope_scaling");
    new["text_config"]["rope_parameters"] = json!({
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    });
    let config = parse(&old);
    assert_eq!(config.text, parse(&new).text);
    assert_eq!(config.unknown, [] as [String; 0]);
    assert_eq!(config.text.family, Family::Gemma3);
    // Unlike in Gemma 4 the last layer is what the pattern makes it.
    assert_eq!(config.text.layers[33].kind, LayerKind::Sliding);
    assert_eq!(config.text.layers[29].kind, LayerKind::Full);
    let tensors = text_tensors(&config.text);
    assert!(tensors.iter().all(|tensor| !tensor.name.ends_with("layer_scalar")));
    assert_eq!(tensors.len(), 34 * 13 + 2);
    let mut unknown = old.clone();
    unknown["text_config"]["num_kv_shared_layers"] = json!(2);
    assert_eq!(parse(&unknown).unknown, ["text_config.num_kv_shared_layers"]);
    unknown["text_config"]["rope_scaling"] = json!({"rope_type": "yarn", "factor": 8.0});
    assert!(refusal(&unknown).contains("text_config.rope_scaling"));
}
