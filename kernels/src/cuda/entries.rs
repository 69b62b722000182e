//! The kernels by name.

/// Kernels whose names are not one of a source file's own: every entry point, by source.
pub(super) const ENTRIES: [(&str, &[&str]); 17] = [
    ("attend_mma", &["attend_mma_64", "attend_mma_256", "attend_mma_512"]),
    (
        "attention_decode",
        &[
            "attention_f16_32_1",
            "attention_f16_64_1",
            "attention_f16_256_1",
            "attention_f16_512_1",
            "attention_f16_64_8",
            "attention_f16_512_8",
            "attention_bf16_32_1",
            "attention_bf16_64_1",
            "attention_bf16_256_1",
            "attention_bf16_512_1",
            "attention_bf16_64_8",
            "attention_bf16_512_8",
            "attention_q8_32_1",
            "attention_q8_64_1",
            "attention_q8_256_1",
            "attention_q8_512_1",
            "attention_q8_64_8",
            "attention_q8_512_8",
            "attention_join",
        ],
    ),
    (
        "attention_prefill",
        &[
            "rope_f16_32",
            "rope_f16_64",
            "rope_f16_256",
            "rope_f16_512",
            "rope_bf16_32",
            "rope_bf16_64",
            "rope_bf16_256",
            "rope_bf16_512",
            "rope_q8_32",
            "rope_q8_64",
            "rope_q8_256",
            "rope_q8_512",
            "attend_f16_32",
            "attend_f16_64",
            "attend_f16_256",
            "attend_f16_512",
            "attend_bf16_32",
            "attend_bf16_64",
            "attend_bf16_256",
            "attend_bf16_512",
            "attend_q8_32",
            "attend_q8_64",
            "attend_q8_256",
            "attend_q8_512",
            "commit_f16",
            "commit_bf16",
            "commit_q8",
        ],
    ),
    ("bandwidth", &["read_all", "fill_random"]),
    (
        "batch_product",
        &[
            "batch_store_8_0",
            "batch_store_8_1",
            "batch_store_8_2",
            "batch_store_8_3",
            "batch_geglu_8_0",
            "batch_geglu_8_3",
            "batch_gated_8_0",
            "batch_gated_8_3",
            "batch_logits_8_0",
            "batch_logits_8_3",
            "batch_store_16_0",
            "batch_store_16_1",
            "batch_store_16_2",
            "batch_store_16_3",
            "batch_geglu_16_0",
            "batch_geglu_16_3",
            "batch_gated_16_0",
            "batch_gated_16_3",
            "batch_logits_16_0",
            "batch_logits_16_3",
            "batch_digits",
        ],
    ),
    ("embed", &["embed", "per_layer_inputs"]),
    ("gemm_ffma", &["gemm_ffma"]),
    ("gemm_mma", &["gemm_mma", "gemm_mma_wide"]),
    (
        "gemv",
        &[
            "gemv_f16_1",
            "gemv_f16_2",
            "gemv_f16_3",
            "gemv_m1",
            "gemv_m2",
            "gemv_m3",
            "gemv_m4",
            "gemv_m5",
            "gemv_m6",
            "gemv_m7",
            "gemv_m8",
            "digits",
        ],
    ),
    ("gemv_tall", &["gemv_tall_1", "gemv_tall_2", "gemv_tall_3"]),
    ("rows", &["norm_rows", "map_rows", "softcap"]),
    (
        "token_attention",
        &[
            "token_attention_sliding_64",
            "token_attention_sliding_256",
            "token_attention_sliding_512",
            "token_attention_full_64",
            "token_attention_full_256",
            "token_attention_full_512",
            "token_join",
        ],
    ),
    ("token_block", &["token_block"]),
    ("token_chain", &["token_chain"]),
    ("token_keys", &["token_keys_64", "token_keys_256", "token_keys_512"]),
    ("token_long", &["token_long_two", "token_long_four"]),
    (
        "token_product",
        &[
            "token_normed",
            "token_plain",
            "token_geglu",
            "token_gated",
            "token_logits",
            "token_normed_1536",
            "token_geglu_1536",
            "token_gated_1536",
            "token_logits_1536",
            "token_plain_1536",
            "token_plain_256",
            "token_plain_two",
            "token_plain_three",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::images::targets;

    /// A source without entries would be found out by a card only.
    #[test]
    fn every_image_has_its_kernels_listed() {
        for target in targets() {
            let images: Vec<&str> = target.images.iter().map(|(source, _)| *source).collect();
            let listed: Vec<&str> = ENTRIES.iter().map(|(source, _)| *source).collect();
            assert_eq!(images, listed, "{}", target.name);
            for ((_, image), (source, entries)) in target.unpacked().zip(ENTRIES) {
                for entry in entries {
                    let found = image.windows(entry.len()).any(|part| part == entry.as_bytes());
                    assert!(found, "{}: no {entry} in {source}", target.name);
                }
            }
        }
    }
}
