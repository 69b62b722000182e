//! Clients that leave, stop strings, queues that are full, schedulers that stop.

use crate::hearing::*;
use crate::support::random;
use std::ops::ControlFlow;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use w4pack_runtime::FinishReason;
use w4pack_runtime::scheduler::Refusal;

fn goes_on(_: &Heard) -> ControlFlow<FinishReason> {
    ControlFlow::Continue(())
}

/// What is called with each event of a job.
type Decide = Box<dyn FnMut(&Heard) -> ControlFlow<FinishReason> + Send>;

/// Has the engine's thread stand at an answer's first token until a word comes, so that the answer is on
/// its way however long a test takes; and has every token take so long at least.
fn held(pause: Duration) -> (Sender<()>, Decide) {
    let (go_on, wait) = channel();
    let mut is_held = true;
    let decide = move |heard: &Heard| {
        if let Heard::Token(_) = heard {
            if std::mem::take(&mut is_held) {
                let _ = wait.recv_timeout(LIMIT);
            }
            std::thread::sleep(pause);
        }
        ControlFlow::Continue(())
    };
    (go_on, Box::new(decide))
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
    // The other one has to wait, and for longer than waiting ones are asked once.
    let (go_on, slow) = held(Duration::from_millis(2));
    let running = submit(&scheduler, job(random::tokens(5, 1), 500), slow).expect("it is taken");
    let waiting = submit(&scheduler, job(random::tokens(5, 2), 4), |heard| match heard {
        Heard::Waiting => ControlFlow::Break(FinishReason::Cancelled),
        _ => ControlFlow::Continue(()),
    })
    .expect("one may wait");
    go_on.send(()).expect("it is held");
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
    let (go_on, slow) = held(Duration::ZERO);
    let decisions: [Decide; 3] = [slow, Box::new(goes_on), Box::new(goes_on)];
    let taken: Vec<_> = (0..)
        .zip(decisions)
        .map(|(seed, decide)| {
            submit(&scheduler, job(random::tokens(5, seed), 6), decide).expect("it is taken")
        })
        .collect();
    // The engine's thread stands still: a refusal that waited for it would take as long as that.
    let begin = Instant::now();
    for _ in 0..100 {
        let refusal = submit(&scheduler, job(random::tokens(5, 9), 6), goes_on);
        match refusal.expect_err("one runs and two wait") {
            Refusal::QueueFull { waiting, limit } => assert!(waiting <= 3 && limit == 2),
            other => panic!("{other}"),
        }
    }
    assert!(begin.elapsed() < LIMIT, "nothing blocks");
    go_on.send(()).expect("it is held");
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
    let scheduler = scheduler(1, 1, 8);
    let (go_on, slow) = held(Duration::from_millis(5));
    let running = submit(&scheduler, job(random::tokens(9, 1), 500), slow).expect("it is taken");
    let waiting = submit(&scheduler, job(random::tokens(9, 2), 500), goes_on).expect("it is taken");
    std::thread::scope(|scope| {
        scope.spawn(|| scheduler.stop(Duration::from_millis(100)));
        until("it is told to stop", || {
            let refusal = submit(&scheduler, job(random::tokens(9, 3), 1), goes_on);
            matches!(refusal.expect_err("there is no room"), Refusal::ShuttingDown)
        });
        // It hears of the stop before its second token, and of the 100 ms each token takes 5.
        go_on.send(()).expect("it is held");
    });
    let answer = hear(&running).expect("it ends");
    assert_eq!(answer.summary.finish, FinishReason::Cancelled);
    assert!((1..=25).contains(&answer.tokens.len()), "{} tokens", answer.tokens.len());
    let answer = hear(&waiting).expect("it ends");
    assert_eq!((answer.tokens.len(), answer.summary.finish), (0, FinishReason::Cancelled));
}
