//! The matrix unit: eight registers of 16 rows of 64 bytes, and sums of products of bytes.

use super::SIDE;
use super::rows::RowGroup;
use super::tokens::TokenGroup;
use std::arch::asm;

/// Sums of a group, `[tokens][rows]`: of the high bytes and of the low ones.
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
    /// The unit, at this thread's service until it is dropped.
    unsafe fn configured() -> Self;

    /// Σ code·byte of one group for 16 tokens and 16 rows, kept as number `kept`, 0 or 1. With `BYTES`
    /// of 1 only of the high bytes.
    unsafe fn multiply<const BYTES: usize>(
        &mut self,
        kept: usize,
        tokens: &TokenGroup,
        rows: &RowGroup,
    );

    /// Writes the sums that are kept as number `kept`. With `BYTES` of 1 the low ones are left as they
    /// are.
    unsafe fn store<const BYTES: usize>(&mut self, kept: usize, sums: &mut Sums);
}

/// The processor's. Requires that [`super::refusal`] has nothing against it.
///
/// The contents of its registers live from one `asm!` to the next: the compiler itself never uses them.
/// Registers 0 and 1 hold the high and low sums of number 0, 2 and 3 those of number 1; 4 and 5 high
/// and low bytes of tokens, 6 and 7 codes of rows.
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

static CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 32, 32, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// The product of number 0 or 1, with its registers.
macro_rules! product {
    ($bytes:ident, $tokens:ident, $rows:ident, $high:literal, $low:literal, $codes:literal) => {
        asm!(
            concat!("tilezero ", $high),
            "tileloadd tmm4, [{tokens} + {apart}]",
            concat!("tileloadd ", $codes, ", [{rows} + {apart}]"),
            concat!("tdpbssd ", $high, ", tmm4, ", $codes),
            tokens = in(reg) $tokens, rows = in(reg) $rows, apart = in(reg) 64usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags, readonly)
        );
        if $bytes == 2 {
            asm!(
                concat!("tilezero ", $low),
                "tileloadd tmm5, [{tokens} + {apart} + 32]",
                concat!("tdpbssd ", $low, ", tmm5, ", $codes),
                tokens = in(reg) $tokens, apart = in(reg) 64usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags, readonly)
            );
        }
    };
}

/// Writes a register, 16 rows of 64 bytes.
macro_rules! store {
    ($to:expr, $register:literal) => {
        asm!(
            concat!("tilestored [{to} + {apart}], ", $register),
            to = in(reg) $to.as_mut_ptr(), apart = in(reg) 64usize,
            options(nostack, preserves_flags)
        )
    };
}

impl Unit for MatrixUnit {
    #[inline(always)]
    unsafe fn configured() -> Self {
        // SAFETY: the processor has the unit, which is the caller's promise; the configuration has
        // 64 bytes.
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
    unsafe fn multiply<const BYTES: usize>(
        &mut self,
        kept: usize,
        tokens: &TokenGroup,
        rows: &RowGroup,
    ) {
        // SAFETY: `self` shows that the unit is configured on this thread. What is read is 16 rows of
        // 32 bytes, 64 apart, and 8 rows of 64 bytes: what the references cover.
        unsafe {
            if kept == 0 {
                product!(BYTES, tokens, rows, "tmm0", "tmm1", "tmm6");
            } else {
                product!(BYTES, tokens, rows, "tmm2", "tmm3", "tmm7");
            }
        }
    }

    #[inline(always)]
    unsafe fn store<const BYTES: usize>(&mut self, kept: usize, sums: &mut Sums) {
        // SAFETY: as above; what is written is all of an array of 16 times 64 bytes.
        unsafe {
            if kept == 0 {
                store!(sums.high, "tmm0");
                if BYTES == 2 {
                    store!(sums.low, "tmm1");
                }
            } else {
                store!(sums.high, "tmm2");
                if BYTES == 2 {
                    store!(sums.low, "tmm3");
                }
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
