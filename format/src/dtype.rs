//! Element types of safetensors.

use std::fmt;

/// An element type, under its safetensors name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // The variants are the names of the format.
pub enum Dtype {
    Bool,
    U8,
    I8,
    F8E4M3,
    F8E5M2,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    I64,
    U64,
    F64,
}

const NAMES: [(Dtype, &str, usize); 15] = [
    (Dtype::Bool, "BOOL", 1),
    (Dtype::U8, "U8", 1),
    (Dtype::I8, "I8", 1),
    (Dtype::F8E4M3, "F8_E4M3", 1),
    (Dtype::F8E5M2, "F8_E5M2", 1),
    (Dtype::I16, "I16", 2),
    (Dtype::U16, "U16", 2),
    (Dtype::F16, "F16", 2),
    (Dtype::BF16, "BF16", 2),
    (Dtype::I32, "I32", 4),
    (Dtype::U32, "U32", 4),
    (Dtype::F32, "F32", 4),
    (Dtype::I64, "I64", 8),
    (Dtype::U64, "U64", 8),
    (Dtype::F64, "F64", 8),
];

impl Dtype {
    /// The type of a safetensors name, `None` for names this crate does not know.
    pub fn from_name(name: &str) -> Option<Dtype> {
        NAMES.iter().find(|entry| entry.1 == name).map(|entry| entry.0)
    }

    /// The safetensors name: "BF16".
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        NAMES[self as usize].2
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_enum() {
        for (position, (dtype, name, _)) in NAMES.iter().enumerate() {
            assert_eq!(*dtype as usize, position);
            assert_eq!(Dtype::from_name(name), Some(*dtype));
        }
        assert_eq!(Dtype::from_name("F4"), None);
    }
}
