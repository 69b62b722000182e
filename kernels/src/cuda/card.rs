//! What a card is, as its driver tells.

use super::error::{Attempt, CudaError, Result, word};
use cudarc::driver::{CudaContext, result, sys};

/// A card and what its driver says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// CUDA's number for it.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// The newest CUDA version that the driver knows: 12_040 is 12.4.
    pub driver: i32,
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of memory.
    pub memory: usize,
    /// Bytes of shared memory that a block may have.
    pub shared_memory: usize,
    /// Bytes of second-level cache.
    pub cache: usize,
}

/// The cards that the driver shows, in its own order.
///
/// Errors: no driver, or none that works; no card.
pub fn cards() -> Result<usize> {
    // SAFETY: only tries whether a library of this name opens.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    result::init().map_err(|error| CudaError::NoCard { reason: word(error) })?;
    let count = result::device::get_count().attempt("counting the cards")?;
    match usize::try_from(count) {
        Ok(0) | Err(_) => Err(CudaError::NoCard { reason: "it counts 0".into() }),
        Ok(count) => Ok(count),
    }
}

pub(super) fn describe(context: &CudaContext) -> Result<Card> {
    use sys::CUdevice_attribute_enum::*;
    let number = |attribute| -> Result<usize> {
        Ok(context.attribute(attribute).attempt("asking for the card's properties")? as usize)
    };
    let mut driver = 0;
    // SAFETY: writes one number.
    unsafe { sys::cuDriverGetVersion(&mut driver) }.result().attempt("asking for the driver")?;
    Ok(Card {
        ordinal: context.ordinal(),
        name: context.name().attempt("asking for the card's name")?,
        capability: context.compute_capability().attempt("asking for the card's generation")?,
        driver,
        multiprocessors: number(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory: context.total_mem().attempt("asking for the card's memory")?,
        shared_memory: number(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        cache: number(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
    })
}
