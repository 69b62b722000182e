//! What a look settles is what the slow way finds; every instruction set sees the same.

use crate::recovery::groups;
use proptest::prelude::*;
use w4pack_format::group::{pack, words_to_bytes};
use w4pack_format::scale::ScaleDtype;
use w4pack_verify::arithmetic::canonical::canonical_step;
use w4pack_verify::arithmetic::confirm::Settled;
use w4pack_verify::arithmetic::leaves::Leaf;
use w4pack_verify::arithmetic::look::Look;
use w4pack_verify::arithmetic::numbers::Number;
use w4pack_verify::arithmetic::recover::{Recovery, recover};

/// The number of a dtype so many places above (or below) another one.
fn moved(step: f32, places: i32, dtype: ScaleDtype) -> f32 {
    let mut bytes = Vec::new();
    dtype.write(step, &mut bytes);
    let bits = bytes.iter().rev().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
    dtype.read(&bits.wrapping_add_signed(places).to_le_bytes())
}

/// What the slow way finds, where codes and step are as they must be, and exact.
fn settled_slowly(
    values: &[u16; 32],
    codes: &[i8; 32],
    step: f32,
    dtype: ScaleDtype,
) -> Option<Settled> {
    let Recovery::OnGrid(grid) = recover(values) else { return None };
    let size = canonical_step(&grid, values, dtype);
    let canonical = if grid.negative { -size.to_f32() } else { size.to_f32() };
    let right = grid.codes == *codes
        && step == canonical
        && grid.steps.contains(&Number::of_f32(step).ratio());
    right.then(|| Settled {
        many_peaks: grid.peaks.count_ones() > 1,
        sign_free: !grid.codes.contains(&-8),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_look_settles_only_what_is_right(
        values in prop_oneof![8 => groups(-40..20), 1 => groups(-140..-100), 1 => groups(100..123)],
        place in 0usize..32,
        code in -8i8..=7,
        bits in any::<u32>(),
    ) {
        let Recovery::OnGrid(grid) = recover(&values) else { return Ok(()) };
        for dtype in ScaleDtype::ALL {
            let size = canonical_step(&grid, &values, dtype).to_f32();
            let canonical = if grid.negative { -size } else { size };
            let near = [-2, -1, 1, 2].map(|places| moved(canonical, places, dtype));
            let other = dtype.read(&bits.to_le_bytes());
            let mut changed = grid.codes;
            changed[place] = code;
            let turned = grid.codes.map(|code| code.saturating_neg().min(7));
            for codes in [grid.codes, changed, turned] {
                let look = Look::at(&values, &codes);
                for step in near.into_iter().chain([canonical, -canonical, other, 0.0, f32::NAN]) {
                    if let Some(settled) = look.settled(step, dtype) {
                        let slowly = settled_slowly(&values, &codes, step, dtype);
                        prop_assert_eq!(Some(settled), slowly, "{:e} {}", step, dtype);
                    }
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_sees_the_same(
        values in prop_oneof![
            4 => groups(-60..20).boxed(),
            1 => proptest::array::uniform32(any::<u16>()).boxed(),
        ],
        codes in proptest::array::uniform32(-8i8..=7),
        right in any::<bool>(),
    ) {
        let codes = match recover(&values) {
            Recovery::OnGrid(grid) if right => grid.codes,
            _ => codes,
        };
        let seen = Look::at(&values, &codes);
        let bytes: Vec<u8> = values.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let values: [u8; 64] = bytes.try_into().unwrap();
        let words = words_to_bytes(&pack(&codes));
        for leaf in Leaf::available() {
            // Three groups, so that nothing of one is left in the next.
            let mut looks = [Look::default(); 3];
            leaf.look(&[[0x3F; 64], values, values], &[[0x12; 16], words, words], &mut looks);
            prop_assert_eq!(looks[1..].to_vec(), vec![seen; 2], "{}", leaf.name);
        }
    }
}

/// Not by saying nothing: of the groups of a trained model nearly all are settled at a look, but for
/// those whose step no number of the dtype can be.
#[test]
fn most_ordinary_groups_are_settled() {
    let mut random = crate::support::synthetic::Random(1);
    let (mut settled, mut exact, mut all) = (0, 0, 0);
    for _ in 0..20_000 {
        let significand = (1u64 << 23) + random.below(1 << 23);
        let step = significand as f64 * 2f64.powi(-31);
        let codes: [i8; 32] = std::array::from_fn(|i| match i {
            0 => 7 - 15 * random.below(2) as i8,
            _ => random.below(15) as i8 - 7,
        });
        let values = codes.map(|code| crate::oracle::round_to_bf16(f64::from(code) * step));
        let Recovery::OnGrid(grid) = recover(&values) else { panic!("off the grid") };
        let step = canonical_step(&grid, &values, ScaleDtype::F16);
        all += 1;
        exact += usize::from(grid.steps.contains(&step.ratio()));
        settled += usize::from(
            Look::at(&values, &codes).settled(step.to_f32(), ScaleDtype::F16).is_some(),
        );
    }
    assert!(exact * 100 > all * 95, "{exact} of {all} have an exact f16 step");
    assert!(settled * 1000 > exact * 995, "{settled} of {exact} are settled");
}
