//! What a draw costs beside a token: `cargo run --release --example draw_speed`. Logits are those of a bell, as many
//! as Gemma's vocabulary has.

use std::hint::black_box;
use std::time::Instant;
use w4pack_runtime::constraint::Allowed;
use w4pack_runtime::sampling::Chooser;
use w4pack_runtime::{Adjustments, Sampling};

const VOCABULARY: usize = 262_144;
const ROUNDS: usize = 200;

fn main() {
    // Sums of uniform numbers from a hash.
    let uniform =
        |i: usize| ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 24) as f32;
    let logits: Vec<f32> = (0..VOCABULARY)
        .map(|i| (0..12).map(|j| uniform(12 * i + j)).sum::<f32>() * 3.0 - 18.0)
        .collect();
    let drawn = Sampling { temperature: 1.0, seed: Some(1), ..Sampling::GREEDY };
    for (name, sampling, logprobs) in [
        ("greedy", Sampling::GREEDY, None),
        ("top-k 64, top-p 0.95", Sampling { top_k: 64, top_p: 0.95, ..drawn }, None),
        ("top-p 0.95", Sampling { top_p: 0.95, ..drawn }, None),
        ("temperature alone", drawn, None),
        ("greedy, 5 log-probabilities", Sampling::GREEDY, Some(5)),
    ] {
        let mut chooser =
            Chooser::new(&sampling, Adjustments::default(), logprobs, &[], VOCABULARY)
                .expect("sound");
        let mut seconds: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let begin = Instant::now();
                black_box(
                    chooser.choose(black_box(&logits), Allowed::Anything).expect("it chooses"),
                );
                begin.elapsed().as_secs_f64()
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        println!("{name:<30}{:>9.1} us", 1e6 * seconds[ROUNDS / 2]);
    }
}
