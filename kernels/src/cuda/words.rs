//! Words of the host's memory that the card writes, so that the host hears of something without a copy in
//! the stream and without waiting for the stream's end.

use super::error::{Attempt, CudaError, Result};
use super::gpu::Gpu;
use super::memory::{Address, Pinned};
use cudarc::driver::sys;
use std::sync::atomic::{AtomicU64, Ordering};

/// Looks at a word between two questions to the driver: some 100 us.
const LOOKS: usize = 4096;

/// Words of 64 bits in pinned memory. A kernel writes each whole, and never 0.
#[derive(Debug)]
pub struct Words {
    memory: Pinned,
    count: usize,
}

impl Words {
    fn new(memory: Pinned, count: usize) -> Self {
        Self { memory, count }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: `Gpu::words` took memory for `count` words, aligned to a page, that nothing else of the
        // host refers to; the card stores a word whole.
        unsafe { AtomicU64::from_ptr(self.memory.pointer().cast::<u64>().add(index)) }
    }

    /// Sets a word to 0, so that the next one can be waited for. No kernel may be about to write it.
    pub fn clear(&self, index: usize) {
        self.word(index).store(0, Ordering::Release);
    }

    /// The address under which the card writes a word.
    pub fn address(&self, index: usize) -> Result<Address> {
        Ok(self.memory.device_address()? + 8 * index as Address)
    }
}

impl Gpu {
    /// Words for the card to write; all are 0.
    pub fn words(&self, count: usize) -> Result<Words> {
        Ok(Words::new(self.pinned(8 * count)?, count))
    }

    /// Waits until the stream has written a word that was cleared, and returns it.
    ///
    /// Errors: the card's; the stream is done and has left the word as it was.
    pub fn wait_for(&self, words: &Words, index: usize) -> Result<u64> {
        let word = words.word(index);
        loop {
            for _ in 0..LOOKS {
                match word.load(Ordering::Acquire) {
                    0 => std::hint::spin_loop(),
                    written => return Ok(written),
                }
            }
            // A card at fault writes nothing any more: the driver says so.
            // SAFETY: the stream is ours.
            match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
                sys::CUresult::CUDA_ERROR_NOT_READY => continue,
                done => done.result().attempt("waiting for the card")?,
            }
            // It is done: what it has written is there.
            return match word.load(Ordering::Acquire) {
                0 => Err(CudaError::Driver {
                    action: "waiting for the card".into(),
                    cause: "it has done all it had to do, and has not said what came of it".into(),
                }),
                written => Ok(written),
            };
        }
    }
}
