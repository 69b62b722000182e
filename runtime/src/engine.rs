//! One request in, its tokens out. Many at once: `scheduler/`.

mod decoding;

use crate::answer::Answer;
use crate::device::cuda::{CudaDevice, LoadReport, Sizes};
use crate::device::{Cpu, CpuDevice, Device, Pool, Slot, Wanted, Work, physical_cores};
use crate::error::{Result, RuntimeError};
use crate::forward::check_ids;
use crate::generation::{Generation, Request};
use crate::model::{MemoryPlan, Model};
use crate::number::Kept;
use crate::sampling::{Adjustments, Chooser};
use crate::speculation::{MakeDrafter, Speculation, Speculator};
use decoding::Decoding;
use half::{bf16, f16};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;
use w4pack_format::config::Config;
use w4pack_kernels::cpu::{CacheNumber, Kernels, Precision};

/// How an engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Positions a sequence may have; `None`: as many as the model was made for.
    pub context: Option<usize>,
    /// Prompt tokens read in one pass. Results do not depend on it; work space does.
    pub chunk: usize,
    /// Worker threads; `None`: one for each physical core.
    pub threads: Option<usize>,
    /// The CPU's instruction set.
    pub kernels: &'static Kernels,
    /// The activations that the CPU multiplies packed matrices with.
    pub precision: Precision,
    /// How the CPU keeps keys and values.
    pub kept: KeptAs,
}

/// How the CPU keeps keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeptAs {
    /// As they are computed.
    F32,
    /// They are normed, so that they are far inside f16's range.
    #[default]
    F16,
    /// For norm weights beyond f16's range.
    Bf16,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            context: None,
            chunk: 256,
            threads: None,
            kernels: Kernels::best(),
            precision: Precision::Bits16,
            kept: KeptAs::F16,
        }
    }
}

/// What a card holds and how it got there.
#[derive(Debug, Clone, PartialEq)]
pub struct CardReport {
    /// The plan, for people.
    pub memory_table: String,
    /// The plan, in bytes.
    pub sizes: Sizes,
    /// Bytes that were taken, measured.
    pub taken: usize,
    /// Bytes in use before: the driver's context, other programs.
    pub outside: usize,
    /// How loading went.
    pub load: LoadReport,
}

/// A model on a device, ready for requests.
pub struct Engine {
    config: Config,
    notes: Vec<String>,
    card: Option<CardReport>,
    device: Box<dyn Device>,
    speculator: Speculator,
    context: usize,
    chunk: usize,
}

impl Engine {
    /// An engine on the CPU.
    ///
    /// Errors: a context, a chunk or a number of threads of 0; a context beyond the model's.
    pub fn new(model: Model, options: EngineOptions) -> Result<Self> {
        let threads = options.threads.unwrap_or_else(physical_cores);
        let model = Arc::new(model);
        let device: Box<dyn Device> = match options.kept {
            KeptAs::F32 => cpu_device::<f32>(model.clone(), threads, &options)?,
            KeptAs::F16 => cpu_device::<f16>(model.clone(), threads, &options)?,
            KeptAs::Bf16 => cpu_device::<bf16>(model.clone(), threads, &options)?,
        };
        Self::on_device(model.config.clone(), model.notes.clone(), device, options)
    }

    /// An engine on a card.
    pub fn on_card(device: CudaDevice, chunk: usize) -> Result<Self> {
        let (config, notes) = (device.config().clone(), device.notes().to_vec());
        let context = Some(device.context());
        let options = EngineOptions { context, chunk, ..EngineOptions::default() };
        let card = CardReport {
            memory_table: device.memory_table(),
            sizes: device.plan().sizes,
            taken: device.taken(),
            outside: device.outside(),
            load: device.load_report(),
        };
        let engine = Self::on_device(config, notes, Box::new(device), options)?;
        Ok(Self { card: Some(card), ..engine })
    }

    /// An engine on any device that holds the model of `config`.
    pub fn on_device(
        config: Config,
        notes: Vec<String>,
        device: Box<dyn Device>,
        options: EngineOptions,
    ) -> Result<Self> {
        let longest = config.text.max_position_embeddings;
        let context = options.context.unwrap_or(longest);
        if !(1..=longest).contains(&context) {
            let expected = format!("1 to {longest}, the positions the model was made for");
            return Err(setting("context", context, expected));
        }
        if options.chunk == 0 {
            return Err(setting("chunk", 0, "at least 1".into()));
        }
        let speculator = Speculator::new(Speculation::Off, None, device.most_tried());
        Ok(Self { config, notes, card: None, device, speculator, context, chunk: options.chunk })
    }

    /// The same, guessing tokens ahead; an engine is made without. Answers stay as they are to the last bit.
    ///
    /// Errors: [`Speculation::Ngram`] on a device that runs tokens one by one.
    pub fn speculating(self, speculation: Speculation) -> Result<Self> {
        let most = self.device.most_tried();
        if speculation == Speculation::Ngram && most < 2 {
            return Err(RuntimeError::NoSpeculation { device: self.device() });
        }
        Ok(Self { speculator: Speculator::new(speculation, None, most), ..self })
    }

    /// The same with guesses of another kind.
    pub fn drafting_with(self, speculation: Speculation, make: MakeDrafter) -> Self {
        let most = self.device.most_tried();
        Self { speculator: Speculator::new(speculation, Some(make), most), ..self }
    }

    /// Exchanges what guesses for another speculator, one of [`Engine::speculator`], with what each has learnt.
    pub fn exchange_speculator(&mut self, other: &mut Speculator) {
        std::mem::swap(&mut self.speculator, other);
    }

    /// A speculator for this device that has learnt nothing yet; `make` gives guesses of another kind.
    pub fn speculator(&self, speculation: Speculation, make: Option<MakeDrafter>) -> Speculator {
        Speculator::new(speculation, make, self.device.most_tried())
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the checkpoint holds and the model does not use, in words.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What the card holds, if there is one.
    pub fn card(&self) -> Option<&CardReport> {
        self.card.as_ref()
    }

    /// Positions a sequence may have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// What the model takes on this device.
    pub fn memory_plan(&self) -> MemoryPlan {
        self.device.memory_plan()
    }

    /// The device, for people.
    pub fn device(&self) -> String {
        self.device.description()
    }

    /// Generates an answer; `token` gets every id as it is chosen and may break off.
    ///
    /// Errors, before anything is computed: an empty prompt, an id that is no token, a setting
    /// out of range, or a prompt and `max_tokens` that the context does not hold.
    pub fn generate(
        &mut self,
        request: &Request,
        token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let max_tokens = self.check(request)?;
        let vocabulary = self.vocabulary();
        let none = Adjustments::default();
        let chooser = Chooser::new(&request.sampling, none, None, &request.prompt, vocabulary)?;
        let stop_ids = if request.ignore_eos { Vec::new() } else { request.stop_ids.clone() };
        let answer = Answer::new(chooser, None, stop_ids, max_tokens);
        let slot = self.device.make_slot(request.prompt.len() + max_tokens)?;
        let generation = self.run(request, slot, answer, token);
        self.device.free_slot(slot)?;
        generation
    }

    /// The tokens that may be generated, if the request can be served.
    fn check(&self, request: &Request) -> Result<usize> {
        let prompt = request.prompt.len();
        let rest = self.context.saturating_sub(prompt).max(1);
        let max_tokens = request.max_tokens.unwrap_or(rest);
        check_prompt(&self.config, self.context, &request.prompt, max_tokens)?;
        Ok(max_tokens)
    }

    /// What a scheduler takes over.
    pub(crate) fn into_parts(self) -> Parts {
        let Self { config, device, speculator, context, chunk, .. } = self;
        Parts { config, device, speculator, context, chunk }
    }

    fn run(
        &mut self,
        request: &Request,
        slot: Slot,
        answer: Answer,
        token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let start = Instant::now();
        let mut kept = Vec::new();
        let last = self.prefill(request, slot, &mut kept)?;
        let mut decoding = Decoding::new(slot, answer, request, kept, token);
        let mut finish_reason = decoding.first(&last)?;
        let first_chosen = Instant::now();
        let finish_reason = loop {
            if let Some(reason) = finish_reason {
                break reason;
            }
            finish_reason = decoding.next(&mut *self.device, &mut self.speculator)?;
        };
        Ok(decoding.end(finish_reason, first_chosen - start, first_chosen.elapsed()))
    }

    /// Reads the prompt chunk by chunk; returns the logits of its last token, and adds those of
    /// every token to `kept` if the request asks for them.
    fn prefill(&mut self, request: &Request, slot: Slot, kept: &mut Vec<f32>) -> Result<Vec<f32>> {
        let (mut chunks, vocabulary) =
            (request.prompt.chunks(self.chunk).peekable(), self.vocabulary());
        let mut logits = Vec::new();
        while let Some(chunk) = chunks.next() {
            let wanted = match (request.logits, chunks.peek()) {
                (true, _) => Wanted::All,
                (false, None) => Wanted::Last,
                (false, Some(_)) => Wanted::Nothing,
            };
            logits = self.step(slot, chunk, wanted)?;
            if request.logits {
                kept.extend_from_slice(&logits);
            }
        }
        Ok(logits.split_off(logits.len() - vocabulary))
    }

    fn step(&mut self, slot: Slot, tokens: &[u32], logits: Wanted) -> Result<Vec<f32>> {
        let mut results = self.device.step(&[Work { slot, tokens, logits }])?;
        Ok(results.swap_remove(0))
    }

    fn vocabulary(&self) -> usize {
        self.config.text.vocab_size
    }
}

/// The CPU with keys and values kept as `S`.
fn cpu_device<S: Kept<f32> + CacheNumber>(
    model: Arc<Model>,
    threads: usize,
    options: &EngineOptions,
) -> Result<Box<dyn Device>> {
    let cpu = Cpu::<S>::new(options.kernels, Pool::new(threads)?);
    Ok(Box::new(CpuDevice::with(model, cpu.in_precision(options.precision))))
}

/// An engine taken apart.
pub(crate) struct Parts {
    pub config: Config,
    pub device: Box<dyn Device>,
    pub speculator: Speculator,
    pub context: usize,
    pub chunk: usize,
}

/// Whether a context can hold a prompt and `max_tokens` behind it.
///
/// Errors: an empty prompt, nothing to generate, too few positions, an id that is no token.
pub(crate) fn check_prompt(
    config: &Config,
    context: usize,
    prompt: &[u32],
    max_tokens: usize,
) -> Result<()> {
    let tokens = prompt.len();
    if tokens == 0 {
        return Err(RuntimeError::EmptyPrompt);
    }
    if max_tokens == 0 {
        return Err(setting("max_tokens", 0, "at least 1".into()));
    }
    if tokens.saturating_add(max_tokens) > context {
        return Err(RuntimeError::ContextExceeded { prompt: tokens, max_tokens, context });
    }
    check_ids(&config.text, prompt, 0)
}

pub(crate) fn setting(name: &'static str, value: usize, expected: String) -> RuntimeError {
    RuntimeError::Setting { name, value: value.to_string(), expected }
}
