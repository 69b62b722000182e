//! Clients that leave, stop strings, queues that are full, schedulers that stop.

use crate::hearing::*;
use crate::support::random;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use w4pack_runtime::FinishReason;
use w4pack_runtime::scheduler::Refusal;

fn goes_on(_: &Heard) -> ControlFlow<FinishReason> {
    ControlFlow::Continue(())
}

/// In the prompt and in the answer, and the slot serves the next one.
#[test]
fn field_case_24_a_client_that_leaves_is_noticed_within_a_chunk_and_within_a_token() {
    let scheduler = scheduler(1, 4, 8);
    let cancelled = ControlFlow::Break(FinishReason::Cancelled);
    let events = submit(&scheduler, job(random::tokens(400, 1), 50), move |heard| match heard {
        Heard::Reading { read: 24, cached: 0, prompt: 400 } => cancelled,
        _ => ControlFlow::Continue(()),
    })
    .expect("it is taken");
    let answer = hear(&events).expect("it ends");
    assert_eq!(answer.summary.finish, FinishReason::Cancelled);
    assert_eq!((answer.tokens.len(), answer.summary.completion_tokens), (0, 0));
    assert_eq!(scheduler.gauges().prompt_tokens, 24, "three chunks and no more");

    let mut seen = 0;
    let events = submit(&scheduler, job(random::tokens(30, 2), 400), move |heard| {
        seen += usize::from(matches!(heard, Heard::Token(_)));
        if seen == 3 { cancelled } else { ControlFlow::Continue(()) }
    })
    .expect("it is taken");
    let answer = hear(&events).expect("it ends");
    assert_eq!((answer.tokens.len(), answer.summary.finish), (3, FinishReason::Cancelled));
    assert_eq!(ask(&scheduler, job(random::tokens(5, 3), 4)).tokens.len(), 4);
    let gauges = scheduler.gauges();
    assert_eq!((gauges.cancelled, gauges.finished, gauges.running), (2, 1, 0));
}

#[test]
fn a_client_that_leaves_while_it_waits_frees_its_place_in_the_queue() {
    let scheduler = scheduler(1, 1, 8);
    let running = submit(&scheduler, job(random::tokens(5, 1), 500), |heard| {
        // Slow enough that the other one has to wait.
        if let Heard::Token(_) = heard {
            std::thread::sleep(Duration::from_millis(2));
        }
        ControlFlow::Continue(())
    })
    .expect("it is taken");
    let waiting = submit(&scheduler, job(random::tokens(5, 2), 4), |heard| match heard {
        Heard::Waiting => ControlFlow::Break(FinishReason::Cancelled),
        _ => ControlFlow::Continue(()),
    })
    .expect("one may wait");
    let answer = hear(&waiting).expect("it ends");
    assert_eq!(answer.summary.finish, FinishReason::Cancelled);
    until("its place is free", || scheduler.gauges().waiting == 0);
    let next = submit(&scheduler, job(random::tokens(5, 3), 4), goes_on).expect("one may wait");
    assert_eq!(hear(&running).expect("it ends").tokens.len(), 500);
    assert_eq!(hear(&next).expect("it ends").tokens.len(), 4);
}

#[test]
fn a_stop_string_on_the_last_token_is_a_stop() {
    let scheduler = scheduler(1, 4, 8);
    let mut seen = 0;
    let events = submit(&scheduler, job(random::tokens(9, 1), 5), move |heard| {
        seen += usize::from(matches!(heard, Heard::Token(_)));
        if seen == 5 { ControlFlow::Break(FinishReason::Stop) } else { ControlFlow::Continue(()) }
    })
    .expect("it is taken");
    assert_eq!(hear(&events).expect("it ends").summary.finish, FinishReason::Stop);
    let whole = ask(&scheduler, job(random::tokens(9, 1), 5));
    assert_eq!(whole.summary.finish, FinishReason::Length);
}

#[test]
fn a_queue_that_is_full_refuses_at_once() {
    let scheduler = scheduler(1, 2, 8);
    let slow = |heard: &Heard| {
        if let Heard::Token(_) = heard {
            std::thread::sleep(Duration::from_millis(20));
        }
        ControlFlow::Continue(())
    };
    let taken: Vec<_> = (0..3)
        .map(|seed| submit(&scheduler, job(random::tokens(5, seed), 6), slow).expect("it is taken"))
        .collect();
    let begin = Instant::now();
    for _ in 0..100 {
        let refusal = submit(&scheduler, job(random::tokens(5, 9), 6), goes_on);
        match refusal.expect_err("one runs and two wait") {
            Refusal::QueueFull { waiting, limit } => assert!(waiting <= 3 && limit == 2),
            other => panic!("{other}"),
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(1), "nothing blocks");
    for events in &taken {
        assert_eq!(hear(events).expect("it ends").tokens.len(), 6);
    }
    until("all are done", || scheduler.gauges().waiting == 0);
    assert_eq!(scheduler.gauges().queue_full, 100);
    ask(&scheduler, job(random::tokens(5, 9), 6));
}

#[test]
fn stopping_lets_answers_end_and_refuses_new_ones() {
    let scheduler = scheduler(1, 4, 8);
    let events: Vec<_> = (0..3)
        .map(|seed| submit(&scheduler, job(random::tokens(9, seed), 20), goes_on).expect("taken"))
        .collect();
    scheduler.stop(LIMIT);
    for events in &events {
        let answer = hear(events).expect("it ends");
        assert_eq!((answer.tokens.len(), answer.summary.finish), (20, FinishReason::Length));
    }
    let refusal = submit(&scheduler, job(random::tokens(5, 9), 6), goes_on);
    assert!(matches!(refusal.expect_err("it has stopped"), Refusal::ShuttingDown));
}

#[test]
fn stopping_breaks_off_what_the_limit_leaves() {
    let scheduler = scheduler(1, 4, 8);
    let slow = |heard: &Heard| {
        if let Heard::Token(_) = heard {
            std::thread::sleep(Duration::from_millis(5));
        }
        ControlFlow::Continue(())
    };
    let running = submit(&scheduler, job(random::tokens(9, 1), 500), slow).expect("it is taken");
    let waiting = submit(&scheduler, job(random::tokens(9, 2), 500), goes_on).expect("it is taken");
    let begin = Instant::now();
    scheduler.stop(Duration::from_millis(100));
    assert!(begin.elapsed() < Duration::from_secs(2), "500 tokens would take longer");
    let answer = hear(&running).expect("it ends");
    assert_eq!(answer.summary.finish, FinishReason::Cancelled);
    assert!(!answer.tokens.is_empty() && answer.tokens.len() < 500);
    let answer = hear(&waiting).expect("it ends");
    assert_eq!((answer.tokens.len(), answer.summary.finish), (0, FinishReason::Cancelled));
}
