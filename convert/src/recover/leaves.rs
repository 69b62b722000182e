//! `lanes.rs`, compiled once for each instruction set.

use std::sync::LazyLock;

use w4pack_format::group::GROUP;

use super::lanes::{self, Judged};

/// A way to judge groups. All of them give the same answers.
#[derive(Clone, Copy)]
pub struct Leaf {
    /// What the processor needs: "baseline", "avx2", "avx512".
    pub name: &'static str,
    pub(super) judge: fn(&[u16; GROUP]) -> Judged,
}

impl Leaf {
    /// Those that this processor can run, the fastest last.
    pub fn available() -> Vec<Leaf> {
        let mut leaves = vec![Leaf { name: "baseline", judge: baseline }];
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx2") {
                leaves.push(Leaf { name: "avx2", judge: avx2::checked });
            }
            if avx512::detected() {
                leaves.push(Leaf { name: "avx512", judge: avx512::checked });
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
}

/// What every processor of the target can do.
fn baseline(bits: &[u16; GROUP]) -> Judged {
    lanes::judge(bits)
}

/// x86-64 since Haswell (2013) and Excavator (2015).
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{GROUP, Judged, lanes};

    #[target_feature(enable = "avx2")]
    fn judge(bits: &[u16; GROUP]) -> Judged {
        lanes::judge(bits)
    }

    /// For [`super::Leaf::available`] alone.
    pub(super) fn checked(bits: &[u16; GROUP]) -> Judged {
        // SAFETY: `available` hands this function out only where AVX2 was detected.
        unsafe { judge(bits) }
    }
}

/// x86-64 with 512-bit registers.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{GROUP, Judged, lanes};

    pub(super) fn detected() -> bool {
        std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512vl")
            && std::is_x86_feature_detected!("avx512dq")
    }

    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512dq")]
    fn judge(bits: &[u16; GROUP]) -> Judged {
        lanes::judge(bits)
    }

    /// For [`super::Leaf::available`] alone.
    pub(super) fn checked(bits: &[u16; GROUP]) -> Judged {
        // SAFETY: `available` hands this function out only where all four were detected.
        unsafe { judge(bits) }
    }
}
