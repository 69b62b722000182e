//! The tensors of a GGUF file as ranges of a `model.safetensors` that is nowhere written.

use half::{bf16, f16};

use crate::dtype::Dtype;
use crate::gguf::block::{Q4_0_BYTES, Q6_K_BYTES, Q6_K_ELEMENTS, q4_0_to_packed, q6_k_values};
use crate::gguf::names::{ROPE_FREQS, from_gguf};
use crate::gguf::{Gguf, GgufTensor, TensorType};
use crate::group::{GROUP, PACKED_BYTES};
use crate::header::{Header, TensorInfo};
use crate::names::NameLayout;
use crate::source::Source;
use crate::{FormatError, Result};

/// Bytes of the GGUF file read at a time, at most.
const PIECE: u64 = 4 << 20;

/// The file: its header, and what each tensor is made of.
pub(super) struct Weights {
    header: Header,
    prefix: Vec<u8>,
    /// In the order of the header's tensors, which is that of their bytes.
    origins: Vec<Origin>,
}

/// Where a tensor's bytes come from.
#[derive(Clone, Copy)]
struct Origin {
    spelling: Spelling,
    /// First byte of the GGUF tensor in its file.
    begin: u64,
    /// Rows and columns, for `weight_shape`.
    shape: [i64; 2],
}

/// What bytes of the GGUF file become.
#[derive(Clone, Copy)]
enum Spelling {
    /// `weight_packed` of Q4_0 blocks.
    Words,
    /// `weight_scale` of Q4_0 blocks, f16.
    Scales,
    /// `weight_shape`.
    Shape,
    /// bf16 from these.
    Plain(TensorType),
}

impl Spelling {
    /// Bytes of a unit in the view, and of that unit in the GGUF file.
    fn unit(self) -> (u64, u64) {
        match self {
            Spelling::Words => (PACKED_BYTES as u64, Q4_0_BYTES as u64),
            Spelling::Scales => (2, Q4_0_BYTES as u64),
            Spelling::Shape => (16, 0),
            Spelling::Plain(of) => (2 * of.block_elements(), of.block_bytes()),
        }
    }

    /// Appends what some units become. Errors: a number that bf16 does not have.
    fn respell(self, bytes: &[u8], respelled: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Spelling::Words => {
                for block in bytes.as_chunks::<Q4_0_BYTES>().0 {
                    let (packed, step) = q4_0_to_packed(block);
                    let zeros = is_zero(step);
                    respelled.extend(if zeros { [0x88; PACKED_BYTES] } else { packed });
                }
            }
            Spelling::Scales => {
                for block in bytes.as_chunks::<Q4_0_BYTES>().0 {
                    let step = [block[0], block[1]];
                    let step = if is_zero(step) { f16::ONE.to_le_bytes() } else { step };
                    respelled.extend(step);
                }
            }
            Spelling::Plain(TensorType::F32) => {
                for value in bytes.as_chunks::<4>().0 {
                    respelled.extend(exactly(f32::from_le_bytes(*value))?);
                }
            }
            Spelling::Plain(TensorType::F16) => {
                for value in bytes.as_chunks::<2>().0 {
                    respelled.extend(exactly(f16::from_le_bytes(*value).to_f32())?);
                }
            }
            Spelling::Plain(TensorType::Q6_K) => {
                for block in bytes.as_chunks::<Q6_K_BYTES>().0 {
                    let values = q6_k_values(block);
                    respelled.extend(values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()));
                }
            }
            Spelling::Plain(_) | Spelling::Shape => respelled.extend_from_slice(bytes),
        }
        Ok(())
    }
}

fn is_zero(step: [u8; 2]) -> bool {
    f16::from_le_bytes(step) == f16::ZERO
}

fn exactly(value: f32) -> Result<[u8; 2], String> {
    let narrow = bf16::from_f32(value);
    match narrow.to_f32() == value || value.is_nan() {
        true => Ok(narrow.to_le_bytes()),
        false => {
            Err(format!("its value {value} is no bf16 number, and rounding it would be a loss"))
        }
    }
}

impl Weights {
    /// Errors: a tensor that belongs to no text model, or of a type that is not read.
    pub(super) fn new(file: &str, gguf: &Gguf) -> Result<Weights> {
        let (mut entries, mut origins) = (Vec::new(), Vec::new());
        for tensor in gguf.tensors.iter().filter(|tensor| tensor.name != ROPE_FREQS) {
            let name = full_name(file, tensor)?;
            let begin = gguf.data_start + tensor.begin;
            let mut add = |name: String, dtype, shape: Vec<usize>, spelling, module: [i64; 2]| {
                entries.push((name, dtype, shape));
                origins.push(Origin { spelling, begin, shape: module });
            };
            match (tensor.tensor_type, &tensor.shape[..]) {
                (TensorType::Q4_0, &[rows, columns]) => {
                    let module = name.strip_suffix(".weight").unwrap_or(&name);
                    let named = |part: &str| format!("{module}.{part}");
                    let of = [rows as i64, columns as i64];
                    let words = vec![rows, columns / 8];
                    add(named("weight_packed"), Dtype::I32, words, Spelling::Words, of);
                    let scales = vec![rows, columns / GROUP];
                    add(named("weight_scale"), Dtype::F16, scales, Spelling::Scales, of);
                    add(named("weight_shape"), Dtype::I64, vec![2], Spelling::Shape, of);
                }
                (
                    TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::Q6_K,
                    shape,
                ) => {
                    let spelling = Spelling::Plain(tensor.tensor_type);
                    add(name, Dtype::BF16, shape.to_vec(), spelling, [0, 0]);
                }
                (other, shape) => {
                    let problem = format!(
                        "it is {other} {shape:?}; w4pack reads Q4_0 matrices, and Q6_K, BF16, F16 \
                         and F32 tensors"
                    );
                    return Err(fault(file, tensor, problem));
                }
            }
        }
        let header = Header::lay_out(&entries)?;
        Ok(Weights { prefix: header.prefix(), header, origins })
    }

    /// Names of the packed modules.
    pub(super) fn packed_modules(&self) -> Vec<&str> {
        let names = self.header.tensors.iter().map(|tensor| tensor.name.as_str());
        names.filter_map(|name| name.strip_suffix(".weight_packed")).collect()
    }

    /// Size of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.header.file_bytes()
    }

    /// Fills `buffer`, which lies in the file, from `offset`.
    pub(super) fn read(
        &self,
        source: &dyn Source,
        path: &str,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            let at = offset + filled as u64;
            let rest = &mut buffer[filled..];
            if at < self.prefix.len() as u64 {
                let here = &self.prefix[at as usize..];
                let length = here.len().min(rest.len());
                rest[..length].copy_from_slice(&here[..length]);
                filled += length;
                continue;
            }
            let at = at - self.header.data_start();
            let number = self.header.tensors.partition_point(|tensor| tensor.end <= at);
            let info = &self.header.tensors[number];
            let length = (info.end - at).min(rest.len() as u64) as usize;
            let (first, part) = (at - info.begin, &mut rest[..length]);
            self.origins[number].read(source, path, info, first, part)?;
            filled += length;
        }
        Ok(())
    }
}

impl Origin {
    /// Fills `buffer` from byte `first` of a tensor.
    fn read(
        &self,
        source: &dyn Source,
        path: &str,
        info: &TensorInfo,
        first: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        if let Spelling::Shape = self.spelling {
            let bytes = self.shape.map(i64::to_le_bytes).concat();
            buffer.copy_from_slice(&bytes[first as usize..][..buffer.len()]);
            return Ok(());
        }
        let (ours, theirs) = self.spelling.unit();
        let end = first + buffer.len() as u64;
        let mut unit = first / ours;
        let (mut bytes, mut respelled) = (Vec::new(), Vec::new());
        while unit * ours < end {
            let units = (PIECE / theirs).min(end.div_ceil(ours) - unit);
            bytes.resize((units * theirs) as usize, 0);
            source.read_at(path, self.begin + unit * theirs, &mut bytes)?;
            respelled.clear();
            self.spelling.respell(&bytes, &mut respelled).map_err(|problem| {
                FormatError::Tensor { file: path.into(), tensor: info.name.clone(), problem }
            })?;
            let begin = unit * ours;
            let (from, to) = (first.max(begin), end.min(begin + respelled.len() as u64));
            buffer[(from - first) as usize..(to - first) as usize]
                .copy_from_slice(&respelled[(from - begin) as usize..(to - begin) as usize]);
            unit += units;
        }
        Ok(())
    }
}

fn full_name(file: &str, tensor: &GgufTensor) -> Result<String> {
    match from_gguf(&tensor.name) {
        Some(name) => Ok(NameLayout::TextOnly.full_name(&name)),
        None if tensor.name == "output.weight" => {
            Err(fault(file, tensor, "a head that is not the table is not supported".into()))
        }
        None => Err(fault(file, tensor, "no text model of the family has such a tensor".into())),
    }
}

fn fault(file: &str, tensor: &GgufTensor, problem: String) -> FormatError {
    FormatError::Tensor { file: file.into(), tensor: tensor.name.clone(), problem }
}

/// What the angles of the full layers are divided by; empty if the file does not say.
pub(super) fn rope_factors(source: &dyn Source, path: &str, gguf: &Gguf) -> Result<Vec<f32>> {
    let Some(tensor) = gguf.tensor(ROPE_FREQS) else { return Ok(Vec::new()) };
    if tensor.tensor_type != TensorType::F32 || tensor.bytes > 1 << 16 {
        let problem =
            format!("it is {} {:?}, not a short vector of F32", tensor.tensor_type, tensor.shape);
        return Err(fault(path, tensor, problem));
    }
    let mut bytes = vec![0; tensor.bytes as usize];
    source.read_at(path, gguf.data_start + tensor.begin, &mut bytes)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|factor| f32::from_le_bytes(*factor)).collect())
}

/// A Q6_K block spans several groups; its size in the view is a whole number of them.
const _: () = assert!(Q6_K_ELEMENTS.is_multiple_of(GROUP));
