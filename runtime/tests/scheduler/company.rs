//! An answer is the one it is alone, whatever else runs.

use crate::hearing::*;
use crate::support::random;
use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use w4pack_runtime::scheduler::Job;
use w4pack_runtime::{Adjustments, Allowed, Constraint, FinishReason, Request, Result, Sampling};

/// Allows the ids of one remainder, then of the next.
#[derive(Clone)]
struct Remainders {
    step: u32,
    mask: Vec<u32>,
}

impl Constraint for Remainders {
    fn next(&mut self) -> Result<Allowed<'_>> {
        if self.step % 3 == 2 {
            return Ok(Allowed::Anything);
        }
        self.mask = vec![0; random::VOCABULARY / 32];
        for id in (0..random::VOCABULARY as u32).filter(|id| id % 7 == self.step % 7) {
            self.mask[id as usize / 32] |= 1 << (id % 32);
        }
        Ok(Allowed::Only(&self.mask))
    }

    fn accept(&mut self, id: u32) -> Result<()> {
        assert!(self.step % 3 == 2 || id % 7 == self.step % 7, "{id} at step {}", self.step);
        self.step += 1;
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// Eight jobs of every kind.
pub fn mixed() -> Vec<Job> {
    let drawn = |seed| Sampling { temperature: 1.2, seed: Some(seed), ..Sampling::GREEDY };
    let penalties = Adjustments {
        presence_penalty: 0.4,
        frequency_penalty: 0.3,
        repetition_penalty: 1.2,
        logit_bias: vec![(5, 3.0), (9, -100.0)],
    };
    let constraint = || Some(Box::new(Remainders { step: 0, mask: Vec::new() }) as _);
    vec![
        job(random::tokens(23, 1), 30),
        Job { sampling: drawn(1), ..job(random::tokens(90, 2), 25) },
        Job { logprobs: Some(4), ..job(random::tokens(5, 3), 40) },
        Job { adjustments: penalties.clone(), ..job(random::tokens(31, 4), 30) },
        Job { constraint: constraint(), ..job(random::tokens(12, 5), 30) },
        Job { constraint: constraint(), sampling: drawn(2), ..job(random::tokens(64, 6), 20) },
        Job {
            sampling: Sampling { top_k: 20, top_p: 0.9, min_p: 0.01, ..drawn(3) },
            adjustments: penalties,
            logprobs: Some(20),
            ..job(random::tokens(17, 7), 35)
        },
        Job { stop_ids: (0..20).collect(), ..job(random::tokens(150, 8), 60) },
    ]
}

#[test]
fn eight_mixed_answers_in_company_are_those_they_are_alone() {
    let alone = scheduler(1, 8, 64);
    let expected: Vec<Answered> = mixed().into_iter().map(|job| ask(&alone, job)).collect();
    assert!(expected.iter().any(|answer| answer.summary.finish == FinishReason::Stop));
    for (slots, chunk) in [(8, 7), (3, 16), (2, 300)] {
        let company = scheduler(slots, 8, chunk);
        let events: Vec<_> = mixed()
            .into_iter()
            .map(|job| submit(&company, job, |_| ControlFlow::Continue(())).expect("it is taken"))
            .collect();
        for (number, (events, expected)) in events.iter().zip(&expected).enumerate() {
            let found = hear(events).expect("it ends well");
            assert_eq!(found.tokens, expected.tokens, "job {number}, {slots} slots");
            assert_eq!(found.summary.finish, expected.summary.finish);
            assert_eq!(found.summary.seed, expected.summary.seed);
        }
        let gauges = company.gauges();
        assert_eq!((gauges.finished, gauges.running, gauges.waiting), (8, 0, 0), "{gauges:?}");
        let tokens: usize = expected.iter().map(|answer| answer.tokens.len()).sum();
        assert_eq!(gauges.generated_tokens, tokens as u64);
        assert_eq!(gauges.decoded_tokens, tokens as u64 - 8);
        assert_eq!(gauges.first_tokens, 8);
    }
}

#[test]
fn answers_are_those_of_the_engine() {
    let scheduler = scheduler(2, 8, 9);
    for seed in 0..4 {
        let sampling = match seed {
            0 => Sampling::GREEDY,
            _ => Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::GREEDY },
        };
        let prompt = random::tokens(20 + 9 * seed as usize, seed);
        let request = Request {
            prompt: prompt.clone(),
            max_tokens: Some(30),
            stop_ids: vec![3],
            ignore_eos: false,
            sampling,
            logits: false,
        };
        let expected = engine(64)
            .generate(&request, &mut |_| ControlFlow::Continue(()))
            .expect("the request is sound");
        let found = ask(&scheduler, Job { sampling, stop_ids: vec![3], ..job(prompt, 30) });
        assert_eq!(found.ids(), expected.tokens);
        assert_eq!(found.summary.finish, expected.finish_reason);
        assert_eq!(found.summary.seed, expected.seed);
        assert_eq!(found.summary.completion_tokens, expected.tokens.len());
    }
}

/// While a long prompt is read, a running answer gets a token for each of its chunks.
#[test]
fn a_long_prompt_and_a_running_answer_take_turns() {
    let scheduler = scheduler(2, 8, 8);
    let (sender, order) = channel();
    // The answer runs before the prompt comes, and waits for it at its first token.
    let (go_on, wait) = channel::<()>();
    let short = {
        let (sender, mut is_held) = (sender.clone(), true);
        submit(&scheduler, job(random::tokens(4, 1), 200), move |heard| {
            if let Heard::Token(_) = heard {
                let _ = sender.send('t');
                if std::mem::take(&mut is_held) {
                    let _ = wait.recv_timeout(LIMIT);
                }
            }
            ControlFlow::Continue(())
        })
        .expect("it is taken")
    };
    let next = || short.recv_timeout(LIMIT).expect("it goes on");
    while !matches!(next(), Heard::Reading { read: 4, .. }) {}
    let long = submit(&scheduler, job(random::tokens(400, 2), 1), move |heard| {
        if let Heard::Reading { .. } = heard {
            let _ = sender.send('r');
        }
        ControlFlow::Continue(())
    })
    .expect("it is taken");
    go_on.send(()).expect("it waits");
    hear(&long).expect("it ends well");
    hear(&short).expect("it ends well");
    let order: String = order.iter().collect();
    let (first, last) = (order.find('r').expect("read"), order.rfind('r').expect("read"));
    let between = &order[first..=last];
    assert_eq!(between.matches('r').count(), 400 / 8 + 1);
    assert!(!between.contains("tt"), "a token waits for at most a chunk: {between}");
    assert!(!between[2..].contains("rr"), "a chunk waits for at most a token: {between}");
}

/// Two prompts are read chunk by chunk in turn: the short one is not held up by the long one.
#[test]
fn prompts_take_turns() {
    let scheduler = scheduler(2, 8, 4);
    let (sender, order) = channel();
    // The long one waits before its first chunk for the short one.
    let (go_on, wait) = channel::<()>();
    let mut wait = Some(wait);
    let events: Vec<_> = [('a', 400), ('b', 40)]
        .into_iter()
        .map(|(name, length)| {
            let (sender, mut wait) = (sender.clone(), wait.take());
            submit(&scheduler, job(random::tokens(length, 1), 1), move |heard| {
                if let Some(wait) = wait.take() {
                    let _ = wait.recv_timeout(LIMIT);
                }
                if let Heard::Token(_) = heard {
                    let _ = sender.send(name);
                }
                ControlFlow::Continue(())
            })
            .expect("it is taken")
        })
        .collect();
    go_on.send(()).expect("it waits");
    events.iter().for_each(|events| drop(hear(events).expect("it ends well")));
    drop(sender);
    assert_eq!(order.iter().collect::<String>(), "ba");
}
