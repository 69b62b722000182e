//! `w4pack doctor` without a checkpoint: the GPUs of this machine, measured.

use crate::args::DoctorArguments;
use crate::output;
use anyhow::Result;
use serde_json::{Value, json};
use std::process::ExitCode;
use w4pack_fixtures::Shape;
use w4pack_format::config::Config;
use w4pack_kernels::cpu::Kernels;
use w4pack_kernels::cuda::{CudaError, Gpu, cards, images};
use w4pack_runtime::device::cuda::{KvType, RESERVE, Wish, plan_for_shape, read_bandwidth};
use w4pack_runtime::device::{MOST_TRIED, physical_cores};

pub fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let found = match cards() {
        Ok(count) => (0..count).map(|card| examine(card, arguments)).collect::<Result<_>>()?,
        Err(error @ (CudaError::NoDriver | CudaError::NoCard { .. })) => {
            if arguments.json {
                let report = json!({"gpus": [], "reason": error.to_string(), "cpu": processor()});
                output::line(&report.to_string())?;
            } else {
                output::line(&format!("no CUDA ({error}); models run on the CPU"))?;
                print_processor()?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => return Err(error.into()),
    };
    let found: Vec<Value> = found;
    if arguments.json {
        output::line(&json!({ "gpus": found, "cpu": processor() }).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    for card in &found {
        let text = |key: &str| card[key].as_str().unwrap_or_default().to_string();
        let mib = |key: &str| card[key].as_u64().unwrap_or(0) >> 20;
        output::line(&format!(
            "cuda:{}  {}, compute capability {}, driver of CUDA {}",
            card["ordinal"],
            text("name"),
            text("compute_capability"),
            text("driver")
        ))?;
        if let Some(problem) = card["problem"].as_str() {
            output::line(&format!("  not usable: {problem}"))?;
            continue;
        }
        let rate = card["read_bytes_per_second"].as_f64().unwrap_or(0.0) / 1e9;
        output::line(&format!(
            "  memory   {} MiB, {} MiB free; reads {rate:.0} GB/s, measured",
            mib("memory_bytes"),
            mib("free_bytes")
        ))?;
        output::line(&format!("  kernels  {}: {}", text("kernels"), text("kernels_because")))?;
        output::line(&format!("  E2B      {}", text("fits")))?;
    }
    print_processor()?;
    Ok(ExitCode::SUCCESS)
}

/// The CPU's kernels, fastest first, and why those for a matrix unit are not among them.
fn processor() -> Value {
    let mut kernels: Vec<&str> =
        Kernels::available().iter().map(|kernels| kernels.name()).collect();
    kernels.reverse();
    let without = Kernels::named("amx").err().and_then(|error| error.reason);
    json!({"kernels": kernels, "without_amx_because": without, "cores": physical_cores()})
}

fn print_processor() -> Result<()> {
    let cpu = processor();
    let names: Vec<&str> =
        cpu["kernels"].as_array().into_iter().flatten().flat_map(Value::as_str).collect();
    let why = cpu["without_amx_because"].as_str().map(|why| format!(" (no `amx`: {why})"));
    output::line(&format!(
        "cpu     {} cores, kernels {}{}",
        cpu["cores"],
        names.join(", "),
        why.unwrap_or_default()
    ))
}

fn examine(ordinal: usize, arguments: &DoctorArguments) -> Result<Value> {
    let forced = std::env::var("W4PACK_KERNELS").ok().filter(|value| !value.is_empty());
    let gpu = match Gpu::open(ordinal, forced.as_deref()) {
        Ok(gpu) => gpu,
        Err(error) => {
            let problem = error.to_string();
            return Ok(json!({"ordinal": ordinal, "name": "?", "problem": problem}));
        }
    };
    let card = gpu.card().clone();
    let free = gpu.free_memory()?;
    let bandwidth = read_bandwidth(&gpu)?;
    let (major, minor) = card.capability;
    let because = match (&forced, gpu.kernels().starts_with("sm_")) {
        (Some(_), _) => "W4PACK_KERNELS asks for them".to_string(),
        (None, true) => "machine code for exactly this card".to_string(),
        (None, false) => {
            format!("PTX that the driver translates; there is no machine code for {major}.{minor}")
        }
    };
    let limit = arguments
        .gpu_memory
        .map_or(free.saturating_sub(RESERVE.min(free / 8)), |mib| (mib << 20).min(free));
    let shape = serde_json::to_vec(&Shape::e2b().config())?;
    let config = Config::parse("E2B", &shape)?;
    let wish = Wish {
        limit,
        context: None,
        table: None,
        kv: KvType::F16,
        chunk: 1,
        slots: 1,
        ahead: true,
        tried: MOST_TRIED,
        multiprocessors: card.multiprocessors,
    };
    let (fits, context) = match plan_for_shape(&config.text, &wish) {
        Ok(plan) => {
            let place = plan.table.name();
            let mib = plan.sizes.total().div_ceil(1 << 20);
            let text = format!(
                "a context of {} tokens in {mib} MiB, the per-layer table on {place}",
                plan.context
            );
            (text, Some(plan.context))
        }
        Err(error) => (error.to_string(), None),
    };
    Ok(json!({
        "ordinal": ordinal,
        "name": card.name,
        "compute_capability": format!("{major}.{minor}"),
        "driver": images::version(card.driver),
        "multiprocessors": card.multiprocessors,
        "memory_bytes": card.memory,
        "free_bytes": free,
        "read_bytes_per_second": bandwidth,
        "kernels": gpu.kernels(),
        "kernels_because": because,
        "longest_e2b_context": context,
        "fits": fits,
    }))
}
