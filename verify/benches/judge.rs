//! What judging a group costs on one core: `cargo bench -p w4pack-verify`. One iteration is 4096
//! groups of 64 source bytes; `thrpt` says GB/s of source and, in a second line, groups a second.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use w4pack_format::group::{pack, words_to_bytes};
use w4pack_format::scale::ScaleDtype;
use w4pack_verify::arithmetic::bf16;
use w4pack_verify::arithmetic::canonical::canonical_step;
use w4pack_verify::arithmetic::judge::{judge, judge_after};
use w4pack_verify::arithmetic::leaves::Leaf;
use w4pack_verify::arithmetic::look::Look;
use w4pack_verify::arithmetic::recover::{Recovery, recover};

const GROUPS: usize = 4096;

/// A stored group and its source values.
struct Stored {
    values: [u16; 32],
    codes: [i8; 32],
    step: f32,
}

/// Groups with peaks 7 and 8 under random f32 steps, packed as they must be.
fn groups(dtype: ScaleDtype) -> Vec<Stored> {
    // A linear congruence is random enough for branch predictors.
    let mut state = 1u64;
    let mut below = |bound: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let group = |_| {
        let mantissa = (1 << 23) + below(1 << 23);
        let codes: [i64; 32] = std::array::from_fn(|i| match i {
            0 => 7 - 15 * below(2) as i64,
            _ => below(15) as i64 - 7,
        });
        let value = |code: i64| bf16::round(code < 0, mantissa * code.unsigned_abs(), -32);
        let values = codes.map(value);
        let Recovery::OnGrid(grid) = recover(&values) else { unreachable!("made on a grid") };
        let size = canonical_step(&grid, &values, dtype).to_f32();
        Stored { values, codes: grid.codes, step: if grid.negative { -size } else { size } }
    };
    (0..GROUPS).map(group).collect()
}

fn judging(criterion: &mut Criterion) {
    let mut benchmark = criterion.benchmark_group("judge");
    benchmark.sample_size(30).measurement_time(Duration::from_secs(2));
    benchmark.throughput(Throughput::ElementsAndBytes {
        elements: GROUPS as u64,
        bytes: (GROUPS * 64) as u64,
    });
    for dtype in ScaleDtype::ALL {
        let groups = groups(dtype);
        let values: Vec<[u8; 64]> = groups
            .iter()
            .map(|group| std::array::from_fn(|i| group.values[i / 2].to_le_bytes()[i % 2]))
            .collect();
        let words: Vec<[u8; 16]> =
            groups.iter().map(|group| words_to_bytes(&pack(&group.codes))).collect();
        for leaf in Leaf::available() {
            benchmark.bench_function(format!("{}, {dtype}", leaf.name), |bencher| {
                let mut looks = vec![Look::default(); GROUPS];
                bencher.iter(|| {
                    leaf.look(black_box(&values), black_box(&words), &mut looks);
                    for (look, group) in looks.iter().zip(&groups) {
                        if look.settled(group.step, dtype).is_none() {
                            let Stored { values, codes, step } = group;
                            black_box(judge_after(look, values, codes, *step, dtype));
                        }
                    }
                });
            });
        }
        benchmark.bench_function(format!("by value, {dtype}"), |bencher| {
            bencher.iter(|| {
                for Stored { values, codes, step } in &groups {
                    black_box(judge(values, codes, *step, dtype));
                }
            });
        });
    }
    benchmark.finish();
}

criterion_group!(benches, judging);
criterion_main!(benches);
