//! Ctrl-C: it stops the answer, and not the program. Between answers it ends a program that reads from
//! a pipe, as it ends any other.

use anyhow::{Context, Result};
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the answer is to stop.
#[derive(Clone)]
pub struct Stop {
    wanted: Arc<AtomicBool>,
    idle: Arc<AtomicBool>,
}

impl Stop {
    /// From now on Ctrl-C is heard.
    pub fn watch() -> Result<Stop> {
        let stop = Stop { wanted: Arc::default(), idle: Arc::new(AtomicBool::new(true)) };
        flag::register_conditional_default(SIGINT, stop.idle.clone())
            .and_then(|_| flag::register(SIGINT, stop.wanted.clone()))
            .context("could not watch for signals")?;
        Ok(stop)
    }

    /// An answer begins.
    pub fn forget(&self) {
        self.wanted.store(false, Ordering::Relaxed);
        self.idle.store(false, Ordering::Relaxed);
    }

    /// The answer has ended.
    pub fn rest(&self) {
        self.idle.store(true, Ordering::Relaxed);
    }

    /// Whether Ctrl-C has been pressed since the answer began.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }
}
