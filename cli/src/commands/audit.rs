//! `w4pack audit`: random groups of both sides, neither downloaded.

use super::verify::ProgressBar;
use crate::args::AuditArguments;
use crate::progress::Bytes;
use crate::{locate, output};
use anyhow::Result;
use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;
use w4pack_verify::audit::{AuditOptions, audit};

pub fn run(arguments: &AuditArguments, quiet: bool) -> Result<ExitCode> {
    let packed = locate::streamed(&arguments.packed, None)?;
    let source = locate::streamed(&arguments.source, None)?;
    // Whoever tampers must not know beforehand where nobody will look.
    let seed = arguments.seed.unwrap_or_else(|| RandomState::new().hash_one(()));
    let bar = ProgressBar(Bytes::new("auditing", quiet));
    let report = audit(&packed, &source, AuditOptions { samples: arguments.samples, seed }, &bar);
    bar.0.finish();
    let report = report?;
    if arguments.json {
        output::json(&report)?;
    } else {
        output::line(&report.to_string())?;
    }
    Ok(ExitCode::from(report.exit_code()))
}
