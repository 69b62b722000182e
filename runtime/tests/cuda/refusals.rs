//! What a card does not run is refused by name before a card is asked for: these tests need none.

use crate::support::checkpoint::Draft;
use crate::support::random;
use serde_json::json;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_runtime::RuntimeError;
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions};

fn refusal(draft: &Draft) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    draft.write(folder.path());
    let checkpoint = Arc::new(Checkpoint::open_folder(folder.path()).expect("it opens"));
    match CudaDevice::load(&checkpoint, CudaOptions::default(), &mut |_| {}) {
        Err(error @ RuntimeError::CudaShape { .. }) => {
            assert!(error.hint().is_some_and(|hint| hint.contains("--device cpu")), "{error}");
            error.to_string()
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it runs"),
    }
}

/// Gemma 4 26B-A4B's experts.
#[test]
fn experts_are_refused_by_layer() {
    let mut config = random::config();
    config["enable_moe_block"] = json!(true);
    config["num_experts"] = json!(4);
    config["top_k_experts"] = json!(2);
    config["moe_intermediate_size"] = json!(32);
    config["num_kv_shared_layers"] = json!(0);
    config["use_double_wide_mlp"] = json!(false);
    let mut draft = random::packed_as(config, 1);
    draft.config["quantization_config"]["ignore"] = json!(["re:.*lm_head$", "re:.*router.proj$"]);
    let refused = refusal(&draft);
    assert!(refused.contains("layer 0 has experts"), "{refused}");
}

/// Gemma 4 12B, 26B-A4B and 31B: full layers whose values are their keys' projection.
#[test]
fn values_from_the_keys_projection_are_refused_by_layer() {
    let mut config = random::config();
    config["attention_k_eq_v"] = json!(true);
    config["num_kv_shared_layers"] = json!(0);
    config["use_double_wide_mlp"] = json!(false);
    let refused = refusal(&random::packed_as(config, 1));
    assert!(refused.contains("layer 2 takes its values from its keys' projection"), "{refused}");
}

#[test]
fn heads_without_a_kernel_are_refused_with_those_there_are() {
    let mut config = random::config();
    config["head_dim"] = json!(128);
    let refused = refusal(&random::packed_as(config, 1));
    assert!(
        refused.contains("heads of 128") && refused.contains("32, 64, 256 and 512"),
        "{refused}"
    );
}
