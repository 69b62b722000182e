//! The plan against what the card gives.

use crate::support::random;
use crate::{gpu, has_card};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_kernels::cuda::{CudaError, Gpu, cards};
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions, KvType, TablePlace};
use w4pack_runtime::{Device, RuntimeError, Wanted, Work};

#[test]
fn what_is_allocated_is_what_was_planned() {
    if !has_card() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(1).write(folder.path());
    let checkpoint = Arc::new(Checkpoint::open_folder(folder.path()).expect("it opens"));
    for (memory, chunk) in [(64, 16), (200, 256), (1000, 64)] {
        // The context and the kernels stay: only the arena comes and goes.
        let observer = gpu().expect("there is a card");
        let options = CudaOptions { memory: Some(memory << 20), chunk, ..CudaOptions::default() };
        let warm = CudaDevice::load(&checkpoint, options.clone(), &mut |_| {}).expect("it fits");
        drop(warm);
        let before = observer.free_memory().expect("it says");
        let device = CudaDevice::load(&checkpoint, options, &mut |_| {}).expect("it fits");
        let taken = before - observer.free_memory().expect("it says");
        let planned = device.plan().sizes.total();
        assert!(planned <= memory << 20);
        assert!(taken.abs_diff(planned) <= 24 << 20, "planned {planned}, taken {taken}");
    }
}

/// Settings of all kinds: what is taken is what was planned, and every one of them answers.
#[test]
fn random_settings_take_what_was_planned_and_answer() {
    if !has_card() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(3).write(folder.path());
    let checkpoint = Arc::new(Checkpoint::open_folder(folder.path()).expect("it opens"));
    let observer = gpu().expect("there is a card");
    let mut random = ChaCha8Rng::seed_from_u64(20);
    let mut below = |end: usize| random.next_u32() as usize % end;
    for setting in 0..24 {
        let slots = 1 + below(3);
        let options = CudaOptions {
            memory: Some((48 + below(600)) << 20),
            context: [None, Some(64 + below(900))][below(2)],
            chunk: 1 + below(300),
            slots,
            kv: [KvType::F16, KvType::Bf16, KvType::Q8][below(3)],
            table: [None, Some(TablePlace::Gpu), Some(TablePlace::Host), Some(TablePlace::Disk)]
                [below(4)],
            ..CudaOptions::default()
        };
        let what = format!("{setting}: {options:?}");
        let before = observer.free_memory().expect("it says");
        let mut device = CudaDevice::load(&checkpoint, options.clone(), &mut |_| {})
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let planned = device.plan().sizes.total();
        assert!(Some(planned) <= options.memory, "{what}: {planned}");
        let taken = before.saturating_sub(observer.free_memory().expect("it says"));
        // Beside the arena the driver takes what kernels need for themselves.
        assert!(taken <= planned + (16 << 20), "{what}: planned {planned}, taken {taken}");
        let length = device.context().min(40);
        let tokens = random::tokens(length, setting);
        for _ in 0..slots {
            let slot = device.make_slot(length).expect("a slot");
            let work = Work { slot, tokens: &tokens[..length - 1], logits: Wanted::Last };
            device.step(&[work]).unwrap_or_else(|error| panic!("{what}: {error}"));
            device
                .decode_greedy(slot, tokens[length - 1])
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
}

#[test]
fn a_card_that_is_not_there_is_named_with_how_many_there_are() {
    if !has_card() {
        return;
    }
    let count = cards().expect("there is a card");
    match Gpu::open(count, None) {
        Err(CudaError::NoSuchCard { ordinal, count: found }) => {
            assert_eq!((ordinal, found), (count, count));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_limit_that_is_too_small_names_what_would_fit() {
    if !has_card() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    random::packed(1).write(folder.path());
    let checkpoint = Arc::new(Checkpoint::open_folder(folder.path()).expect("it opens"));
    let load = |memory: usize| {
        let options = CudaOptions {
            memory: Some(memory),
            context: Some(1024),
            chunk: 8,
            ..CudaOptions::default()
        };
        CudaDevice::load(&checkpoint, options, &mut |_| {})
            .map(|device| device.plan().sizes.total())
    };
    let needed = load(256 << 20).expect("it fits");
    match load(needed - 65536) {
        Err(RuntimeError::CardMemory { longest: Some(longest), .. }) => assert!(longest < 1024),
        other => panic!("{other:?}"),
    }
    match load(1000) {
        Err(RuntimeError::CardMemory { longest: None, .. }) => {}
        other => panic!("{other:?}"),
    }
}
