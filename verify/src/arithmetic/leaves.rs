//! `look.rs`, compiled once for each instruction set.

use std::sync::LazyLock;

use super::look::Look;
use super::recover::GROUP;

/// Source values of a group as they lie in the file.
pub type ValueBytes = [u8; 2 * GROUP];
/// Packed words of a group as they lie in the file.
pub type WordBytes = [u8; GROUP / 2];

/// A way to look at groups. All of them see the same.
#[derive(Clone, Copy)]
pub struct Leaf {
    /// What the processor needs: "baseline", "avx2", "avx512".
    pub name: &'static str,
    look: fn(&[ValueBytes], &[WordBytes], &mut [Look]),
}

impl Leaf {
    /// Those that this processor can run, the fastest last.
    pub fn available() -> Vec<Leaf> {
        let mut leaves = vec![Leaf { name: "baseline", look: look_all }];
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx2") {
                leaves.push(Leaf { name: "avx2", look: avx2::checked });
            }
            if avx512::detected() {
                leaves.push(Leaf { name: "avx512", look: avx512::checked });
            }
        }
        leaves
    }

    /// The fastest; found once.
    pub fn best() -> Leaf {
        static BEST: LazyLock<Leaf> =
            LazyLock::new(|| *Leaf::available().last().expect("the baseline is always available"));
        *BEST
    }

    /// Looks at as many groups as all three slices hold.
    pub fn look(self, values: &[ValueBytes], words: &[WordBytes], looks: &mut [Look]) {
        (self.look)(values, words, looks);
    }
}

/// What every processor of the target can do.
#[inline(always)]
fn look_all(values: &[ValueBytes], words: &[WordBytes], looks: &mut [Look]) {
    for ((values, words), look) in values.iter().zip(words).zip(looks) {
        *look = Look::at_bytes(values, words);
    }
}

/// x86-64 since Haswell (2013) and Excavator (2015).
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Look, ValueBytes, WordBytes, look_all};

    #[target_feature(enable = "avx2")]
    fn look(values: &[ValueBytes], words: &[WordBytes], looks: &mut [Look]) {
        look_all(values, words, looks);
    }

    /// For [`super::Leaf::available`] alone.
    pub(super) fn checked(values: &[ValueBytes], words: &[WordBytes], looks: &mut [Look]) {
        // SAFETY: `available` hands this function out only where AVX2 was detected.
        unsafe { look(values, words, looks) }
    }
}

/// x86-64 with 512-bit registers.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{Look, ValueBytes, WordBytes, look_all};

    pub(super) fn detected() -> bool {
        std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512vl")
            && std::is_x86_feature_detected!("avx512dq")
    }

    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512dq")]
    fn look(values: &[ValueBytes], words: &[WordBytes], looks: &mut [Look]) {
        look_all(values, words, looks);
    }

    /// For [`super::Leaf::available`] alone.
    pub(super) fn checked(values: &[ValueBytes], words: &[WordBytes], looks: &mut [Look]) {
        // SAFETY: `available` hands this function out only where all four were detected.
        unsafe { look(values, words, looks) }
    }
}
