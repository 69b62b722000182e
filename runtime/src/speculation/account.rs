//! Whether a draft is worth a pass: what passes cost, how often drafts were right, and how much may be lost
//! in finding that out.
//!
//! With `t` the time of a plain step, `c(m)` that of a pass over `m` tokens and `p` the share of drafted
//! tokens that were right where as many tokens had matched, a pass over a token and `k` drafted ones is
//! worth `t · (1 + p + p² + … + p^k) - c(k + 1)`. The `k` of the largest worth is taken, or none if no
//! worth is above 0.
//!
//! Estimates can be wrong, so losses are bounded whatever happens: each plain step allows a little to be
//! lost, each pass takes from that what it cost too much, and a pass whose whole cost would be too much is
//! not made: over `n` plain steps that is [`ALLOWED_AT_FIRST`] and `n` times [`ALLOWED`], but for the first
//! pass of each length, whose cost nobody knows.

use crate::device::MOST_TRIED;
use std::time::Duration;

/// Of a plain step's time, what may be lost for it later on.
const ALLOWED: f64 = 0.015;
/// What may be lost at first, and what gains leave to be lost, in plain steps. At first it is enough for a pass
/// over two tokens, so that an engine's first short answers lose little too; what that gains allows longer ones.
const ALLOWED_AT_FIRST: f64 = 0.25;
const ALLOWED_AT_MOST: f64 = 2.0;
/// What a pass may cost beyond its estimate as long as none is measured, in plain steps. (Small models on a card,
/// whose steps are shorter than a launch: 2.)
const UNKNOWN_COST: f64 = 1.5;
/// What a token more is taken to cost as long as nobody has measured it, in plain steps.
const TOKEN_UNMEASURED: f64 = 0.15;
/// Drafted tokens that are remembered of each kind.
const REMEMBERED: f64 = 32.0;
/// With each draft that is not tried, so much of what is remembered of its kind is forgotten: texts change.
const FORGOTTEN: f64 = 0.01;

/// What speculation has cost and brought on an engine.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// By tokens of a pass; those of one are plain steps.
    times: [Lately; MOST_TRIED + 1],
    /// By how long the match was.
    trust: [Trust; 4],
    /// What has been gained and allowed and not been lost, in plain steps.
    balance: f64,
}

/// The median of the last times.
#[derive(Debug, Default)]
struct Lately {
    seconds: [f64; 7],
    count: usize,
}

impl Lately {
    fn note(&mut self, took: Duration) {
        self.seconds[self.count % self.seconds.len()] = took.as_secs_f64();
        self.count += 1;
    }

    fn median(&self) -> Option<f64> {
        let known = self.count.min(self.seconds.len());
        let mut seconds = self.seconds;
        let seconds = &mut seconds[..known];
        seconds.sort_by(f64::total_cmp);
        seconds.get(known / 2).copied()
    }
}

/// Drafted tokens of one kind that were right and that were wrong, one of each to begin with.
#[derive(Debug, Clone, Copy)]
struct Trust {
    right: f64,
    wrong: f64,
}

impl Default for Trust {
    fn default() -> Self {
        Self { right: 1.0, wrong: 1.0 }
    }
}

impl Trust {
    fn note(&mut self, right: usize, wrong: usize) {
        self.right += right as f64;
        self.wrong += wrong as f64;
        let all = self.right + self.wrong;
        if all > REMEMBERED {
            self.right *= REMEMBERED / all;
            self.wrong *= REMEMBERED / all;
        }
    }

    fn forget(&mut self) {
        self.right += FORGOTTEN * (1.0 - self.right);
        self.wrong += FORGOTTEN * (1.0 - self.wrong);
    }

    /// Of `drafted` tokens, how many are likely to be right: each needs those before it.
    fn expected(&self, drafted: usize) -> f64 {
        let share = self.right / (self.right + self.wrong);
        (1..=drafted as i32).map(|number| share.powi(number)).sum()
    }
}

/// The kind of a draft, by how many tokens matched.
fn kind(matched: usize) -> usize {
    match matched {
        0..=2 => 0,
        3 => 1,
        4..=7 => 2,
        _ => 3,
    }
}

impl Account {
    /// One that first saves what a pass may take beyond its estimate: for answers that are rarely guessed.
    pub fn cautious() -> Self {
        Self { balance: -UNKNOWN_COST, ..Self::default() }
    }

    /// How many of `drafted` tokens to try; 0: none. As long as this account knows the time of no pass, passes
    /// take as many plain steps as `other` knows.
    pub fn worth(&mut self, matched: usize, drafted: usize, other: &Self) -> usize {
        let times = if self.has_tried() || !other.has_tried() { &self.times } else { &other.times };
        let Some(step) = times[1].median() else { return 0 };
        let trust = &mut self.trust[kind(matched)];
        let (mut best, mut most) = (0, 0.0);
        for count in 1..=drafted {
            // In plain steps, like all below.
            let cost = cost(times, step, count + 1);
            let worth = 1.0 + trust.expected(count) - cost;
            if worth > most && cost - 1.0 <= self.balance + ALLOWED_AT_FIRST {
                (best, most) = (count, worth);
            }
        }
        if best == 0 && drafted > 0 {
            trust.forget();
        }
        best
    }

    /// A plain step.
    pub fn stepped(&mut self, took: Duration) {
        self.times[1].note(took);
        self.add(ALLOWED);
    }

    /// A pass over `tokens` tokens, the drafted ones of this match, of which the answer got `kept`.
    pub fn tried(&mut self, matched: usize, tokens: usize, kept: usize, took: Duration) {
        self.times[tokens].note(took);
        self.trust[kind(matched)].note(kept - 1, usize::from(kept < tokens));
        if let Some(step) = self.times[1].median() {
            self.add(kept as f64 - took.as_secs_f64() / step);
        }
    }

    fn has_tried(&self) -> bool {
        self.times[2..].iter().any(|times| times.count > 0)
    }

    fn add(&mut self, steps: f64) {
        self.balance = (self.balance + steps).min(ALLOWED_AT_MOST - ALLOWED_AT_FIRST);
    }
}

/// What a pass costs, in plain steps: as measured; between measured ones on the straight line; beyond the
/// last as [`TOKEN_UNMEASURED`] says.
fn cost(times: &[Lately], step: f64, tokens: usize) -> f64 {
    let at = |tokens: usize| times[tokens].median().map(|seconds| seconds / step);
    let below = (1..=tokens).rev().find_map(|tokens| at(tokens).map(|cost| (tokens, cost)));
    let (below, low) = below.unwrap_or((1, 1.0));
    let above = (tokens..times.len()).find_map(|tokens| at(tokens).map(|cost| (tokens, cost)));
    match above {
        Some((above, high)) if above > below => {
            low + (high - low) * (tokens - below) as f64 / (above - below) as f64
        }
        Some((_, high)) => high,
        None => low + TOKEN_UNMEASURED * (tokens - below) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    /// A device on which a token more costs `slope` plain steps and the second one `jump` besides.
    struct Device {
        jump: f64,
        slope: f64,
    }

    impl Device {
        fn took(&self, tokens: usize, noise: f64) -> Duration {
            let more = (tokens - 1) as f64;
            let cost = 1.0 + if tokens > 1 { self.jump + self.slope * more } else { 0.0 };
            Duration::from_secs_f64(1e-3 * cost * noise)
        }
    }

    /// Decodes `tokens` tokens; a drafted one is right with this probability. Returns the time in plain
    /// steps.
    fn run(device: &Device, tokens: usize, right: f64, noisy: bool) -> f64 {
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let mut draw = || f64::from(random.next_u32()) / f64::from(u32::MAX);
        let mut account = Account::default();
        let (mut done, mut seconds) = (0, 0.0);
        while done < tokens {
            let matched = 2 + (draw() * 8.0) as usize;
            let drafted = account.worth(matched, 7, &Account::default());
            let noise = if noisy { 0.9 + 0.2 * draw() } else { 1.0 };
            let took = device.took(1 + drafted, noise);
            seconds += took.as_secs_f64();
            if drafted == 0 {
                account.stepped(took);
                done += 1;
                continue;
            }
            let accepted = (0..drafted).take_while(|_| draw() < right).count();
            account.tried(matched, 1 + drafted, 1 + accepted, took);
            done += 1 + accepted;
        }
        seconds / 1e-3 * tokens as f64 / done as f64
    }

    const CARD: Device = Device { jump: 0.35, slope: 0.01 };
    const CPU: Device = Device { jump: 0.0, slope: 0.35 };
    const DEAR: Device = Device { jump: 0.5, slope: 1.0 };

    #[test]
    fn no_drafts_lose_more_than_three_hundredths() {
        for device in [&CARD, &CPU, &DEAR] {
            for right in [0.0, 0.1, 0.3, 0.5] {
                for tokens in [30, 100, 1000, 10_000] {
                    // A first pass that takes two steps and a half is more than 3 % of thirty.
                    if tokens == 30 && device.jump == DEAR.jump {
                        continue;
                    }
                    let took = run(device, tokens, right, false);
                    let share = took / tokens as f64;
                    assert!(share <= 1.03, "{}: {right}, {tokens}: {share}", device.jump);
                }
                // Times that jump about by a tenth.
                let share = run(device, 10_000, right, true) / 10_000.0;
                assert!(share <= 1.03, "noisy, {}: {right}: {share}", device.jump);
            }
        }
    }

    #[test]
    fn right_drafts_are_found_to_pay() {
        assert!(run(&CARD, 1000, 0.95, true) < 300.0);
        assert!(run(&CARD, 1000, 0.7, true) < 650.0);
        assert!(run(&CPU, 1000, 0.95, true) < 600.0);
        // A device that gains nothing is left alone.
        assert!(run(&DEAR, 1000, 1.0, false) > 990.0);
    }

    /// After texts that cannot be guessed comes one that can.
    #[test]
    fn what_was_given_up_is_tried_again() {
        let mut account = Account::default();
        let right_from = 2000;
        let (mut done, mut passes) = (0, 0);
        while done < 4000 {
            let drafted = account.worth(4, 7, &Account::default());
            let took = CARD.took(1 + drafted, 1.0);
            if drafted == 0 {
                account.stepped(took);
                done += 1;
                continue;
            }
            passes += 1;
            let accepted = if done >= right_from { drafted } else { 0 };
            account.tried(4, 1 + drafted, 1 + accepted, took);
            done += 1 + accepted;
        }
        assert!(account.worth(4, 7, &Account::default()) > 0);
        assert!(passes > 150, "{passes}");
    }

    #[test]
    fn nothing_is_tried_before_a_plain_step_is_measured() {
        assert_eq!(Account::default().worth(8, 7, &Account::default()), 0);
    }

    #[test]
    fn costs_between_measured_ones_lie_on_a_line() {
        let mut account = Account::default();
        account.stepped(CPU.took(1, 1.0));
        account.tried(4, 5, 5, CPU.took(5, 1.0));
        for tokens in 1..=5 {
            let expected = 1.0 + CPU.slope * (tokens - 1) as f64;
            assert!((cost(&account.times, 1e-3, tokens) - expected).abs() < 1e-6, "{tokens}");
        }
        let beyond = cost(&account.times, 1e-3, 7);
        assert!((beyond - 2.4 - 2.0 * TOKEN_UNMEASURED).abs() < 1e-6);
    }
}
