//! From a checked request to answers on their way.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::answer::{Piece, Reading, listener};
use super::error::ApiError;
use super::metrics::Metrics;
use super::service::Service;
use super::tally::Tally;
use super::wire::{Timings, Usage};
use crate::constraint::Constraint;
use crate::sampling::{Adjustments, Sampling};
use crate::scheduler::Job;

/// One prompt and what is asked of it.
pub struct Ask {
    /// Its ids.
    pub prompt: Vec<u32>,
    /// The field it came from, for refusals.
    pub field: &'static str,
    /// How answers are understood.
    pub reading: Reading,
    /// Answers wanted; answer i has the seed plus i.
    pub answers: usize,
    /// Longest answer; `None`: until the context is full. It is always cut there.
    pub max_tokens: Option<usize>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Penalties and bias.
    pub adjustments: Adjustments,
    /// Texts that end an answer.
    pub stops: Vec<String>,
    /// Log-probabilities, and of how many likeliest tokens.
    pub logprobs: Option<usize>,
    /// What each answer is held to, one for each.
    pub constraints: Vec<Option<Box<dyn Constraint>>>,
}

/// Answers on their way. Dropping it cancels those that are not done.
pub struct Answers {
    receiver: UnboundedReceiver<(usize, Piece)>,
    tally: Tally,
}

impl Answers {
    /// Starts the answers to all prompts, numbered on from prompt to prompt, or none of them.
    pub fn start(
        service: &Service,
        metrics: &Arc<Metrics>,
        asks: Vec<Ask>,
    ) -> Result<Self, ApiError> {
        let context = service.scheduler.context();
        for ask in &asks {
            service.check_room(&ask.prompt, ask.field)?;
        }
        let submitted = Instant::now();
        let prompt_tokens = asks.iter().map(|ask| ask.prompt.len()).sum();
        // A refusal drops the receiver, and with it what has been started.
        let (sender, receiver) = unbounded_channel();
        let mut first_of_prompt = Vec::new();
        for ask in asks {
            let room = context - ask.prompt.len();
            let mut constraints = ask.constraints.into_iter();
            for number in 0..ask.answers {
                let seed = ask.sampling.seed.map(|seed| seed.wrapping_add(number as u64));
                let listener = listener(
                    service.text.tokenizer().clone(),
                    &ask.reading,
                    ask.stops.clone(),
                    first_of_prompt.len(),
                    sender.clone(),
                );
                let job = Job {
                    prompt: ask.prompt.clone(),
                    max_tokens: ask.max_tokens.unwrap_or(room).min(room),
                    stop_ids: service.text.stop_ids().to_vec(),
                    sampling: Sampling { seed, ..ask.sampling },
                    adjustments: ask.adjustments.clone(),
                    logprobs: ask.logprobs,
                    constraint: constraints.next().flatten(),
                    listener,
                };
                let submitted = service.scheduler.submit(job);
                submitted.map_err(|refusal| ApiError::refusal(refusal, ask.field))?;
                first_of_prompt.push(number == 0);
            }
        }
        let tally = Tally::new(metrics.clone(), submitted, prompt_tokens, first_of_prompt);
        Ok(Self { receiver, tally })
    }

    /// Answers there are.
    pub fn count(&self) -> usize {
        self.tally.count()
    }

    /// Whether every answer has come to its end.
    pub fn all_done(&self) -> bool {
        self.tally.all_done()
    }

    /// The next piece of any answer; `None` when all are done. An error ends them all.
    pub async fn next(&mut self) -> Option<Result<(usize, Piece), ApiError>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// [`Answers::next`] for streams.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<(usize, Piece), ApiError>>> {
        if self.tally.all_done() {
            return Poll::Ready(None);
        }
        let received = ready!(self.receiver.poll_recv(context));
        Poll::Ready(Some(match received {
            Some((index, piece)) => self.tally.take(index, piece),
            None => {
                self.tally.fail();
                Err(ApiError::engine("the engine has stopped working"))
            }
        }))
    }

    /// Tokens, once all are done.
    pub fn usage(&self) -> Usage {
        self.tally.usage()
    }

    /// Times, once all are done.
    pub fn timings(&self) -> Timings {
        self.tally.timings()
    }
}
