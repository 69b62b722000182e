//! How fast single tokens are multiplied with matrices that no cache holds, beside a plain read of the same
//! card: `cargo run --release --example card_products`. W4PACK_KERNELS=ptx75 takes the kernels of small cards.
//!
//! Of every shape a plain read of the same bytes comes first, which has to start and to end too, then the launch that
//! decoding uses, then others: blocks a multiprocessor, and tasks of a warp that are under way. All are launches of a
//! captured graph, as those of a decode step are: a launch by hand takes a microsecond or two more.

use std::error::Error;
use std::ffi::c_void;
use w4pack_kernels::cuda::parameters::{
    ChainProduct, Epilogue, GEMV_THREADS, Gemv, Input, Kind, MOST_CHAINED, Matrix, PRODUCT_THREADS,
    TallGemv, TokenChain, TokenLaunch, TokenProduct, TokenResult, digit_bytes, row_shape,
};
use w4pack_kernels::cuda::{Address, Gpu};
use w4pack_runtime::device::cuda::read_bandwidth;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The head of E2B, 64 MB of it, and rows as long as those of its down projections.
const SHAPES: [(TokenResult, usize, usize); 5] = [
    (TokenResult::Logits, 262_144, 1536),
    (TokenResult::Logits, 87_552, 1536),
    (TokenResult::Normed, 87_552, 1536),
    (TokenResult::Plain, 21_888, 6144),
    (TokenResult::Plain, 10_944, 12_288),
];
const ROUNDS: usize = 9;
/// Launches in a row, each with a matrix of its own.
const COPIES: usize = 4;
/// How often these are launched in one measurement.
const TURNS: usize = 3;

fn main() -> Outcome<()> {
    let gpu = Gpu::open(0, std::env::var("W4PACK_KERNELS").ok().as_deref())?;
    let card = gpu.card().clone();
    println!("{}, {} kernels", card.name, gpu.kernels());
    for (result, rows, columns) in SHAPES {
        let words = rows * columns / 2;
        let steps = rows * columns / 32 * 2;
        let bytes = words + steps;
        let arena = gpu.allocate(COPIES * (bytes + 512) + (64 << 20))?;
        let mut next = arena.address();
        let mut take = |bytes: usize| {
            let address = next;
            next += (bytes as u64).next_multiple_of(256);
            address
        };
        let mut matrices = Vec::new();
        for _ in 0..COPIES {
            let (values, at) = (take(words), take(steps));
            fill(&gpu, values, words)?;
            let numbers: Vec<u8> = (0..steps / 2).flat_map(step).collect();
            // SAFETY: as many bytes were taken.
            unsafe { gpu.upload(at, &numbers)? };
            let (rows, columns, kind) = (rows as i32, columns as i32, Kind::PackedF16 as i32);
            matrices.push(Matrix { values, steps: at, rows, columns, kind, padding: 0 });
        }
        let vector = take(4 * columns);
        let numbers: Vec<u8> =
            (0..columns).flat_map(|i| ((i * 37 % 101) as f32 - 50.0).to_le_bytes()).collect();
        // SAFETY: as many bytes were taken.
        unsafe { gpu.upload(vector, &numbers)? };
        let (out, digits) = (take(4 * rows), take(digit_bytes(columns)));
        let best = take(8);
        fill(&gpu, digits, digit_bytes(columns))?;

        let fill_in = |product: TokenProduct| TokenProduct {
            input: Input { norm: vector, epsilon: 1e-6, ..Input::plain(vector) },
            digits,
            out,
            best,
            ..product
        };
        let (usual, launch) =
            TokenProduct::new(result, &matrices[..1], card.multiprocessors, card.shared_memory);
        let kernel = result.kernel(columns);
        let read = read_bandwidth(&gpu)?;
        println!(
            "\n{kernel}: {rows} x {columns}, {:.0} MB; plain read {:.0} GB/s",
            bytes as f64 / 1e6,
            read / 1e9
        );
        let (count, sink) = (bytes as u64 / 16, take(8));
        for blocks in [4, 8, 16].map(|blocks| blocks * card.multiprocessors) {
            let plain = speed(&gpu, &matrices, bytes, |matrix| {
                let arguments = [argument(&matrix.values), argument(&count), argument(&sink)];
                // SAFETY: the parameters of `read_all`; steps lie behind the words.
                unsafe { gpu.launch("read_all", [blocks as u32, 1], 512, 0, &arguments)? };
                Ok(())
            })?;
            print(blocks, "plain read", bytes, plain, read);
        }
        let mut ways = vec![(usual, launch)];
        for blocks in [1, 2, 3, 4] {
            for slots in 1..=3 {
                ways.extend(other(
                    usual,
                    launch,
                    blocks * card.multiprocessors,
                    slots,
                    card.shared_memory,
                ));
            }
        }
        for (product, launch) in ways {
            let bytes_a_second = speed(&gpu, &matrices, bytes, |matrix| {
                let mut product = fill_in(product);
                product.part[0] = matrix;
                run(&gpu, kernel, launch, PRODUCT_THREADS, &product)
            })?;
            let what = format!("{} tasks ahead", product.slots);
            print(launch.blocks, &what, bytes, bytes_a_second, read);
        }
        // What a card before sm_80 does: each matrix a launch, then all of them one after another in one.
        let product = ChainProduct::new(result, &matrices[..1], card.multiprocessors);
        if let Some(product) = product.filter(|_| gpu.has_token_chain()) {
            let done = take(4 * MOST_CHAINED);
            // SAFETY: as many bytes were taken.
            unsafe { gpu.fill(done, 0, 4 * MOST_CHAINED)? };
            let chained = |matrices: &[Matrix]| {
                let of_matrix = |&matrix: &Matrix| {
                    let mut one = product;
                    one.product = fill_in(product.product);
                    one.product.part[0] = matrix;
                    one
                };
                let products: Vec<_> = matrices.iter().map(of_matrix).collect();
                TokenChain::new(&products, done, true)
            };
            let bytes_a_second = speed(&gpu, &matrices, bytes, |matrix| {
                let (chain, launch) = chained(&[matrix]);
                run(&gpu, TokenChain::KERNEL, launch, PRODUCT_THREADS, &chain)
            })?;
            print(product.launch().blocks, "a launch each", bytes, bytes_a_second, read);
            let (chain, launch) = chained(&matrices);
            let of_all = |_| run(&gpu, TokenChain::KERNEL, launch, PRODUCT_THREADS, &chain);
            let bytes_a_second = COPIES as f64 * speed(&gpu, &matrices[..1], bytes, of_all)?;
            print(launch.blocks, "all in one", bytes, bytes_a_second, read);
        }
        // What a card without tensor cores does with the head, and with matrices of other shapes.
        let (gemv, _) = on_ordinary_cores(matrices[0], 2 * card.multiprocessors);
        let store = Gemv { input: Input::plain(vector), out, ..gemv };
        let logits = Gemv {
            input: fill_in(usual).input,
            best,
            cap: 30.0,
            epilogue: Epilogue::Logits as i32,
            ..store
        };
        for (gemv, what) in [(logits, "softcap, argmax"), (store, "stored")] {
            let Some((tall, kernel)) = TallGemv::of(&gemv) else { continue };
            let launch =
                TokenLaunch { blocks: 2 * card.multiprocessors, shared: digit_bytes(columns) };
            let bytes_a_second = speed(&gpu, &matrices, bytes, |matrix| {
                run(&gpu, kernel, launch, GEMV_THREADS, &TallGemv { matrix, ..tall })
            })?;
            print(launch.blocks, &format!("{kernel}, {what}"), bytes, bytes_a_second, read);
        }
        for blocks in 1..=4 {
            let (gemv, launch) = on_ordinary_cores(matrices[0], blocks * card.multiprocessors);
            let bytes_a_second = speed(&gpu, &matrices, bytes, |matrix| {
                let mut gemv = Gemv { input: Input::plain(vector), out, ..gemv };
                gemv.part[0] = matrix;
                run(&gpu, gemv.kernel(), launch, GEMV_THREADS, &gemv)
            })?;
            print(launch.blocks, gemv.kernel(), bytes, bytes_a_second, read);
        }
    }
    Ok(())
}

/// Bytes a second, each launch with a matrix of its own.
fn speed(
    gpu: &Gpu,
    matrices: &[Matrix],
    bytes: usize,
    launch: impl Fn(Matrix) -> Outcome<()>,
) -> Outcome<f64> {
    let turns =
        || (0..TURNS).try_for_each(|_| matrices.iter().try_for_each(|&matrix| launch(matrix)));
    let graph = gpu.capture(turns)?;
    let timer = gpu.timer()?;
    let mut seconds = Vec::new();
    for _ in 0..=ROUNDS {
        seconds.push(timer.measure(|| gpu.run(&graph))?);
    }
    let mut seconds = seconds.split_off(1); // the first one warms up
    seconds.sort_by(f64::total_cmp);
    Ok((TURNS * matrices.len() * bytes) as f64 / seconds[ROUNDS / 2])
}

fn print(blocks: usize, what: &str, bytes: usize, bytes_a_second: f64, read: f64) {
    println!(
        "{blocks:>5} blocks, {what:<14} {:>7.1} us, {:>6.0} GB/s, {:>5.1} %",
        1e6 * bytes as f64 / bytes_a_second,
        bytes_a_second / 1e9,
        100.0 * bytes_a_second / read
    );
}

/// The product of a row after another by so many blocks, as cards without tensor cores make it.
fn on_ordinary_cores(matrix: Matrix, blocks: usize) -> (Gemv, TokenLaunch) {
    let columns = matrix.columns as usize;
    let (lanes, slices) = row_shape(columns);
    let pairs = matrix.rows as usize / 2;
    let of_block = pairs.div_ceil(blocks);
    let gemv = Gemv {
        part: [matrix, Matrix::NONE, Matrix::NONE],
        input: Input::plain(0),
        digits: 0,
        out: 0,
        gate_with: 0,
        best: 0,
        digit_stride: 0,
        gate_stride: 0,
        cap: 0.0,
        parts: 1,
        rows: matrix.rows,
        columns: matrix.columns,
        lanes,
        slices,
        pairs_per_block: of_block as i32,
        epilogue: Epilogue::Store as i32,
    };
    let shared = digit_bytes(columns) + of_block * slices as usize * 2 * 4;
    (gemv, TokenLaunch { blocks: pairs.div_ceil(of_block), shared })
}

/// The same product by so many blocks, with so many tasks of a warp under way; none if it does not fit.
fn other(
    product: TokenProduct,
    launch: TokenLaunch,
    blocks: usize,
    slots: i32,
    shared_memory: usize,
) -> Option<(TokenProduct, TokenLaunch)> {
    let tiles = product.rows as usize / 16;
    let of_block = tiles.div_ceil(blocks);
    let of_task = 16 * 4 * (product.lanes / 4 * product.slices) as usize;
    let ring = PRODUCT_THREADS as usize / 32 * (2 * 3 * 32 * 16 + 2 * 3 * 32 * 2);
    let fixed =
        launch.shared - product.slots as usize * ring - product.tiles_per_block as usize * of_task;
    let shared = fixed + of_block * of_task + slots as usize * ring;
    let product = TokenProduct { tiles_per_block: of_block as i32, slots, ..product };
    let fits = shared + 2048 <= shared_memory;
    fits.then_some((product, TokenLaunch { blocks: tiles.div_ceil(of_block), shared }))
}

/// A step between 0.001 and 0.03, f16, of either sign.
fn step(index: usize) -> [u8; 2] {
    let bits = 0x1419 + ((index * 2_654_435_761) >> 7 & 0x0fff) as u16;
    (bits | (index as u16 & 1) << 15).to_le_bytes()
}

fn fill(gpu: &Gpu, to: Address, bytes: usize) -> Outcome<()> {
    let (words, seed) = ((bytes / 4) as u64, to as u32);
    let arguments = [argument(&to), argument(&words), argument(&seed)];
    // SAFETY: the parameters of `fill_random`; the callers have taken as many bytes.
    unsafe { gpu.launch("fill_random", [1024, 1], 256, 0, &arguments)? };
    Ok(())
}

fn argument<T>(value: &T) -> *const c_void {
    std::ptr::from_ref(value).cast()
}

fn run<T>(
    gpu: &Gpu,
    kernel: &str,
    launch: TokenLaunch,
    threads: u32,
    parameter: &T,
) -> Outcome<()> {
    let arguments = [argument(parameter)];
    let grid = [launch.blocks as u32, 1];
    // SAFETY: the kernel's one parameter, its addresses taken in the caller's arena.
    unsafe { gpu.launch(kernel, grid, threads, launch.shared as u32, &arguments)? };
    Ok(())
}
