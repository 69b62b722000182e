//! The doctor on GGUF: each rule of llama.cpp with a file that breaks it.

use std::collections::BTreeSet;

use w4pack_format::gguf::names::ROPE_FREQS;
use w4pack_format::gguf::{Array, Gguf, Kind, TensorType, Value};
use w4pack_verify::doctor::{Diagnosis, Effect, Loader, diagnose};

use crate::support::memory::{Files, MemorySource};

/// A GGUF file in parts.
pub struct Blocks {
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, TensorType, Vec<usize>)>,
    /// Bytes of every Q4_0 block.
    block: [u8; 18],
    /// Other files of the same kind.
    more: usize,
}

impl Blocks {
    /// One layer, which owns its keys and values.
    pub fn sound() -> Blocks {
        let number = |key: &str, value| (format!("gemma4.{key}"), Value::U32(value));
        let mut metadata = vec![
            ("general.architecture".to_string(), Value::String("gemma4".into())),
            number("block_count", 1),
            number("context_length", 64),
            number("embedding_length", 32),
            number("feed_forward_length", 32),
            number("attention.head_count", 1),
            number("attention.sliding_window", 8),
            number("embedding_length_per_layer_input", 32),
            ("gemma4.attention.layer_norm_rms_epsilon".into(), Value::F32(1e-6)),
        ];
        let pattern = Array::of_values(Kind::Bool, [Value::Bool(false)]);
        let key = "gemma4.attention.sliding_window_pattern".to_string();
        metadata.push((key, Value::Array(pattern)));
        let types = Array::of_values(Kind::I32, [1, 4].map(Value::I32));
        metadata.extend([
            ("tokenizer.ggml.model".into(), Value::String("gemma4".into())),
            ("tokenizer.ggml.tokens".into(), Value::Array(Array::of_texts(["a", "<|channel>"]))),
            ("tokenizer.ggml.token_type".into(), Value::Array(types)),
            ("tokenizer.chat_template".into(), Value::String("{{ bos_token }}".into())),
            ("tokenizer.ggml.add_bos_token".into(), Value::Bool(true)),
        ]);
        let vectors = [
            "output_norm",
            "per_layer_proj_norm",
            "blk.0.attn_norm",
            "blk.0.attn_q_norm",
            "blk.0.attn_k_norm",
            "blk.0.post_attention_norm",
            "blk.0.ffn_norm",
            "blk.0.post_ffw_norm",
            "blk.0.post_norm",
            "blk.0.layer_output_scale",
        ];
        let matrices = [
            "token_embd",
            "per_layer_token_embd",
            "per_layer_model_proj",
            "blk.0.attn_q",
            "blk.0.attn_k",
            "blk.0.attn_v",
            "blk.0.attn_output",
            "blk.0.ffn_gate",
            "blk.0.ffn_up",
            "blk.0.ffn_down",
            "blk.0.inp_gate",
            "blk.0.proj",
        ];
        let mut tensors = vec![(ROPE_FREQS.to_string(), TensorType::F32, vec![16])];
        let named = |name: &str| format!("{name}.weight");
        tensors.extend(vectors.map(|name| (named(name), TensorType::F32, vec![32])));
        tensors.extend(matrices.map(|name| (named(name), TensorType::Q4_0, vec![2, 32])));
        let mut block = [0x88; 18];
        block[..2].copy_from_slice(&0x3c00_u16.to_le_bytes());
        Blocks { metadata, tensors, block, more: 0 }
    }

    fn ask(&self) -> Diagnosis {
        self.ask_for(Loader::LlamaCpp)
    }

    pub fn ask_for(&self, loader: Loader) -> Diagnosis {
        let gguf = Gguf::lay_out(self.metadata.clone(), &self.tensors).unwrap();
        let mut bytes = gguf.prefix();
        bytes.resize(gguf.file_bytes() as usize, 0);
        for tensor in gguf.tensors.iter().filter(|t| t.tensor_type == TensorType::Q4_0) {
            let begin = (gguf.data_start + tensor.begin) as usize;
            for block in bytes[begin..begin + tensor.bytes as usize].chunks_mut(18) {
                block.copy_from_slice(&self.block);
            }
        }
        let name = |number: usize| (format!("model-{number}.gguf"), bytes.clone());
        let files: Files = (0..=self.more).map(name).collect();
        diagnose(MemorySource::shared(files), loader).unwrap()
    }

    fn set(&mut self, key: &str, value: Value) {
        self.metadata.iter_mut().find(|(name, _)| name == key).unwrap().1 = value;
    }

    fn forget(&mut self, key: &str) {
        self.metadata.retain(|(name, _)| name != key);
    }

    fn drop_tensor(&mut self, tensor: &str) {
        self.tensors.retain(|(name, ..)| name != tensor);
    }
}

#[test]
fn each_rule_of_llama_cpp_has_a_file_that_breaks_it() {
    use Effect::*;
    let sound = Blocks::sound().ask();
    assert!(sound.loads && sound.findings.is_empty(), "{sound}");
    type Case<'c> = (&'c str, Effect, &'c dyn Fn(&mut Blocks));
    let cases: &[Case<'_>] = &[
        ("several-files", Refuses, &|blocks| blocks.more = 1),
        ("architecture", Refuses, &|blocks| {
            blocks.set("general.architecture", Value::String("gemma3".into()));
        }),
        ("missing-key", Refuses, &|blocks| blocks.forget("gemma4.block_count")),
        ("missing-tensor", Refuses, &|blocks| blocks.drop_tensor("blk.0.attn_k.weight")),
        ("unknown-tensor", Refuses, &|blocks| {
            blocks.tensors.push(("v.patch_embd.weight".into(), TensorType::F32, vec![4]));
        }),
        ("vocabulary", Refuses, &|blocks| {
            blocks.set("tokenizer.ggml.tokens", Value::Array(Array::of_texts(["a"])));
        }),
        ("tensor-type", Refuses, &|blocks| {
            let norm = blocks.tensors.iter_mut().find(|t| t.0 == "output_norm.weight").unwrap();
            norm.1 = TensorType::BF16;
        }),
        ("rope-factors", Misreads, &|blocks| blocks.drop_tensor(ROPE_FREQS)),
        ("no-bos", Misreads, &|blocks| {
            blocks.set("tokenizer.ggml.add_bos_token", Value::Bool(false));
        }),
        ("hidden-markers", Misreads, &|blocks| {
            let types = Array::of_values(Kind::I32, [1, 3].map(Value::I32));
            blocks.set("tokenizer.ggml.token_type", Value::Array(types));
        }),
        ("no-template", Note, &|blocks| blocks.forget("tokenizer.chat_template")),
        ("faulty-steps", Misreads, &|blocks| {
            blocks.block[..2].copy_from_slice(&0x7c00_u16.to_le_bytes());
        }),
    ];
    for (rule, effect, change) in cases {
        let mut blocks = Blocks::sound();
        change(&mut blocks);
        let diagnosis = blocks.ask();
        let found = diagnosis.findings.iter().find(|finding| finding.rule == *rule);
        assert_eq!(found.unwrap_or_else(|| panic!("{rule}: {diagnosis}")).effect, *effect);
        assert_eq!(diagnosis.loads, *effect == Note);
    }
    let mut tried: BTreeSet<&str> = cases.iter().map(|case| case.0).collect();
    // The checkpoints of the tests above hold no GGUF file.
    tried.insert("no-gguf");
    assert_eq!(tried, Loader::LlamaCpp.rules().iter().copied().collect());
}
