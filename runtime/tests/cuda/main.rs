//! The CUDA device, on machines that have one: kernels against double precision, the model against
//! the CPU's plain pass, the planner against the card.

mod ahead;
mod attention;
mod bench;
mod chain;
mod clusters;
mod depth;
mod kernels;
mod models;
mod owners;
mod planner;
mod prefill;
mod refusals;
mod short;
mod slots;
#[path = "../model/support/mod.rs"]
#[allow(dead_code, reason = "the suite of the CPU uses the rest")]
mod support;
mod tall;
mod together;
mod token;
mod tried;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use w4pack_kernels::cuda::Gpu;
use w4pack_runtime::device::cuda::unusable;

/// Tests share the card; those that measure its memory have it for themselves.
static CARD: RwLock<()> = RwLock::new(());

/// A share of the card, for as long as the test runs.
type Shared = RwLockReadGuard<'static, ()>;

/// The card, shared with other tests; `None`, with a word on why the test is skipped, without one.
fn shared_card() -> Option<Shared> {
    has_card().then(|| CARD.read().unwrap_or_else(PoisonError::into_inner))
}

/// The card for one test alone.
fn card_alone() -> Option<RwLockWriteGuard<'static, ()>> {
    has_card().then(|| CARD.write().unwrap_or_else(PoisonError::into_inner))
}

/// The first card, opened, and a share of it.
fn gpu() -> Option<(Gpu, Shared)> {
    shared_card().map(|shared| (open(), shared))
}

/// The first card, with the kernels that are asked for.
fn open() -> Gpu {
    let forced = std::env::var("W4PACK_KERNELS").ok();
    Gpu::open(0, forced.as_deref()).expect("the card opens")
}

/// Whether there is a card; says so if not.
fn has_card() -> bool {
    let reason = unusable(0);
    if let Some(reason) = &reason {
        let test = std::thread::current().name().unwrap_or("a test").to_string();
        eprintln!("skipped: {test}: no CUDA device: {reason}");
    }
    reason.is_none()
}
