//! The GGUF file in the hands of llama.cpp: its own library, and the real engine.

use crate::support::*;
use serde_json::Value;
use std::path::{Path, PathBuf};
use w4pack_format::gguf::{Gguf, TensorType};

/// The trained model as Google's would come, as GGUF, and packed with the same codes and steps.
fn conversions(folder: &Path) -> [PathBuf; 3] {
    let [source, gguf, packed] = ["google", "gguf", "packed"].map(|name| folder.join(name));
    w4pack_fixtures::trained::write(&source).unwrap();
    let convert = ["convert", text(&source), "--quiet", "--out"];
    succeed(&[&convert[..], &[text(&gguf), "--layout", "gguf"]].concat());
    succeed(&[&convert[..], &[text(&packed)]].concat());
    [source, gguf.join("model-Q4_0.gguf"), packed]
}

#[test]
fn llama_cpps_library_reads_every_tensor_and_the_same_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    let [source, gguf, packed] = conversions(folder.path());
    let arguments = [text(&gguf), text(&packed), text(&source)];
    let Some(said) = python("gguf_read.py", &arguments) else { return };
    let counts: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(counts["values"], 5_931_008);
    assert_eq!(counts["tokens"], 2304);
}

/// The same of the other release that has a GGUF layout.
#[test]
fn llama_cpps_library_reads_an_e4b_too() {
    let folder = tempfile::tempdir().unwrap();
    let [source, gguf, packed] = ["google", "gguf", "packed"].map(|name| folder.path().join(name));
    succeed(&["fixture", "tiny-e4b", "--out", text(&source), "--quiet"]);
    let convert = ["convert", text(&source), "--quiet", "--out"];
    succeed(&[&convert[..], &[text(&gguf), "--layout", "gguf"]].concat());
    succeed(&[&convert[..], &[text(&packed)]].concat());
    let gguf = gguf.join("model-Q4_0.gguf");
    let arguments = [text(&gguf), text(&packed), text(&source)];
    let Some(said) = python("gguf_read.py", &arguments) else { return };
    let counts: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!((&counts["values"], &counts["tokens"]), (&3_121_152.into(), &2048.into()));
}

/// llama.cpp quantizes activations to 8 bits, so logits differ a little. Greedy tokens must be the
/// same up to the first step at which our two likeliest tokens are nearer to each other than five
/// times the largest difference seen.
#[test]
fn llama_cpp_gives_our_greedy_tokens() {
    const TOKENS: usize = 24;
    let folder = tempfile::tempdir().unwrap();
    let [_, gguf, packed] = conversions(folder.path());
    // As a packed checkpoint the file is the very same model.
    let greedy = ["--tokens", "2,105,300", "--max-tokens", "8", "--temperature", "0", "--json"];
    let logits_of = |model: &Path, name: &str| {
        let file = folder.path().join(name);
        let run = ["run", "--model", text(model), "--logits", text(&file)];
        succeed(&[&run[..], &greedy].concat());
        floats(&file, "logits")
    };
    assert!(logits_of(&gguf, "a.safetensors") == logits_of(&packed, "b.safetensors"));
    let answers = include_str!("../../../fixtures/trained/reference_answers.json");
    let answers: Value = serde_json::from_str(answers).unwrap();
    let prompts: Vec<String> = answers
        .as_array()
        .unwrap()
        .iter()
        .filter(|answer| answer["prompt_ids"].as_array().unwrap().len() < 300)
        .take(24)
        .map(|answer| comma_separated(&answer["prompt_ids"]))
        .collect();
    assert_eq!(prompts.len(), 24);
    let count = TOKENS.to_string();
    let mut arguments = vec![text(&gguf), "--tokens", &count];
    prompts.iter().for_each(|prompt| arguments.extend(["--prompt", prompt]));
    let Some(said) = python("llama_cpp_greedy.py", &arguments) else { return };
    let theirs: Vec<Value> = said
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(theirs.len(), prompts.len());

    let mut agreement = Agreement::default();
    let logits = folder.path().join("logits.safetensors");
    for (prompt, theirs) in prompts.iter().zip(&theirs) {
        let run = ["run", "--model", text(&packed), "--tokens", prompt, "--max-tokens", &count];
        let flags = ["--temperature", "0", "--ignore-eos", "--json", "--logits", text(&logits)];
        let ours = stdout_json(&succeed(&[&run[..], &flags].concat()));
        let vocabulary = 2304;
        let rows = floats(&logits, "logits");
        let first = prompt.split(',').count() - 1;
        let rows = rows.chunks(vocabulary).skip(first).map(log_probabilities);
        agreement.add(&ours["tokens"], theirs, rows);
    }
    eprintln!(
        "{} of {} answers equal to their end, {} tokens compared; largest difference of log \
         probabilities {:.3}; margins where answers part: {:?}",
        agreement.whole,
        prompts.len(),
        agreement.same,
        agreement.largest,
        agreement.parted
    );
    for (margin, step) in &agreement.parted {
        assert!(*margin < 5.0 * agreement.largest, "step {step}: margin {margin}");
    }
    assert!(2 * agreement.whole > prompts.len());
}

/// `<eos>`, `<|tool_response>` and `<turn|>`.
const ENDS: [u64; 3] = [1, 50, 106];

#[derive(Default)]
struct Agreement {
    /// Answers that are equal to their end.
    whole: usize,
    /// Tokens before the first that differs.
    same: usize,
    /// The largest difference of log probabilities, over steps with equal tokens before them.
    largest: f32,
    /// Where tokens differ: by how much our likeliest leads, and the step.
    parted: Vec<(f32, usize)>,
}

impl Agreement {
    fn add(&mut self, ours: &Value, theirs: &Value, rows: impl Iterator<Item = Vec<f32>>) {
        for (step, row) in rows.enumerate() {
            // Far down the list differences mean nothing for what is chosen.
            for likely in theirs["likeliest"][step].as_array().unwrap().iter().take(5) {
                let id = likely[0].as_u64().unwrap() as usize;
                let difference = (likely[1].as_f64().unwrap() as f32 - row[id]).abs();
                self.largest = self.largest.max(difference);
            }
            // Told to go on, llama.cpp never chooses a token that ends an answer; w4pack does.
            if ENDS.contains(&ours[step].as_u64().unwrap()) {
                break;
            }
            if ours[step] != theirs["tokens"][step] {
                let mut sorted = row;
                sorted.sort_by(|a, b| b.total_cmp(a));
                self.parted.push((sorted[0] - sorted[1], step));
                return;
            }
            self.same += 1;
        }
        self.whole += 1;
    }
}

fn log_probabilities(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    logits.iter().map(|logit| logit - largest - sum.ln() as f32).collect()
}

/// Field by field the way back: a GGUF file becomes the packed checkpoint that it was made beside.
#[test]
fn a_gguf_file_is_packed_again_without_touching_a_code() {
    let folder = tempfile::tempdir().unwrap();
    let [source, gguf, packed] = conversions(folder.path());
    let again = folder.path().join("again");
    succeed(&["convert", text(&gguf), "--out", text(&again), "--quiet"]);
    let (ours, theirs) = [&again, &packed].map(|path| path.join("model.safetensors")).into();
    let (ours, theirs) = (std::fs::read(ours).unwrap(), std::fs::read(theirs).unwrap());
    let read = |bytes| safetensors::SafeTensors::deserialize(bytes).unwrap();
    let (ours, theirs) = (read(&ours), read(&theirs));
    let names: std::collections::BTreeSet<_> = ours.names().into_iter().collect();
    assert_eq!(names, theirs.names().into_iter().collect());
    for name in names {
        let (one, other) = (ours.tensor(name).unwrap(), theirs.tensor(name).unwrap());
        assert!(one.dtype() == other.dtype() && one.data() == other.data(), "{name}");
    }
    // Its tokenizer answers like the source's.
    let ask = |model: &Path| {
        let run = ["run", "--model", text(model), "--prompt", "What's 17+25?"];
        let ran = succeed(&[&run[..], &["--temperature", "0", "--json"]].concat());
        let answer = stdout_json(&ran);
        (answer["text"].clone(), answer["prompt_tokens"].clone())
    };
    assert_eq!(ask(&again), ask(&source));
    assert_eq!(ask(&gguf), ask(&source));
}

/// Q6_K, which llama.cpp gives to tied tables, is on no 4-bit grid.
#[test]
fn a_q6_k_table_is_refused_or_kept_in_bf16() {
    let folder = tempfile::tempdir().unwrap();
    let [_, gguf, _] = conversions(folder.path());
    let mixed = folder.path().join("mixed.gguf");
    std::fs::write(&mixed, with_q6_k_table(&std::fs::read(&gguf).unwrap())).unwrap();
    let out = folder.path().join("out");
    let convert = ["convert", text(&mixed), "--out", text(&out), "--quiet"];
    let talk = refuse(1, &convert);
    assert!(talk.contains("model.embed_tokens.weight") && talk.contains("off"), "{talk}");
    assert!(talk.contains("--allow-off-grid") && !out.exists(), "{talk}");
    let allowed = succeed(&[&convert[..], &["--allow-off-grid", "--json"]].concat());
    let report = stdout_json(&allowed);
    assert_eq!(report["off_grid"][0]["module"], "model.embed_tokens");
    assert_eq!(report["off_grid"].as_array().unwrap().len(), 1);
    for model in [&mixed, &out] {
        let run = ["run", "--model", text(model), "--tokens", "2,105,300", "--max-tokens", "4"];
        succeed(&[&run[..], &["--temperature", "0"]].concat());
    }
    // In bf16 the table is tied as it is, which every loader of safetensors takes.
    for loader in ["transformers", "vllm"] {
        succeed(&["doctor", text(&out), "--for", loader]);
    }
    succeed(&["doctor", text(&mixed), "--for", "llama.cpp"]);
}

/// The same file with `token_embd` as Q6_K blocks of any bits.
fn with_q6_k_table(bytes: &[u8]) -> Vec<u8> {
    let mut read = |offset: u64, buffer: &mut [u8]| {
        buffer.copy_from_slice(&bytes[offset as usize..][..buffer.len()]);
        Ok(())
    };
    let old = Gguf::parse("old", bytes.len() as u64, &mut read).unwrap();
    let table = "token_embd.weight";
    let entries: Vec<_> = old
        .tensors
        .iter()
        .map(|tensor| {
            let tensor_type =
                if tensor.name == table { TensorType::Q6_K } else { tensor.tensor_type };
            (tensor.name.clone(), tensor_type, tensor.shape.clone())
        })
        .collect();
    let new = Gguf::lay_out(old.metadata.clone(), &entries).unwrap();
    let mut file = new.prefix();
    for (old_tensor, tensor) in old.tensors.iter().zip(&new.tensors) {
        file.resize((new.data_start + tensor.begin) as usize, 0);
        if tensor.name != table {
            let begin = (old.data_start + old_tensor.begin) as usize;
            file.extend_from_slice(&bytes[begin..begin + old_tensor.bytes as usize]);
            continue;
        }
        for block in 0..tensor.bytes / 210 {
            file.extend((0..208).map(|i| (block * 31 + i * 73 + 41) as u8));
            file.extend([0x33, 0x00]); // A step of some 3e-6 keeps the weights small.
        }
    }
    file.resize(new.file_bytes() as usize, 0);
    file
}
