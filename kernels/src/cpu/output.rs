//! Where the kernels write: `[tokens, rows]`, of which every thread has some rows.

use super::numbers::LANES;
use std::marker::PhantomData;

/// The outputs of neighbouring rows of a matrix for all tokens.
///
/// A token's outputs lie together, so the rows of one piece of work are no slice: they are a stripe
/// down the table. Stripes come from [`Output::whole`] by [`Output::split_at`] only, so that no two
/// share a number, and each can go to a thread of its own.
#[derive(Debug)]
pub struct Output<'a> {
    /// The first row's output for the first token.
    first: *mut f32,
    tokens: usize,
    rows: usize,
    /// Numbers from one token's outputs to the next one's.
    stride: usize,
    table: PhantomData<&'a mut [f32]>,
}

// SAFETY: a stripe is the only way to its numbers while it lives, as `&mut [f32]` is.
unsafe impl Send for Output<'_> {}

impl<'a> Output<'a> {
    /// All of `table`, `[tokens, rows]`.
    ///
    /// # Panics
    /// When `table` is no whole number of tokens.
    pub fn whole(table: &'a mut [f32], tokens: usize) -> Self {
        assert!(tokens > 0 && table.len().is_multiple_of(tokens), "outputs of {tokens} tokens");
        let rows = table.len() / tokens;
        Self { first: table.as_mut_ptr(), tokens, rows, stride: rows, table: PhantomData }
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The first `rows` rows, and the others.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn split_at(self, rows: usize) -> (Self, Self) {
        assert!(rows <= self.rows, "{rows} of {} rows", self.rows);
        // SAFETY: at most `rows` numbers further, inside the first token's outputs or at their end.
        let first = unsafe { self.first.add(rows) };
        (Self { rows, ..self }, Self { first, rows: self.rows - rows, ..self })
    }

    /// Writes the outputs of `token` for the rows from `row` on.
    ///
    /// # Panics
    /// When they lie outside.
    #[inline(always)]
    pub(super) fn put(&mut self, token: usize, row: usize, outputs: &[f32]) {
        let target = self.place(token, row, outputs.len());
        // SAFETY: `place` has looked whether there is room, and `self` is the only way to it.
        unsafe { target.copy_from_nonoverlapping(outputs.as_ptr(), outputs.len()) }
    }

    /// Writes the outputs of `token` for sixteen rows from `row` on, or as many as there are.
    ///
    /// # Panics
    /// When none is there.
    #[inline(always)]
    pub(super) fn put_lanes(&mut self, token: usize, row: usize, outputs: &[f32; LANES]) {
        let there = self.rows.saturating_sub(row);
        if there < LANES {
            return self.put(token, row, &outputs[..there]);
        }
        let target: *mut [f32; LANES] = self.place(token, row, LANES).cast();
        // SAFETY: as above.
        unsafe { target.write(*outputs) }
    }

    /// Where `count` outputs of `token` begin.
    #[inline(always)]
    fn place(&mut self, token: usize, row: usize, count: usize) -> *mut f32 {
        assert!(token < self.tokens && row + count <= self.rows, "outside of the stripe");
        // SAFETY: the table has `tokens` times `stride` numbers, and the stripe's rows lie inside
        // a stride by construction.
        unsafe { self.first.add(token * self.stride + row) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_fill_the_table_and_nothing_else() {
        let mut table = vec![0.0; 3 * 5];
        let (mut left, right) = Output::whole(&mut table, 3).split_at(2);
        let (mut middle, mut right) = right.split_at(0);
        assert_eq!((left.rows(), middle.rows(), right.rows(), right.tokens()), (2, 0, 3, 3));
        for token in 0..3 {
            let base = 10.0 * token as f32;
            right.put(token, 0, &[base + 2.0, base + 3.0, base + 4.0]);
            left.put(token, 1, &[base + 1.0]);
            left.put(token, 0, &[base]);
            middle.put(token, 0, &[]);
        }
        let expected: Vec<f32> =
            (0..3).flat_map(|token| (0..5).map(move |row| (10 * token + row) as f32)).collect();
        assert_eq!(table, expected);
    }

    #[test]
    #[should_panic(expected = "outside of the stripe")]
    fn a_stripe_ends_where_the_next_one_begins() {
        let mut table = vec![0.0; 6];
        let (mut left, _right) = Output::whole(&mut table, 2).split_at(1);
        left.put(0, 0, &[1.0, 2.0]);
    }
}
