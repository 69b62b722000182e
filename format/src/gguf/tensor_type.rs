//! Element types of GGUF tensors: how many elements a block holds, and in how many bytes.

use std::fmt;

/// A tensor type. Those without a decoder in [`super::block`] are known by name and size only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, non_camel_case_types)] // The variants are ggml's names.
pub enum TensorType {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ2_XXS,
    IQ2_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ2_S,
    IQ4_XS,
    I8,
    I16,
    I32,
    I64,
    F64,
    IQ1_M,
    BF16,
    TQ1_0,
    TQ2_0,
    MXFP4,
}

/// Type, number in the file, name, elements of a block, bytes of a block.
type Entry = (TensorType, u32, &'static str, u64, u64);

/// In the order of the enum. Source: `ggml.h` (numbers) and `ggml-common.h` (blocks).
const ENTRIES: [Entry; 32] = [
    (TensorType::F32, 0, "F32", 1, 4),
    (TensorType::F16, 1, "F16", 1, 2),
    (TensorType::Q4_0, 2, "Q4_0", 32, 18),
    (TensorType::Q4_1, 3, "Q4_1", 32, 20),
    (TensorType::Q5_0, 6, "Q5_0", 32, 22),
    (TensorType::Q5_1, 7, "Q5_1", 32, 24),
    (TensorType::Q8_0, 8, "Q8_0", 32, 34),
    (TensorType::Q8_1, 9, "Q8_1", 32, 36),
    (TensorType::Q2_K, 10, "Q2_K", 256, 84),
    (TensorType::Q3_K, 11, "Q3_K", 256, 110),
    (TensorType::Q4_K, 12, "Q4_K", 256, 144),
    (TensorType::Q5_K, 13, "Q5_K", 256, 176),
    (TensorType::Q6_K, 14, "Q6_K", 256, 210),
    (TensorType::Q8_K, 15, "Q8_K", 256, 292),
    (TensorType::IQ2_XXS, 16, "IQ2_XXS", 256, 66),
    (TensorType::IQ2_XS, 17, "IQ2_XS", 256, 74),
    (TensorType::IQ3_XXS, 18, "IQ3_XXS", 256, 98),
    (TensorType::IQ1_S, 19, "IQ1_S", 256, 50),
    (TensorType::IQ4_NL, 20, "IQ4_NL", 32, 18),
    (TensorType::IQ3_S, 21, "IQ3_S", 256, 110),
    (TensorType::IQ2_S, 22, "IQ2_S", 256, 82),
    (TensorType::IQ4_XS, 23, "IQ4_XS", 256, 136),
    (TensorType::I8, 24, "I8", 1, 1),
    (TensorType::I16, 25, "I16", 1, 2),
    (TensorType::I32, 26, "I32", 1, 4),
    (TensorType::I64, 27, "I64", 1, 8),
    (TensorType::F64, 28, "F64", 1, 8),
    (TensorType::IQ1_M, 29, "IQ1_M", 256, 56),
    (TensorType::BF16, 30, "BF16", 1, 2),
    (TensorType::TQ1_0, 34, "TQ1_0", 256, 54),
    (TensorType::TQ2_0, 35, "TQ2_0", 256, 66),
    (TensorType::MXFP4, 39, "MXFP4", 32, 17),
];

impl TensorType {
    /// The type with a number, `None` for numbers this crate does not know.
    pub fn from_number(number: u32) -> Option<TensorType> {
        ENTRIES.iter().find(|entry| entry.1 == number).map(|entry| entry.0)
    }

    fn entry(self) -> &'static Entry {
        &ENTRIES[self as usize]
    }

    /// The number in the file.
    pub fn number(self) -> u32 {
        self.entry().1
    }

    /// ggml's name: "Q4_0".
    pub fn name(self) -> &'static str {
        self.entry().2
    }

    /// Elements of a block; a row is a whole number of blocks.
    pub fn block_elements(self) -> u64 {
        self.entry().3
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> u64 {
        self.entry().4
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_enum() {
        for (position, entry) in ENTRIES.iter().enumerate() {
            assert_eq!(entry.0 as usize, position);
            assert_eq!(TensorType::from_number(entry.1), Some(entry.0));
        }
        assert_eq!(TensorType::from_number(4), None, "a number that was given up");
    }
}
