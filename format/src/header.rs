//! The header of a safetensors file: eight bytes of length, JSON, then the data section.
//!
//! Every number is checked before anything is allocated for it: the tensors must lie one behind
//! the other, without holes, and end where the file ends (as the format's own page demands).

use crate::dtype::Dtype;
use crate::{FormatError, HeaderFault, Result, json};
use serde_json::Value;
use std::collections::BTreeMap;

/// Longest header that is read. E2B's takes 0.3 MB.
pub const HEADER_LIMIT: u64 = 16 << 20;

/// Longest name of a tensor in bytes, and its most dimensions.
const NAME_LIMIT: usize = 1024;
const RANK_LIMIT: usize = 8;

const METADATA: &str = "__metadata__";

/// One tensor as a header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// First byte, counted from the beginning of the data section.
    pub begin: u64,
    /// One past the last byte.
    pub end: u64,
}

impl TensorInfo {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.end - self.begin
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.bytes() / self.dtype.size() as u64
    }
}

/// A checked header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The tensors in the order of their bytes.
    pub tensors: Vec<TensorInfo>,
    /// `__metadata__`.
    pub metadata: BTreeMap<String, String>,
    /// The JSON as it stands in the file, padding included.
    pub text: Vec<u8>,
}

impl Header {
    /// Reads and checks the header of a file of `file_bytes` bytes, named `file` in errors.
    ///
    /// `read` fills a buffer from an offset of the file; at most the header is read.
    pub fn parse(
        file: &str,
        file_bytes: u64,
        read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Header> {
        let fail = |fault| FormatError::Header { file: file.into(), fault };
        if file_bytes < 8 {
            return Err(fail(HeaderFault::TooShort { bytes: file_bytes }));
        }
        let mut length = [0; 8];
        read(0, &mut length)?;
        let length = u64::from_le_bytes(length);
        if length == 0 {
            return Err(fail(HeaderFault::Empty));
        }
        if length > HEADER_LIMIT {
            return Err(fail(HeaderFault::TooLong { length, limit: HEADER_LIMIT }));
        }
        if 8 + length > file_bytes {
            return Err(fail(HeaderFault::PastEnd { needed: 8 + length, bytes: file_bytes }));
        }
        let mut text = vec![0; length as usize];
        read(8, &mut text)?;
        let header = parse_text(text).map_err(fail)?;
        header.check_size(file_bytes).map_err(fail)?;
        Ok(header)
    }

    /// Lays tensors out one behind the other in the given order, under the metadata
    /// `{"format": "pt"}` that other loaders look for.
    ///
    /// Errors: a name given twice, a size beyond 64 bits.
    pub fn lay_out(tensors: &[(String, Dtype, Vec<usize>)]) -> Result<Header> {
        let mut json = String::from(r#"{"__metadata__":{"format":"pt"}"#);
        let mut infos = Vec::with_capacity(tensors.len());
        let mut begin = 0u64;
        for (name, dtype, shape) in tensors {
            let fail = |fault| FormatError::Header { file: "a new file".into(), fault };
            let overflow =
                || fail(HeaderFault::Overflow { tensor: name.clone(), shape: shape.clone() });
            let bytes = size_of(*dtype, shape).ok_or_else(overflow)?;
            let end = begin.checked_add(bytes).ok_or_else(overflow)?;
            json.push_str(&format!(
                r#",{}:{{"dtype":"{dtype}","shape":{},"data_offsets":[{begin},{end}]}}"#,
                Value::from(name.as_str()),
                Value::from(shape.clone()),
            ));
            let (name, shape) = (name.clone(), shape.clone());
            infos.push(TensorInfo { name, dtype: *dtype, shape, begin, end });
            begin = end;
        }
        json.push('}');
        // Readers map the data section: keep it aligned for every element type.
        while !json.len().is_multiple_of(8) {
            json.push(' ');
        }
        // Parsing what was built finds duplicate names and proves that we accept our own files.
        let header = parse_text(json.into_bytes())
            .map_err(|fault| FormatError::Header { file: "a new file".into(), fault })?;
        // Parsing sorts by bytes; empty tensors may stand anywhere, so keep the given order.
        Ok(Header { tensors: infos, ..header })
    }

    /// Offset of the data section in the file.
    pub fn data_start(&self) -> u64 {
        8 + self.text.len() as u64
    }

    /// Size of the data section in bytes.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.end).max().unwrap_or(0)
    }

    /// Size of the whole file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.data_start() + self.data_bytes()
    }

    /// The first bytes of the file: length and text.
    pub fn prefix(&self) -> Vec<u8> {
        let mut prefix = (self.text.len() as u64).to_le_bytes().to_vec();
        prefix.extend_from_slice(&self.text);
        prefix
    }

    fn check_size(&self, file_bytes: u64) -> Result<(), HeaderFault> {
        let needed = self.file_bytes();
        if needed > file_bytes {
            let available = file_bytes - self.data_start();
            let cut = self.tensors.iter().find(|tensor| tensor.end > available);
            let tensor = cut.map_or_else(String::new, |tensor| tensor.name.clone());
            return Err(HeaderFault::Truncated { tensor, needed, bytes: file_bytes });
        }
        if needed < file_bytes {
            return Err(HeaderFault::Trailing { bytes: file_bytes - needed });
        }
        Ok(())
    }
}

/// Bytes of `shape` elements of `dtype`, `None` beyond 64 bits.
fn size_of(dtype: Dtype, shape: &[usize]) -> Option<u64> {
    shape
        .iter()
        .try_fold(dtype.size() as u64, |bytes, &dimension| bytes.checked_mul(dimension as u64))
}

fn parse_text(text: Vec<u8>) -> Result<Header, HeaderFault> {
    if let Err(error) = std::str::from_utf8(&text) {
        return Err(HeaderFault::NotUtf8 { offset: error.valid_up_to() });
    }
    let value = json::parse_text(&text).map_err(|problem| match json::duplicate_in(&problem) {
        Some(name) => HeaderFault::Duplicate { name: name.into() },
        None => HeaderFault::NotJson { problem },
    })?;
    let Value::Object(entries) = value else {
        return Err(HeaderFault::NotJson { problem: "not an object".into() });
    };
    let mut metadata = BTreeMap::new();
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in &entries {
        if name == METADATA {
            metadata = parse_metadata(entry)?;
        } else {
            tensors.push(parse_entry(name, entry)?);
        }
    }
    tensors.sort_by(|a, b| (a.begin, a.end, &a.name).cmp(&(b.begin, b.end, &b.name)));
    check_neighbours(&tensors)?;
    Ok(Header { tensors, metadata, text })
}

fn parse_metadata(value: &Value) -> Result<BTreeMap<String, String>, HeaderFault> {
    let Value::Object(entries) = value else {
        return Err(HeaderFault::Metadata { problem: "it is not an object".into() });
    };
    let mut metadata = BTreeMap::new();
    for (key, value) in entries {
        let Value::String(text) = value else {
            return Err(HeaderFault::Metadata { problem: format!("`{key}` is {value}") });
        };
        metadata.insert(key.clone(), text.clone());
    }
    Ok(metadata)
}

fn parse_entry(name: &str, entry: &Value) -> Result<TensorInfo, HeaderFault> {
    let tensor = || name.to_string();
    let problem = |problem: String| HeaderFault::Entry { tensor: tensor(), problem };
    // Names reach terminals and reports: none may steer them or flood them.
    if name.len() > NAME_LIMIT || name.chars().any(is_invisible) {
        let shown: String = name.chars().take(60).flat_map(char::escape_debug).collect();
        let problem = format!(
            "its name is too long or holds control characters (at most {NAME_LIMIT} bytes)"
        );
        return Err(HeaderFault::Entry { tensor: shown, problem });
    }
    let Value::Object(fields) = entry else {
        return Err(problem("its entry is not an object".into()));
    };
    for key in fields.keys() {
        if !["dtype", "shape", "data_offsets"].contains(&key.as_str()) {
            return Err(problem(format!("unknown key `{key}`")));
        }
    }
    let field = |key: &str| {
        fields.get(key).ok_or_else(|| problem(format!("`{key}` is missing from its entry")))
    };
    let dtype = field("dtype")?;
    let dtype = dtype.as_str().and_then(Dtype::from_name).ok_or_else(|| HeaderFault::Dtype {
        tensor: tensor(),
        dtype: dtype.as_str().map_or_else(|| dtype.to_string(), str::to_string),
    })?;
    let shape: Vec<usize> = numbers(field("shape")?)
        .ok_or_else(|| problem("its shape is not a short list of whole numbers".into()))?
        .into_iter()
        .map(|dimension| usize::try_from(dimension).map_err(|_| problem("shape too large".into())))
        .collect::<Result<_, _>>()?;
    let offsets = numbers(field("data_offsets")?)
        .ok_or_else(|| problem("its data_offsets are not two whole numbers".into()))?;
    let [begin, end] = offsets[..] else {
        return Err(HeaderFault::OffsetCount { tensor: tensor(), count: offsets.len() });
    };
    if begin > end {
        return Err(HeaderFault::Inverted { tensor: tensor(), begin, end });
    }
    let Some(needed) = size_of(dtype, &shape) else {
        return Err(HeaderFault::Overflow { tensor: tensor(), shape });
    };
    if needed != end - begin {
        let (dtype, spanned) = (dtype.name(), end - begin);
        return Err(HeaderFault::Size { tensor: tensor(), dtype, shape, needed, spanned });
    }
    Ok(TensorInfo { name: tensor(), dtype, shape, begin, end })
}

fn numbers(value: &Value) -> Option<Vec<u64>> {
    let list = value.as_array().filter(|list| list.len() <= RANK_LIMIT)?;
    list.iter().map(Value::as_u64).collect()
}

/// Control characters, and those that turn the direction of text around.
pub(crate) fn is_invisible(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Sorted tensors must touch: no overlap, no hole, none before the first.
fn check_neighbours(tensors: &[TensorInfo]) -> Result<(), HeaderFault> {
    let mut end = 0;
    for (position, tensor) in tensors.iter().enumerate() {
        if tensor.begin < end {
            let first = tensors[position - 1].name.clone();
            return Err(HeaderFault::Overlap { first, second: tensor.name.clone() });
        }
        if tensor.begin > end {
            return Err(HeaderFault::Gap {
                tensor: tensor.name.clone(),
                bytes: tensor.begin - end,
            });
        }
        end = tensor.end;
    }
    Ok(())
}
