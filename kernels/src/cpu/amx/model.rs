//! The matrix unit in plain Rust, as its manual spells it, for machines without one.

use super::SIDE;
use super::rows::RowGroup;
use super::tokens::TokenGroup;
use super::unit::{Sums, Unit};

/// The registers that keep sums: high and low, number 0 and 1.
pub struct Model([[Register; 2]; 2]);

/// 16 rows of 16 sums.
type Register = [[i32; SIDE]; SIDE];

/// `tileloadd`: rows of bytes that lie `apart` in memory.
fn load(bytes: &[i8], row_bytes: usize, rows: usize, apart: usize) -> [[i8; 64]; 16] {
    let mut register = [[0; 64]; 16];
    for row in 0..rows {
        register[row][..row_bytes].copy_from_slice(&bytes[row * apart..][..row_bytes]);
    }
    register
}

/// `tdpbssd`: for every row m of `a`, column n of `b` and k, the products of four signed bytes each.
fn add_products(sums: &mut Register, a: &[[i8; 64]; 16], b: &[[i8; 64]; 16], row_bytes: usize) {
    for m in 0..16 {
        for k in 0..row_bytes / 4 {
            for n in 0..16 {
                for i in 0..4 {
                    sums[m][n] += i32::from(a[m][4 * k + i]) * i32::from(b[k][4 * n + i]);
                }
            }
        }
    }
}

impl Unit for Model {
    unsafe fn configured() -> Self {
        Self([[[[0x5a5a_5a5a; SIDE]; SIDE]; 2]; 2])
    }

    unsafe fn multiply<const BYTES: usize>(
        &mut self,
        kept: usize,
        tokens: &TokenGroup,
        rows: &RowGroup,
    ) {
        let tokens = tokens.0.as_flattened().as_flattened();
        let codes = load(rows.0.as_flattened().as_flattened(), 64, 8, 64);
        for (part, sums) in self.0[kept].iter_mut().take(BYTES).enumerate() {
            *sums = [[0; SIDE]; SIDE];
            add_products(sums, &load(&tokens[32 * part..], 32, 16, 64), &codes, 32);
        }
    }

    unsafe fn store<const BYTES: usize>(&mut self, kept: usize, sums: &mut Sums) {
        sums.high = self.0[kept][0];
        if BYTES == 2 {
            sums.low = self.0[kept][1];
        }
    }
}
