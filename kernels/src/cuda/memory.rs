//! Memory on the card and pinned memory beside it.

use super::error::{Attempt, CudaError, Result};
use cudarc::driver::{CudaContext, result, sys};
use std::sync::Arc;

/// An address on the card (or of pinned memory that the card can read).
pub type Address = u64;

/// The one allocation on the card that everything of a model lies in.
#[derive(Debug)]
pub struct Arena {
    context: Arc<CudaContext>,
    address: Address,
    bytes: usize,
}

impl Arena {
    pub(super) fn new(context: Arc<CudaContext>, bytes: usize) -> Result<Self> {
        // SAFETY: a plain allocation; it is given back by `drop`.
        match unsafe { result::malloc_sync(bytes) } {
            Ok(address) => Ok(Self { context, address, bytes }),
            Err(_) => {
                let free = context.mem_get_info().map_or(0, |(free, _)| free);
                Err(CudaError::Memory { what: "memory on the card", bytes, free })
            }
        }
    }

    /// Where it begins; aligned to 256 bytes at least.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: `new` allocated it; the driver waits for kernels that still use it.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Page-locked memory: copied at full speed, and readable by the card where it lies.
#[derive(Debug)]
pub struct Pinned {
    context: Arc<CudaContext>,
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory, owned by this value alone.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(context: Arc<CudaContext>, bytes: usize) -> Result<Self> {
        // SAFETY: a plain allocation; it is given back by `drop`. With a size of 0 the driver would
        // refuse.
        let pointer = unsafe {
            result::malloc_host(
                bytes.max(1),
                sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP,
            )
        };
        let pointer = pointer
            .map_err(|_| CudaError::Memory { what: "pinned memory", bytes, free: 0 })?
            .cast::<u8>();
        // SAFETY: just allocated with this size.
        unsafe { pointer.write_bytes(0, bytes) };
        Ok(Self { context, pointer, bytes })
    }

    /// Its bytes. The card may be reading or writing them: callers keep the two apart by waiting for
    /// the stream.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `new` allocated and cleared `bytes` bytes; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }

    /// Its bytes, to read.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.pointer, self.bytes) }
    }

    /// Where it begins.
    pub(super) fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// The address under which the card reads it.
    pub fn device_address(&self) -> Result<Address> {
        let mut address = 0;
        // SAFETY: the memory was allocated mapped.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, self.pointer.cast(), 0) }
            .result()
            .attempt("asking for the card's address of pinned memory")?;
        Ok(address)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: `new` allocated it.
        let _ = unsafe { result::free_host(self.pointer.cast()) };
    }
}
