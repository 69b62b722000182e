//! The bf16 values of a packed module, with everything that its sidecar says.

use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::dtype::Dtype;
use w4pack_format::exact::{EXACT_FILE, Part};
use w4pack_format::group::{GROUP, PACKED_BYTES, unpack, words_from_bytes};
use w4pack_format::header::Header;
use w4pack_format::scale::ScaleDtype;
use w4pack_format::{FormatError, Result};

use crate::arithmetic::judge::product;
use crate::sidecar::{Listed, group_numbers};

/// Bytes of a group's values.
const VALUES: u64 = 2 * GROUP as u64;

/// A module's values, read from the front to the back at best: going back begins anew.
pub struct PackedValues {
    module: String,
    lists: Option<Lists>,
    /// The next group, and how many zeros came before it.
    next: u64,
    zeros: u64,
}

/// What the sidecar says about the module.
struct Lists {
    dtype: ScaleDtype,
    steps: Listed<f32>,
    verbatim: Listed<[u16; GROUP]>,
    of_step: bool,
    exceptions: Listed<u32>,
    /// A bit for each zero, where the rule says so.
    bits: Option<Vec<u8>>,
}

impl PackedValues {
    /// Nothing is read yet.
    pub fn of(module: String) -> PackedValues {
        PackedValues { module, lists: None, next: 0, zeros: 0 }
    }

    /// Fills `buffer` with the values' bytes from `offset` on.
    pub fn read(&mut self, pack: &Checkpoint, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if self.lists.is_none() {
            self.lists = Some(Lists::read(pack, &self.module)?);
        }
        let end = offset + buffer.len() as u64;
        let (first, last) = (offset / VALUES, end.div_ceil(VALUES));
        let counts_zeros = self.lists.as_ref().is_some_and(|lists| lists.bits.is_some());
        if first < self.next || !counts_zeros {
            (self.next, self.zeros) = if counts_zeros { (0, 0) } else { (first, 0) };
        }
        // Blocks of a size that keeps memory small.
        while self.next < last {
            let count = (last - self.next).min(4096);
            let begin = self.next;
            let values = self.groups(pack, begin, count)?;
            for (number, group) in (begin..).zip(values) {
                for (element, bits) in group.into_iter().enumerate() {
                    for (byte, content) in bits.to_le_bytes().into_iter().enumerate() {
                        let place = number * VALUES + 2 * element as u64 + byte as u64;
                        if (offset..end).contains(&place) {
                            buffer[(place - offset) as usize] = content;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The values of the next groups.
    fn groups(&mut self, pack: &Checkpoint, first: u64, count: u64) -> Result<Vec<[u16; GROUP]>> {
        let Some(lists) = &self.lists else { return Ok(Vec::new()) };
        let scale_bytes = lists.dtype.bytes();
        let mut words = vec![0; count as usize * PACKED_BYTES];
        let mut scales = vec![0; count as usize * scale_bytes];
        let name = |suffix: &str| format!("{}.{suffix}", self.module);
        pack.read_range(&name("weight_packed"), first * PACKED_BYTES as u64, &mut words)?;
        pack.read_range(&name("weight_scale"), first * scale_bytes as u64, &mut scales)?;
        let mut groups = Vec::with_capacity(count as usize);
        let packed = words.as_chunks::<PACKED_BYTES>().0.iter();
        for (number, (words, scale)) in (first..).zip(packed.zip(scales.chunks_exact(scale_bytes)))
        {
            groups.push(lists.values(
                number,
                &unpack(&words_from_bytes(words)),
                lists.dtype.read(scale),
                &mut self.zeros,
            ));
        }
        self.next = first + count;
        Ok(groups)
    }
}

impl Lists {
    fn read(pack: &Checkpoint, module: &str) -> Result<Lists> {
        let fail = |problem: &str| FormatError::Tensor {
            file: EXACT_FILE.into(),
            tensor: module.into(),
            problem: problem.into(),
        };
        let scales = pack.tensor(&format!("{module}.weight_scale"));
        let dtype = scales.and_then(|found| ScaleDtype::from_dtype(found.info.dtype));
        let dtype = dtype.ok_or_else(|| fail("it has no scales of a known type"))?;
        let files = pack.source();
        let header = match files.size(EXACT_FILE) {
            None => None,
            Some(bytes) => Some(Header::parse(EXACT_FILE, bytes, &mut |offset, buffer| {
                files.read_at(EXACT_FILE, offset, buffer)
            })?),
        };
        let part = |part: Part, dtype: Dtype| -> Result<Vec<u8>> {
            let name = part.tensor_name(module);
            let Some((header, info)) = header.as_ref().and_then(|header| {
                Some((header, header.tensors.iter().find(|tensor| tensor.name == name)?))
            }) else {
                return Ok(Vec::new());
            };
            if info.dtype != dtype {
                return Err(fail("an entry of its sidecar has another type than the schema says"));
            }
            let mut bytes = vec![0; info.bytes() as usize];
            files.read_at(EXACT_FILE, header.data_start() + info.begin, &mut bytes)?;
            Ok(bytes)
        };
        let gaps = |kind: Part| -> Result<Vec<u64>> {
            group_numbers(part(kind, Dtype::U8)?).map_err(|problem| fail(&problem))
        };
        let list = |problem| move || fail(problem);
        let steps = part(Part::StepValues, Dtype::F32)?;
        let steps = steps.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
        let verbatim = part(Part::VerbatimValues, Dtype::BF16)?;
        let verbatim = verbatim.as_chunks::<{ 2 * GROUP }>().0.iter().map(|bytes| {
            std::array::from_fn(|i| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]))
        });
        let masks = part(Part::ZeroMasks, Dtype::U32)?;
        let masks = masks.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let rule = part(Part::ZeroRule, Dtype::U8)?.first().copied().unwrap_or(0);
        let bits = part(Part::ZeroBits, Dtype::U8)?;
        let uneven = "a list of its sidecar has more groups than entries, or fewer";
        Ok(Lists {
            dtype,
            steps: Listed::of(gaps(Part::StepGaps)?, steps).ok_or_else(list(uneven))?,
            verbatim: Listed::of(gaps(Part::VerbatimGaps)?, verbatim.collect())
                .ok_or_else(list(uneven))?,
            of_step: rule == 1,
            exceptions: Listed::of(gaps(Part::ZeroGaps)?, masks).ok_or_else(list(uneven))?,
            bits: (rule == 2).then_some(bits),
        })
    }

    /// The values of one group.
    fn values(
        &self,
        number: u64,
        codes: &[i8; GROUP],
        stored: f32,
        zeros: &mut u64,
    ) -> [u16; GROUP] {
        if let Some(values) = self.verbatim.get(number) {
            return *values;
        }
        let step = self.steps.get(number).copied().unwrap_or(stored);
        let default = self.of_step && stored < 0.0;
        let mask = self.exceptions.get(number).copied().unwrap_or(0);
        std::array::from_fn(|i| {
            if codes[i] != 0 {
                return product(codes[i], step);
            }
            let negative = match &self.bits {
                Some(bits) => {
                    let place = *zeros;
                    *zeros += 1;
                    bits.get((place / 8) as usize).is_some_and(|byte| byte >> (place % 8) & 1 == 1)
                }
                None => default != (mask >> i & 1 == 1),
            };
            u16::from(negative) << 15
        })
    }
}
