//! From the engine's arguments to an engine: which device, and what it cannot do.

use super::check_threads;
use crate::args::engine::{
    DeviceName, EngineArguments, KvName, PerLayerPlace, PrefillName, SpeculateName, WeightsName,
};
use crate::heap;
use crate::message::Usage;
use crate::progress::Bytes;
use anyhow::Result;
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_kernels::cpu::{Kernels, Precision};
use w4pack_runtime::device::cuda::{self, CudaDevice, CudaOptions, KvType, Products, TablePlace};
use w4pack_runtime::{
    Engine, EngineOptions, KeptAs, LoadOptions, LoadProgress, Model, RuntimeError, Speculation,
    WeightValues,
};

/// Loads a checkpoint onto the device that is asked for; `auto` takes a card where there is one and
/// says why where there is none. A card's memory is planned for `slots` sequences at once.
pub fn open(
    checkpoint: &Arc<Checkpoint>,
    arguments: &EngineArguments,
    slots: usize,
    quiet: bool,
) -> Result<Engine> {
    let kernels = chosen_kernels()?;
    let say = |reason: &str| {
        if !quiet {
            eprintln!("no CUDA ({reason}), using CPU");
        }
    };
    match arguments.device {
        DeviceName::Cpu => {}
        DeviceName::Cuda(ordinal) => {
            if let Some((flag, why)) = card_refusal(arguments) {
                let message = format!("`{flag}` has no meaning on a GPU: {why}");
                return Err(Usage::new(message).hint(format!("leave `{flag}` out")).into());
            }
            return open_card(checkpoint, ordinal, slots, arguments, quiet);
        }
        DeviceName::Auto => match (cuda::unusable(0), card_refusal(arguments)) {
            (Some(reason), _) => say(&reason.to_string()),
            (None, Some((flag, _))) => say(&format!("`{flag}` is for the CPU")),
            (None, None) => match open_card(checkpoint, 0, slots, arguments, quiet) {
                Ok(engine) => return Ok(engine),
                Err(error) => match error.downcast_ref() {
                    Some(
                        reason @ (RuntimeError::Cuda(_)
                        | RuntimeError::CudaShape { .. }
                        | RuntimeError::CardMemory { .. }),
                    ) if arguments.gpu_memory.is_none() => say(&reason.to_string()),
                    _ => return Err(error),
                },
            },
        },
    }
    heap::keep_rooms();
    open_cpu(checkpoint, arguments, kernels, quiet)
}

/// The CPU's kernels, which `W4PACK_CPU` may name.
fn chosen_kernels() -> Result<&'static Kernels> {
    let Some(name) = std::env::var_os("W4PACK_CPU").filter(|name| !name.is_empty()) else {
        return Ok(Kernels::best());
    };
    Kernels::named(&name.to_string_lossy()).map_err(|error| {
        Usage::new(format!("cannot take the CPU kernels that `W4PACK_CPU` names: {error}"))
            .hint("unset `W4PACK_CPU`, and the fastest are taken")
            .into()
    })
}

fn open_cpu(
    checkpoint: &Arc<Checkpoint>,
    arguments: &EngineArguments,
    kernels: &'static Kernels,
    quiet: bool,
) -> Result<Engine> {
    if let Some((flag, why)) = cpu_refusal(arguments) {
        let message = format!("`{flag}` has no meaning on the CPU: {why}");
        return Err(Usage::new(message).hint(format!("leave `{flag}` out")).into());
    }
    let options = EngineOptions {
        context: arguments.context,
        chunk: arguments.chunk.unwrap_or(EngineOptions::default().chunk),
        threads: arguments.threads.map(check_threads).transpose()?,
        kernels,
        precision: match arguments.fast {
            true => Precision::Bits8,
            false => Precision::Bits16,
        },
        kept: match arguments.kv {
            Some(KvName::F32) => KeptAs::F32,
            Some(KvName::Bf16) => KeptAs::Bf16,
            None | Some(KvName::F16 | KvName::Q8) => KeptAs::F16,
        },
    };
    let model = load_model(checkpoint, arguments, quiet)?;
    Ok(Engine::new(model, options)?.speculating(speculation(arguments))?)
}

fn open_card(
    checkpoint: &Arc<Checkpoint>,
    ordinal: usize,
    slots: usize,
    arguments: &EngineArguments,
    quiet: bool,
) -> Result<Engine> {
    let options = CudaOptions {
        ordinal,
        slots,
        memory: arguments.gpu_memory.map(|mib| mib << 20),
        context: arguments.context,
        chunk: arguments.chunk,
        table: match arguments.ple {
            PerLayerPlace::Auto => None,
            PerLayerPlace::Gpu => Some(TablePlace::Gpu),
            PerLayerPlace::Host => Some(TablePlace::Host),
            PerLayerPlace::Disk => Some(TablePlace::Disk),
        },
        kv: match arguments.kv {
            None | Some(KvName::F32 | KvName::F16) => KvType::F16,
            Some(KvName::Bf16) => KvType::Bf16,
            Some(KvName::Q8) => KvType::Q8,
        },
        products: match arguments.prefill {
            PrefillName::Auto => None,
            PrefillName::Mma => Some(Products::Mma),
            PrefillName::Ffma => Some(Products::Ffma),
        },
        speculation: speculation(arguments),
        ..CudaOptions::default()
    };
    let bar = Bytes::new("loading", quiet);
    let device = CudaDevice::load(checkpoint, options, &mut |seen| bar.set(seen.bytes, seen.total));
    bar.finish();
    let device = device?;
    let chunk = device.chunk();
    Ok(Engine::on_card(device, chunk)?.speculating(speculation(arguments))?)
}

fn speculation(arguments: &EngineArguments) -> Speculation {
    match arguments.speculate {
        SpeculateName::Auto => Speculation::Auto,
        SpeculateName::Ngram => Speculation::Ngram,
        SpeculateName::Off => Speculation::Off,
    }
}

fn load_model(
    checkpoint: &Arc<Checkpoint>,
    arguments: &EngineArguments,
    quiet: bool,
) -> Result<Model> {
    let weights = match arguments.weights {
        WeightsName::Codes => WeightValues::Codes,
        WeightsName::Bf16 => WeightValues::Bf16,
    };
    let bar = Bytes::new("loading", quiet);
    let options = LoadOptions { weights };
    let progress = &mut |seen: LoadProgress| bar.set(seen.bytes, seen.total);
    let model = match arguments.ple {
        PerLayerPlace::Disk => Model::load_without_table(checkpoint, &options, progress),
        _ => Model::load(checkpoint, &options, progress),
    };
    bar.finish();
    Ok(model?)
}

/// The first flag that asks for what the CUDA path does not do, and why.
fn card_refusal(arguments: &EngineArguments) -> Option<(String, &'static str)> {
    if arguments.weights == WeightsName::Bf16 {
        return Some(("--weights bf16".into(), "a card multiplies codes and steps, unrounded"));
    }
    if arguments.kv == Some(KvName::F32) {
        return Some(("--kv f32".into(), "keys and values are kept in f16, bf16 or q8"));
    }
    if let Some(threads) = arguments.threads {
        return Some((format!("--threads {threads}"), "the card computes"));
    }
    arguments.fast.then(|| ("--fast".into(), "its kernels keep 22 bits of an activation"))
}

/// The first flag that asks for what the CPU path does not do, and why.
fn cpu_refusal(arguments: &EngineArguments) -> Option<(String, &'static str)> {
    if let Some(mib) = arguments.gpu_memory {
        return Some((format!("--gpu-memory {mib}"), "it takes no GPU memory"));
    }
    match arguments.ple {
        PerLayerPlace::Auto | PerLayerPlace::Host | PerLayerPlace::Disk => {}
        PerLayerPlace::Gpu => return Some(("--ple gpu".into(), "the table lies in main memory")),
    }
    if arguments.kv == Some(KvName::Q8) {
        return Some(("--kv q8".into(), "keys and values are kept in f16, bf16 or f32"));
    }
    let gpu = "it chooses among a GPU's ways to read a prompt";
    match arguments.prefill {
        PrefillName::Auto => {}
        PrefillName::Mma => return Some(("--prefill mma".into(), gpu)),
        PrefillName::Ffma => return Some(("--prefill ffma".into(), gpu)),
    }
    let rounded = arguments.weights == WeightsName::Bf16;
    let why = "products rounded to bf16 are multiplied with activations in f32";
    (arguments.fast && rounded).then(|| ("--fast".into(), why))
}
