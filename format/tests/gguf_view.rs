//! A GGUF file read as a packed checkpoint.

use std::path::Path;
use std::sync::Arc;

use half::{bf16, f16};
use w4pack_format::FormatError;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::{Config, LayerKind};
use w4pack_format::gguf::block::{Q6_K_BYTES, q4_0_from_codes, q6_k_values};
use w4pack_format::gguf::names::{ROPE_FREQS, to_gguf};
use w4pack_format::gguf::view::{model_file, open};
use w4pack_format::gguf::{Array, Gguf, Kind, TensorType, Value};
use w4pack_format::group::{unpack, words_from_bytes};
use w4pack_format::names::{NameLayout, Role, text_tensors};
use w4pack_format::quantization::ModuleClass;
use w4pack_format::source::{FolderSource, Source};

/// A small model as llama.cpp has it: four layers, the last two without keys and values.
struct File {
    metadata: Vec<(String, Value)>,
    /// Name, type, shape, bytes.
    tensors: Vec<(String, TensorType, Vec<usize>, Vec<u8>)>,
}

fn bits(seed: usize) -> usize {
    let mixed =
        (seed as u64).wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ mixed >> 29) as usize
}

fn codes(group: usize) -> [i8; 32] {
    std::array::from_fn(|i| (bits(group * 32 + i) % 16) as i8 - 8)
}

fn step(group: usize) -> f16 {
    let size = 0.01 + (bits(group) % 100) as f32 / 1000.0;
    f16::from_f32(if group.is_multiple_of(3) { -size } else { size })
}

impl File {
    /// `embed_tokens` as Q6_K, everything else as Q4_0.
    fn small() -> File {
        let number = |key: &str, value: u32| (format!("gemma4.{key}"), Value::U32(value));
        let text = |key: &str, value: &str| (key.to_string(), Value::String(value.into()));
        let list = |of, values: Vec<Value>| Value::Array(Array::of_values(of, values));
        let tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>", "a", "b", "ab", "[PAD8]", "▁"];
        let types = [3, 3, 3, 2, 3, 1, 1, 1, 5, 1].map(Value::I32).into();
        let metadata = vec![
            text("general.architecture", "gemma4"),
            number("block_count", 4),
            number("context_length", 512),
            number("embedding_length", 256),
            (
                "gemma4.feed_forward_length".into(),
                list(Kind::I32, [64, 64, 128, 128].map(Value::I32).into()),
            ),
            number("attention.head_count", 2),
            number("attention.head_count_kv", 1),
            ("gemma4.rope.freq_base".into(), Value::F32(1e6)),
            ("gemma4.rope.freq_base_swa".into(), Value::F32(1e4)),
            ("gemma4.attention.layer_norm_rms_epsilon".into(), Value::F32(1e-6)),
            number("attention.key_length", 64),
            number("attention.value_length", 64),
            ("gemma4.final_logit_softcapping".into(), Value::F32(30.0)),
            number("attention.sliding_window", 8),
            number("attention.shared_kv_layers", 2),
            number("embedding_length_per_layer_input", 32),
            (
                "gemma4.attention.sliding_window_pattern".into(),
                list(Kind::Bool, [true, false, true, false].map(Value::Bool).into()),
            ),
            number("attention.key_length_swa", 32),
            number("attention.value_length_swa", 32),
            number("rope.dimension_count", 64),
            number("rope.dimension_count_swa", 32),
            text("tokenizer.ggml.model", "gemma4"),
            ("tokenizer.ggml.tokens".into(), Value::Array(Array::of_texts(tokens))),
            ("tokenizer.ggml.token_type".into(), list(Kind::I32, types)),
            ("tokenizer.ggml.merges".into(), Value::Array(Array::of_texts(["a b"]))),
            ("tokenizer.ggml.bos_token_id".into(), Value::U32(2)),
            ("tokenizer.ggml.eos_token_id".into(), Value::U32(1)),
            ("tokenizer.ggml.padding_token_id".into(), Value::U32(0)),
            text("tokenizer.chat_template", "{{ bos_token }}"),
        ];
        let factors = [[1.0_f32; 8], [1e30; 8], [1e30; 8], [1e30; 8]].concat();
        let factors = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
        let mut tensors = vec![(ROPE_FREQS.to_string(), TensorType::F32, vec![32], factors)];
        let config = br#"{"model_type": "gemma4_text", "num_hidden_layers": 4, "hidden_size": 256,
            "num_kv_shared_layers": 2, "intermediate_size": 64, "use_double_wide_mlp": true,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
            "global_head_dim": 64, "vocab_size": 10, "vocab_size_per_layer_input": 10,
            "hidden_size_per_layer_input": 32, "layer_types": ["sliding_attention",
            "full_attention", "sliding_attention", "full_attention"]}"#;
        let config = Config::parse("config.json", config).unwrap();
        for (number, tensor) in text_tensors(&config.text).into_iter().enumerate() {
            let elements: usize = tensor.shape.iter().product();
            let (tensor_type, bytes) = match tensor.role {
                Role::Vector => {
                    let value = |i| bf16::from_f32(0.5 + (bits(number + i) % 64) as f32 / 64.0);
                    (
                        TensorType::F32,
                        (0..elements).flat_map(|i| value(i).to_f32().to_le_bytes()).collect(),
                    )
                }
                Role::EmbedTokens => {
                    let mut bytes: Vec<u8> =
                        (0..elements / 256 * Q6_K_BYTES).map(|i| bits(i) as u8).collect();
                    for block in bytes.chunks_mut(Q6_K_BYTES) {
                        block[208..].copy_from_slice(&f16::from_f32(0.001).to_le_bytes());
                    }
                    (TensorType::Q6_K, bytes)
                }
                _ => {
                    let first = 1000 * number;
                    let block = |group| q4_0_from_codes(&codes(first + group), step(first + group));
                    (TensorType::Q4_0, (0..elements / 32).flat_map(block).collect())
                }
            };
            let name = to_gguf(&tensor.name).unwrap();
            tensors.push((name, tensor_type, tensor.shape, bytes));
        }
        File { metadata, tensors }
    }

    fn tensor(&mut self, name: &str) -> &mut (String, TensorType, Vec<usize>, Vec<u8>) {
        self.tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap()
    }

    fn set(&mut self, key: &str, value: Value) {
        self.metadata.iter_mut().find(|(name, _)| name == key).unwrap().1 = value;
    }

    fn write(&self, path: &Path) {
        let entry = |(name, tensor_type, shape, _): &(String, TensorType, Vec<usize>, Vec<u8>)| {
            (name.clone(), *tensor_type, shape.clone())
        };
        let entries: Vec<_> = self.tensors.iter().map(entry).collect();
        let gguf = Gguf::lay_out(self.metadata.clone(), &entries).unwrap();
        let mut bytes = gguf.prefix();
        for (tensor, info) in self.tensors.iter().zip(&gguf.tensors) {
            bytes.resize((gguf.data_start + info.begin) as usize, 0);
            bytes.extend_from_slice(&tensor.3);
        }
        std::fs::write(path, bytes).unwrap();
    }

    /// The file as a packed checkpoint.
    fn view(&self) -> Result<(tempfile::TempDir, Arc<dyn Source>), FormatError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model-Q4_0.gguf");
        self.write(&path);
        let view = open(Arc::new(FolderSource::open(&path)?))?;
        Ok((folder, view))
    }
}

#[test]
fn a_gguf_file_is_a_packed_checkpoint() {
    let (_folder, view) = File::small().view().unwrap();
    let config = Config::load(&*view).unwrap();
    assert!(config.unknown.is_empty(), "{:?}", config.unknown);
    assert_eq!(config.layout, NameLayout::TextOnly);
    let text = &config.text;
    assert_eq!((text.hidden_size, text.vocab_size, text.num_kv_shared_layers), (256, 10, 2));
    assert_eq!(text.rms_norm_eps, 1e-6, "and not the f32 next to it");
    assert_eq!(text.final_logit_softcapping, Some(30.0));
    let widths: Vec<usize> = text.layers.iter().map(|layer| layer.intermediate_size).collect();
    assert_eq!(widths, [64, 64, 128, 128]);
    let full = &text.layers[1];
    assert_eq!((full.kind, full.head_dim, full.rope.theta), (LayerKind::Full, 64, 1e6));
    assert_eq!((full.rope.rotated_pairs, text.layers[0].rope.rotated_pairs), (8, 16));

    let checkpoint = Checkpoint::open(view).unwrap();
    let quantization = config.quantization.unwrap();
    for (number, tensor) in text_tensors(text).iter().enumerate() {
        let module = format!("model.{}", tensor.module());
        let packed = checkpoint.tensor(&format!("{module}.weight_packed")).is_some();
        assert_eq!(quantization.covers(&module, ModuleClass::Linear), packed, "{module}");
        if !packed {
            let name = format!("model.{}", tensor.name);
            assert_eq!(checkpoint.tensor(&name).unwrap().info.shape, tensor.shape);
            continue;
        }
        let words = checkpoint.read(&format!("{module}.weight_packed")).unwrap();
        let scales = checkpoint.read(&format!("{module}.weight_scale")).unwrap();
        for (group, words) in words.as_chunks::<16>().0.iter().enumerate() {
            assert_eq!(unpack(&words_from_bytes(words)), codes(1000 * number + group));
            let stored = &scales[2 * group..][..2];
            assert_eq!(stored, step(1000 * number + group).to_le_bytes());
        }
        let shape = checkpoint.read(&format!("{module}.weight_shape")).unwrap();
        let wanted: Vec<u8> = tensor.shape.iter().flat_map(|&n| (n as i64).to_le_bytes()).collect();
        assert_eq!(shape, wanted);
    }
}

#[test]
fn q6_k_tables_and_f32_vectors_become_bf16() {
    let mut file = File::small();
    let table = file.tensor("token_embd.weight").3.clone();
    let norm = file.tensor("output_norm.weight").3.clone();
    let (_folder, view) = file.view().unwrap();
    let checkpoint = Checkpoint::open(view).unwrap();
    let rounded = |value: f32| bf16::from_f32(value).to_le_bytes();
    let expected: Vec<u8> =
        table.as_chunks::<Q6_K_BYTES>().0.iter().flat_map(q6_k_values).flat_map(rounded).collect();
    assert!(checkpoint.read("model.embed_tokens.weight").unwrap() == expected);
    let expected: Vec<u8> =
        norm.as_chunks::<4>().0.iter().flat_map(|v| rounded(f32::from_le_bytes(*v))).collect();
    assert!(checkpoint.read("model.norm.weight").unwrap() == expected);
}

/// Any range of the view is that range of the whole view.
#[test]
fn ranges_are_pieces_of_the_whole() {
    let (_folder, view) = File::small().view().unwrap();
    for file in view.files() {
        let whole = view.read_file(&file.path).unwrap();
        assert_eq!(whole.len() as u64, file.bytes);
        for round in 0..400 {
            let begin = bits(round) % whole.len();
            let longest = (whole.len() - begin).min(if round % 4 == 0 { 20_000 } else { 70 });
            let mut part = vec![0; bits(round + 1000) % (longest + 1)];
            view.read_at(&file.path, begin as u64, &mut part).unwrap();
            assert!(part == whole[begin..begin + part.len()], "{} from {begin}", file.path);
        }
        let mut beyond = [0; 2];
        assert!(view.read_at(&file.path, file.bytes - 1, &mut beyond).is_err());
    }
}

#[test]
fn a_step_of_zero_is_a_group_of_zeros() {
    let mut file = File::small();
    file.tensor("blk.0.ffn_up.weight").3[18..20].fill(0);
    let (_folder, view) = file.view().unwrap();
    let checkpoint = Checkpoint::open(view).unwrap();
    let words = checkpoint.read("model.layers.0.mlp.up_proj.weight_packed").unwrap();
    let scales = checkpoint.read("model.layers.0.mlp.up_proj.weight_scale").unwrap();
    assert_eq!(words[16..32], [0x88; 16]);
    assert_eq!(scales[2..4], f16::ONE.to_le_bytes());
    assert_ne!(words[..16], [0x88; 16]);
}

#[test]
fn the_tokenizers_files_are_rebuilt() {
    let (_folder, view) = File::small().view().unwrap();
    let json = |path: &str| -> serde_json::Value {
        serde_json::from_slice(&view.read_file(path).unwrap()).unwrap()
    };
    let tokenizer = json("tokenizer.json");
    assert_eq!(tokenizer["model"]["vocab"]["ab"], 7);
    assert!(tokenizer["model"]["vocab"].get("[PAD8]").is_none(), "rows without a token");
    assert_eq!(tokenizer["model"]["merges"], serde_json::json!([["a", "b"]]));
    assert_eq!(tokenizer["added_tokens"].as_array().unwrap().len(), 4);
    assert_eq!(json("tokenizer_config.json")["bos_token"], "<bos>");
    assert_eq!(json("generation_config.json")["eos_token_id"], serde_json::json!([1, 4]));
    assert_eq!(view.read_file("chat_template.jinja").unwrap(), b"{{ bos_token }}");
}

#[test]
fn files_that_no_packed_checkpoint_could_be_are_refused_by_name() {
    type Change<'c> = &'c dyn Fn(&mut File);
    let changes: [(Change<'_>, &[&str]); 9] = [
        (
            &|file| file.set("general.architecture", Value::String("llama".into())),
            &["general.architecture", "gemma4"],
        ),
        (
            &|file| file.metadata.retain(|(key, _)| key != "gemma4.attention.shared_kv_layers"),
            &["gemma4.attention.shared_kv_layers", "missing"],
        ),
        (&|file| file.set("gemma4.block_count", Value::U32(1 << 30)), &["block_count", "exceeds"]),
        (
            &|file| {
                let widths = [64, 96, 128, 128].map(Value::I32);
                let widths = Value::Array(Array::of_values(Kind::I32, widths));
                file.set("gemma4.feed_forward_length", widths);
            },
            &["gemma4.feed_forward_length", "doubled"],
        ),
        (
            &|file| {
                let tensor = file.tensor("blk.1.ffn_up.weight");
                let blocks = tensor.3.len() / 18;
                (tensor.1, tensor.3) = (TensorType::Q8_0, vec![0; 34 * blocks]);
            },
            &["blk.1.ffn_up.weight", "Q8_0"],
        ),
        (
            &|file| {
                let table = file.tensor("token_embd.weight").clone();
                file.tensors.push(("output.weight".into(), table.1, table.2, table.3));
            },
            &["output.weight", "head"],
        ),
        (
            &|file| file.tensors.push(("v.blk.0".into(), TensorType::F32, vec![1], vec![0; 4])),
            &["v.blk.0", "no text model"],
        ),
        (
            &|file| file.set("tokenizer.ggml.model", Value::String("gpt2".into())),
            &["tokenizer.ggml.model"],
        ),
        (
            &|file| file.tensor(ROPE_FREQS).3[124..].copy_from_slice(&2.0_f32.to_le_bytes()),
            &[ROPE_FREQS, "huge"],
        ),
    ];
    for (change, words) in changes {
        let mut file = File::small();
        change(&mut file);
        let Err(error) = file.view() else { panic!("{words:?} was not refused") };
        let error = error.to_string();
        for words in words {
            assert!(error.contains(words), "`{words}` is not in: {error}");
        }
    }
    // What only the values show is refused when they are read.
    let mut file = File::small();
    file.tensor("output_norm.weight").3[..4].copy_from_slice(&1.000_01_f32.to_le_bytes());
    let (_folder, view) = file.view().unwrap();
    let error = Checkpoint::open(view).unwrap().read("model.norm.weight").unwrap_err().to_string();
    assert!(error.contains("model.norm.weight") && error.contains("1.00001"), "{error}");
}

/// Keys that w4pack does not know reach the configuration, whose reader reports them; experts are
/// refused.
#[test]
fn unknown_keys_are_reported_and_experts_refused() {
    let mut file = File::small();
    file.metadata.push(("gemma4.attention.novelty".into(), Value::F32(1.0)));
    let (_folder, view) = file.view().unwrap();
    assert_eq!(Config::load(&*view).unwrap().unknown, ["gemma4.attention.novelty"]);
    file.metadata.push(("gemma4.expert_count".into(), Value::U32(8)));
    let error = file.view().err().expect("refused").to_string();
    assert!(error.contains("gemma4.expert_count"), "{error}");
}

#[test]
fn a_folder_is_a_gguf_model_only_if_it_is_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::small();
    file.write(&folder.path().join("one.gguf"));
    let seen = |folder: &Path| {
        let source = FolderSource::open(folder).unwrap();
        model_file(&source).map(|path| path.map(String::from)).map_err(|error| error.to_string())
    };
    let one = |path: &str| Ok(Some(path.to_string()));
    assert_eq!(seen(folder.path()), one("one.gguf"));
    file.write(&folder.path().join("two.gguf"));
    let error = seen(folder.path()).unwrap_err();
    assert!(error.contains("`one.gguf`, `two.gguf`"), "{error}");
    assert_eq!(seen(&folder.path().join("two.gguf")), one("two.gguf"));
    std::fs::remove_file(folder.path().join("two.gguf")).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), b"").unwrap();
    assert_eq!(seen(folder.path()), Ok(None));
}

/// A GGUF file is opened alone: what lies beside it, readable or not, is none of its business.
#[test]
fn a_gguf_file_is_opened_whatever_lies_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.gguf");
    File::small().write(&path);
    std::os::unix::fs::symlink("/", folder.path().join("link")).unwrap();
    assert!(FolderSource::open(folder.path()).is_err());
    let source = FolderSource::open(&path).unwrap();
    assert_eq!(source.files().len(), 1);
    assert_eq!(source.size("one.gguf"), Some(std::fs::metadata(&path).unwrap().len()));
    assert!(open(std::sync::Arc::new(source)).is_ok());
}
