//! Decode steps of several sequences at once: on tensor cores captured graphs, one for every number of tokens, which
//! read positions, tokens and slots from the card's memory; on ordinary cores one launch after another, where the
//! card is slow enough for that to pay. `tried.rs` has several tokens of one sequence.

use super::passes::Columns;
use super::{CudaDevice, DecodeStep, Decoded, Device, Slot, When};
use crate::error::{Result, RuntimeError};
use w4pack_kernels::cuda::parameters::Step;
use w4pack_kernels::cuda::{Address, Graph};

/// Where the mailbox has the steps of several tokens, and how much of it they take both ways.
const OUTGOING: usize = 64;
const STEP: usize = size_of::<Step>();
/// A choice: the largest logit and its id.
const BEST: usize = size_of::<u64>();
pub(super) const MOST: usize = w4pack_kernels::cuda::parameters::BATCH_TOKENS;
const INCOMING: usize = OUTGOING + MOST * (STEP + 4);

/// Bytes of the mailbox.
pub(super) const MAILBOX: usize = INCOMING + MOST * STEP;

/// A token that goes through the layers together with others: where it is, and which it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub slot: Slot,
    pub position: usize,
    pub token: u32,
}

impl CudaDevice {
    /// Captures a step of two tokens, of three and so on, if tokens can go together at all.
    pub(super) fn capture_batches(&mut self) -> Result<()> {
        if self.passes()?.takes_batches() {
            let most = self.slots.len().min(MOST);
            self.batch_graphs = self.capture_columns(2..=most, Columns::OfSlots)?;
        }
        Ok(())
    }

    /// Whether answers of several slots go together on ordinary cores: where two are quicker that way than one after
    /// the other. What a launch for every kernel takes (on an H200 two tokens took 3.4 ms, alone 1.3) is nothing to
    /// a card that reads weights for ten.
    pub(super) fn choose_together(&mut self) -> Result<()> {
        let can = self.ways.several && self.slots.len() > 1;
        self.ways.several_slots = match self.options.together {
            When::Never => false,
            When::Always => can,
            When::WhenItPays => can && self.two_are_quicker_together()?,
        };
        Ok(())
    }

    /// Times a step of the first slot and one of both, at the first position, which nobody has written yet.
    fn two_are_quicker_together(&mut self) -> Result<bool> {
        let columns = [0, 1].map(|slot| Column { slot: Slot(slot), position: 0, token: 0 });
        self.send_columns(&columns)?;
        self.send_step(0, 0)?;
        let timer = self.queue.settled()?.timer()?;
        let [mut alone, mut together] = [f64::INFINITY; 2];
        for _ in 0..4 {
            let gpu = self.queue.settled()?;
            alone = alone.min(timer.measure(|| gpu.run(&self.graphs[0]))?);
            together = together.min(timer.measure(|| self.launch_columns(&columns))?);
        }
        Ok(together < 2.0 * alone)
    }

    /// Captures steps of so many tokens.
    pub(super) fn capture_columns(
        &mut self,
        counts: impl IntoIterator<Item = usize>,
        columns: Columns,
    ) -> Result<Vec<Graph>> {
        let passes = self.passes()?;
        let caches = &passes.layout.caches;
        let second = caches.get(1).map(Vec::as_slice);
        let step =
            |tokens| passes.gpu.capture(|| passes.batch_step(&caches[0], second, tokens, columns));
        counts.into_iter().map(step).collect()
    }

    /// Every step's result, as if they had run one by one.
    pub(super) fn steps_together(&mut self, steps: &[DecodeStep]) -> Vec<Result<Decoded>> {
        if self.tokens_together() < 2 {
            return steps.iter().map(|step| self.decode_as(step)).collect();
        }
        let mut results: Vec<Option<Result<Decoded>>> = Vec::new();
        results.resize_with(steps.len(), || None);
        let sound: Vec<usize> = (0..steps.len())
            .filter(|&index| match self.check_step(steps[index].slot, steps[index].token) {
                Ok(_) => true,
                Err(error) => {
                    results[index] = Some(Err(error));
                    false
                }
            })
            .collect();
        for group in sound.chunks(self.tokens_together()) {
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

    /// Runs sound steps of different slots, two or more.
    fn batch(&mut self, steps: &[DecodeStep]) -> Result<Vec<Result<Decoded>>> {
        let column = |step: &DecodeStep| {
            let position = self.cache(step.slot)?.length;
            Ok(Column { slot: step.slot, position, token: step.token })
        };
        let columns = steps.iter().map(column).collect::<Result<Vec<_>>>()?;
        self.send_columns(&columns)?;
        match self.ways.several {
            true => self.launch_columns(&columns)?,
            false => self.queue.settled()?.run(&self.batch_graphs[steps.len() - 2])?,
        }
        self.receive_columns(steps.len())?;
        let mut decoded = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            decoded.push(self.decoded(index, step.logits));
            if decoded[index].is_ok() {
                self.commit_step(step.slot);
            }
        }
        Ok(decoded)
    }

    /// Puts positions, tokens and slots on their way to the card.
    pub(super) fn send_columns(&mut self, columns: &[Column]) -> Result<()> {
        let tokens: Vec<u32> = columns.iter().map(|column| column.token).collect();
        self.fetch_table_rows(&tokens)?;
        let mut outgoing = Vec::new();
        for column in columns {
            outgoing.extend((column.position as i32).to_le_bytes());
            outgoing.extend((column.token as i32).to_le_bytes());
            outgoing.extend(0u64.to_le_bytes());
        }
        let work = self.layout.batch;
        outgoing.resize((work.slots - work.steps) as usize, 0);
        for column in columns {
            outgoing.extend((column.slot.0 as i32).to_le_bytes());
        }
        let mailbox = &mut self.mailbox.bytes_mut()[OUTGOING..][..outgoing.len()];
        mailbox.copy_from_slice(&outgoing);
        // SAFETY: steps and slots of the most tokens there may be have room behind one another; the
        // mailbox is not written again before the stream is done.
        unsafe { self.queue.settled()?.upload(work.steps, mailbox)? };
        Ok(())
    }

    /// Runs what was sent on ordinary cores.
    pub(super) fn launch_columns(&mut self, columns: &[Column]) -> Result<()> {
        let passes = self.passes()?;
        let (batch, caches) = (passes.layout.batch, &passes.layout.caches);
        // SAFETY: so many tokens have a place there at least.
        unsafe { passes.gpu.fill(batch.best, 0, BEST * columns.len())? };
        let caches: Vec<_> = columns.iter().map(|column| &caches[column.slot.0][..]).collect();
        passes.several(&caches)
    }

    /// Where the columns' choices lie on the card, and how many bytes there are from one to the next.
    fn choices(&self) -> (Address, usize) {
        let batch = &self.layout.batch;
        if self.ways.several { (batch.best, BEST) } else { (batch.steps + 8, STEP) }
    }

    /// Waits for what the first `count` columns have chosen.
    pub(super) fn receive_columns(&mut self, count: usize) -> Result<()> {
        let (from, stride) = self.choices();
        let bytes = stride * (count - 1) + BEST;
        let incoming = &mut self.mailbox.bytes_mut()[INCOMING..][..bytes];
        // SAFETY: there are as many choices; they are read after the wait.
        unsafe { self.queue.settled()?.download(incoming, from)? };
        Ok(())
    }

    /// What a column of the last step has led to.
    pub(super) fn decoded(&mut self, index: usize, logits: bool) -> Result<Decoded> {
        if logits {
            let row = (4 * index * self.config.text.vocab_size) as u64;
            return self.download_row(self.layout.batch.logits + row).map(Decoded::Logits);
        }
        let (_, stride) = self.choices();
        let best = &self.mailbox.bytes()[INCOMING + index * stride..][..BEST];
        let best = bytemuck::pod_read_unaligned(best);
        let id = Step::chosen(best);
        match Step::is_nan(best) {
            true => Err(RuntimeError::BrokenLogits { id: id as usize, value: f32::NAN }),
            false => Ok(Decoded::Likeliest(id)),
        }
    }
}
