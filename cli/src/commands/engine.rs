//! From the engine's arguments to an engine: which device, and what it cannot do.

use super::check_threads;
use crate::args::engine::{
    DeviceName, EngineArguments, KvName, PerLayerPlace, PrefillName, SpeculateName, WeightsName,
};
use crate::message::Usage;
use crate::progress::Bytes;
use anyhow::Result;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_runtime::{Engine, EngineOptions, LoadOptions, Model, WeightValues};

/// Loads a checkpoint onto the device that is asked for.
pub fn open(checkpoint: &Checkpoint, arguments: &EngineArguments, quiet: bool) -> Result<Engine> {
    check_device(arguments)?;
    let options = EngineOptions {
        context: arguments.context,
        chunk: arguments.chunk,
        threads: arguments.threads.map(check_threads).transpose()?,
    };
    let model = load_model(checkpoint, arguments.weights, quiet)?;
    Ok(Engine::new(model, options)?)
}

fn load_model(checkpoint: &Checkpoint, weights: WeightsName, quiet: bool) -> Result<Model> {
    let weights = match weights {
        WeightsName::Codes => WeightValues::Codes,
        WeightsName::Bf16 => WeightValues::Bf16,
    };
    let bar = Bytes::new("loading", quiet);
    let options = LoadOptions { weights };
    let model = Model::load(checkpoint, &options, &mut |seen| bar.set(seen.bytes, seen.total));
    bar.finish();
    Ok(model?)
}

/// Refuses what the device does not do, before anything is read.
fn check_device(arguments: &EngineArguments) -> Result<()> {
    if let DeviceName::Cuda(number) = arguments.device {
        let message = format!("--device cuda:{number}: this version of w4pack computes on the CPU");
        return Err(Usage::new(message).hint("leave --device out").into());
    }
    match cpu_refusal(arguments) {
        None => Ok(()),
        Some((flag, why)) => {
            let message = format!("`{flag}` has no meaning on the CPU: {why}");
            Err(Usage::new(message).hint(format!("leave `{flag}` out")).into())
        }
    }
}

/// The first flag that asks for what the CPU path does not do, and why.
fn cpu_refusal(arguments: &EngineArguments) -> Option<(String, &'static str)> {
    if let Some(mib) = arguments.gpu_memory {
        return Some((format!("--gpu-memory {mib}"), "it takes no GPU memory"));
    }
    match arguments.ple {
        PerLayerPlace::Auto | PerLayerPlace::Host => {}
        PerLayerPlace::Gpu => return Some(("--ple gpu".into(), "the table lies in main memory")),
        PerLayerPlace::Disk => return Some(("--ple disk".into(), "the table lies in main memory")),
    }
    let kept = "keys and values are kept in f32";
    match arguments.kv {
        None | Some(KvName::F32) => {}
        Some(KvName::F16) => return Some(("--kv f16".into(), kept)),
        Some(KvName::Bf16) => return Some(("--kv bf16".into(), kept)),
        Some(KvName::Q8) => return Some(("--kv q8".into(), kept)),
    }
    let gpu = "it chooses among a GPU's ways to read a prompt";
    match arguments.prefill {
        PrefillName::Auto => {}
        PrefillName::Mma => return Some(("--prefill mma".into(), gpu)),
        PrefillName::Ffma => return Some(("--prefill ffma".into(), gpu)),
    }
    match arguments.speculate {
        SpeculateName::Auto | SpeculateName::Off => {}
        SpeculateName::Ngram => {
            let why = "a pass over several tokens saves nothing there yet";
            return Some(("--speculate ngram".into(), why));
        }
    }
    arguments.fast.then(|| ("--fast".into(), "its kernels take activations in f32"))
}
