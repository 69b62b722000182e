//! A group: 32 neighbouring weights of one row that share a step, and how its codes are packed.
//!
//! Layout of compressed-tensors' `pack-quantized` at 4 bits: element `8*j + i` of a row lies in
//! word `j`, bits `4*i .. 4*i+3`, as `code + 8`. Words are little-endian on disk, so byte `k` of a
//! row holds element `2k` in its low and `2k + 1` in its high nibble.

/// Weights in a group.
pub const GROUP: usize = 32;

/// Packed words in a group.
pub const WORDS: usize = GROUP / 8;

/// Bytes of a group's packed words.
pub const PACKED_BYTES: usize = WORDS * 4;

/// Added to a code (-8..=7) to make a nibble (0..=15).
pub const NIBBLE_OFFSET: i8 = 8;

/// Packs codes in -8..=7; only the low four bits of `code + 8` are kept.
#[inline]
pub fn pack(codes: &[i8; GROUP]) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    let (eights, _) = codes.as_chunks::<8>();
    for (word, eight) in words.iter_mut().zip(eights) {
        *word = pack_eight(eight);
    }
    words
}

/// Eight codes at once in the bytes of one u64: pairs, then fours, then all eight move together.
#[inline]
fn pack_eight(codes: &[i8; 8]) -> u32 {
    let mut bytes = [0; 8];
    for (byte, &code) in bytes.iter_mut().zip(codes) {
        *byte = code as u8;
    }
    // Adding 8 to four bits turns the highest one round.
    let nibbles = (u64::from_le_bytes(bytes) & 0x0f0f_0f0f_0f0f_0f0f) ^ 0x0808_0808_0808_0808;
    let pairs = (nibbles | nibbles >> 4) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    (fours | fours >> 16) as u32
}

/// The codes of packed words, each in -8..=7.
pub fn unpack(words: &[u32; WORDS]) -> [i8; GROUP] {
    std::array::from_fn(|element| {
        let nibble = (words[element / 8] >> (4 * (element % 8))) & 15;
        nibble as i8 - NIBBLE_OFFSET
    })
}

/// The words of a group as they lie on disk.
#[inline]
pub fn words_to_bytes(words: &[u32; WORDS]) -> [u8; PACKED_BYTES] {
    let mut bytes = [0; PACKED_BYTES];
    for (target, word) in bytes.chunks_exact_mut(4).zip(words) {
        target.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The words of a group from disk.
pub fn words_from_bytes(bytes: &[u8; PACKED_BYTES]) -> [u32; WORDS] {
    std::array::from_fn(|word| {
        let first = 4 * word;
        u32::from_le_bytes([bytes[first], bytes[first + 1], bytes[first + 2], bytes[first + 3]])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_documented_example() {
        let mut codes = [0i8; GROUP];
        codes[..8].copy_from_slice(&[-7, -3, -7, -8, 3, 1, -5, -6]);
        let words = pack(&codes);
        assert_eq!(words[0], 0x239b_0151);
        assert_eq!(words[1..], [0x8888_8888; 3], "code 0 is nibble 8");
    }

    proptest! {
        #[test]
        fn packing_loses_nothing(codes in proptest::array::uniform32(-8i8..=7)) {
            let bytes = words_to_bytes(&pack(&codes));
            prop_assert_eq!(unpack(&words_from_bytes(&bytes)), codes);
            for (element, &code) in codes.iter().enumerate() {
                let nibble = bytes[element / 2] >> (4 * (element % 2)) & 15;
                prop_assert_eq!(nibble as i8 - NIBBLE_OFFSET, code);
            }
        }
    }
}
