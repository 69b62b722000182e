//! One card, its stream, and the kernels loaded on it.

use super::error::{Attempt, CudaError, Result, word};
use super::images::{self, Asked, Target};
use super::memory::{Address, Arena, Pinned};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::Arc;

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

/// Kernels whose names are not one of a source file's own: every entry point, by source.
const ENTRIES: [(&str, &[&str]); 10] = [
    (
        "attention_decode",
        &[
            "attention_f16_32_1",
            "attention_f16_64_1",
            "attention_f16_256_1",
            "attention_f16_512_1",
            "attention_f16_64_8",
            "attention_f16_512_8",
            "attention_bf16_32_1",
            "attention_bf16_64_1",
            "attention_bf16_256_1",
            "attention_bf16_512_1",
            "attention_bf16_64_8",
            "attention_bf16_512_8",
            "attention_q8_32_1",
            "attention_q8_64_1",
            "attention_q8_256_1",
            "attention_q8_512_1",
            "attention_q8_64_8",
            "attention_q8_512_8",
            "attention_join",
        ],
    ),
    (
        "attention_prefill",
        &[
            "rope_f16_32",
            "rope_f16_64",
            "rope_f16_256",
            "rope_f16_512",
            "rope_bf16_32",
            "rope_bf16_64",
            "rope_bf16_256",
            "rope_bf16_512",
            "rope_q8_32",
            "rope_q8_64",
            "rope_q8_256",
            "rope_q8_512",
            "attend_f16_32",
            "attend_f16_64",
            "attend_f16_256",
            "attend_f16_512",
            "attend_bf16_32",
            "attend_bf16_64",
            "attend_bf16_256",
            "attend_bf16_512",
            "attend_q8_32",
            "attend_q8_64",
            "attend_q8_256",
            "attend_q8_512",
            "commit_f16",
            "commit_bf16",
            "commit_q8",
        ],
    ),
    ("bandwidth", &["read_all", "fill_random"]),
    ("embed", &["embed", "per_layer_inputs"]),
    ("gemm_ffma", &["gemm_ffma"]),
    ("gemm_mma", &["gemm_mma"]),
    (
        "gemv",
        &[
            "gemv_f16_1",
            "gemv_f16_2",
            "gemv_f16_3",
            "gemv_m1",
            "gemv_m2",
            "gemv_m3",
            "gemv_m4",
            "gemv_m5",
            "gemv_m6",
            "gemv_m7",
            "gemv_m8",
            "digits",
        ],
    ),
    ("rows", &["norm_rows", "map_rows", "softcap"]),
    (
        "token_attention",
        &[
            "token_attention_sliding_64",
            "token_attention_sliding_256",
            "token_attention_sliding_512",
            "token_attention_full_64",
            "token_attention_full_256",
            "token_attention_full_512",
            "token_join",
        ],
    ),
    (
        "token_product",
        &[
            "token_normed",
            "token_plain",
            "token_geglu",
            "token_gated",
            "token_logits",
            "token_normed_1536",
            "token_geglu_1536",
            "token_gated_1536",
            "token_logits_1536",
            "token_plain_256",
            "token_plain_two",
            "token_plain_three",
        ],
    ),
];

/// A card with the kernels on it and one stream that everything runs in.
#[derive(Debug)]
pub struct Gpu {
    card: Card,
    target: &'static Target,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
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
        let stream = context.new_stream().attempt("making a stream")?;
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
                // One division of first-level cache and shared memory for all kernels: changing it
                // between two of them would wait for the first one's end.
                // SAFETY: as above.
                unsafe {
                    result::function::set_function_attribute(
                        function,
                        sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                        100,
                    )
                }
                .attempt("dividing a kernel's cache")?;
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

    /// Bytes of shared memory that `gemm_mma` of these kernels wants: two tiles from sm_80 on, one in
    /// older code and in PTX, which is made for the oldest.
    pub fn gemm_mma_shared(&self) -> usize {
        const TILE: usize = 2 * 64 * (128 + 32) * 2 + 64 * (16 + 4) * 4 + 64 * 4 * 4;
        if self.target.is_ptx() || self.target.name == "sm_75" { TILE } else { 2 * TILE }
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

    /// Starts a copy from the card into pinned memory, in the stream.
    ///
    /// # Safety
    /// As [`Gpu::download`]; and `to` is not read before the stream is done.
    pub unsafe fn start_download(&self, to: &mut [u8], from: Address) -> Result<()> {
        // SAFETY: the caller vouches for both.
        unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) }
            .attempt("copying from the card")
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

    /// Captures what `record` launches as a graph.
    pub fn capture<E: From<CudaError>>(
        &self,
        record: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Graph, E> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).attempt("beginning a capture")?;
        let recorded = record();
        // SAFETY: the stream is capturing since the call above.
        let ended = unsafe { result::stream::end_capture(self.stream.cu_stream()) };
        recorded?;
        let graph = ended.attempt("ending a capture")?;
        // SAFETY: the graph was just captured; flags 0 are the defaults.
        let made = unsafe {
            let mut executable = std::ptr::null_mut();
            sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0)
                .result()
                .map(|()| executable)
        };
        // SAFETY: the executable graph does not need the captured one.
        let _ = unsafe { result::graph::destroy(graph) };
        let executable = made.attempt("making a graph executable")?;
        let graph = Graph { context: self.context.clone(), executable };
        // SAFETY: both are live and of one context.
        unsafe { result::graph::upload(graph.executable, self.stream.cu_stream()) }
            .attempt("uploading a graph")?;
        Ok(graph)
    }

    /// Runs a graph in the stream.
    pub fn run(&self, graph: &Graph) -> Result<()> {
        // SAFETY: both are live and of one context.
        unsafe { result::graph::launch(graph.executable, self.stream.cu_stream()) }
            .attempt("launching a graph")
    }

    /// A clock of the stream.
    pub fn timer(&self) -> Result<Timer> {
        let event = || self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT));
        let (begin, end) =
            (event().attempt("making an event")?, event().attempt("making an event")?);
        Ok(Timer { stream: self.stream.clone(), begin, end })
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

/// A captured sequence of launches.
#[derive(Debug)]
pub struct Graph {
    context: Arc<CudaContext>,
    executable: sys::CUgraphExec,
}

// SAFETY: used by one owner at a time, see `Gpu`.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: made by `capture`; the driver waits for a run that is under way.
        let _ = unsafe { result::graph::exec_destroy(self.executable) };
    }
}

/// Measures what the card does between two points.
pub struct Timer {
    stream: Arc<CudaStream>,
    begin: cudarc::driver::CudaEvent,
    end: cudarc::driver::CudaEvent,
}

impl Timer {
    /// Seconds that the card takes for what `work` launches.
    pub fn measure<E: From<CudaError>>(
        &self,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<f64, E> {
        self.begin.record(&self.stream).attempt("recording an event")?;
        work()?;
        self.end.record(&self.stream).attempt("recording an event")?;
        self.end.synchronize().attempt("waiting for the card")?;
        let milliseconds = self.begin.elapsed_ms(&self.end).attempt("reading an event")?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

fn describe(context: &CudaContext) -> Result<Card> {
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
