//! What llama.cpp does with a checkpoint, or with the GGUF file in it.

use std::collections::BTreeSet;

use w4pack_format::Result;
use w4pack_format::gguf::block::Q4_0_BYTES;
use w4pack_format::gguf::{Gguf, GgufTensor, TensorType, Value, names};
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::Source;

use super::{Effect, Finding, about};

/// The rules, in the order in which they are looked at.
pub(super) const RULES: &[&str] = &[
    "no-gguf",
    "several-files",
    "architecture",
    "missing-key",
    "missing-tensor",
    "unknown-tensor",
    "vocabulary",
    "tensor-type",
    "rope-factors",
    "no-bos",
    "hidden-markers",
    "no-template",
    "faulty-steps",
];

/// Keys without which a Gemma 4 is not loaded. Source: `llama-model.cpp` and `llama-hparams`.
const KEYS: [&str; 10] = [
    "gemma4.block_count",
    "gemma4.context_length",
    "gemma4.embedding_length",
    "gemma4.feed_forward_length",
    "gemma4.attention.head_count",
    "gemma4.attention.layer_norm_rms_epsilon",
    "gemma4.attention.sliding_window",
    "gemma4.attention.sliding_window_pattern",
    "gemma4.embedding_length_per_layer_input",
    "tokenizer.ggml.model",
];

/// Markers that llama.cpp's parser of answers must see.
const MARKERS: [&str; 4] = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>"];

/// `llama.h`, `LLAMA_TOKEN_TYPE_CONTROL`.
const CONTROL: u64 = 3;

/// Blocks read at a time.
const BLOCKS: u64 = 1 << 16;

/// The rules that a checkpoint breaks.
pub(super) fn findings(source: &dyn Source) -> Result<Vec<Finding>> {
    let files: Vec<&str> = source
        .files()
        .iter()
        .map(|file| file.path.as_str())
        .filter(|path| path.ends_with(".gguf") && !path.contains('/'))
        .collect();
    let path = match files[..] {
        [] => {
            let detail = "it reads GGUF files only. Its own converter would unpack safetensors and \
                          quantize anew, which loses the trained grid";
            return Ok(about("no-gguf", Effect::Refuses, vec![source.label().into()], detail)
                .into_iter()
                .collect());
        }
        [path] => path,
        _ => {
            let names = files.iter().map(|name| name.to_string()).collect();
            let detail = "each may be a model of its own; give one of them";
            return Ok(about("several-files", Effect::Refuses, names, detail)
                .into_iter()
                .collect());
        }
    };
    let bytes = source.size(path).unwrap_or(0);
    let gguf =
        Gguf::parse(path, bytes, &mut |offset, buffer| source.read_at(path, offset, buffer))?;
    let mut findings = keys(&gguf);
    // Which tensors there must be follows from keys.
    if findings.is_empty() {
        findings.extend(tensors(&gguf));
    }
    findings.extend(text(&gguf));
    findings.extend(steps(source, path, &gguf)?);
    Ok(findings)
}

fn keys(gguf: &Gguf) -> Vec<Finding> {
    let mut findings = Vec::new();
    let architecture = gguf.value("general.architecture").and_then(Value::as_str);
    if architecture != Some("gemma4") {
        let found = architecture.unwrap_or("missing");
        findings.extend(about(
            "architecture",
            Effect::Refuses,
            vec!["general.architecture".into()],
            format!("it is {found}; the tensors of a Gemma 4 are read under `gemma4` only"),
        ));
    }
    findings.extend(about(
        "missing-key",
        Effect::Refuses,
        KEYS.iter().filter(|key| gguf.value(key).is_none()).map(|key| key.to_string()).collect(),
        "loading stops without them",
    ));
    findings
}

/// A whole number of the metadata.
fn number(gguf: &Gguf, key: &str) -> u64 {
    gguf.value(key).and_then(Value::as_u64).unwrap_or(0)
}

fn tensors(gguf: &Gguf) -> Vec<Finding> {
    let mut findings = Vec::new();
    let layers = number(gguf, "gemma4.block_count");
    let owning = layers.saturating_sub(number(gguf, "gemma4.attention.shared_kv_layers"));
    let per_layer = number(gguf, "gemma4.embedding_length_per_layer_input") > 0;
    let mut wanted: BTreeSet<String> =
        ["token_embd.weight", "output_norm.weight"].map(String::from).into();
    if per_layer {
        let tables = ["per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm"];
        wanted.extend(tables.map(|name| format!("{name}.weight")));
    }
    // A file that claims more layers than tensors lacks some of them; a few are enough to say so.
    for layer in 0..layers.min(gguf.tensors.len() as u64 + 1) {
        let always = [
            "attn_norm",
            "attn_q",
            "attn_q_norm",
            "attn_output",
            "post_attention_norm",
            "ffn_norm",
            "ffn_gate",
            "ffn_up",
            "ffn_down",
            "post_ffw_norm",
            "layer_output_scale",
        ];
        let keys = ["attn_k", "attn_k_norm", "attn_v"];
        let inputs = ["inp_gate", "proj", "post_norm"];
        let parts = always
            .into_iter()
            .chain(keys.into_iter().filter(|_| layer < owning))
            .chain(inputs.into_iter().filter(|_| per_layer));
        wanted.extend(parts.map(|part| format!("blk.{layer}.{part}.weight")));
    }
    let there: BTreeSet<String> = gguf.tensors.iter().map(|tensor| tensor.name.clone()).collect();
    findings.extend(about(
        "missing-tensor",
        Effect::Refuses,
        wanted.difference(&there).cloned().collect(),
        "the metadata demands them, and loading stops without them",
    ));
    let known =
        |name: &str| wanted.contains(name) || [names::ROPE_FREQS, "output.weight"].contains(&name);
    let unused = |name: &str| names::from_gguf(name).is_some();
    findings.extend(about(
        "unknown-tensor",
        Effect::Refuses,
        there.iter().filter(|name| !known(name) && !unused(name)).cloned().collect(),
        "\"wrong number of tensors\": the architecture has none of these names",
    ));
    let tokens = gguf.value("tokenizer.ggml.tokens").and_then(Value::as_array);
    let tokens = tokens.map_or(0, |tokens| tokens.len());
    let rows = gguf.tensor("token_embd.weight").map_or(0, |table| table.shape[0]);
    if rows != tokens {
        findings.extend(about(
            "vocabulary",
            Effect::Refuses,
            vec!["tokenizer.ggml.tokens".into(), "token_embd.weight".into()],
            format!("{tokens} tokens, but the table has {rows} rows"),
        ));
    }
    let vectors =
        |tensor: &&GgufTensor| tensor.shape.len() == 1 && tensor.tensor_type != TensorType::F32;
    findings.extend(about(
        "tensor-type",
        Effect::Refuses,
        gguf.tensors.iter().filter(vectors).map(|tensor| tensor.name.clone()).collect(),
        "vectors are added and multiplied in f32 only",
    ));
    if gguf.tensor(names::ROPE_FREQS).is_none() {
        findings.extend(about(
            "rope-factors",
            Effect::Misreads,
            vec![names::ROPE_FREQS.into()],
            "without it the full layers turn the whole head instead of a quarter of its pairs",
        ));
    }
    findings
}

fn text(gguf: &Gguf) -> Vec<Finding> {
    let mut findings = Vec::new();
    let key = "tokenizer.ggml.add_bos_token";
    if gguf.value(key).and_then(Value::as_bool) != Some(true) {
        findings.extend(about(
            "no-bos",
            Effect::Misreads,
            vec![key.into()],
            "a raw prompt gets no <bos> in front, and without it Gemma degenerates",
        ));
    }
    let array = |key: &str| gguf.value(key).and_then(Value::as_array);
    let tokens = array("tokenizer.ggml.tokens").and_then(|tokens| tokens.texts());
    let types = array("tokenizer.ggml.token_type").and_then(|types| types.values());
    if let (Some(tokens), Some(types)) = (tokens, types) {
        let hidden = tokens.zip(types).filter(|(token, token_type)| {
            MARKERS.contains(token) && token_type.as_u64() == Some(CONTROL)
        });
        findings.extend(about(
            "hidden-markers",
            Effect::Misreads,
            hidden.map(|(token, _)| token.to_string()).collect(),
            "control tokens are not shown, and the parser of thoughts and tool calls needs these",
        ));
    }
    let key = "tokenizer.chat_template";
    if gguf.value(key).is_none() {
        let detail = "no chat template: a chat is formatted by a template that is not this model's";
        findings.extend(about("no-template", Effect::Note, vec![key.into()], detail));
    }
    findings
}

/// Q4_0 steps that make no numbers.
fn steps(source: &dyn Source, path: &str, gguf: &Gguf) -> Result<Vec<Finding>> {
    let mut faulty = Vec::new();
    let mut buffer = Vec::new();
    for tensor in gguf.tensors.iter().filter(|tensor| tensor.tensor_type == TensorType::Q4_0) {
        let (begin, mut at) = (gguf.data_start + tensor.begin, 0);
        let mut bad = 0u64;
        while at < tensor.bytes {
            buffer.resize((tensor.bytes - at).min(BLOCKS * Q4_0_BYTES as u64) as usize, 0);
            source.read_at(path, begin + at, &mut buffer)?;
            let (blocks, _) = buffer.as_chunks::<Q4_0_BYTES>();
            let step = |block: &[u8; Q4_0_BYTES]| ScaleDtype::F16.read(block);
            // A step of 0 is llama.cpp's own for a group of zeros.
            bad += blocks.iter().filter(|block| !step(block).is_finite()).count() as u64;
            at += buffer.len() as u64;
        }
        if bad > 0 {
            faulty.push(format!("{} ({bad} groups)", tensor.name));
        }
    }
    let detail = "steps that are NaN or infinite: their groups come out as that";
    Ok(about("faulty-steps", Effect::Misreads, faulty, detail).into_iter().collect())
}
