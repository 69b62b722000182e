//! One card, its stream, and the kernels loaded on it.

use super::card::{Card, cards, describe};
use super::entries::ENTRIES;
use super::error::{Attempt, CudaError, Result};
use super::images::{self, Asked, Target};
use super::memory::{Address, Arena, Pinned};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Making the first stream of a context waits for all that the card does, which is refused, and breaks the capture,
/// while another owner of the same card captures: so one does either at a time.
static CAPTURES: Mutex<()> = Mutex::new(());

/// Until it is dropped nobody captures launches or makes a stream.
pub(super) fn without_captures() -> MutexGuard<'static, ()> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A card with the kernels on it and one stream that everything runs in.
#[derive(Debug)]
pub struct Gpu {
    card: Card,
    target: &'static Target,
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    functions: HashMap<&'static str, sys::CUfunction>,
    modules: Vec<sys::CUmodule>,
    /// Kernels may start while the one before them ends (sm_90 and a driver that captures it).
    dependent_launch: bool,
}

// SAFETY: driver handles may be used from any thread whose current context is theirs; every call
// below binds it first, and `&mut self` or the single owner keeps calls apart.
unsafe impl Send for Gpu {}

impl Gpu {
    /// Opens a card and loads its kernels; `forced` is `W4PACK_KERNELS`.
    ///
    /// Errors: no driver, no such card, no kernels for it.
    pub fn open(ordinal: usize, forced: Option<&str>) -> Result<Self> {
        let count = cards()?;
        if ordinal >= count {
            return Err(CudaError::NoSuchCard { ordinal, count });
        }
        let context = CudaContext::new(ordinal).attempt("opening the card")?;
        let card = describe(&context)?;
        let asked =
            Asked { card: &card.name, capability: card.capability, driver: card.driver, forced };
        let target = images::choose(&asked)?;
        let stream = {
            let _alone = without_captures();
            context.new_stream().attempt("making a stream")?
        };
        let dependent_launch =
            card.capability >= (9, 0) && card.driver >= 12_040 && !target.is_ptx();
        let mut gpu = Self {
            card,
            target,
            context,
            stream,
            functions: HashMap::new(),
            modules: Vec::new(),
            dependent_launch,
        };
        gpu.load()?;
        Ok(gpu)
    }

    fn load(&mut self) -> Result<()> {
        for (source, image) in self.target.unpacked() {
            let action = format!("loading {source} for {} on {}", self.target.name, self.card.name);
            // SAFETY: a whole image (or PTX with the 0 it ends with).
            let module = unsafe { result::module::load_data(image.as_ptr().cast()) };
            let module = module.attempt(&action)?;
            self.modules.push(module);
            let (_, entries) =
                ENTRIES.iter().find(|(name, _)| *name == source).expect("every source is listed");
            for &entry in *entries {
                let name = CString::new(entry).expect("names hold no NUL");
                // SAFETY: the module was just loaded and lives as long as `self`.
                let function = unsafe { result::module::get_function(module, name) };
                let function = function.attempt(&format!("finding {entry}"))?;
                // Asking for an attribute loads the code now, not in the middle of a capture; the
                // dynamic limit leaves room for the static part.
                let static_bytes = self.attribute(
                    function,
                    sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                )?;
                let limit = self.card.shared_memory as i32 - static_bytes;
                // SAFETY: the function is ours, the limit the card's own.
                unsafe {
                    result::function::set_function_attribute(
                        function,
                        sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                        limit,
                    )
                }
                .attempt("raising a kernel's shared memory")?;
                // One division of first-level cache and shared memory for all kernels that overlap: changing
                // it between two of them would wait for the first one's end. Elsewhere the driver divides, and what
                // is on its way from memory has more room in the cache: 783 to 796 tok/s without tensor cores.
                if self.dependent_launch {
                    // SAFETY: as above.
                    unsafe {
                        result::function::set_function_attribute(
                            function,
                            sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                            100,
                        )
                    }
                    .attempt("dividing a kernel's cache")?;
                }
                // Clusters of more than eight blocks run where a part of the card is large enough; see
                // `fits_cluster`.
                if self.has_clusters() {
                    let width = self.attribute(
                        function,
                        sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
                    )?;
                    if width > 8 {
                        // SAFETY: as above.
                        unsafe {
                            result::function::set_function_attribute(
                                function,
                                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                                1,
                            )
                        }
                        .attempt("allowing a large cluster")?;
                    }
                }
                self.functions.insert(entry, function);
            }
        }
        Ok(())
    }

    fn attribute(
        &self,
        function: sys::CUfunction,
        attribute: sys::CUfunction_attribute,
    ) -> Result<i32> {
        // SAFETY: the function is one of this card's.
        unsafe { result::function::get_function_attribute(function, attribute) }
            .attempt("asking for a kernel's resources")
    }

    /// Whether kernels may start while the one before them ends; has no effect where they cannot.
    pub fn allow_overlap(&mut self, allowed: bool) {
        self.dependent_launch &= allowed;
    }

    /// The card.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// `sm_90`, `compute_75`: which kernels were loaded.
    pub fn kernels(&self) -> &'static str {
        self.target.name
    }

    /// Whether the loaded kernels join a sliding layer's pieces in clusters of blocks.
    pub fn has_clusters(&self) -> bool {
        matches!(self.target.name, "sm_90" | "sm_100" | "sm_120")
    }

    /// Whether the loaded kernels hold `token_block` and `token_long_*`, which are empty elsewhere.
    pub fn has_token_clusters(&self) -> bool {
        self.target.name == "sm_90"
    }

    /// Whether the loaded kernels hold `token_chain`, which is empty elsewhere.
    pub fn has_token_chain(&self) -> bool {
        !self.target.copies_ahead()
    }

    /// Whether the card has room for a cluster of this kernel; parts of a card may not.
    ///
    /// # Panics
    /// When there is no kernel of this name.
    pub fn fits_cluster(&self, kernel: &str, blocks: usize, threads: u32, shared: usize) -> bool {
        let config = sys::CUlaunchConfig {
            gridDimX: blocks as u32,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared as u32,
            hStream: self.stream.cu_stream(),
            attrs: std::ptr::null_mut(),
            numAttrs: 0,
        };
        let mut clusters = 0;
        // SAFETY: the function is one of this card's, the configuration without attributes.
        let asked = unsafe {
            sys::cuOccupancyMaxActiveClusters(&mut clusters, self.functions[kernel], &config)
        };
        // A driver that refuses to say has no room either.
        asked.result().is_ok() && clusters > 0
    }

    /// What was loaded.
    pub fn target(&self) -> &'static Target {
        self.target
    }

    /// Must be called by every thread before it uses the card.
    pub fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().attempt("binding the card to a thread")
    }

    /// Bytes free on the card.
    pub fn free_memory(&self) -> Result<usize> {
        self.context.mem_get_info().map(|(free, _)| free).attempt("asking for free memory")
    }

    /// One allocation.
    pub fn allocate(&self, bytes: usize) -> Result<Arena> {
        Arena::new(self.context.clone(), bytes)
    }

    /// Pinned memory on the host.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned> {
        Pinned::new(self.context.clone(), bytes)
    }

    /// Launches a kernel in the stream.
    ///
    /// # Safety
    /// `arguments` point to values of the kernel's parameter types, in order, and every address in
    /// them is of memory that the kernel may use as it does, until the stream is done.
    ///
    /// # Panics
    /// When there is no kernel of this name.
    pub unsafe fn launch(
        &self,
        kernel: &str,
        grid: [u32; 2],
        threads: u32,
        shared: u32,
        arguments: &[*const c_void],
    ) -> Result<()> {
        let function = self.functions[kernel];
        let mut attribute = sys::CUlaunchAttribute_st {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue_union { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: self.stream.cu_stream(),
            attrs: &mut attribute,
            numAttrs: u32::from(self.dependent_launch),
        };
        let mut pointers: Vec<*mut c_void> = arguments.iter().map(|p| p.cast_mut()).collect();
        // SAFETY: the caller vouches for the arguments; the driver copies them before it returns.
        unsafe {
            sys::cuLaunchKernelEx(&config, function, pointers.as_mut_ptr(), std::ptr::null_mut())
        }
        .result()
        .attempt(&format!("launching {kernel}"))
    }

    /// Copies to the card, in the stream. `from` may be changed again once the stream is done (at
    /// once, unless it is pinned).
    ///
    /// # Safety
    /// `to` is the address of `from.len()` bytes on the card that nothing else uses meanwhile.
    pub unsafe fn upload(&self, to: Address, from: &[u8]) -> Result<()> {
        // SAFETY: the caller vouches for the target.
        unsafe { result::memcpy_htod_async(to, from, self.stream.cu_stream()) }
            .attempt("copying to the card")
    }

    /// Copies from the card and waits.
    ///
    /// # Safety
    /// `from` is the address of `to.len()` bytes on the card.
    pub unsafe fn download(&self, to: &mut [u8], from: Address) -> Result<()> {
        // SAFETY: the caller vouches for the source; nobody sees `to` before the stream is done.
        unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) }
            .attempt("copying from the card")?;
        self.wait()
    }

    /// Fills with a byte, in the stream.
    ///
    /// # Safety
    /// `to` is the address of `bytes` bytes on the card.
    pub unsafe fn fill(&self, to: Address, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller vouches for the target.
        unsafe { result::memset_d8_async(to, byte, bytes, self.stream.cu_stream()) }
            .attempt("clearing memory on the card")
    }

    /// Waits until the stream is done.
    pub fn wait(&self) -> Result<()> {
        self.stream.synchronize().attempt("waiting for the card")
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        for &module in &self.modules {
            // SAFETY: loaded by `load`; nothing is launched any more.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}
