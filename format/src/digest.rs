//! SHA-256 in the form the Hub publishes it, and BLAKE3, which is several times as fast.

use sha2::{Digest, Sha256};
use std::fmt::Write;

/// A running SHA-256.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Takes more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash as 64 lower-case hexadecimal digits.
    pub fn finish(self) -> String {
        let mut text = String::with_capacity(64);
        for byte in self.0.finalize() {
            write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        }
        text
    }
}

/// A running BLAKE3.
#[derive(Clone, Default)]
pub struct Blake3Hasher(blake3::Hasher);

impl Blake3Hasher {
    /// Takes more bytes. It is at its fastest with pieces of 128 KiB and more.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash (256 bits) as 64 lower-case hexadecimal digits.
    pub fn finish(self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

/// SHA-256 of one piece.
pub fn sha256(bytes: &[u8]) -> String {
    let mut hasher = Hasher::default();
    hasher.update(bytes);
    hasher.finish()
}

/// BLAKE3 of one piece.
pub fn blake3(bytes: &[u8]) -> String {
    let mut hasher = Blake3Hasher::default();
    hasher.update(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_published_vectors() {
        // FIPS 180-2, B.1; and `test_vectors/test_vectors.json` of BLAKE3's own repository, whose
        // input is the bytes 0, 1, 2 … 250, 0, 1 …
        assert_eq!(
            super::sha256(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let input: Vec<u8> = (0..=250).cycle().take(31744).collect();
        assert_eq!(
            super::blake3(&input[..1]),
            "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"
        );
        assert_eq!(
            super::blake3(&input),
            "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47"
        );
    }
}
