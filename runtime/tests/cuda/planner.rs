//! The plan against what the card gives.

use crate::support::random;
use crate::{gpu, has_card};
use std::sync::Arc;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_runtime::RuntimeError;
use w4pack_runtime::device::cuda::{CudaDevice, CudaOptions};

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
