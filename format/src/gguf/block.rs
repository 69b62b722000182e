//! What the blocks of a GGUF tensor say, for the types that w4pack takes apart.
//!
//! Source: ggml's `ggml-common.h` (layouts) and `ggml-quants.c` (arithmetic).

use crate::group::{GROUP, PACKED_BYTES};
use half::f16;

/// Bytes of a Q4_0 block: a step in f16, then 32 nibbles.
pub const Q4_0_BYTES: usize = 18;

/// Elements of a Q6_K block.
pub const Q6_K_ELEMENTS: usize = 256;
/// Bytes of a Q6_K block: 128 of low nibbles, 64 of high bit pairs, 16 scales, a step in f16.
pub const Q6_K_BYTES: usize = 210;

/// A Q4_0 block from the codes (-8..7) of a group and its step.
///
/// Element j is stored as code + 8 in the low nibble of byte 2 + j, element j + 16 in the high one.
/// Any sign of the step is sound: the element is code · step.
pub fn q4_0_from_codes(codes: &[i8; GROUP], step: f16) -> [u8; Q4_0_BYTES] {
    let mut block = [0; Q4_0_BYTES];
    block[..2].copy_from_slice(&step.to_le_bytes());
    for j in 0..GROUP / 2 {
        let nibble = |code: i8| (code + 8) as u8 & 15;
        block[2 + j] = nibble(codes[j]) | nibble(codes[j + GROUP / 2]) << 4;
    }
    block
}

/// Codes and step of a Q4_0 block.
pub fn q4_0_to_codes(block: &[u8; Q4_0_BYTES]) -> ([i8; GROUP], f16) {
    let step = f16::from_le_bytes([block[0], block[1]]);
    let codes = std::array::from_fn(|element| {
        let byte = block[2 + element % (GROUP / 2)];
        let nibble = if element < GROUP / 2 { byte & 15 } else { byte >> 4 };
        nibble as i8 - 8
    });
    (codes, step)
}

/// A Q4_0 block from the packed bytes of a group (element 2k in the low nibble of byte k, 2k + 1 in
/// the high one) and its f16 step, both as they lie in a file. Nibbles are code + 8 in both formats.
pub fn q4_0_from_packed(packed: &[u8; PACKED_BYTES], step: [u8; 2]) -> [u8; Q4_0_BYTES] {
    let mut block = [0; Q4_0_BYTES];
    block[..2].copy_from_slice(&step);
    let (first, second) = packed.split_at(PACKED_BYTES / 2);
    for (pair, (first, second)) in block[2..].chunks_exact_mut(2).zip(first.iter().zip(second)) {
        pair[0] = first & 0x0f | second << 4;
        pair[1] = first >> 4 | second & 0xf0;
    }
    block
}

/// Packed bytes and f16 step of a Q4_0 block; the way back.
pub fn q4_0_to_packed(block: &[u8; Q4_0_BYTES]) -> ([u8; PACKED_BYTES], [u8; 2]) {
    let mut packed = [0; PACKED_BYTES];
    let (first, second) = packed.split_at_mut(PACKED_BYTES / 2);
    for (pair, (first, second)) in block[2..].chunks_exact(2).zip(first.iter_mut().zip(second)) {
        *first = pair[0] & 0x0f | pair[1] << 4;
        *second = pair[0] >> 4 | pair[1] & 0xf0;
    }
    (packed, [block[0], block[1]])
}

/// The values of a Q6_K block: step · scale · code in f32, code in -32..31.
///
/// Two halves of 128 elements. In a half, byte l of 32 and byte l + 32 of the low nibbles hold
/// elements l, l + 32 (low nibbles) and l + 64, l + 96 (high nibbles); byte l of the high parts
/// holds their upper two bits, lowest first; each scale counts for 16 elements.
pub fn q6_k_values(block: &[u8; Q6_K_BYTES]) -> [f32; Q6_K_ELEMENTS] {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, step) = rest.split_at(16);
    let step = f16::from_le_bytes([step[0], step[1]]).to_f32();
    std::array::from_fn(|element| {
        let (half, within) = (element / 128, element % 128);
        let (quarter, lane) = (within / 32, within % 32);
        let byte = low[64 * half + 32 * (quarter % 2) + lane];
        let nibble = if quarter < 2 { byte & 15 } else { byte >> 4 };
        let upper = high[32 * half + lane] >> (2 * quarter) & 3;
        let code = (nibble | upper << 4) as i8 - 32;
        let scale = scales[element / 16] as i8;
        // The order of ggml: (step · scale) · code, each product rounded to f32.
        step * f32::from(scale) * f32::from(code)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{pack, words_to_bytes};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn q4_0_loses_neither_codes_nor_step(
            codes in proptest::array::uniform32(-8i8..=7),
            step in any::<u16>(),
        ) {
            let step = f16::from_bits(step);
            let (back, same) = q4_0_to_codes(&q4_0_from_codes(&codes, step));
            prop_assert_eq!(back, codes);
            prop_assert_eq!(same.to_bits(), step.to_bits());
            // The short way there and back is the same.
            let packed = words_to_bytes(&pack(&codes));
            let block = q4_0_from_packed(&packed, step.to_le_bytes());
            prop_assert_eq!(block, q4_0_from_codes(&codes, step));
            prop_assert_eq!(q4_0_to_packed(&block), (packed, step.to_le_bytes()));
        }
    }

    #[test]
    fn q4_0_pairs_element_j_with_j_plus_16() {
        let mut codes = [0; GROUP];
        (codes[0], codes[1], codes[16]) = (-8, 7, 1);
        let block = q4_0_from_codes(&codes, f16::ONE);
        assert_eq!(block[..4], [0x00, 0x3c, 0x90, 0x8f]);
        assert_eq!(block[4..], [0x88; 14]);
    }

    /// Written the other way round: each element put where the layout says.
    #[test]
    fn q6_k_elements_are_where_the_layout_puts_them() {
        let codes: [i8; Q6_K_ELEMENTS] =
            std::array::from_fn(|i| ((i * 37 + i / 64) % 64) as i8 - 32);
        let scales: [i8; 16] = std::array::from_fn(|i| (i as i8 - 8) * 15);
        let mut block = [0u8; Q6_K_BYTES];
        for (element, code) in codes.iter().enumerate() {
            let (half, within) = (element / 128, element % 128);
            let stored = (code + 32) as u8;
            let (low_byte, low_shift) = match within {
                0..64 => (64 * half + within, 0),
                _ => (64 * half + within - 64, 4),
            };
            block[low_byte] |= (stored & 15) << low_shift;
            block[128 + 32 * half + within % 32] |= (stored >> 4) << (within / 32 * 2);
        }
        for (byte, scale) in block[192..208].iter_mut().zip(scales) {
            *byte = scale as u8;
        }
        block[208..].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        let values = q6_k_values(&block);
        for (element, value) in values.into_iter().enumerate() {
            let expected = 0.5 * f32::from(scales[element / 16]) * f32::from(codes[element]);
            assert_eq!(value, expected, "element {element}");
        }
    }

    /// What the `gguf` package 0.19.0 (`gguf.quants.dequantize`) makes of the same bytes.
    #[test]
    fn q6_k_values_are_those_of_llama_cpps_library() {
        let mut block: [u8; Q6_K_BYTES] = std::array::from_fn(|i| ((i * 73 + 41) % 256) as u8);
        block[208..].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        let values = q6_k_values(&block);
        let expected = [
            (0, 80.5),
            (1, -23.0),
            (31, -800.0),
            (32, 553.5),
            (63, 960.0),
            (64, 13.0),
            (100, -1067.0),
            (127, -24.0),
            (128, -171.5),
            (200, -212.5),
            (255, 144.0),
        ];
        for (element, value) in expected {
            assert_eq!(values[element], value, "element {element}");
        }
        let weighted = values.iter().enumerate().map(|(i, value)| i as f64 * f64::from(*value));
        assert_eq!(values.iter().map(|value| f64::from(*value)).sum::<f64>(), -7422.0);
        assert_eq!(weighted.sum::<f64>(), -806_642.0);
    }
}
