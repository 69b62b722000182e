//! `lanes.rs` and `readers.rs`, compiled once for each instruction set.

use std::sync::LazyLock;

use w4pack_format::group::GROUP;
use w4pack_format::scale::ScaleDtype;

use super::lanes::{self, Judged};
use super::readers::{self, Differing};

/// A way to judge groups. All of them give the same answers.
#[derive(Clone, Copy)]
pub struct Leaf {
    /// What the processor needs: "baseline", "avx2", "avx512".
    pub name: &'static str,
    pub(super) judge: fn(&[u16; GROUP]) -> Judged,
    pub(super) judge_all: JudgeAll,
    pub(super) differing: CountDiffering,
}

/// Counts what readers get wrong of a group: bit patterns, codes, stored step.
type CountDiffering = fn(&[u16; GROUP], &[i8; GROUP], f32, ScaleDtype) -> Differing;

/// Judges groups as they lie in a file; what was in the list before is gone.
type JudgeAll = fn(&[[u8; 2 * GROUP]], &mut Vec<Judged>);

impl Leaf {
    /// Those that this processor can run, the fastest last.
    pub fn available() -> Vec<Leaf> {
        let mut leaves = vec![Leaf {
            name: "baseline",
            judge: baseline::judge,
            judge_all: baseline::judge_all,
            differing: baseline::differing,
        }];
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx2") {
                leaves.push(avx2::leaf());
            }
            if avx512::detected() {
                leaves.push(avx512::leaf());
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
mod baseline {
    use super::{Differing, GROUP, Judged, ScaleDtype, lanes, readers};

    pub(super) fn judge(bits: &[u16; GROUP]) -> Judged {
        lanes::judge(bits)
    }

    pub(super) fn judge_all(groups: &[[u8; 2 * GROUP]], judged: &mut Vec<Judged>) {
        lanes::judge_all(groups, judged);
    }

    pub(super) fn differing(
        bits: &[u16; GROUP],
        codes: &[i8; GROUP],
        step: f32,
        dtype: ScaleDtype,
    ) -> Differing {
        readers::differing(bits, codes, step, dtype)
    }
}

/// x86-64 since Haswell (2013) and Excavator (2015).
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Differing, GROUP, Judged, Leaf, ScaleDtype, lanes, readers};

    #[target_feature(enable = "avx2")]
    fn judge(bits: &[u16; GROUP]) -> Judged {
        lanes::judge(bits)
    }

    #[target_feature(enable = "avx2")]
    fn judge_all(groups: &[[u8; 2 * GROUP]], judged: &mut Vec<Judged>) {
        lanes::judge_all(groups, judged);
    }

    #[target_feature(enable = "avx2")]
    fn differing(
        bits: &[u16; GROUP],
        codes: &[i8; GROUP],
        step: f32,
        dtype: ScaleDtype,
    ) -> Differing {
        readers::differing(bits, codes, step, dtype)
    }

    /// For [`Leaf::available`] alone.
    pub(super) fn leaf() -> Leaf {
        Leaf {
            name: "avx2",
            // SAFETY: `available` asks for this leaf only where AVX2 was detected.
            judge: |bits| unsafe { judge(bits) },
            // SAFETY: as above.
            judge_all: |groups, judged| unsafe { judge_all(groups, judged) },
            // SAFETY: as above.
            differing: |bits, codes, step, dtype| unsafe { differing(bits, codes, step, dtype) },
        }
    }
}

/// x86-64 with 512-bit registers.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{Differing, GROUP, Judged, Leaf, ScaleDtype, lanes, readers};

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

    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512dq")]
    fn judge_all(groups: &[[u8; 2 * GROUP]], judged: &mut Vec<Judged>) {
        lanes::judge_all(groups, judged);
    }

    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512dq")]
    fn differing(
        bits: &[u16; GROUP],
        codes: &[i8; GROUP],
        step: f32,
        dtype: ScaleDtype,
    ) -> Differing {
        readers::differing(bits, codes, step, dtype)
    }

    /// For [`Leaf::available`] alone.
    pub(super) fn leaf() -> Leaf {
        Leaf {
            name: "avx512",
            // SAFETY: `available` asks for this leaf only where all four were detected.
            judge: |bits| unsafe { judge(bits) },
            // SAFETY: as above.
            judge_all: |groups, judged| unsafe { judge_all(groups, judged) },
            // SAFETY: as above.
            differing: |bits, codes, step, dtype| unsafe { differing(bits, codes, step, dtype) },
        }
    }
}
