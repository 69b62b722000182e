//! The CUDA device, on machines that have one: kernels against double precision, the model against
//! the CPU's plain pass, the planner against the card.

mod kernels;
mod models;
mod planner;
mod slots;
#[path = "../model/support/mod.rs"]
#[allow(dead_code, reason = "the suite of the CPU uses the rest")]
mod support;
mod token;

use w4pack_kernels::cuda::Gpu;
use w4pack_runtime::device::cuda::unusable;

/// The first card, or `None` with a word on why the test is skipped.
fn gpu() -> Option<Gpu> {
    has_card().then(|| {
        let forced = std::env::var("W4PACK_KERNELS").ok();
        Gpu::open(0, forced.as_deref()).expect("the card opens")
    })
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
