//! `lanes.rs`, `readers.rs` and `settle.rs`, compiled once for each instruction set; with AVX2 the
//! last one is `avx2.rs` instead.

use std::sync::LazyLock;

use w4pack_format::group::GROUP;
use w4pack_format::scale::ScaleDtype;

use super::lanes::{self, Judged};
use super::readers::{self, Differing};
use super::settle::{self, Settled};

/// A way to judge groups. All of them give the same answers.
#[derive(Clone, Copy)]
pub struct Leaf {
    /// What the processor needs: "baseline", "avx2".
    pub name: &'static str,
    pub(super) judge: fn(&[u16; GROUP]) -> Judged,
    settle_all: SettleAll,
    pub(super) differing: CountDiffering,
}

/// Counts what readers get wrong of a group: bit patterns, codes, stored step, and whether that step
/// gives all values.
type CountDiffering = fn(&[u16; GROUP], &[i8; GROUP], f32, ScaleDtype, bool) -> Differing;

/// Settles groups as they lie in a file: as many as both lists hold.
type SettleAll = fn(&[[u8; 2 * GROUP]], ScaleDtype, &mut [Option<Settled>]);

impl Leaf {
    /// Those that this processor can run, the fastest last.
    pub fn available() -> Vec<Leaf> {
        let mut leaves = vec![Leaf {
            name: "baseline",
            judge: baseline::judge,
            settle_all: baseline::settle_all,
            differing: baseline::differing,
        }];
        #[cfg(target_arch = "x86_64")]
        {
            // Every processor with AVX2 counts bits; it is asked all the same.
            if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("popcnt") {
                leaves.push(x86_64_v3::leaf());
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

impl Leaf {
    /// Settles the usual groups among those that lie one behind the other in a file; `None` for the
    /// others. As many as both lists hold.
    pub fn settle(
        self,
        groups: &[[u8; 2 * GROUP]],
        dtype: ScaleDtype,
        settled: &mut [Option<Settled>],
    ) {
        (self.settle_all)(groups, dtype, settled);
    }
}

/// What every processor of the target can do.
mod baseline {
    use super::{Differing, GROUP, Judged, ScaleDtype, Settled, lanes, readers, settle};

    pub(super) fn judge(bits: &[u16; GROUP]) -> Judged {
        lanes::judge(bits)
    }

    pub(super) fn settle_all(
        groups: &[[u8; 2 * GROUP]],
        dtype: ScaleDtype,
        settled: &mut [Option<Settled>],
    ) {
        settle::settle_all(groups, dtype, settled);
    }

    pub(super) fn differing(
        bits: &[u16; GROUP],
        codes: &[i8; GROUP],
        step: f32,
        dtype: ScaleDtype,
        exact: bool,
    ) -> Differing {
        readers::differing(bits, codes, step, dtype, exact)
    }
}

/// x86-64 since Haswell (2013) and Excavator (2015).
#[cfg(target_arch = "x86_64")]
mod x86_64_v3 {
    use super::super::avx2;
    use super::{Differing, GROUP, Judged, Leaf, ScaleDtype, lanes, readers};

    #[target_feature(enable = "avx2")]
    fn judge(bits: &[u16; GROUP]) -> Judged {
        lanes::judge(bits)
    }

    #[target_feature(enable = "avx2")]
    fn differing(
        bits: &[u16; GROUP],
        codes: &[i8; GROUP],
        step: f32,
        dtype: ScaleDtype,
        exact: bool,
    ) -> Differing {
        readers::differing(bits, codes, step, dtype, exact)
    }

    /// For [`Leaf::available`] alone.
    pub(super) fn leaf() -> Leaf {
        Leaf {
            name: "avx2",
            // SAFETY: `available` asks for this leaf only where AVX2 and POPCNT were detected.
            judge: |bits| unsafe { judge(bits) },
            // SAFETY: as above.
            settle_all: |groups, dtype, settled| unsafe {
                avx2::settle_all(groups, dtype, settled)
            },
            // SAFETY: as above.
            differing: |bits, codes, step, dtype, exact| unsafe {
                differing(bits, codes, step, dtype, exact)
            },
        }
    }
}
