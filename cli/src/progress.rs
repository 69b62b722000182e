//! Progress on a terminal: bytes, GB/s, time left. Elsewhere nothing is drawn.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::io::IsTerminal;

/// A bar over bytes that draws itself only where somebody looks.
pub struct Bytes(ProgressBar);

impl Bytes {
    pub fn new(verb: &'static str, quiet: bool) -> Bytes {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target =
            if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let template = "{msg:>10} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta} left";
        let style = ProgressStyle::with_template(template).expect("the template is well formed");
        bar.set_style(style);
        bar.set_message(verb);
        Bytes(bar)
    }

    /// Another word in front of the bar.
    pub fn name(&self, verb: &'static str) {
        self.0.set_message(verb);
    }

    pub fn set(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }

    /// Another stage of so many bytes begins.
    pub fn begin(&self, verb: &str, total: u64) {
        self.0.set_message(verb.to_string());
        self.set(0, total);
    }

    pub fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// Says something between two drawings of the bar.
    #[cfg(feature = "hub")]
    pub fn aside(&self, say: impl FnOnce()) {
        self.0.suspend(say);
    }

    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A bar over questions, with how many of the new answers are right.
pub struct Questions {
    bar: ProgressBar,
    correct: Cell<usize>,
}

impl Questions {
    pub fn new(quiet: bool) -> Questions {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target =
            if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let template = "{wide_bar} {pos}/{len} {msg} {eta} left";
        let style = ProgressStyle::with_template(template).expect("the template is well formed");
        bar.set_style(style);
        Questions { bar, correct: Cell::new(0) }
    }

    pub fn begin(&self, questions: usize) {
        self.bar.set_length(questions as u64);
    }

    pub fn answered(&self, correct: bool) {
        self.correct.set(self.correct.get() + usize::from(correct));
        self.bar.set_message(format!("{} right", self.correct.get()));
        self.bar.inc(1);
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
