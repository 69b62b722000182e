//! Steps that are not the canonical ones.

use crate::self_test::Expected;
use crate::self_test::checkpoint::Pack;
use crate::self_test::edits::Place;
use crate::self_test::random::Random;

pub(super) fn step_by_one_place(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let place = Place::any(pack, random)?;
    let up = random.below(2) == 1;
    let step = place.step(pack)?;
    let mut bits = [0; 4];
    bits[..step.len()].copy_from_slice(step);
    let bits = u32::from_le_bytes(bits);
    let bits = if up { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    step.copy_from_slice(&bits.to_le_bytes()[..step.len()]);
    Some(place.scale())
}

pub(super) fn step_sign(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let place = Place::any(pack, random)?;
    *place.step(pack)?.last_mut()? ^= 0x80;
    Some(place.scale())
}

pub(super) fn bad_step(pack: &mut Pack, random: &mut Random, step: f32) -> Option<Expected> {
    let place = Place::any(pack, random)?;
    place.set_step(pack, if random.below(2) == 1 { -step } else { step })?;
    Some(place.scale())
}

pub(super) fn swapped_steps(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    for _ in 0..200 {
        let place = Place::any(pack, random)?;
        let row = place.group - place.group % place.groups_in_row;
        let other = Place { group: row + random.below(place.groups_in_row), ..clone(&place) };
        let (first, second) = (place.step(pack)?.to_vec(), other.step(pack)?.to_vec());
        if first != second {
            place.step(pack)?.copy_from_slice(&second);
            other.step(pack)?.copy_from_slice(&first);
            return Some(place.scale());
        }
    }
    None
}

fn clone(place: &Place) -> Place {
    Place {
        module: place.module.clone(),
        file: place.file.clone(),
        scale_file: place.scale_file.clone(),
        ..*place
    }
}
