//! Decode steps of several sequences at once: captured graphs, one for every number of tokens, which read
//! positions, tokens and slots from the card's memory.

use super::{CudaDevice, DecodeStep, Decoded, Device};
use crate::error::{Result, RuntimeError};
use w4pack_kernels::cuda::parameters::Step;

/// Where the mailbox has the steps of several tokens, and how much of it they take both ways.
const OUTGOING: usize = 64;
const STEP: usize = size_of::<Step>();
const MOST: usize = w4pack_kernels::cuda::parameters::BATCH_TOKENS;
const INCOMING: usize = OUTGOING + MOST * (STEP + 4);

/// Bytes of the mailbox.
pub(super) const MAILBOX: usize = INCOMING + MOST * STEP;

impl CudaDevice {
    /// Captures a step of two tokens, of three and so on, if tokens can go together at all.
    pub(super) fn capture_batches(&mut self) -> Result<()> {
        if !self.passes().takes_batches() {
            return Ok(());
        }
        let [first, second] = [&self.layout.caches[0], &self.layout.caches[1]];
        let mut graphs = Vec::new();
        for tokens in 2..=self.layout.batch.tokens {
            let passes = self.passes();
            graphs.push(self.gpu.capture(|| passes.batch_step(first, second, tokens))?);
        }
        self.batch_graphs = graphs;
        Ok(())
    }

    /// Every step's result, as if they had run one by one.
    pub(super) fn steps_together(&mut self, steps: &[DecodeStep]) -> Vec<Result<Decoded>> {
        if self.batch_graphs.is_empty() {
            return steps.iter().map(|step| self.decode_as(step)).collect();
        }
        let mut results: Vec<Option<Result<Decoded>>> = Vec::new();
        results.resize_with(steps.len(), || None);
        let sound: Vec<usize> = (0..steps.len())
            .filter(|&index| match self.check_step(&steps[index]) {
                Ok(()) => true,
                Err(error) => {
                    results[index] = Some(Err(error));
                    false
                }
            })
            .collect();
        for group in sound.chunks(self.layout.batch.tokens) {
            let of_group: Vec<DecodeStep> = group.iter().map(|&index| steps[index]).collect();
            let decoded = match of_group.len() {
                1 => vec![self.decode_as(&of_group[0])],
                // What fails for all, a read from disk say, may concern one only.
                _ => self
                    .batch(&of_group)
                    .unwrap_or_else(|_| of_group.iter().map(|step| self.decode_as(step)).collect()),
            };
            for (&index, decoded) in group.iter().zip(decoded) {
                results[index] = Some(decoded);
            }
        }
        results.into_iter().map(|result| result.expect("every step has a result")).collect()
    }

    fn check_step(&self, step: &DecodeStep) -> Result<()> {
        let cache = self.cache(step.slot)?;
        self.check_room(cache, 1)?;
        crate::forward::check_ids(&self.config.text, &[step.token], cache.length)
    }

    /// Runs sound steps of different slots, two or more.
    fn batch(&mut self, steps: &[DecodeStep]) -> Result<Vec<Result<Decoded>>> {
        self.gpu.bind()?;
        let tokens: Vec<u32> = steps.iter().map(|step| step.token).collect();
        self.fetch_table_rows(&tokens)?;
        let mut outgoing = Vec::new();
        for step in steps {
            let position = self.cache(step.slot)?.length as i32;
            outgoing.extend(position.to_le_bytes());
            outgoing.extend((step.token as i32).to_le_bytes());
            outgoing.extend(0u64.to_le_bytes());
        }
        let work = self.layout.batch;
        outgoing.resize((work.slots - work.steps) as usize, 0);
        for step in steps {
            outgoing.extend((step.slot.0 as i32).to_le_bytes());
        }
        let mailbox = &mut self.mailbox.bytes_mut()[OUTGOING..][..outgoing.len()];
        mailbox.copy_from_slice(&outgoing);
        // SAFETY: steps and slots of the most tokens there may be have room behind one another; the
        // mailbox is not written again before the stream is done.
        unsafe { self.gpu.upload(work.steps, mailbox)? };
        self.gpu.run(&self.batch_graphs[steps.len() - 2])?;
        let incoming = &mut self.mailbox.bytes_mut()[INCOMING..][..STEP * steps.len()];
        // SAFETY: as many steps were uploaded; they are read after the wait.
        unsafe { self.gpu.download(incoming, work.steps)? };
        let vocabulary = self.config.text.vocab_size;
        let mut decoded = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            decoded.push(match step.logits {
                true => {
                    let from = work.logits + (4 * index * vocabulary) as u64;
                    self.download_row(from).map(Decoded::Logits)
                }
                false => self.likeliest_of(index),
            });
            if decoded[index].is_ok() {
                self.commit_step(step.slot);
            }
        }
        Ok(decoded)
    }

    fn likeliest_of(&self, index: usize) -> Result<Decoded> {
        let best = &self.mailbox.bytes()[INCOMING + index * STEP + 8..][..8];
        let best = bytemuck::pod_read_unaligned(best);
        let id = Step::chosen(best);
        match Step::is_nan(best) {
            true => Err(RuntimeError::BrokenLogits { id: id as usize, value: f32::NAN }),
            false => Ok(Decoded::Likeliest(id)),
        }
    }
}
