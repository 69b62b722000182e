//! Scales: the stored steps of the groups, in one of three element types.

use crate::dtype::Dtype;
use half::{bf16, f16};
use std::fmt;
use std::str::FromStr;

/// Element type of a `weight_scale` tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScaleDtype {
    /// IEEE half precision, w4pack's default.
    F16,
    /// Single precision: every bf16 value of the source comes back exactly.
    F32,
    /// What the official writer uses.
    BF16,
}

impl ScaleDtype {
    /// All of them.
    pub const ALL: [ScaleDtype; 3] = [ScaleDtype::F16, ScaleDtype::F32, ScaleDtype::BF16];

    /// The scale type of an element type, if it is one.
    pub fn from_dtype(dtype: Dtype) -> Option<ScaleDtype> {
        Self::ALL.into_iter().find(|scale| scale.dtype() == dtype)
    }

    /// The element type.
    pub fn dtype(self) -> Dtype {
        match self {
            ScaleDtype::F16 => Dtype::F16,
            ScaleDtype::F32 => Dtype::F32,
            ScaleDtype::BF16 => Dtype::BF16,
        }
    }

    /// Bytes of one scale.
    pub fn bytes(self) -> usize {
        self.dtype().size()
    }

    /// The name on the command line and in reports: "f16".
    pub fn name(self) -> &'static str {
        match self {
            ScaleDtype::F16 => "f16",
            ScaleDtype::F32 => "f32",
            ScaleDtype::BF16 => "bf16",
        }
    }

    /// The scale that begins `bytes`, exactly (f32 holds every f16 and bf16).
    ///
    /// # Panics
    /// If `bytes` is shorter than [`ScaleDtype::bytes`].
    pub fn read(self, bytes: &[u8]) -> f32 {
        match self {
            ScaleDtype::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            ScaleDtype::BF16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            ScaleDtype::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        }
    }

    /// Stores `scale` in `bytes`, rounded to nearest even where the type is narrower.
    ///
    /// # Panics
    /// If `bytes` does not have [`ScaleDtype::bytes`] bytes.
    #[inline]
    pub fn write_to(self, scale: f32, bytes: &mut [u8]) {
        match self {
            ScaleDtype::F16 => bytes.copy_from_slice(&f16::from_f32(scale).to_le_bytes()),
            ScaleDtype::BF16 => bytes.copy_from_slice(&bf16::from_f32(scale).to_le_bytes()),
            ScaleDtype::F32 => bytes.copy_from_slice(&scale.to_le_bytes()),
        }
    }

    /// Appends `scale`, rounded to nearest even where the type is narrower.
    pub fn write(self, scale: f32, bytes: &mut Vec<u8>) {
        match self {
            ScaleDtype::F16 => bytes.extend_from_slice(&f16::from_f32(scale).to_le_bytes()),
            ScaleDtype::BF16 => bytes.extend_from_slice(&bf16::from_f32(scale).to_le_bytes()),
            ScaleDtype::F32 => bytes.extend_from_slice(&scale.to_le_bytes()),
        }
    }
}

impl fmt::Display for ScaleDtype {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for ScaleDtype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|scale| scale.name() == text)
            .ok_or_else(|| format!("`{text}` is not a scale type (f16, f32, bf16)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_precision_number_survives() {
        for dtype in [ScaleDtype::F16, ScaleDtype::BF16] {
            for bits in 0..=u16::MAX {
                let bytes = bits.to_le_bytes();
                let value = dtype.read(&bytes);
                if value.is_nan() {
                    continue;
                }
                let mut written = Vec::new();
                dtype.write(value, &mut written);
                assert_eq!(written, bytes);
            }
        }
    }
}
