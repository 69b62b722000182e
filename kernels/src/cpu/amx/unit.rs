//! The matrix unit: eight registers of 16 rows of 64 bytes, and sums of products of bytes.

use super::SIDE;
use super::rows::RowGroup;
use super::tokens::TokenGroup;
use std::arch::asm;

/// Sums of a group, `[tokens, rows]`: of the high bytes and of the low ones.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Sums {
    pub high: [[i32; SIDE]; SIDE],
    pub low: [[i32; SIDE]; SIDE],
}

/// What multiplies tiles: the processor's unit, and in tests a model of it.
///
/// # Safety
/// All functions require what the implementation names.
pub trait Unit: Sized {
    /// The unit, ready for [`Unit::products`] on this thread until it is dropped.
    unsafe fn configured() -> Self;

    /// Σ code·byte of one group for 16 tokens and two times 16 rows. With `BYTES` of 1 the low
    /// sums are left as they are.
    unsafe fn products<const BYTES: usize>(
        &self,
        tokens: &TokenGroup,
        rows: [&RowGroup; 2],
        sums: &mut [Sums; 2],
    );
}

/// The processor's. Requires that [`super::refusal`] has nothing against it.
pub struct MatrixUnit(());

/// What `ldtilecfg` reads: palette 1, and the bytes of a row and the rows of each register.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Registers 0 to 3 hold sums, 4 and 5 the high and low bytes of tokens, 6 and 7 codes of rows.
static CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 32, 32, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0],
};

impl Unit for MatrixUnit {
    #[inline(always)]
    unsafe fn configured() -> Self {
        // SAFETY: the processor has the unit, which is the caller's promise; the configuration has
        // 64 bytes. The compiler itself uses no tiles.
        unsafe {
            asm!(
                "ldtilecfg [{}]", in(reg) &CONFIGURATION,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags, readonly)
            );
        }
        Self(())
    }

    #[inline(always)]
    unsafe fn products<const BYTES: usize>(
        &self,
        tokens: &TokenGroup,
        rows: [&RowGroup; 2],
        sums: &mut [Sums; 2],
    ) {
        // SAFETY: `self` shows that the unit is configured on this thread. What is read and written
        // is 16 rows of 32 bytes, 64 apart, and 8 or 16 rows of 64 bytes that follow one another:
        // the whole of what the references cover.
        unsafe {
            if BYTES == 2 {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "tileloadd tmm4, [{tokens} + {row}]",
                    "tileloadd tmm6, [{rows0} + {row}]",
                    "tdpbssd tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{tokens} + {row} + 32]",
                    "tdpbssd tmm1, tmm5, tmm6",
                    "tileloadd tmm7, [{rows1} + {row}]",
                    "tdpbssd tmm2, tmm4, tmm7",
                    "tdpbssd tmm3, tmm5, tmm7",
                    "tilestored [{sums} + {row}], tmm0",
                    "tilestored [{sums} + {row} + 1024], tmm1",
                    "tilestored [{sums} + {row} + 2048], tmm2",
                    "tilestored [{sums} + {row} + 3072], tmm3",
                    tokens = in(reg) tokens, rows0 = in(reg) rows[0], rows1 = in(reg) rows[1],
                    sums = in(reg) sums, row = in(reg) 64usize,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, preserves_flags)
                );
            } else {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm2",
                    "tileloadd tmm4, [{tokens} + {row}]",
                    "tileloadd tmm6, [{rows0} + {row}]",
                    "tdpbssd tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{rows1} + {row}]",
                    "tdpbssd tmm2, tmm4, tmm7",
                    "tilestored [{sums} + {row}], tmm0",
                    "tilestored [{sums} + {row} + 2048], tmm2",
                    tokens = in(reg) tokens, rows0 = in(reg) rows[0], rows1 = in(reg) rows[1],
                    sums = in(reg) sums, row = in(reg) 64usize,
                    out("tmm0") _, out("tmm2") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}

impl Drop for MatrixUnit {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the processor has the unit. Without contents to keep, threads change faster.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags, nomem)
            );
        }
    }
}
