//! What the tests share: reference sets, safetensors read and written, models run in one line.

pub mod checkpoint;
pub mod hostile;
pub mod random;
pub mod rounding;
pub mod slots;

#[path = "../../../../testing/conformance.rs"]
mod conformance_path;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::dtype::Dtype;
use w4pack_format::header::Header;
use w4pack_kernels::cpu::Kernels;
use w4pack_runtime::device::{Cpu, Pool};
use w4pack_runtime::forward::{NoObserver, forward};
use w4pack_runtime::{Arithmetic, Cache, LoadOptions, Model, Number, Result, Wanted, WeightValues};

/// The folder of reference sets, or `None` with a word on why the test is skipped.
pub fn conformance() -> Option<PathBuf> {
    conformance_path::conformance("conformance")
}

/// The tensors of a safetensors file.
pub struct Tensors {
    pub tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Tensors {
    pub fn read(path: &Path) -> Self {
        let file = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let header = Header::parse("reference", file.len() as u64, &mut |offset, buffer| {
            buffer.copy_from_slice(&file[offset as usize..][..buffer.len()]);
            Ok(())
        })
        .expect("a reference file is sound");
        let data = &file[header.data_start() as usize..];
        let bytes = |begin: u64, end: u64| data[begin as usize..end as usize].to_vec();
        let tensors = header
            .tensors
            .into_iter()
            .map(|info| (info.name, (info.dtype, info.shape, bytes(info.begin, info.end))))
            .collect();
        Self { tensors }
    }

    fn get(&self, name: &str) -> &(Dtype, Vec<usize>, Vec<u8>) {
        self.tensors.get(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub fn shape(&self, name: &str) -> &[usize] {
        &self.get(name).1
    }

    /// Values of an F32, F16 or BF16 tensor, exactly.
    pub fn f32(&self, name: &str) -> Vec<f32> {
        let (dtype, _, bytes) = self.get(name);
        let halves = || bytes.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
        match dtype {
            Dtype::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Dtype::F16 => halves().map(|bits| half::f16::from_bits(bits).to_f32()).collect(),
            Dtype::BF16 => halves().map(|bits| half::bf16::from_bits(bits).to_f32()).collect(),
            other => panic!("{name} is {}", other.name()),
        }
    }

    /// Values of an I8 tensor.
    pub fn i8(&self, name: &str) -> Vec<i8> {
        self.get(name).2.iter().map(|&byte| byte as i8).collect()
    }

    /// Values of an I64 tensor.
    pub fn i64(&self, name: &str) -> Vec<i64> {
        self.get(name).2.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()
    }
}

/// The prompts and greedy ids of a set's `f32` run.
pub struct Prompt {
    pub name: String,
    pub ids: Vec<u32>,
    pub greedy_cached: Vec<u32>,
    pub greedy_uncached: Vec<u32>,
}

pub fn prompts(set: &Path) -> Vec<Prompt> {
    let text = fs::read(set.join("reference/reference.json")).expect("reference.json is there");
    let reference: serde_json::Value = serde_json::from_slice(&text).expect("it is JSON");
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        serde_json::from_value(value.clone()).expect("a list of ids")
    };
    let prompts = reference["prompts"].as_object().expect("prompts");
    assert_eq!(prompts.len(), 4);
    prompts
        .iter()
        .map(|(name, prompt)| {
            let run = &reference["runs"]["f32"][name];
            Prompt {
                name: name.clone(),
                ids: ids(prompt),
                greedy_cached: ids(&run["greedy_cached"]),
                greedy_uncached: ids(&run["greedy_uncached"]),
            }
        })
        .collect()
}

pub fn try_load(folder: &Path, weights: WeightValues) -> Result<Model> {
    let checkpoint = Checkpoint::open_folder(folder)?;
    Model::load(&checkpoint, &LoadOptions { weights }, &mut |_| {})
}

pub fn load(folder: &Path) -> Model {
    load_as(folder, WeightValues::Codes)
}

pub fn load_as(folder: &Path, weights: WeightValues) -> Model {
    try_load(folder, weights).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

/// A pass.
pub fn pass<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    cache: &mut Cache<A::Kept>,
    tokens: &[u32],
    wanted: Wanted,
) -> Vec<A::Number> {
    forward(model, arithmetic, cache, tokens, wanted, &mut NoObserver)
        .expect("the tokens are in the vocabulary")
}

/// The fast arithmetic of this machine, keys and values in f32. Tiny models are not worth a second thread; that threads
/// change nothing has its own test.
pub fn fast() -> Cpu<f32> {
    Cpu::new(Kernels::best(), Pool::new(1).expect("a pool of one"))
}

/// The same with keys and values as the CPU device keeps them.
pub fn as_the_device() -> Cpu {
    Cpu::new(Kernels::best(), Pool::new(1).expect("a pool of one"))
}

/// Logits of all positions, in one pass without a cache.
pub fn logits<A: Arithmetic>(model: &Model, arithmetic: &A, tokens: &[u32]) -> Vec<A::Number> {
    in_chunks(model, arithmetic, tokens, tokens.len(), Wanted::All)
}

/// The logits of the last token, or of all tokens, read `chunk` tokens at a time.
pub fn in_chunks<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    tokens: &[u32],
    chunk: usize,
    wanted: Wanted,
) -> Vec<A::Number> {
    let mut cache = Cache::new(&model.config.text, tokens.len());
    let mut logits = Vec::new();
    for (number, piece) in tokens.chunks(chunk).enumerate() {
        let is_last = (number + 1) * chunk >= tokens.len();
        let wanted = match wanted {
            Wanted::Last if !is_last => Wanted::Nothing,
            wanted => wanted,
        };
        logits.extend(pass(model, arithmetic, &mut cache, piece, wanted));
    }
    logits
}

/// Greedy continuation with a cache, the prompt read in chunks.
pub fn greedy<A: Arithmetic>(
    model: &Model,
    arithmetic: &A,
    prompt: &[u32],
    chunk: usize,
    count: usize,
) -> (Vec<u32>, Vec<A::Number>) {
    let mut cache = Cache::new(&model.config.text, prompt.len() + count);
    let mut last = Vec::new();
    for piece in prompt.chunks(chunk) {
        last = pass(model, arithmetic, &mut cache, piece, Wanted::Last);
    }
    let (mut ids, mut rows) = (Vec::new(), Vec::new());
    loop {
        let id = argmax(&last);
        ids.push(id);
        rows.append(&mut last);
        if ids.len() == count {
            return (ids, rows);
        }
        last = pass(model, arithmetic, &mut cache, &[id], Wanted::Last);
    }
}

/// The id of the largest logit, the lowest of equals.
pub fn argmax<N: Number>(logits: &[N]) -> u32 {
    let mut best = 0;
    for id in 1..logits.len() {
        if logits[id] > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// The largest difference of two equally long slices.
pub fn worst<A: Number, B: Number>(found: &[A], expected: &[B]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let as_f64 = |value: f32| f64::from(value);
    found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (as_f64(found.to_f32()) - as_f64(expected.to_f32())).abs())
        .inspect(|difference| assert!(!difference.is_nan()))
        .fold(0.0, f64::max)
}

/// The root of the mean square difference of two equally long slices.
pub fn root_mean_square<A: Number, B: Number>(found: &[A], expected: &[B]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let difference = |(a, b): (&A, &B)| f64::from(a.to_f32()) - f64::from(b.to_f32());
    let squares = found.iter().zip(expected).map(|pair| difference(pair).powi(2));
    (squares.sum::<f64>() / found.len() as f64).sqrt()
}

/// How far the kernels' logits may be from those of the plain pass over packed weights, whose
/// activations they round to 16 bits: 2e-3 of the largest logit.
pub fn in_sixteen_bits<N: Number>(plain: &[N]) -> f64 {
    2e-3 * worst(plain, &vec![0f32; plain.len()])
}
