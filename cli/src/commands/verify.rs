//! `w4pack verify`: is this packed checkpoint Google's?

use super::threads;
use crate::args::VerifyArguments;
use crate::progress::Bytes;
use crate::{locate, output};
use anyhow::Result;
use std::process::ExitCode;
use w4pack_verify::{Options, Progress, verify};

pub fn run(arguments: &VerifyArguments, quiet: bool) -> Result<ExitCode> {
    let packed = locate::source(&arguments.packed, None)?;
    let source = match &arguments.source {
        Some(source) => Some(locate::source(source, None)?),
        None => None,
    };
    let options = Options {
        allow_step_rounding: arguments.allow_step_rounding,
        threads: threads(arguments.threads)?,
    };
    let bar = ProgressBar(Bytes::new("verifying", quiet));
    let report = verify(packed, source, &options, &bar);
    bar.0.finish();
    if arguments.json {
        output::json(&report)?;
    } else {
        output::line(&report.to_string())?;
    }
    Ok(ExitCode::from(report.exit_code()))
}

/// Draws what verify counts.
pub struct ProgressBar(pub Bytes);

impl Progress for ProgressBar {
    fn begin(&self, stage: &str, bytes: u64) {
        self.0.begin(stage, bytes);
    }

    fn advance(&self, bytes: u64) {
        self.0.advance(bytes);
    }
}
