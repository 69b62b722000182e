//! Small changes of bytes that several kinds of damage are made of.

use w4pack_format::group::{GROUP, PACKED_BYTES};
use w4pack_format::scale::ScaleDtype;

use super::Expected;
use super::checkpoint::Pack;
use super::random::Random;
use crate::report::FaultClass;

/// A group of a packed module.
pub struct Place {
    pub module: String,
    pub file: String,
    pub scale_file: String,
    pub dtype: ScaleDtype,
    pub rows: usize,
    pub groups_in_row: usize,
    /// Number of the group in the module.
    pub group: usize,
}

impl Place {
    /// Any group of any packed module.
    pub fn any(pack: &Pack, random: &mut Random) -> Option<Place> {
        let module = random.one_of(&pack.modules())?;
        Place::of(pack, &module, random)
    }

    /// Any group of this module.
    pub fn of(pack: &Pack, module: &str, random: &mut Random) -> Option<Place> {
        let (file, words, _) = pack.locate(&format!("{module}.weight_packed"))?;
        let (scale_file, scales, _) = pack.locate(&format!("{module}.weight_scale"))?;
        let (rows, groups_in_row) = (words.shape[0], words.shape[1] * 8 / GROUP);
        let dtype = ScaleDtype::from_dtype(scales.dtype)?;
        let group = random.below(rows * groups_in_row);
        let module = module.to_string();
        Some(Place { module, file, scale_file, dtype, rows, groups_in_row, group })
    }

    /// A fault of the codes, here.
    pub fn code(&self) -> Expected {
        Expected {
            class: Some(FaultClass::Code),
            file: self.file.clone(),
            tensor: Some(format!("{}.weight_packed", self.module)),
            row: Some((self.group / self.groups_in_row) as u64),
            group: Some((self.group % self.groups_in_row) as u64),
        }
    }

    /// A fault of the step, here.
    pub fn scale(&self) -> Expected {
        Expected {
            class: Some(FaultClass::Scale),
            file: self.scale_file.clone(),
            tensor: Some(format!("{}.weight_scale", self.module)),
            ..self.code()
        }
    }

    /// The 16 bytes of the group's words.
    pub fn words<'a>(&self, pack: &'a mut Pack) -> Option<&'a mut [u8]> {
        let begin = self.group * PACKED_BYTES;
        let words = pack.tensor_mut(&format!("{}.weight_packed", self.module))?;
        words.get_mut(begin..begin + PACKED_BYTES)
    }

    /// The bytes of the group's step.
    pub fn step<'a>(&self, pack: &'a mut Pack) -> Option<&'a mut [u8]> {
        let bytes = self.dtype.bytes();
        let steps = pack.tensor_mut(&format!("{}.weight_scale", self.module))?;
        steps.get_mut(self.group * bytes..(self.group + 1) * bytes)
    }

    /// Stores a number as the step.
    pub fn set_step(&self, pack: &mut Pack, step: f32) -> Option<()> {
        let mut bytes = Vec::new();
        self.dtype.write(step, &mut bytes);
        self.step(pack)?.copy_from_slice(&bytes);
        Some(())
    }
}

/// The code of an element in packed words.
pub fn code(words: &[u8], element: usize) -> i8 {
    (words[element / 2] >> (4 * (element % 2)) & 15) as i8 - 8
}

/// Stores a code (-8..=7).
pub fn set_code(words: &mut [u8], element: usize, code: i8) {
    let shift = 4 * (element % 2);
    let byte = &mut words[element / 2];
    *byte = *byte & !(15 << shift) | ((code + 8) as u8) << shift;
}

/// A fault of a whole file.
pub fn of_file(class: FaultClass, file: &str) -> Option<Expected> {
    Some(Expected { class: Some(class), file: file.into(), ..Expected::default() })
}

/// A fault of a tensor.
pub fn of_tensor(class: FaultClass, file: &str, tensor: &str) -> Option<Expected> {
    Some(Expected { tensor: Some(tensor.into()), ..of_file(class, file)? })
}

/// Exchanges what two tensors hold; they differ in file and place at most.
pub fn exchange(pack: &mut Pack, one: &str, other: &str) -> Option<()> {
    let (first, second) = (pack.tensor(one)?.to_vec(), pack.tensor(other)?.to_vec());
    if first.len() != second.len() {
        // Scales of two dtypes: the codes alone are exchanged.
        return Some(());
    }
    pack.tensor_mut(one)?.copy_from_slice(&second);
    pack.tensor_mut(other)?.copy_from_slice(&first);
    Some(())
}

/// Tensors that are kept as they are, with names ending so.
pub fn kept(pack: &Pack, ending: &str) -> Vec<String> {
    let names = pack.tensors().map(|(_, info)| info.name.clone());
    names.filter(|name| name.ends_with(ending)).collect()
}

/// Any of the weight files.
pub fn any_shard(pack: &Pack, random: &mut Random) -> Option<String> {
    let shards: Vec<String> = pack.tensors().map(|(path, _)| path.clone()).collect();
    random.one_of(&shards)
}
