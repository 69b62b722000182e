//! What can go wrong with a card.

use cudarc::driver::DriverError;

/// Result of this module.
pub type Result<T, E = CudaError> = std::result::Result<T, E>;

/// A card that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver's library is not there, or cannot be opened.
    #[error("NVIDIA's driver library (libcuda.so.1, nvcuda.dll) is not there or cannot be opened")]
    NoDriver,
    /// The driver starts, but shows no card.
    #[error("the driver shows no card ({reason})")]
    NoCard {
        /// The driver's word for it.
        reason: String,
    },
    /// The driver shows fewer cards.
    #[error("there is no card {ordinal}; the driver shows {count}")]
    NoSuchCard {
        /// Which was asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// No kernels for this card.
    #[error("{card} (compute capability {major}.{minor}) with driver {driver}: {problem}")]
    Unsupported {
        /// Its name.
        card: String,
        /// Compute capability.
        major: i32,
        /// Compute capability.
        minor: i32,
        /// The newest CUDA version that the driver knows.
        driver: String,
        /// What is missing.
        problem: String,
    },
    /// `W4PACK_KERNELS` holds a word that names no kernels.
    #[error("W4PACK_KERNELS is `{value}`, but there are only: {known}")]
    UnknownKernels {
        /// The word.
        value: String,
        /// All there are.
        known: String,
    },
    /// The card gave no memory.
    #[error("no {what}: {bytes} bytes were asked for, {free} are free")]
    Memory {
        /// `memory on the card`, or `pinned memory`.
        what: &'static str,
        /// How much was asked for.
        bytes: usize,
        /// How much the card has free.
        free: usize,
    },
    /// A call of the driver failed.
    #[error("{action}: {cause}")]
    Driver {
        /// What was attempted.
        action: String,
        /// The driver's word for it.
        cause: String,
    },
}

/// Names what was attempted.
pub(super) trait Attempt<T> {
    fn attempt(self, action: &str) -> Result<T>;
}

impl<T> Attempt<T> for std::result::Result<T, DriverError> {
    fn attempt(self, action: &str) -> Result<T> {
        self.map_err(|error| CudaError::Driver { action: action.into(), cause: word(error) })
    }
}

/// `CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected`.
pub(super) fn word(error: DriverError) -> String {
    let text = |found: std::result::Result<&std::ffi::CStr, DriverError>| {
        found.map_or_else(|_| "?".into(), |text| text.to_string_lossy().into_owned())
    };
    format!("{}: {}", text(error.error_name()), text(error.error_string()))
}
