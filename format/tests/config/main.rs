//! config.json in its spellings, and the tensors it demands.

#[path = "../../../testing/conformance.rs"]
mod conformance;
mod releases;

use conformance::conformance;
use serde_json::{Value, json};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::{Config, LayerKind};
use w4pack_format::names::{NameLayout, Role, is_tower, is_unused_shared_kv, text_tensors};
use w4pack_format::quantization::ModuleClass;

/// E2B's text fields, as quoted in gemma4's public configurations.
fn e2b_text() -> Value {
    let layer_types: Vec<&str> = (0..35)
        .map(|layer| if layer % 5 == 4 { "full_attention" } else { "sliding_attention" })
        .collect();
    json!({
        "model_type": "gemma4_text",
        "vocab_size": 262144, "vocab_size_per_layer_input": 262144,
        "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35,
        "num_attention_heads": 8, "num_key_value_heads": 1,
        "head_dim": 256, "global_head_dim": 512, "layer_types": layer_types,
        "sliding_window": 512, "num_kv_shared_layers": 20, "use_double_wide_mlp": true,
        "hidden_size_per_layer_input": 256, "final_logit_softcapping": 30.0,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 131072,
    })
}

fn parse(value: &Value) -> Config {
    Config::parse("config.json", value.to_string().as_bytes()).unwrap()
}

fn refusal(value: &Value) -> String {
    Config::parse("config.json", value.to_string().as_bytes()).unwrap_err().to_string()
}

#[test]
fn e2b_has_the_published_counts() {
    let config = parse(&e2b_text());
    let tensors = text_tensors(&config.text);
    let count = |role| {
        let of_role = tensors.iter().filter(|tensor| tensor.role == role);
        of_role.fold((0, 0), |(tensors, elements), tensor| {
            (tensors + 1, elements + tensor.shape.iter().product::<usize>())
        })
    };
    assert_eq!(tensors.len(), 540);
    assert_eq!(count(Role::Linear), (276, 1_876_819_968));
    assert_eq!(count(Role::EmbedTokens), (1, 402_653_184));
    assert_eq!(count(Role::EmbedTokensPerLayer), (1, 2_348_810_240));
    assert_eq!(count(Role::Vector).1, 285_987);
}

#[test]
fn e2b_shared_layers_read_layers_13_and_14() {
    let text = parse(&e2b_text()).text;
    for (number, layer) in text.layers.iter().enumerate() {
        let expected = match (number < 15, layer.kind) {
            (true, _) => None,
            (false, LayerKind::Sliding) => Some(13),
            (false, LayerKind::Full) => Some(14),
        };
        assert_eq!(layer.kv_source, expected, "layer {number}");
        assert_eq!(layer.intermediate_size, if number < 15 { 6144 } else { 12288 });
        let (head_dim, pairs) = if number % 5 == 4 { (512, 64) } else { (256, 128) };
        assert_eq!((layer.head_dim, layer.rope.rotated_pairs), (head_dim, pairs));
    }
    assert!(is_unused_shared_kv(&text, "layers.15.self_attn.k_proj.weight"));
    assert!(!is_unused_shared_kv(&text, "layers.14.self_attn.k_proj.weight"));
    assert!(!is_unused_shared_kv(&text, "layers.15.self_attn.q_proj.weight"));
}

/// The producer is the last owning layer of the same kind, not the last two layers.
#[test]
fn a_full_layer_far_back_can_be_the_producer() {
    let mut value = e2b_text();
    value["num_hidden_layers"] = json!(6);
    value["num_kv_shared_layers"] = json!(1);
    let (s, f) = ("sliding_attention", "full_attention");
    value["layer_types"] = json!([s, s, f, s, s, f]);
    assert_eq!(parse(&value).text.layers[5].kv_source, Some(2));
}

/// transformers writes `per_layer_config` and drops `global_head_dim`; both say the same.
#[test]
fn both_spellings_give_the_same_layers() {
    let google = parse(&e2b_text());
    let mut value = e2b_text();
    value.as_object_mut().unwrap().remove("global_head_dim");
    value["per_layer_config"] = (0..35)
        .filter(|layer| layer % 5 == 4)
        .map(|layer| (format!("{layer:02}"), json!({"head_dim": 512})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    assert_eq!(parse(&value).text, google.text);
    value["per_layer_config"] = json!({});
    assert!(parse(&value).text.layers.iter().all(|layer| layer.head_dim == 256));
    value["per_layer_config"] = json!({"04": {"window": 3}});
    assert!(refusal(&value).contains("`04.window`"));
}

#[test]
fn multimodal_and_text_only_give_the_same_text_model() {
    let nested = json!({
        "model_type": "gemma4", "text_config": e2b_text(), "tie_word_embeddings": true,
        "eos_token_id": [1, 106], "vision_config": {}, "audio_config": null,
    });
    let config = parse(&nested);
    assert_eq!(config.layout, NameLayout::Multimodal);
    assert_eq!(config.text, parse(&e2b_text()).text);
    assert_eq!(config.eos_token_ids, [1, 106]);
    assert_eq!(config.unknown, [] as [String; 0]);
}

#[test]
fn unknown_keys_are_reported_with_their_path() {
    let mut text = e2b_text();
    text["surprise"] = json!(1);
    let nested = json!({"model_type": "gemma4", "text_config": text, "other": 2});
    assert_eq!(parse(&nested).unknown, ["other", "text_config.surprise"]);
}

#[test]
fn models_that_differ_are_refused_by_field() {
    let cases = [
        ("enable_moe_block", json!(true), "num_experts"),
        ("attention_bias", json!(true), "bias"),
        ("hidden_activation", json!("silu"), "gelu_pytorch_tanh"),
        ("model_type", json!("llama"), "gemma4"),
        ("hidden_size", json!(0), "too small"),
        ("hidden_size", json!(-5), "whole number"),
        ("hidden_size", json!("1536"), "whole number"),
        ("num_hidden_layers", json!(36), "35 entries for 36 layers"),
        ("num_hidden_layers", json!(1_000_000_000), "exceeds"),
        ("num_kv_shared_layers", json!(35), "there are 35 layers"),
        ("num_key_value_heads", json!(3), "does not divide"),
        ("rms_norm_eps", json!(-1.0), "positive"),
        ("layer_types", json!(["round"]), "not a kind"),
        ("rope_parameters", json!({"full_attention": {"rope_type": "yarn"}}), "yarn"),
        ("rope_parameters", json!({"rope_theta": 5.0}), "not a kind of layer"),
        ("rope_parameters", json!([1]), "not an object"),
        ("rope_parameters", json!({"full_attention": {"attention_factor": 2}}), "attention_factor"),
        (
            "rope_parameters",
            json!({"full_attention": {"partial_rotary_factor": 2.0}}),
            "more than the whole head",
        ),
        ("hidden_activation", json!(["relu"]), "gelu_pytorch_tanh"),
    ];
    for (key, value, expected) in cases {
        let mut config = e2b_text();
        config[key] = value;
        let message = refusal(&config);
        assert!(message.contains(expected) && message.contains("config.json"), "{message}");
    }
}

#[test]
fn a_nested_config_must_be_a_text_model_without_its_own_packing() {
    for (key, value) in [("model_type", json!("gemma3")), ("quantization_config", json!({}))] {
        let mut text = e2b_text();
        text[key] = value;
        let message = refusal(&json!({"model_type": "gemma4", "text_config": text}));
        assert!(message.contains(&format!("`text_config.{key}`")), "{message}");
    }
}

#[test]
fn the_tie_must_be_told_once_or_twice_alike() {
    let mut text = e2b_text();
    text["tie_word_embeddings"] = json!(false);
    let nested = json!({"model_type": "gemma4", "text_config": text, "tie_word_embeddings": true});
    assert!(refusal(&nested).contains("tie_word_embeddings"));
}

/// Names and shapes of the reference sets, made by transformers, are the ones we demand.
#[test]
fn the_reference_sets_hold_exactly_the_demanded_tensors() {
    for set in ["tiny-a/google", "tiny-a/text", "tiny-c/google", "tiny-c/text", "ct-official/dense"]
    {
        let Some(folder) = conformance(&format!("conformance/{set}")) else { return };
        let checkpoint = Checkpoint::open_folder(&folder).unwrap();
        let config = Config::load(&**checkpoint.source()).unwrap();
        assert_eq!(config.unknown, [] as [String; 0], "{set}");
        let mut found: Vec<(String, Vec<usize>)> = checkpoint
            .names()
            .filter(|name| !is_tower(name))
            .map(|name| (name.into(), checkpoint.tensor(name).unwrap().info.shape.clone()))
            .collect();
        let mut demanded: Vec<_> = text_tensors(&config.text)
            .into_iter()
            .map(|tensor| (config.layout.full_name(&tensor.name), tensor.shape))
            .collect();
        found.sort();
        demanded.sort();
        assert_eq!(found, demanded, "{set}");
    }
}

/// Every module that the official writer packed is covered by its own configuration, and no other.
#[test]
fn official_targets_cover_exactly_the_packed_modules() {
    for set in ["linear", "linear-ple4", "emb4-untied", "emb4-tied"] {
        let Some(folder) = conformance(&format!("conformance/ct-official/{set}")) else { return };
        let checkpoint = Checkpoint::open_folder(&folder).unwrap();
        let config = Config::load(&**checkpoint.source()).unwrap();
        let quantization = config.quantization.as_ref().unwrap();
        for tensor in text_tensors(&config.text).iter().filter(|tensor| tensor.is_matrix()) {
            let module = config.layout.full_name(tensor.module());
            let class = match tensor.role {
                Role::Linear => ModuleClass::Linear,
                _ => ModuleClass::Embedding,
            };
            let packed = checkpoint.tensor(&format!("{module}.weight_packed")).is_some();
            assert_eq!(quantization.covers(&module, class), packed, "{set}: {module}");
        }
    }
}

#[test]
fn targets_match_as_the_official_library_does() {
    let config = |targets: Value, ignore: Value| {
        let mut value = e2b_text();
        value["quantization_config"] = json!({
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "quantization_status": "compressed", "version": "0.20.1",
            "config_groups": {"group_0": {"targets": targets, "weights": {
                "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                "group_size": 32, "dynamic": false}}},
            "ignore": ignore,
        });
        value
    };
    let covers = |targets: Value, ignore: Value, module: &str, class| {
        parse(&config(targets, ignore)).quantization.unwrap().covers(module, class)
    };
    let (linear, embedding) = (ModuleClass::Linear, ModuleClass::Embedding);
    let ple = "model.embed_tokens_per_layer";
    assert!(covers(json!(["re:.*embed_tokens"]), json!([]), ple, embedding), "no `$`: hits both");
    assert!(!covers(json!(["re:.*embed_tokens$"]), json!([]), ple, embedding));
    assert!(!covers(json!(["re:embed_tokens"]), json!([]), ple, embedding), "anchored in front");
    assert!(covers(json!(["Embedding"]), json!([]), ple, embedding));
    assert!(!covers(json!(["Linear"]), json!(["lm_head"]), "lm_head", linear), "ignore wins");
    assert!(refusal(&config(json!(["re:(?=x)"]), json!([]))).contains("re:(?=x)"));
    for (pointer, value, field) in [
        ("/quantization_config/quantization_status", json!("frozen"), "quantization_status"),
        ("/quantization_config/format", json!("marlin-24"), "format"),
        ("/quantization_config/kv_cache_scheme", json!({"num_bits": 8}), "kv_cache_scheme"),
        ("/quantization_config/config_groups/group_0/weights/group_size", json!(128), "group_size"),
        ("/quantization_config/config_groups/group_0/weights/symmetric", json!(false), "symmetric"),
    ] {
        let mut value_with = config(json!(["Linear"]), json!([]));
        *value_with.pointer_mut(pointer).unwrap_or(&mut json!(null)) = value.clone();
        if value_with.pointer(pointer).is_none() {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            value_with.pointer_mut(parent).unwrap()[key] = value;
        }
        let message = refusal(&value_with);
        assert!(message.contains(field), "{message}");
    }
}

#[test]
fn the_prefix_tells_the_layout() {
    let of = |names: &[&str]| NameLayout::of_names(names.iter().copied());
    assert_eq!(of(&["model.norm.weight"]), NameLayout::TextOnly);
    let towers = "vision_tower.vision_model.post_layernorm.weight";
    assert!(is_tower(towers));
    assert_eq!(of(&[towers, "language_model.model.norm.weight"]), NameLayout::MultimodalGemma3);
    assert_eq!(of(&[towers, "model.language_model.norm.weight"]), NameLayout::Multimodal);
}
