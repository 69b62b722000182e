//! What the tests of kernels share: a card with an arena, random matrices on it, and what was left in
//! its memory.

use crate::{Shared, gpu};
use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use std::ffi::c_void;
use w4pack_kernels::cuda::parameters::{Kind, Matrix};
use w4pack_kernels::cuda::{Address, Arena, Gpu};

/// A card with an arena and a place to put the next thing.
pub(crate) struct Bench {
    pub gpu: Gpu,
    pub arena: Arena,
    pub next: Address,
    _shared: Shared,
}

impl Bench {
    pub(crate) fn new() -> Option<Self> {
        let (gpu, shared) = gpu()?;
        let arena = gpu.allocate(512 << 20).expect("there is memory");
        // SAFETY: the whole arena. NaN: what is not written shows.
        unsafe { gpu.fill(arena.address(), 0xff, arena.bytes()).expect("it is filled") };
        let next = arena.address();
        Some(Self { gpu, arena, next, _shared: shared })
    }

    pub(crate) fn take(&mut self, bytes: usize) -> Address {
        let address = self.next;
        self.next += (bytes as u64).next_multiple_of(256);
        assert!(self.next <= self.arena.address() + self.arena.bytes() as u64);
        address
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Address {
        let address = self.take(bytes.len());
        // SAFETY: just taken.
        unsafe { self.gpu.upload(address, bytes).expect("it is copied") };
        address
    }

    pub(crate) fn put_floats(&mut self, floats: &[f32]) -> Address {
        self.put(bytemuck::cast_slice(floats))
    }

    pub(crate) fn floats(&self, address: Address, count: usize) -> Vec<f32> {
        bytemuck::pod_collect_to_vec(&self.bytes(address, 4 * count))
    }

    pub(crate) fn bytes(&self, address: Address, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        // SAFETY: the callers ask for what they have taken.
        unsafe { self.gpu.download(&mut bytes, address).expect("it is copied") };
        bytes
    }

    pub(crate) fn launch<T>(
        &self,
        kernel: &str,
        grid: [u32; 2],
        threads: u32,
        shared: usize,
        value: &T,
    ) {
        let arguments = [std::ptr::from_ref(value).cast::<c_void>()];
        // SAFETY: each kernel has one parameter, of this type; its addresses were taken here.
        unsafe { self.gpu.launch(kernel, grid, threads, shared as u32, &arguments) }
            .expect("it launches");
    }
}

pub(crate) fn uniform(random: &mut ChaCha8Rng) -> f32 {
    (random.next_u32() >> 8) as f32 / (1 << 24) as f32
}

/// A matrix on the card and its exact values.
pub(crate) struct Weight {
    pub matrix: Matrix,
    pub values: Vec<f64>,
}

pub(crate) fn weight(
    bench: &mut Bench,
    random: &mut ChaCha8Rng,
    rows: usize,
    columns: usize,
    kind: Kind,
) -> Weight {
    let elements = rows * columns;
    let (mut values, address, steps_address);
    if kind == Kind::PlainBf16 {
        let plain: Vec<bf16> =
            (0..elements).map(|_| bf16::from_f32(uniform(random) - 0.5)).collect();
        values = plain.iter().map(|value| value.to_f64()).collect();
        address = bench.put(bytemuck::cast_slice(&plain));
        steps_address = 0;
    } else {
        let words: Vec<u32> = (0..elements / 8).map(|_| random.next_u32()).collect();
        let steps: Vec<f32> = (0..elements / 32)
            .map(|_| {
                let sign = if random.next_u32() & 1 == 0 { 1.0 } else { -1.0 };
                let step = sign * (0.001 + 0.02 * uniform(random));
                match kind {
                    Kind::PackedF16 => f16::from_f32(step).to_f32(),
                    Kind::PackedBf16 => bf16::from_f32(step).to_f32(),
                    _ => step,
                }
            })
            .collect();
        values = vec![0.0; elements];
        for (index, value) in values.iter_mut().enumerate() {
            let code = ((words[index / 8] >> (4 * (index % 8))) & 15) as i32 - 8;
            *value = f64::from(code) * f64::from(steps[index / 32]);
        }
        address = bench.put(bytemuck::cast_slice(&words));
        steps_address = match kind {
            Kind::PackedF16 => {
                let steps: Vec<f16> = steps.iter().map(|&step| f16::from_f32(step)).collect();
                bench.put(bytemuck::cast_slice(&steps))
            }
            Kind::PackedBf16 => {
                let steps: Vec<bf16> = steps.iter().map(|&step| bf16::from_f32(step)).collect();
                bench.put(bytemuck::cast_slice(&steps))
            }
            _ => bench.put_floats(&steps),
        };
    }
    let matrix = Matrix {
        values: address,
        steps: steps_address,
        rows: rows as i32,
        columns: columns as i32,
        kind: kind as i32,
        padding: 0,
    };
    Weight { matrix, values }
}

/// Activations with outliers of 30 times the usual size.
pub(crate) fn activations(random: &mut ChaCha8Rng, count: usize) -> Vec<f32> {
    let one = |random: &mut ChaCha8Rng| {
        let value = 2.0 * uniform(random) - 1.0;
        if random.next_u32().is_multiple_of(200) { 30.0 * value } else { value }
    };
    (0..count).map(|_| one(random)).collect()
}
