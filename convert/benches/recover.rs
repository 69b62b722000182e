//! What a group costs on one core: `cargo bench -p w4pack-convert`. One iteration is 4096 groups of
//! 64 bytes; `thrpt` says GB/s of source and, in a second line, groups a second.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use w4pack_convert::recover::Leaf;
use w4pack_format::scale::ScaleDtype;

const GROUPS: usize = 4096;

/// Groups as a trained model has them: values in a bell, the step from the largest of them.
fn groups(signed: bool) -> Vec<[u16; 32]> {
    // A linear congruence is random enough for branch predictors.
    let mut state = 1_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from((state >> 33) as u32) / f64::from(1_u32 << 31) - 0.5
    };
    let mut bell = || (0..6).map(|_| next()).sum::<f64>();
    let group = |_| {
        let values: [f64; 32] = std::array::from_fn(|_| bell());
        let largest = values.iter().fold(0.0_f64, |a, &b| if b.abs() > a.abs() { b } else { a });
        let step = if signed { largest / -8.0 } else { largest.abs() / 7.49 };
        let step = f64::from(step as f32) / 64.0;
        values.map(|value| {
            let code = (value / 64.0 / step).round_ties_even().clamp(-8.0, 7.0);
            bf16::from_f64(code * step).to_bits()
        })
    };
    (0..GROUPS).map(group).collect()
}

fn recover(criterion: &mut Criterion) {
    for (signs, signed) in [("positive steps", false), ("either sign", true)] {
        let groups = groups(signed);
        let mut benchmark = criterion.benchmark_group(format!("recover, {signs}"));
        benchmark.sample_size(30).measurement_time(Duration::from_secs(2));
        benchmark.throughput(Throughput::ElementsAndBytes {
            elements: GROUPS as u64,
            bytes: (GROUPS * 64) as u64,
        });
        for leaf in Leaf::available() {
            for dtype in ScaleDtype::ALL {
                benchmark.bench_function(format!("{}, {dtype}", leaf.name), |bencher| {
                    bencher.iter(|| {
                        for group in &groups {
                            if let Ok(recovered) = leaf.recover(black_box(group)) {
                                black_box((recovered.step(dtype), recovered.codes));
                            }
                        }
                    });
                });
            }
        }
        benchmark.finish();
    }
}

/// What a conversion runs on nearly every group, and what the others get after it.
fn settle(criterion: &mut Criterion) {
    for (signs, signed) in [("positive steps", false), ("either sign", true)] {
        let groups: Vec<[u8; 64]> = groups(signed)
            .iter()
            .map(|group| std::array::from_fn(|byte| group[byte / 2].to_le_bytes()[byte % 2]))
            .collect();
        let mut settled = vec![None; GROUPS];
        let mut benchmark = criterion.benchmark_group(format!("settle, {signs}"));
        benchmark.sample_size(30).measurement_time(Duration::from_secs(2));
        benchmark.throughput(Throughput::ElementsAndBytes {
            elements: GROUPS as u64,
            bytes: (GROUPS * 64) as u64,
        });
        for leaf in Leaf::available() {
            for dtype in ScaleDtype::ALL {
                leaf.settle(&groups, dtype, &mut settled);
                let share = settled.iter().flatten().count() as f64 / GROUPS as f64;
                let name = format!("{}, {dtype}, {:.1} % settled", leaf.name, 100.0 * share);
                benchmark.bench_function(name, |bencher| {
                    bencher.iter(|| {
                        leaf.settle(black_box(&groups), dtype, &mut settled);
                        black_box(&mut settled);
                    });
                });
            }
        }
        benchmark.finish();
    }
}

criterion_group!(benches, recover, settle);
criterion_main!(benches);
