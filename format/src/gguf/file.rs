//! The header of a GGUF file: counts, metadata, tensor infos, padding, then the data.
//!
//! Every length is checked against the file before anything is allocated for it. Tensors must lie
//! one behind the other, each on a multiple of the alignment, as llama.cpp demands.

use super::cursor::Cursor;
use super::fault::GgufFault;
use super::tensor_type::TensorType;
use super::value::{Array, Kind, Value, scalar, write_text};
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, VERSION};
use crate::header::is_invisible;
use crate::{FormatError, Result};
use std::collections::HashSet;

/// Longest header that is read. E2B's takes some 16 MB, nearly all of it vocabulary.
pub const HEADER_LIMIT: u64 = 128 << 20;

/// Longest key or tensor name in bytes.
const NAME_LIMIT: usize = 1024;
/// Most dimensions of a tensor.
const RANK_LIMIT: usize = 4;
/// Arrays in arrays are possible; nobody writes them.
const DEPTH_LIMIT: usize = 4;

/// A checked header.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// 2 or 3.
    pub version: u32,
    /// Tensors begin on multiples of this.
    pub alignment: u64,
    /// Metadata in the order of the file; no key twice.
    pub metadata: Vec<(String, Value)>,
    /// The tensors in the order of their bytes; no name twice.
    pub tensors: Vec<GgufTensor>,
    /// Offset of the data section in the file.
    pub data_start: u64,
}

/// A tensor as a header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    /// Its name.
    pub name: String,
    /// How its elements are stored.
    pub tensor_type: TensorType,
    /// Dimensions, slowest first, as everywhere in w4pack (the file has them the other way round).
    pub shape: Vec<usize>,
    /// First byte, counted from the beginning of the data section.
    pub begin: u64,
    /// Size in bytes, without padding.
    pub bytes: u64,
}

impl Gguf {
    /// Reads and checks the header of a file of `file_bytes` bytes, named `file` in errors.
    ///
    /// `read` fills a buffer from an offset of the file; of the tensors' bytes hardly any are read.
    pub fn parse(
        file: &str,
        file_bytes: u64,
        read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Gguf> {
        let mut cursor = Cursor::new(file, file_bytes, read);
        let version = read_version(&mut cursor)?;
        let tensor_count = cursor.u64("the tensor count")?;
        let metadata_count = cursor.u64("the metadata count")?;
        // The shortest entry: a key of one character, its kind, one byte.
        cursor.check_room(metadata_count, 14, "metadata entries")?;
        // The shortest info: a name of one character, one dimension, type, offset.
        cursor.check_room(tensor_count, 33, "tensors")?;
        let metadata = read_metadata(&mut cursor, metadata_count)?;
        let alignment = alignment_of(&metadata).map_err(|fault| cursor.fail(fault))?;
        let infos = read_infos(&mut cursor, tensor_count)?;
        let tensors = place(infos, alignment).map_err(|fault| cursor.fail(fault))?;
        let data_start = cursor.at().next_multiple_of(alignment);
        let gguf = Gguf { version, alignment, metadata, tensors, data_start };
        gguf.check_size(file_bytes).map_err(|fault| cursor.fail(fault))?;
        Ok(gguf)
    }

    /// Lays tensors (name, type, shape with the slowest dimension first) out one behind the other.
    ///
    /// Errors: what [`Gguf::parse`] would refuse in the file.
    pub fn lay_out(
        metadata: Vec<(String, Value)>,
        tensors: &[(String, TensorType, Vec<usize>)],
    ) -> Result<Gguf> {
        let fail = |fault| FormatError::Gguf { file: "a new file".into(), fault };
        let mut keys = HashSet::new();
        for (key, _) in &metadata {
            check_name("metadata key", key, &mut keys).map_err(fail)?;
        }
        let alignment = alignment_of(&metadata).map_err(fail)?;
        let (mut infos, mut names, mut begin) = (Vec::new(), HashSet::new(), 0u64);
        for (name, tensor_type, shape) in tensors {
            check_name("tensor", name, &mut names).map_err(fail)?;
            let dimensions = shape.iter().rev().map(|&size| size as u64).collect();
            let info = Info { name: name.clone(), dimensions, tensor_type: *tensor_type, begin };
            let bytes = info.bytes().map_err(fail)?;
            infos.push(info);
            begin = padded_end(begin, bytes, alignment).ok_or_else(|| {
                fail(GgufFault::Overflow { tensor: name.clone(), dimensions: Vec::new() })
            })?;
        }
        let tensors = place(infos, alignment).map_err(fail)?;
        let mut gguf = Gguf { version: VERSION, alignment, metadata, tensors, data_start: 0 };
        gguf.data_start = gguf.prefix().len() as u64;
        Ok(gguf)
    }

    /// The value of a metadata key.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// A tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Size of a file whose last tensor is padded like the others.
    pub fn file_bytes(&self) -> u64 {
        let end = self.tensors.last().map_or(0, |tensor| tensor.begin + tensor.bytes);
        self.data_start + end.next_multiple_of(self.alignment)
    }

    /// Everything before the data section, padding included, as w4pack writes it.
    pub fn prefix(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            write_text(key, &mut bytes);
            bytes.extend((value.kind() as u32).to_le_bytes());
            value.write(&mut bytes);
        }
        for tensor in &self.tensors {
            write_text(&tensor.name, &mut bytes);
            bytes.extend((tensor.shape.len() as u32).to_le_bytes());
            for &dimension in tensor.shape.iter().rev() {
                bytes.extend((dimension as u64).to_le_bytes());
            }
            bytes.extend(tensor.tensor_type.number().to_le_bytes());
            bytes.extend(tensor.begin.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(self.alignment as usize), 0);
        bytes
    }

    /// The last tensor may be padded or not; more bytes than that belong to nothing.
    fn check_size(&self, file_bytes: u64) -> Result<(), GgufFault> {
        let end = |tensor: &GgufTensor| self.data_start + tensor.begin + tensor.bytes;
        if let Some(cut) = self.tensors.iter().find(|tensor| end(tensor) > file_bytes) {
            let needed = self.tensors.last().map_or(0, end);
            return Err(GgufFault::Truncated {
                tensor: cut.name.clone(),
                needed,
                bytes: file_bytes,
            });
        }
        let padded = self.file_bytes();
        if file_bytes > padded {
            return Err(GgufFault::Trailing { bytes: file_bytes - padded });
        }
        Ok(())
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32> {
    if cursor.take(4, "the magic bytes")? != MAGIC {
        return Err(cursor.fail(GgufFault::Magic));
    }
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => Ok(version),
        _ if matches!(version.swap_bytes(), 1..=3) => Err(cursor.fail(GgufFault::BigEndian)),
        _ => Err(cursor.fail(GgufFault::Version { version })),
    }
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<(String, Value)>> {
    let (mut metadata, mut keys) = (Vec::new(), HashSet::new());
    for _ in 0..count {
        let key = cursor.text("a metadata key")?;
        check_name("metadata key", &key, &mut keys).map_err(|fault| cursor.fail(fault))?;
        let kind = read_kind(cursor, &key)?;
        let value = match kind {
            Kind::Array => Value::Array(read_array(cursor, &key, 1)?),
            Kind::String => Value::String(cursor.text(&format!("the value of `{key}`"))?),
            kind => {
                let size = kind.bytes().unwrap_or(0);
                let bytes = cursor.take(size as u64, &format!("the value of `{key}`"))?;
                match (scalar(kind, bytes), bytes.first().copied()) {
                    (Some(value), _) => value,
                    (None, byte) => {
                        let byte = byte.unwrap_or(0);
                        return Err(cursor.fail(GgufFault::Boolean { key, byte }));
                    }
                }
            }
        };
        metadata.push((key, value));
    }
    Ok(metadata)
}

fn read_kind(cursor: &mut Cursor<'_>, key: &str) -> Result<Kind> {
    let number = cursor.u32(&format!("the type of `{key}`"))?;
    Kind::from_number(number).ok_or_else(|| {
        cursor.fail(GgufFault::Type { name: key.into(), what: "value type", number })
    })
}

/// Walks through an array, checks every element, and keeps its bytes.
fn read_array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Array> {
    if depth > DEPTH_LIMIT {
        return Err(cursor.fail(GgufFault::Depth { key: key.into(), limit: DEPTH_LIMIT }));
    }
    let of = read_kind(cursor, key)?;
    let what = format!("the array `{key}`");
    let count = cursor.u64(&what)?;
    // Texts and arrays say their length in 8 and 12 bytes.
    cursor.check_room(count, of.bytes().unwrap_or(8) as u64, "array elements")?;
    let mut bytes = Vec::new();
    match of {
        Kind::String => {
            for _ in 0..count {
                write_text(&cursor.text(&what)?, &mut bytes);
            }
        }
        Kind::Array => {
            for _ in 0..count {
                Value::Array(read_array(cursor, key, depth + 1)?).write(&mut bytes);
            }
        }
        of => {
            let size = of.bytes().unwrap_or(0) as u64;
            bytes.extend_from_slice(cursor.take(count * size, &what)?);
            let bad = bytes.iter().find(|&&byte| of == Kind::Bool && byte > 1);
            if let Some(&byte) = bad {
                return Err(cursor.fail(GgufFault::Boolean { key: key.into(), byte }));
            }
        }
    }
    Ok(Array { of, count, bytes })
}

/// A tensor as its info says, dimensions fastest first.
struct Info {
    name: String,
    dimensions: Vec<u64>,
    tensor_type: TensorType,
    begin: u64,
}

fn read_infos(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Info>> {
    let (mut infos, mut names) = (Vec::new(), HashSet::new());
    for _ in 0..count {
        let name = cursor.text("a tensor's name")?;
        check_name("tensor", &name, &mut names).map_err(|fault| cursor.fail(fault))?;
        let what = format!("the info of tensor `{name}`");
        let rank = cursor.u32(&what)? as usize;
        if rank == 0 || rank > RANK_LIMIT {
            let dimensions = vec![0; rank.min(RANK_LIMIT + 1)];
            return Err(cursor.fail(GgufFault::Dimensions { tensor: name, dimensions }));
        }
        let dimensions = (0..rank).map(|_| cursor.u64(&what)).collect::<Result<Vec<_>>>()?;
        let number = cursor.u32(&what)?;
        let Some(tensor_type) = TensorType::from_number(number) else {
            return Err(cursor.fail(GgufFault::Type { name, what: "tensor type", number }));
        };
        let begin = cursor.u64(&what)?;
        infos.push(Info { name, dimensions, tensor_type, begin });
    }
    Ok(infos)
}

impl Info {
    /// Size in bytes.
    fn bytes(&self) -> Result<u64, GgufFault> {
        let (tensor, dimensions) = (|| self.name.clone(), || self.dimensions.clone());
        let Some(&columns) = self.dimensions.first().filter(|_| !self.dimensions.contains(&0))
        else {
            return Err(GgufFault::Dimensions { tensor: tensor(), dimensions: dimensions() });
        };
        let block = self.tensor_type.block_elements();
        if columns % block != 0 {
            let type_name = self.tensor_type.name();
            return Err(GgufFault::Rows { tensor: tensor(), columns, block, type_name });
        }
        let row = (columns / block).checked_mul(self.tensor_type.block_bytes());
        row.and_then(|row| {
            let mut others = self.dimensions[1..].iter();
            others.try_fold(row, |bytes, &size| bytes.checked_mul(size))
        })
        .ok_or_else(|| GgufFault::Overflow { tensor: tensor(), dimensions: dimensions() })
    }
}

/// Checks that tensors lie one behind the other.
fn place(infos: Vec<Info>, alignment: u64) -> Result<Vec<GgufTensor>, GgufFault> {
    let (mut tensors, mut expected) = (Vec::with_capacity(infos.len()), 0u64);
    for info in infos {
        let bytes = info.bytes()?;
        if info.begin != expected {
            let (tensor, found) = (info.name, info.begin);
            return Err(GgufFault::Offset { tensor, found, expected });
        }
        let Some(end) = padded_end(expected, bytes, alignment) else {
            let (tensor, dimensions) = (info.name, info.dimensions);
            return Err(GgufFault::Overflow { tensor, dimensions });
        };
        expected = end;
        // The product of all fits 64 bits, so each of them fits.
        let shape = info.dimensions.iter().rev().map(|&size| size as usize).collect();
        let (name, tensor_type, begin) = (info.name, info.tensor_type, info.begin);
        tensors.push(GgufTensor { name, tensor_type, shape, begin, bytes });
    }
    Ok(tensors)
}

/// Where the next tensor begins; sums beyond 2^62 are refused, so that no later sum overflows.
fn padded_end(begin: u64, bytes: u64, alignment: u64) -> Option<u64> {
    let end = begin.checked_add(bytes).filter(|end| *end < 1 << 62)?;
    Some(end.next_multiple_of(alignment))
}

fn alignment_of(metadata: &[(String, Value)]) -> Result<u64, GgufFault> {
    let Some((_, value)) = metadata.iter().find(|(key, _)| key == ALIGNMENT_KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let sound = |number: &u64| number.is_power_of_two() && (8..=65536).contains(number);
    value.as_u64().filter(sound).ok_or_else(|| GgufFault::Alignment {
        found: match value {
            Value::Array(_) => "an array".into(),
            Value::String(_) => "a text".into(),
            other => other.to_string(),
        },
    })
}

/// Names reach terminals and reports: none may steer them or flood them, and none may come twice.
fn check_name(what: &'static str, name: &str, seen: &mut HashSet<String>) -> Result<(), GgufFault> {
    if name.is_empty() || name.len() > NAME_LIMIT || name.chars().any(is_invisible) {
        let name = name.chars().take(60).flat_map(char::escape_debug).collect();
        return Err(GgufFault::Name { what, name });
    }
    if !seen.insert(name.into()) {
        return Err(GgufFault::Duplicate { what, name: name.into() });
    }
    Ok(())
}
