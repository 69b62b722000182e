//! Several owners of one card in one process, who know nothing of each other.

use crate::{gpu, open};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use w4pack_kernels::cuda::CudaError;

/// Opening a card made the driver wait for all of its work, which it refuses during a capture, and which ended the
/// capture of the other owner, too.
#[test]
fn a_card_is_opened_while_another_owner_captures() {
    let Some((gpu, _shared)) = gpu() else { return };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3 {
                drop(open());
            }
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            let nothing = || {
                std::thread::sleep(Duration::from_millis(2));
                Ok::<(), CudaError>(())
            };
            gpu.capture(nothing).expect("it captures");
        }
    });
}
