//! Tensors that are copied as they are: norms and layer scalars.

use crate::report::FaultClass::TensorBytes;
use crate::self_test::Expected;
use crate::self_test::checkpoint::Pack;
use crate::self_test::edits::{exchange, kept, of_tensor};
use crate::self_test::random::Random;

pub(super) fn norm_value(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let name = random.one_of(&kept(pack, "norm.weight"))?;
    changed_value(pack, random, &name)
}

pub(super) fn layer_scalar(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let name = random.one_of(&kept(pack, "layer_scalar"))?;
    changed_value(pack, random, &name)
}

fn changed_value(pack: &mut Pack, random: &mut Random, name: &str) -> Option<Expected> {
    let file = pack.locate(name)?.0;
    let bytes = pack.tensor_mut(name)?;
    bytes[random.below(bytes.len())] ^= 1 << random.below(8);
    of_tensor(TensorBytes, &file, name)
}

pub(super) fn renamed_norms(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let names = kept(pack, "norm.weight");
    for _ in 0..200 {
        let (one, other) = (random.one_of(&names)?, random.one_of(&names)?);
        let (first, second) = (pack.tensor(&one)?, pack.tensor(&other)?);
        if first.len() == second.len() && first != second {
            exchange(pack, &one, &other)?;
            return of_tensor(TensorBytes, &pack.locate(&one)?.0, &one);
        }
    }
    None
}
