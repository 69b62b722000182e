//! Ctrl-C and SIGTERM: what is half done is removed, then the process ends as the signal would have
//! ended it. A second signal ends it at once; what it leaves is removed by the next run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::{flag, low_level};

/// Makes writing beyond the shell's limit for files (`ulimit -f`) an error like a full disk, since it
/// is one.
pub fn make_file_limits_errors() -> Result<()> {
    let registered = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    registered.map(|_| ()).context("could not watch for signals")
}

/// The signal that has come, if one has.
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// From now on signals are noted instead of obeyed.
    pub fn watch() -> Result<Interrupt> {
        let (which, come) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let watch = || -> std::io::Result<()> {
            [SIGINT, SIGTERM].into_iter().try_for_each(|signal| {
                // In this order: the first signal arms what the second one meets.
                flag::register_conditional_default(signal, come.clone())?;
                flag::register(signal, come.clone())?;
                flag::register_usize(signal, which.clone(), signal as usize).map(|_| ())
            })
        };
        watch().context("could not watch for signals")?;
        Ok(Interrupt(which))
    }

    /// Whether a signal has come.
    pub fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Ends the process as the signal would have, so that shells and scripts see what happened.
    /// Comes back if there was none.
    pub fn obey(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => low_level::emulate_default_handler(signal as i32)
                .context("could not end as the signal asks"),
        }
    }
}
