//! The algorithms, compiled once for each instruction set: the only place where one meets the other.

#[cfg(target_arch = "x86_64")]
use super::activations::Integers;
use super::activations::{self, Activations, Part, Place, Precision};
use super::attention::{self, Partial, Segment};
use super::matrix::Matrix;
#[cfg(target_arch = "aarch64")]
use super::numbers::Neon;
use super::numbers::{LANES, Stored};
use super::output::Output;
use super::packed::{Packed, PackedRows};
use super::products::Products;
use super::table::Kernels;
use super::{dense, elements, read, rows, tiles};

/// A module with every kernel, compiled with the features named for the numbers named, and the table
/// of them, called as the module is.
macro_rules! leaves {
    ($(#[$about:meta])* $name:ident: $numbers:ty $(, $features:literal)?) => {
        $(#[$about])*
        pub(super) mod $name {
            use super::*;

            pub const KERNELS: Kernels = Kernels {
                name: stringify!($name),
                tiles_from: usize::MAX,
                prepare,
                multiply,
                attend_f32: attend,
                attend_f16: attend,
                attend_bf16: attend,
                gelu_times,
                soft_cap,
                rms_norm,
                sum_words,
            };

            $(#[target_feature(enable = $features)])?
            fn prepare(part: &mut Part<'_>) {
                super::prepare(part);
            }

            $(#[target_feature(enable = $features)])?
            fn multiply(matrix: &Matrix<'_>, row: usize, x: &Activations<'_>, out: &mut Output<'_>) {
                // SAFETY: this function is compiled for the instruction set of its numbers.
                unsafe { super::multiply::<$numbers>(matrix, row, x, out) }
            }

            $(#[target_feature(enable = $features)])?
            fn attend<S: Stored>(q: &[f32], head: usize, over: &[Segment<'_, S>], out: &mut Partial) {
                // SAFETY: as above.
                unsafe { attention::attend::<$numbers, S>(q, head, over, out) }
            }

            $(#[target_feature(enable = $features)])?
            fn gelu_times(gate: &mut [f32], other: &[f32]) {
                // SAFETY: as above.
                unsafe { elements::gelu_times::<$numbers>(gate, other) }
            }

            $(#[target_feature(enable = $features)])?
            fn soft_cap(numbers: &mut [f32], cap: f32) {
                // SAFETY: as above.
                unsafe { elements::soft_cap::<$numbers>(numbers, cap) }
            }

            $(#[target_feature(enable = $features)])?
            fn rms_norm(row: &mut [f32], weight: Option<&[f32]>, epsilon: f32) {
                // SAFETY: as above.
                unsafe { elements::rms_norm::<$numbers>(row, weight, epsilon) }
            }

            $(#[target_feature(enable = $features)])?
            fn sum_words(bytes: &[u8]) -> u64 {
                read::sum_words(bytes)
            }
        }
    };
}

leaves! {
    /// What every processor of the target can do.
    portable: [f32; LANES]
}

#[cfg(target_arch = "x86_64")]
leaves! {
    /// x86-64 since Haswell (2013) and Excavator (2015).
    avx2: [std::arch::x86_64::__m256; 2], "avx2,fma,f16c"
}

#[cfg(target_arch = "x86_64")]
leaves! {
    /// x86-64 with byte products in 512-bit registers: Ice Lake (2019), Zen 4 (2022).
    avx512: std::arch::x86_64::__m512, "avx512f,avx512bw,avx512vnni,avx2,fma,f16c"
}

#[cfg(target_arch = "aarch64")]
leaves! {
    /// 64-bit Arm.
    neon: Neon<false>, "neon"
}

#[cfg(target_arch = "aarch64")]
leaves! {
    /// The same with byte products: Cortex-A75 and A55 (2017), Neoverse N1, Apple M1.
    sdot: Neon<true>, "neon,dotprod"
}

/// AVX-512 and the matrix unit, which multiplies packed rows for a prompt: Sapphire Rapids (2023).
#[cfg(target_arch = "x86_64")]
pub(super) mod amx {
    use super::*;
    use crate::cpu::amx;

    pub const KERNELS: Kernels = Kernels {
        name: "amx",
        tiles_from: amx::LEAST_TOKENS,
        prepare,
        multiply,
        ..avx512::KERNELS
    };

    unsafe fn prepare(part: &mut Part<'_>) {
        // SAFETY: the table is only there where the instruction set is.
        unsafe {
            match &mut part.place {
                Place::Tile(tile) => amx::fill(part.values, part.precision, tile),
                Place::Blocks(_) => (avx512::KERNELS.prepare)(part),
            }
        }
    }

    unsafe fn multiply(matrix: &Matrix<'_>, row: usize, x: &Activations<'_>, out: &mut Output<'_>) {
        // SAFETY: the table is only there where the instruction set and the unit are.
        unsafe {
            match &x.integers {
                Integers::Tiles(tiles) => {
                    amx::multiply::<amx::MatrixUnit>(matrix, row, tiles, x.precision, out);
                }
                _ => (avx512::KERNELS.multiply)(matrix, row, x, out),
            }
        }
    }
}

/// Fills a part that lies in blocks.
#[inline(always)]
fn prepare(part: &mut Part<'_>) {
    match &mut part.place {
        Place::Blocks(blocks) => {
            activations::prepare(part.values, part.columns, part.precision, blocks);
        }
        #[cfg(target_arch = "x86_64")]
        Place::Tile(_) => unreachable!("tiles are for the kernels that multiply them"),
    }
}

/// Multiplies the rows of `matrix` from `first_row` on, as many as `out` has, with all of `x`.
///
/// # Safety
/// Requires the instruction set of `P`.
#[inline(always)]
unsafe fn multiply<P: Products>(
    matrix: &Matrix<'_>,
    first_row: usize,
    x: &Activations<'_>,
    out: &mut Output<'_>,
) {
    // SAFETY: the instruction set of `P` is the caller's promise.
    unsafe {
        match PackedRows::of(matrix, first_row, out.rows()) {
            None => dense::multiply::<P>(matrix, first_row, x, out),
            Some(PackedRows::F16(rows)) => packed::<P, _>(&rows, x, out),
            Some(PackedRows::Bf16(rows)) => packed::<P, _>(&rows, x, out),
            Some(PackedRows::F32(rows)) => packed::<P, _>(&rows, x, out),
        }
    }
}

/// The same for packed rows: one by one for few tokens, by tiles for many.
///
/// # Safety
/// Requires the instruction set of `P`.
#[inline(always)]
unsafe fn packed<P: Products, S: Stored>(
    rows: &Packed<'_, S>,
    x: &Activations<'_>,
    out: &mut Output<'_>,
) {
    // SAFETY: the instruction set of `P` is the caller's promise.
    unsafe {
        match (x.precision, x.tokens() < P::LEAST_TILED) {
            (Precision::Bits16, true) => rows::multiply::<P, S, 2>(rows, x, out),
            (Precision::Bits16, false) => tiles::multiply::<P, S, 2>(rows, x, out),
            (Precision::Bits8, true) => rows::multiply::<P, S, 1>(rows, x, out),
            (Precision::Bits8, false) => tiles::multiply::<P, S, 1>(rows, x, out),
        }
    }
}
