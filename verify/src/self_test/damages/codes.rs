//! Codes that are not the source's: single ones, rows, whole tensors, and those that give nearly the same
//! values by another step.

use w4pack_format::group::GROUP;

use crate::report::FaultClass::Code;
use crate::self_test::Expected;
use crate::self_test::checkpoint::Pack;
use crate::self_test::edits::{Place, code, exchange, of_tensor, set_code};
use crate::self_test::random::Random;

pub(super) fn one_nibble(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let place = Place::any(pack, random)?;
    let element = random.below(GROUP);
    let change = 1 + random.below(15) as u8;
    place.words(pack)?[element / 2] ^= change << (4 * (element % 2));
    Some(place.code())
}

pub(super) fn swapped_nibbles(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..50 {
        let place = Place::any(pack, random)?;
        let words = place.words(pack)?;
        let (one, other) = (random.below(GROUP), random.below(GROUP));
        let (first, second) = (code(words, one), code(words, other));
        if first != second {
            set_code(words, one, second);
            set_code(words, other, first);
            return Some(place.code());
        }
    }
    None
}

pub(super) fn swapped_words(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..50 {
        let place = Place::any(pack, random)?;
        let words = place.words(pack)?;
        let (one, other) = (4 * random.below(4), 4 * random.below(4));
        if words[one..one + 4] != words[other..other + 4] {
            (0..4).for_each(|byte| words.swap(one + byte, other + byte));
            return Some(place.code());
        }
    }
    None
}

pub(super) fn swapped_rows(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..50 {
        let mut place = Place::any(pack, random)?;
        let bytes = 16 * place.groups_in_row;
        let (one, other) = (random.below(place.rows), random.below(place.rows));
        let words = pack.tensor_mut(&format!("{}.weight_packed", place.module))?;
        let row = |row: usize| row * bytes..(row + 1) * bytes;
        let (first, second) = (words[row(one)].to_vec(), words[row(other)].to_vec());
        let Some(byte) = (0..bytes).find(|&byte| first[byte] != second[byte]) else { continue };
        words[row(one)].copy_from_slice(&second);
        words[row(other)].copy_from_slice(&first);
        place.group = one * place.groups_in_row + byte / 16;
        return Some(place.code());
    }
    None
}

/// Minus code times minus step: the same values by other codes.
pub(super) fn turned_group(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..200 {
        let place = Place::any(pack, random)?;
        let words = place.words(pack)?;
        let codes: Vec<i8> = (0..GROUP).map(|element| code(words, element)).collect();
        if codes.contains(&-8) || codes.iter().all(|code| *code == 0) {
            continue;
        }
        (0..GROUP).for_each(|element| set_code(words, element, -codes[element]));
        let step = place.dtype.read(place.step(pack)?);
        place.set_step(pack, -step)?;
        return Some(place.code());
    }
    None
}

/// Codes with another common factor: nearly the same values by other codes.
pub(super) fn other_factor(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..5000 {
        let place = Place::any(pack, random)?;
        let words = place.words(pack)?;
        let codes: Vec<i8> = (0..GROUP).map(|element| code(words, element)).collect();
        let small = codes.iter().all(|code| (-4..=3).contains(code));
        if !small || codes.iter().all(|code| *code == 0) {
            continue;
        }
        (0..GROUP).for_each(|element| set_code(words, element, 2 * codes[element]));
        let step = place.dtype.read(place.step(pack)?);
        place.set_step(pack, step / 2.0)?;
        return Some(place.code());
    }
    None
}

pub(super) fn renamed_modules(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..200 {
        let modules = pack.modules();
        let (one, other) = (random.one_of(&modules)?, random.one_of(&modules)?);
        let words = |module: &str| format!("{module}.weight_packed");
        let (a, b) = (pack.locate(&words(&one))?, pack.locate(&words(&other))?);
        let same = pack.tensor(&words(&one)) == pack.tensor(&words(&other));
        if a.1.shape != b.1.shape || same {
            continue;
        }
        for suffix in ["weight_packed", "weight_scale"] {
            let (one, other) = (format!("{one}.{suffix}"), format!("{other}.{suffix}"));
            exchange(pack, &one, &other)?;
        }
        return of_tensor(Code, &a.0, &words(&one));
    }
    None
}
