//! Speeds of a model on a card, each with the share of the read bandwidth measured in the same run.
//!
//! `cargo run --release -p w4pack-runtime --example card_bench -- MODEL [DEPTH…]`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions, Products, read_bandwidth};
use w4pack_runtime::{Device, Wanted, Work};

/// Steps of one measurement, and measurements.
const STEPS: usize = 64;
const REPETITIONS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, depths) = arguments.split_first().ok_or("give the folder of a packed model")?;
    let mut depths = depths.iter().map(|depth| depth.parse()).collect::<Result<Vec<usize>, _>>()?;
    if depths.is_empty() {
        depths = vec![1, 512, 4096, 32768, 131_072 - STEPS * (REPETITIONS + 1)];
    }
    let checkpoint = Arc::new(Checkpoint::open_folder(Path::new(model))?);
    let chunk = std::env::var("CHUNK").ok().map_or(Ok(512), |chunk| chunk.parse())?;
    let products = match std::env::var("PREFILL").as_deref() {
        Ok("mma") => Some(Products::Mma),
        Ok("ffma") => Some(Products::Ffma),
        _ => None,
    };
    let overlap = std::env::var("OVERLAP").as_deref() != Ok("off");
    let options = CudaOptions { chunk, products, overlap, ..CudaOptions::default() };
    let begin = Instant::now();
    let mut device = CudaDevice::load(&checkpoint, options, &mut |_| {})?;
    let card = device.card().clone();
    let tokens = if device.takes_tokens_on_tensor_cores() { "on" } else { "not on" };
    println!(
        "{}, driver {}.{}; single tokens {tokens} tensor cores",
        device.description(),
        card.driver / 1000,
        card.driver % 1000 / 10
    );
    println!("{}", device.memory_table());
    let load = device.load_report();
    let rate = load.bytes as f64 / load.duration.as_secs_f64() / 1e9;
    println!(
        "load {:.2} s, {rate:.2} GB/s; ready after {:.2} s",
        load.duration.as_secs_f64(),
        begin.elapsed().as_secs_f64()
    );
    let free = device.gpu().free_memory()?;
    println!("taken: {:.1} MiB", (card.memory - free) as f64 / f64::from(1 << 20));
    let bandwidth = read_bandwidth(device.gpu())?;
    println!("read bandwidth {:.0} GB/s", bandwidth / 1e9);

    // Words and steps that a token reads: all but the per-layer table; and 2 KiB a position in each
    // full layer (for E2B's shape, f16).
    let weights = device.plan().sizes.weights as f64;
    let text = &device.config().text;
    let reading: f64 = text
        .layers
        .iter()
        .filter(|layer| layer.kind == w4pack_format::config::LayerKind::Full)
        .map(|layer| (2 * layer.kv_heads * layer.head_dim * 2) as f64)
        .sum();
    let vocabulary = text.vocab_size as u32;
    let tokens: Vec<u32> =
        (0..131_072u32).map(|i| 3 + i.wrapping_mul(2_654_435_761) % (vocabulary - 3)).collect();

    for depth in depths {
        let slot = device.make_slot((depth + STEPS * (REPETITIONS + 1)).min(device.context()))?;
        let mut prefill = Vec::new();
        let mut id = 0;
        for repetition in 0..if depth <= 8192 { 3 } else { 1 } {
            if repetition > 0 {
                device.free_slot(slot)?;
                device.make_slot((depth + STEPS * (REPETITIONS + 1)).min(device.context()))?;
            }
            let begin = Instant::now();
            let work = Work { slot, tokens: &tokens[..depth], logits: Wanted::Last };
            let logits = device.step(&[work])?.swap_remove(0);
            prefill.push(begin.elapsed().as_secs_f64());
            id = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0)
                as u32;
        }
        prefill.sort_by(f64::total_cmp);
        let seconds = prefill[0];
        println!("prefill {depth}: {:.0} tok/s, {:.2} ms", depth as f64 / seconds, seconds * 1e3);
        let mut speeds = Vec::new();
        // What was chosen, to be compared between ways of computing.
        let mut ids = u64::from(id);
        for repetition in 0..=REPETITIONS {
            let begin = Instant::now();
            for _ in 0..STEPS {
                id = device.decode_greedy(slot, id)?;
                ids = ids.wrapping_mul(0x100_0000_01b3) ^ u64::from(id);
            }
            if repetition > 0 {
                speeds.push(STEPS as f64 / begin.elapsed().as_secs_f64());
            }
        }
        speeds.sort_by(f64::total_cmp);
        let median = speeds[REPETITIONS / 2];
        let bytes = weights + reading * (depth + STEPS * REPETITIONS / 2) as f64;
        let share = bytes * median / bandwidth;
        println!(
            "decode at {depth}: {median:.1} tok/s ({:.1}-{:.1}), {:.0} GB/s, {:.1} % of the read bandwidth; ids {ids:016x}",
            speeds[0],
            speeds[REPETITIONS - 1],
            bytes * median / 1e9,
            100.0 * share
        );
        device.free_slot(slot)?;
    }
    Ok(())
}
