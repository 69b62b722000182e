//! Metadata values, each of one of thirteen kinds.

use std::fmt;

/// The kind of a value, as its number in the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The variants are the format's names.
pub enum Kind {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl Kind {
    const ALL: [Kind; 13] = [
        Kind::U8,
        Kind::I8,
        Kind::U16,
        Kind::I16,
        Kind::U32,
        Kind::I32,
        Kind::F32,
        Kind::Bool,
        Kind::String,
        Kind::Array,
        Kind::U64,
        Kind::I64,
        Kind::F64,
    ];

    /// The kind with a number.
    pub fn from_number(number: u32) -> Option<Kind> {
        Kind::ALL.get(number as usize).copied()
    }

    /// Bytes of a value; `None` for strings and arrays, which say their own length.
    pub fn bytes(self) -> Option<usize> {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => Some(1),
            Kind::U16 | Kind::I16 => Some(2),
            Kind::U32 | Kind::I32 | Kind::F32 => Some(4),
            Kind::U64 | Kind::I64 | Kind::F64 => Some(8),
            Kind::String | Kind::Array => None,
        }
    }
}

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // The variants are the format's names.
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array as it lies in the file: a vocabulary has hundreds of thousands of entries, and a hostile
/// file must not turn its bytes into more memory than they are. What it holds was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    pub(super) of: Kind,
    pub(super) count: u64,
    pub(super) bytes: Vec<u8>,
}

impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(number) => write!(out, "{number}"),
            Value::I8(number) => write!(out, "{number}"),
            Value::U16(number) => write!(out, "{number}"),
            Value::I16(number) => write!(out, "{number}"),
            Value::U32(number) => write!(out, "{number}"),
            Value::I32(number) => write!(out, "{number}"),
            Value::U64(number) => write!(out, "{number}"),
            Value::I64(number) => write!(out, "{number}"),
            Value::F32(number) => write!(out, "{number}"),
            Value::F64(number) => write!(out, "{number}"),
            Value::Bool(answer) => write!(out, "{answer}"),
            Value::String(text) => write!(out, "\"{text}\""),
            Value::Array(array) => write!(out, "an array of {}", array.count),
        }
    }
}

impl Value {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Value::U8(_) => Kind::U8,
            Value::I8(_) => Kind::I8,
            Value::U16(_) => Kind::U16,
            Value::I16(_) => Kind::I16,
            Value::U32(_) => Kind::U32,
            Value::I32(_) => Kind::I32,
            Value::F32(_) => Kind::F32,
            Value::Bool(_) => Kind::Bool,
            Value::String(_) => Kind::String,
            Value::Array(_) => Kind::Array,
            Value::U64(_) => Kind::U64,
            Value::I64(_) => Kind::I64,
            Value::F64(_) => Kind::F64,
        }
    }

    /// A whole number from 0, of any integer kind.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(number) => Some(number.into()),
            Value::U16(number) => Some(number.into()),
            Value::U32(number) => Some(number.into()),
            Value::U64(number) => Some(number),
            Value::I8(number) => number.try_into().ok(),
            Value::I16(number) => number.try_into().ok(),
            Value::I32(number) => number.try_into().ok(),
            Value::I64(number) => number.try_into().ok(),
            _ => None,
        }
    }

    /// A number with a fraction.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(number) => Some(number.into()),
            Value::F64(number) => Some(number),
            _ => None,
        }
    }

    /// A boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// A text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// An array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// Appends the value as it lies in a file, without its kind.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            Value::U8(number) => bytes.push(*number),
            Value::I8(number) => bytes.extend(number.to_le_bytes()),
            Value::U16(number) => bytes.extend(number.to_le_bytes()),
            Value::I16(number) => bytes.extend(number.to_le_bytes()),
            Value::U32(number) => bytes.extend(number.to_le_bytes()),
            Value::I32(number) => bytes.extend(number.to_le_bytes()),
            Value::F32(number) => bytes.extend(number.to_le_bytes()),
            Value::Bool(value) => bytes.push(u8::from(*value)),
            Value::String(text) => write_text(text, bytes),
            Value::Array(array) => {
                bytes.extend((array.of as u32).to_le_bytes());
                bytes.extend(array.count.to_le_bytes());
                bytes.extend_from_slice(&array.bytes);
            }
            Value::U64(number) => bytes.extend(number.to_le_bytes()),
            Value::I64(number) => bytes.extend(number.to_le_bytes()),
            Value::F64(number) => bytes.extend(number.to_le_bytes()),
        }
    }
}

/// Appends a text with its length.
pub(super) fn write_text(text: &str, bytes: &mut Vec<u8>) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

impl Array {
    /// An array of texts.
    pub fn of_texts<'t>(texts: impl IntoIterator<Item = &'t str>) -> Array {
        let mut array = Array { of: Kind::String, count: 0, bytes: Vec::new() };
        for text in texts {
            write_text(text, &mut array.bytes);
            array.count += 1;
        }
        array
    }

    /// An array of numbers or booleans.
    ///
    /// # Panics
    /// If the values are of another kind than `of`, or `of` is a kind of its own length.
    pub fn of_values(of: Kind, values: impl IntoIterator<Item = Value>) -> Array {
        assert!(of.bytes().is_some(), "texts have `of_texts`");
        let mut array = Array { of, count: 0, bytes: Vec::new() };
        for value in values {
            assert_eq!(value.kind(), of);
            value.write(&mut array.bytes);
            array.count += 1;
        }
        array
    }

    /// The kind of its elements.
    pub fn of(&self) -> Kind {
        self.of
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements of an array of texts; `None` for any other.
    pub fn texts(&self) -> Option<impl Iterator<Item = &str>> {
        if self.of != Kind::String {
            return None;
        }
        let mut rest = &self.bytes[..];
        Some(std::iter::from_fn(move || {
            let (length, behind) = rest.split_first_chunk::<8>()?;
            let (text, behind) = behind.split_at(u64::from_le_bytes(*length) as usize);
            rest = behind;
            // It was checked when it was read.
            std::str::from_utf8(text).ok()
        }))
    }

    /// The elements of an array of numbers or booleans; `None` for any other.
    pub fn values(&self) -> Option<impl Iterator<Item = Value>> {
        let (of, size) = (self.of, self.of.bytes()?);
        Some(self.bytes.chunks_exact(size).filter_map(move |bytes| scalar(of, bytes)))
    }
}

/// The number or boolean that `bytes` are; `None` for a kind of its own length, for too few bytes,
/// or for a boolean that is neither 0 nor 1.
pub(super) fn scalar(kind: Kind, bytes: &[u8]) -> Option<Value> {
    fn first<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
        bytes.first_chunk().copied()
    }
    Some(match kind {
        Kind::U8 => Value::U8(u8::from_le_bytes(first(bytes)?)),
        Kind::I8 => Value::I8(i8::from_le_bytes(first(bytes)?)),
        Kind::U16 => Value::U16(u16::from_le_bytes(first(bytes)?)),
        Kind::I16 => Value::I16(i16::from_le_bytes(first(bytes)?)),
        Kind::U32 => Value::U32(u32::from_le_bytes(first(bytes)?)),
        Kind::I32 => Value::I32(i32::from_le_bytes(first(bytes)?)),
        Kind::F32 => Value::F32(f32::from_le_bytes(first(bytes)?)),
        Kind::Bool => match first::<1>(bytes)? {
            [0] => Value::Bool(false),
            [1] => Value::Bool(true),
            _ => return None,
        },
        Kind::U64 => Value::U64(u64::from_le_bytes(first(bytes)?)),
        Kind::I64 => Value::I64(i64::from_le_bytes(first(bytes)?)),
        Kind::F64 => Value::F64(f64::from_le_bytes(first(bytes)?)),
        Kind::String | Kind::Array => return None,
    })
}
