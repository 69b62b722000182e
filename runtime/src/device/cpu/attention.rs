//! Attention on the threads of a pool.
//!
//! A unit of work is a token's query heads over their common key head. Where there are fewer units
//! than keep the threads busy, as in decoding, each is split further by runs of positions. Both ways
//! merge the same runs in the same order, so they give the same bits.

use super::Pool;
use crate::arithmetic::Heads;
use crate::cache::LayerCache;
use bytemuck::Pod;
use std::ops::Range;
use w4pack_kernels::cpu::{self, CacheNumber, Kernels, POSITIONS, Partial, Segment};

/// Units for each thread from which on they are not split.
const ENOUGH_UNITS: usize = 4;

/// See [`crate::Arithmetic::attend`].
pub(super) fn attend<S: CacheNumber + Pod>(
    kernels: &Kernels,
    pool: &Pool,
    kept: &LayerCache<S>,
    first: usize,
    heads: Heads,
    queries: &[f32],
    out: &mut [f32],
) {
    let Heads { queries: count, queries_per_key, head_dim } = heads;
    let width = queries_per_key * head_dim;
    let key_heads = count / queries_per_key;
    let units = queries.len() / width;
    // Of a unit: its token's visible positions, in runs that begin at multiples of POSITIONS.
    let runs = |unit: usize| {
        let visible = kept.visible(first + unit / key_heads);
        let (begin, end) = (*visible.start(), visible.end() + 1);
        let numbers = begin / POSITIONS..end.div_ceil(POSITIONS);
        numbers.map(move |run| begin.max(run * POSITIONS)..end.min((run + 1) * POSITIONS))
    };
    let attend = |unit: usize, run: Range<usize>, partial: &mut Partial| {
        let segments = segments(kept, run, unit % key_heads * head_dim);
        kernels.attend(&queries[unit * width..][..width], head_dim, &segments, partial);
    };
    if units >= ENOUGH_UNITS * pool.threads() || pool.threads() == 1 {
        pool.for_each_chunk(out, width, |unit, out| {
            let (mut whole, mut partial) = (Partial::default(), Partial::default());
            for (number, run) in runs(unit).enumerate() {
                if number == 0 {
                    attend(unit, run, &mut whole);
                } else {
                    attend(unit, run, &mut partial);
                    whole.merge(&partial);
                }
            }
            whole.finish(out);
        });
        return;
    }
    let split: Vec<(usize, Range<usize>)> =
        (0..units).flat_map(|unit| runs(unit).map(move |run| (unit, run))).collect();
    let mut partials = vec![Partial::default(); split.len()];
    pool.for_each_chunk(&mut partials, 1, |number, partial| {
        let (unit, run) = split[number].clone();
        attend(unit, run, &mut partial[0]);
    });
    let mut of_unit = split.iter().map(|(unit, _)| *unit).zip(partials).peekable();
    for (unit, out) in out.chunks_exact_mut(width).enumerate() {
        let mut whole: Option<Partial> = None;
        while let Some((_, partial)) = of_unit.next_if(|(other, _)| *other == unit) {
            match &mut whole {
                None => whole = Some(partial),
                Some(whole) => whole.merge(&partial),
            }
        }
        whole.expect("a token sees itself").finish(out);
    }
}

/// The key head that begins at number `offset` of a row, at the positions of a run.
fn segments<S: CacheNumber + Pod>(
    kept: &LayerCache<S>,
    run: Range<usize>,
    offset: usize,
) -> Vec<Segment<'_, S>> {
    let width = kept.width();
    kept.runs(run)
        .into_iter()
        .map(|(keys, values)| {
            let positions = keys.len() / width;
            let heads = |numbers| cpu::Heads { numbers, width };
            Segment { positions, keys: heads(&keys[offset..]), values: heads(&values[offset..]) }
        })
        .collect()
}
