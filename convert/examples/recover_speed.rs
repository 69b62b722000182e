//! How long a group takes on one core: `cargo run --release -p w4pack-convert --example recover_speed`.

use std::hint::black_box;
use std::time::Instant;

use half::bf16;
use w4pack_convert::recover::recover;
use w4pack_format::scale::ScaleDtype;

const GROUPS: usize = 1 << 18;

fn main() {
    // A linear congruence is random enough for branch predictors.
    let mut state = 1_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let bell = |next: &mut dyn FnMut() -> u32| {
        (0..6).map(|_| f64::from(next()) / f64::from(1_u32 << 31) - 0.5).sum::<f64>()
    };
    for signed in [false, true] {
        let groups: Vec<[u16; 32]> = (0..GROUPS)
            .map(|_| {
                let values: [f64; 32] = std::array::from_fn(|_| bell(&mut next));
                let largest =
                    values.iter().fold(0.0_f64, |a, &b| if b.abs() > a.abs() { b } else { a });
                let step = if signed { largest / -8.0 } else { largest.abs() / 7.49 };
                let step = f64::from(step as f32) / 64.0;
                values.map(|value| {
                    let code = (value / 64.0 / step).round_ties_even().clamp(-8.0, 7.0);
                    bf16::from_f64(code * step).to_bits()
                })
            })
            .collect();
        for dtype in ScaleDtype::ALL {
            let started = Instant::now();
            for group in &groups {
                if let Ok(recovered) = recover(black_box(group)) {
                    black_box((recovered.step(dtype), recovered.codes));
                }
            }
            let nanoseconds = started.elapsed().as_secs_f64() * 1e9 / GROUPS as f64;
            let sign = if signed { "either sign" } else { "positive" };
            println!("{sign}, {dtype}: {nanoseconds:.0} ns a group");
        }
    }
}
