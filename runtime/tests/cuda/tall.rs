//! Products of many rows, whose warps take them in turn: to the bit those of `gemv.cu`.

use crate::bench::{Bench, activations, weight};
use crate::kernels::{gemv, launch_gemv};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use w4pack_kernels::cuda::parameters::{
    Epilogue, GEMV_THREADS, Gemv, Input, Kind, Matrix, TallGemv, digit_bytes,
};

/// Rows of one, two and three groups a lane, on 8, 16 and 32 lanes; as many rows as give some warps a turn more.
const SHAPES: [(usize, usize, &str); 5] = [
    (1000, 256, "gemv_tall_1"),
    (404, 512, "gemv_tall_1"),
    (300, 1536, "gemv_tall_3"),
    (202, 2048, "gemv_tall_2"),
    (2, 3072, "gemv_tall_3"),
];
const BLOCKS: usize = 3;

#[test]
fn a_product_of_many_rows_is_that_of_few() {
    let Some(mut bench) = Bench::new() else { return };
    let mut random = ChaCha8Rng::seed_from_u64(11);
    for (rows, columns, kernel) in SHAPES {
        bench.next = bench.arena.address();
        let matrix = weight(&mut bench, &mut random, rows, columns, Kind::PackedF16).matrix;
        let [x, delta, delta_norm, norm] =
            [0; 4].map(|_| bench.put_floats(&activations(&mut random, columns)));
        let input = Input { delta, delta_norm, norm, epsilon: 1e-6, ..Input::plain(x) };
        for input in [input, Input::plain(x)] {
            for epilogue in [Epilogue::Store, Epilogue::Logits] {
                let run = |bench: &mut Bench, is_tall: bool| {
                    let (out, best) = (bench.take(4 * rows), bench.put(&0u64.to_le_bytes()));
                    let stream_out = if input.delta == 0 { 0 } else { bench.take(4 * columns) };
                    let input = Input { stream_out, ..input };
                    let (cap, epilogue) = (30.0, epilogue as i32);
                    let few = Gemv { best, cap, epilogue, ..gemv(matrix, input, out) };
                    match is_tall {
                        true => {
                            let (tall, found) = TallGemv::of(&few).expect("there is a kernel");
                            assert_eq!(found, kernel);
                            let (grid, shared) = ([BLOCKS as u32, 1], digit_bytes(columns));
                            bench.launch(kernel, grid, GEMV_THREADS, shared, &tall);
                        }
                        false => launch_gemv(bench, &few, 1),
                    }
                    let stream = (stream_out > 0).then(|| bench.bytes(stream_out, 4 * columns));
                    (bench.bytes(out, 4 * rows), bench.bytes(best, 8), stream)
                };
                let (few, many) = (run(&mut bench, false), run(&mut bench, true));
                assert!(few == many, "{rows} x {columns}, {epilogue:?}");
                assert_eq!(few.1 != [0; 8], epilogue == Epilogue::Logits);
            }
        }
    }
}

/// What the kernel is not made for has none.
#[test]
fn other_products_are_not_taken_for_tall_ones() {
    let matrix = |rows: i32, columns: i32, kind: Kind| Matrix {
        rows,
        columns,
        kind: kind as i32,
        ..Matrix::NONE
    };
    let one = |matrix: Matrix| gemv(matrix, Input::plain(0), 0);
    let fits = one(matrix(4096, 1536, Kind::PackedF16));
    assert!(TallGemv::of(&fits).is_some());
    for (what, other) in [
        ("a row too many for a unit", one(matrix(4097, 1536, Kind::PackedF16))),
        ("steps in bf16", one(matrix(4096, 1536, Kind::PackedBf16))),
        ("rows of two slices", one(matrix(4096, 6144, Kind::PackedF16))),
        ("lanes of unequal shares", one(matrix(4096, 288, Kind::PackedF16))),
        ("three matrices", Gemv { parts: 3, part: [fits.part[0]; 3], ..fits }),
        ("gate and up", Gemv { epilogue: Epilogue::Geglu as i32, ..fits }),
    ] {
        assert!(TallGemv::of(&other).is_none(), "{what}");
    }
}
