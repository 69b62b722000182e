//! What a card can do, measured; and what would fit on it.

use super::plan::{Plan, Wish, settle};
use crate::error::Result;
use crate::model::{KeysAndValues, LayerWeights, PerLayerBlock, PerLayerInputs, Weights};
use crate::speculation::Speculation;
use crate::weights::{Storage, Stored};
use std::ffi::c_void;
use w4pack_format::config::TextConfig;
use w4pack_format::scale::ScaleDtype;
use w4pack_kernels::cuda::Gpu;

/// Bytes a second that the card reads: the best of several ways to share a plain reduction of
/// random words, each the median of five runs. Takes 2 GiB, or half of what is free.
pub fn read_bandwidth(gpu: &Gpu) -> Result<f64> {
    gpu.bind()?;
    let bytes = (2 << 30).min(gpu.free_memory()? / 2) & !0xffff;
    let arena = gpu.allocate(bytes)?;
    let (from, words, seed) = (arena.address(), (bytes / 4) as u64, 1u32);
    let (count, out) = ((bytes / 16) as u64, arena.address());
    let multiprocessors = gpu.card().multiprocessors as u32;
    let pointer = |value: *const c_void| value;
    let fill = [
        pointer(std::ptr::from_ref(&from).cast()),
        pointer(std::ptr::from_ref(&words).cast()),
        pointer(std::ptr::from_ref(&seed).cast()),
    ];
    // SAFETY: the parameters of `fill_random`; the arena has that many words.
    unsafe { gpu.launch("fill_random", [16 * multiprocessors, 1], 256, 0, &fill)? };
    let read = [
        pointer(std::ptr::from_ref(&from).cast()),
        pointer(std::ptr::from_ref(&count).cast()),
        pointer(std::ptr::from_ref(&out).cast()),
    ];
    let timer = gpu.timer()?;
    let mut best = 0.0f64;
    for blocks in [2, 4, 8, 16] {
        let mut seconds = Vec::new();
        for _ in 0..6 {
            seconds.push(timer.measure(|| {
                // SAFETY: the parameters of `read_all`; `out` is a word of the arena.
                unsafe { gpu.launch("read_all", [blocks * multiprocessors, 1], 512, 0, &read) }
            })?);
        }
        let mut seconds = seconds.split_off(1); // the first one warms up
        seconds.sort_by(f64::total_cmp);
        best = best.max(bytes as f64 / seconds[2]);
    }
    gpu.wait()?;
    Ok(best)
}

/// The plan that a model of this shape gets, everything packed with f16 steps and one table, where nobody
/// says how many tokens a pass takes (`wish.chunk` and `wish.tried` are not looked at).
///
/// Errors: it does not fit.
pub fn plan_for_shape(text: &TextConfig, wish: &Wish) -> Result<Plan> {
    settle(text, &packed_weights(text), &mut Wish { ..*wish }, None, Speculation::Auto)
}

fn packed_weights(text: &TextConfig) -> Weights<Stored> {
    let storage = Storage::Packed(ScaleDtype::F16);
    let matrix = |name: &str, rows, columns| Stored { name: name.into(), rows, columns, storage };
    let (hidden, width) = (text.hidden_size, text.hidden_size_per_layer_input);
    let norm = || vec![1.0; hidden];
    let all_layers = text.layers.len() * width;
    let layers = text.layers.iter().map(|layer| {
        let q = text.num_attention_heads * layer.head_dim;
        let k = layer.kv_heads * layer.head_dim;
        LayerWeights {
            input_norm: norm(),
            q_proj: matrix("q", q, hidden),
            q_norm: vec![1.0; layer.head_dim],
            keys_and_values: layer.kv_source.is_none().then(|| KeysAndValues {
                k_proj: matrix("k", k, hidden),
                k_norm: vec![1.0; layer.head_dim],
                v_proj: Some(matrix("v", k, hidden)),
            }),
            o_proj: matrix("o", hidden, q),
            post_attention_norm: norm(),
            pre_mlp_norm: norm(),
            gate_proj: matrix("gate", layer.intermediate_size, hidden),
            up_proj: matrix("up", layer.intermediate_size, hidden),
            down_proj: matrix("down", hidden, layer.intermediate_size),
            experts: None,
            post_mlp_norm: norm(),
            per_layer_block: (width > 0).then(|| PerLayerBlock {
                input_gate: matrix("per_layer_gate", width, hidden),
                projection: matrix("per_layer_projection", hidden, width),
                post_norm: norm(),
            }),
            scalar: 1.0,
        }
    });
    Weights {
        embed_tokens: matrix("embed_tokens", text.vocab_size, hidden),
        per_layer_inputs: (width > 0).then(|| PerLayerInputs {
            embed_tokens: matrix("table", text.vocab_size_per_layer_input, all_layers),
            model_projection: matrix("projection", all_layers, hidden),
            projection_norm: vec![1.0; width],
        }),
        layers: layers.collect(),
        norm: norm(),
        lm_head: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{
        KvType, MOST_SLOTS_AHEAD, TablePlace, driver_bytes, plan, plan_with_chunk, plan_with_tried,
    };
    use super::*;
    use crate::device::MOST_TRIED;
    use crate::error::RuntimeError;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};
    use serde_json::json;
    use w4pack_format::config::Config;

    /// Gemma 4 E2B's sizes.
    fn e2b() -> TextConfig {
        let kinds: Vec<&str> = (0..35)
            .map(|i| if i % 5 == 4 { "full_attention" } else { "sliding_attention" })
            .collect();
        let config = json!({
            "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text",
            "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35,
            "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
            "global_head_dim": 512, "layer_types": kinds, "sliding_window": 512,
            "num_kv_shared_layers": 20, "use_double_wide_mlp": true,
            "hidden_size_per_layer_input": 256, "vocab_size": 262144,
            "vocab_size_per_layer_input": 262144, "max_position_embeddings": 131072,
            "tie_word_embeddings": true
        });
        let bytes = serde_json::to_vec(&config).expect("JSON prints");
        Config::parse("config.json", &bytes).expect("it is sound").text
    }

    fn wish(mib: usize, context: Option<usize>) -> Wish {
        Wish {
            limit: mib << 20,
            context,
            table: None,
            kv: KvType::F16,
            chunk: 256,
            slots: 1,
            ahead: true,
            tried: 1,
            multiprocessors: 16,
        }
    }

    const MIB: usize = 1 << 20;

    /// The plan for chunks of `wish.chunk` tokens.
    fn plan_with(text: &TextConfig, wish: &Wish) -> Result<Plan> {
        plan(text, &packed_weights(text), wish)
    }

    #[test]
    fn a_second_graph_of_a_step_is_planned_for_few_slots_only() {
        let with = |slots, ahead| driver_bytes(35, &Wish { slots, ahead, ..wish(4096, None) }, 0);
        assert!(with(MOST_SLOTS_AHEAD, true) > with(MOST_SLOTS_AHEAD, false));
        assert_eq!(with(MOST_SLOTS_AHEAD + 1, true), with(MOST_SLOTS_AHEAD + 1, false));
    }

    #[test]
    fn e2b_fits_where_it_must() {
        let text = e2b();
        let whole = plan_with(&text, &wish(2560, Some(2048))).expect("it fits");
        assert_eq!(whole.table, TablePlace::Gpu);
        assert_eq!((whole.sizes.table / MIB, whole.sizes.full), (1260, 12 * MIB));

        // A GTX 1650 Ti shows 3,732 MiB.
        let long = plan_with(&text, &wish(3732, None)).expect("it fits");
        assert_eq!((long.context, long.table), (131_072, TablePlace::Gpu));
        assert_eq!(long.sizes.full, 768 * MIB);
        // Twelve rings with eight rows beside the window.
        assert_eq!(long.sizes.sliding, 12 * 2 * 2 * 256 * 520);
        // An assumption: Turing's driver takes up to 256 MiB for its context and the kernels (an
        // H200's takes 531, for 132 multiprocessors instead of 16).
        assert!(long.sizes.total() + 256 * MIB <= 3732 * MIB, "{}", long.sizes.total() / MIB);

        // Chunks that nobody chose change none of it.
        let weights = packed_weights(&text);
        let chosen = |wish: Wish| plan_with_chunk(&text, &weights, &wish).expect("it fits");
        assert_eq!(chosen(wish(2560, Some(2048))), (whole, 256));
        let (plan, chunk) = chosen(wish(3732, None));
        assert_eq!((plan.context, plan.table, chunk), (131_072, TablePlace::Gpu, 512));
        assert!(plan.sizes.total() + 256 * MIB <= 3732 * MIB, "{}", plan.sizes.total() / MIB);
        let (plan, chunk) = chosen(wish(140_000, None));
        assert_eq!((plan.context, plan.table, chunk), (131_072, TablePlace::Gpu, 2048));

        // Who asks what would fit is told what a model gets, room for tokens that are tried included.
        // An H200's 132 multiprocessors took 3,352 MiB.
        let h200 = Wish { multiprocessors: 132, ..wish(3732, None) };
        let told = plan_for_shape(&text, &h200).expect("it fits");
        assert_eq!((told.context, told.sizes.total() / MIB), (131_072, 3352));

        let host = Wish { table: Some(TablePlace::Host), ..wish(1400, Some(2048)) };
        let host = plan_with(&text, &host).expect("it fits");
        assert_eq!(host.sizes.table, 0);
        assert!(host.sizes.total() < 1330 * MIB, "{}", host.sizes.total() / MIB);
    }

    /// Work space of tokens that go together lies where a chunk's does; what is left are some graphs.
    #[test]
    fn room_for_tokens_that_are_tried_takes_little_or_is_not_taken() {
        let text = e2b();
        let weights = packed_weights(&text);
        let with_chunk = |wish: &Wish| plan_with_chunk(&text, &weights, wish);
        for (mib, context) in [(2560, Some(2048)), (3732, None), (140_000, None)] {
            let mut wish = wish(mib, context);
            let (without, _) = with_chunk(&wish).expect("it fits");
            let (with, _) = plan_with_tried(&mut wish, &with_chunk).expect("it fits");
            assert_eq!(wish.tried, MOST_TRIED, "{mib}");
            assert_eq!((with.context, with.table), (without.context, without.table), "{mib}");
            let more = with.sizes.total() - without.sizes.total();
            assert!(more <= 2 * MIB, "{mib}: {more}");
            assert!(with.sizes.total() <= mib * MIB);
        }
        // Nothing to spare: the context stays, and nothing is tried.
        let (least, _) = with_chunk(&wish(2560, Some(2048))).expect("it fits");
        let mut tight = Wish { limit: least.sizes.total(), ..wish(0, Some(2048)) };
        let (plan, _) = plan_with_tried(&mut tight, &with_chunk).expect("it fits");
        assert_eq!((plan, tight.tried), (least, 1));
    }

    #[test]
    fn the_longest_context_is_the_longest_that_fits() {
        let text = e2b();
        let mut random = ChaCha8Rng::seed_from_u64(6);
        for _ in 0..200 {
            let mut draw = |from: usize, to: usize| from + random.next_u32() as usize % (to - from);
            let wish = Wish {
                kv: [KvType::F16, KvType::Bf16, KvType::Q8][draw(0, 3)],
                chunk: draw(1, 600),
                slots: draw(1, 4),
                multiprocessors: draw(8, 150),
                table: [
                    None,
                    Some(TablePlace::Gpu),
                    Some(TablePlace::Host),
                    Some(TablePlace::Disk),
                ][draw(0, 4)],
                ..wish(draw(1200, 5000), None)
            };
            let found = match plan_with(&text, &wish) {
                Ok(found) => found,
                Err(RuntimeError::CardMemory { longest: None, needed, .. }) => {
                    assert!(needed > wish.limit, "{wish:?}");
                    continue;
                }
                Err(other) => panic!("{wish:?}: {other}"),
            };
            assert!(found.sizes.total() <= wish.limit, "{wish:?}");
            let table = Some(found.table);
            let fixed = Wish { context: Some(found.context), table, ..wish };
            assert_eq!(plan_with(&text, &fixed).expect("it fits"), found);
            if found.context < text.max_position_embeddings {
                let more = Wish { context: Some(found.context + 1), table, ..wish };
                match plan_with(&text, &more) {
                    Err(RuntimeError::CardMemory { longest, .. }) => {
                        assert_eq!(longest, Some(found.context), "{wish:?}");
                    }
                    other => panic!("{wish:?}: {other:?}"),
                }
            }
        }
    }
}
