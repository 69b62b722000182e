//! The way back, in plain steps: codes, stored steps and sidecar give the source's bf16 bits.

use half::bf16;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::exact::{EXACT_FILE, Part};
use w4pack_format::group::{unpack, words_from_bytes};
use w4pack_format::header::Header;
use w4pack_format::scale::ScaleDtype;

/// The packed data of a module as it lies in an output.
pub struct Packed {
    pub codes: Vec<[i8; 32]>,
    pub steps: Vec<f32>,
    pub scale_dtype: ScaleDtype,
    pub shape: [i64; 2],
}

pub fn packed(output: &Checkpoint, module: &str) -> Packed {
    let words = output.read(&format!("{module}.weight_packed")).unwrap();
    let scale_name = format!("{module}.weight_scale");
    let scale_dtype =
        ScaleDtype::from_dtype(output.tensor(&scale_name).unwrap().info.dtype).unwrap();
    let scales = output.read(&scale_name).unwrap();
    let shape = output.read(&format!("{module}.weight_shape")).unwrap();
    Packed {
        codes: words
            .as_chunks::<16>()
            .0
            .iter()
            .map(|words| unpack(&words_from_bytes(words)))
            .collect(),
        steps: scales.chunks(scale_dtype.bytes()).map(|scale| scale_dtype.read(scale)).collect(),
        scale_dtype,
        shape: [0, 8].map(|at| i64::from_le_bytes(shape[at..at + 8].try_into().unwrap())),
    }
}

/// bf16(code·step) for one value, before the sidecar.
pub fn rounded(code: i8, step: f32) -> bf16 {
    bf16::from_f64(f64::from(code) * f64::from(step))
}

/// All values of a module, bit for bit.
pub fn restore(output: &Checkpoint, module: &str) -> Vec<[u16; 32]> {
    let packed = packed(output, module);
    let sidecar = Sidecar::open(output);
    let part = |part: Part| sidecar.tensor(&part.tensor_name(module));
    let words = |bytes: &[u8]| -> Vec<u32> {
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    };

    let mut steps = packed.steps.clone();
    let finer = words(&part(Part::StepValues));
    for (group, step) in gap_list(&part(Part::StepGaps)).into_iter().zip(finer) {
        steps[group] = f32::from_bits(step);
    }
    let mut groups: Vec<[u16; 32]> = packed
        .codes
        .iter()
        .zip(&steps)
        .map(|(codes, &step)| codes.map(|code| rounded(code, step).to_bits()))
        .collect();

    let verbatim = gap_list(&part(Part::VerbatimGaps));
    let rule = part(Part::ZeroRule).first().copied().unwrap_or_default();
    let mut masks = vec![0_u32; groups.len()];
    let exceptions = words(&part(Part::ZeroMasks));
    for (group, mask) in gap_list(&part(Part::ZeroGaps)).into_iter().zip(exceptions) {
        masks[group] = mask;
    }
    let bits = part(Part::ZeroBits);
    let mut zeros_seen = 0;
    for (number, group) in groups.iter_mut().enumerate() {
        if verbatim.contains(&number) {
            continue;
        }
        for element in 0..32 {
            if packed.codes[number][element] == 0 {
                let other = masks[number] >> element & 1 == 1;
                let negative = match rule {
                    0 => other,
                    1 => (packed.steps[number] < 0.0) != other,
                    _ => bits[zeros_seen / 8] >> (zeros_seen % 8) & 1 == 1,
                };
                group[element] = if negative { 0x8000 } else { 0 };
                zeros_seen += 1;
            }
        }
    }
    let values = part(Part::VerbatimValues);
    for (group, values) in verbatim.into_iter().zip(values.as_chunks::<64>().0) {
        groups[group] =
            std::array::from_fn(|i| u16::from_le_bytes([values[2 * i], values[2 * i + 1]]));
    }
    groups
}

/// The sidecar file.
pub struct Sidecar {
    pub header: Header,
    bytes: Vec<u8>,
}

impl Sidecar {
    pub fn open(output: &Checkpoint) -> Sidecar {
        let bytes = output.source().read_file(EXACT_FILE).unwrap();
        let header = Header::parse(EXACT_FILE, bytes.len() as u64, &mut |offset, buffer| {
            buffer.copy_from_slice(&bytes[offset as usize..][..buffer.len()]);
            Ok(())
        });
        Sidecar { header: header.unwrap(), bytes }
    }

    /// The bytes of a tensor, none if it is not there.
    pub fn tensor(&self, name: &str) -> Vec<u8> {
        let Some(info) = self.header.tensors.iter().find(|tensor| tensor.name == name) else {
            return Vec::new();
        };
        let start = self.header.data_start();
        self.bytes[(start + info.begin) as usize..(start + info.end) as usize].to_vec()
    }
}

fn gap_list(bytes: &[u8]) -> Vec<usize> {
    let (mut groups, mut next, mut gap) = (Vec::new(), 0, 0);
    for &byte in bytes {
        gap += usize::from(byte);
        if byte < 255 {
            groups.push(next + gap);
            next += gap + 1;
            gap = 0;
        }
    }
    groups
}
