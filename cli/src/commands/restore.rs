//! `w4pack restore`: from packed words back to Google's bf16.

use super::convert::ProgressBar;
use super::threads;
use crate::args::RestoreArguments;
use crate::message::{one_line, talk};
use crate::{locate, output};
use anyhow::Result;
use std::process::ExitCode;
use w4pack_convert::restore;
use w4pack_convert::restore::Report;

pub fn run(arguments: &RestoreArguments, quiet: bool) -> Result<ExitCode> {
    let packed = locate::source(&arguments.packed, None)?;
    let towers = match &arguments.towers_from {
        Some(towers) => Some(locate::streamed(towers, None)?),
        None => None,
    };
    let threads = threads(arguments.threads)?;
    let bar = ProgressBar::new("restoring", quiet)?;
    let report = restore(packed, towers, &arguments.out, threads, &bar);
    let report = bar.end(report)?;
    if arguments.json {
        output::json(&report)?;
    } else if !quiet {
        talk(&summary(&report));
    }
    Ok(ExitCode::SUCCESS)
}

/// What a person wants to know of a restoration.
fn summary(report: &Report) -> String {
    let mut text = format!(
        "{} -> {}\n  {} tensors are the source's, proved by their hashes: {} from packed words",
        one_line(&report.packed),
        one_line(&report.out),
        report.tensors,
        report.tensors_unpacked
    );
    if report.tensors_from_towers > 0 {
        text += &format!(", {} from --towers-from", report.tensors_from_towers);
    }
    text += "\n";
    if let (Some(towers), 0) = (&report.towers_from, report.tensors_from_towers) {
        text += &format!(
            "  --towers-from was not needed: nothing was left out, and nothing of `{towers}` was read\n"
        );
    }
    for file in &report.identical_files {
        text += &format!("  {}: SHA-256 {}, as in the source\n", file.path, file.sha256);
    }
    if let Some(first) = report.missing.first() {
        let bytes: u64 = report.missing.iter().map(|tensor| tensor.bytes).sum();
        text += &format!(
            "  not the whole source: {} tensors ({bytes} bytes, `{}` …) were left out when it was \
             packed;\n  the others are here as a checkpoint of their own. --towers-from SOURCE \
             completes it\n",
            report.missing.len(),
            first.tensor
        );
    }
    for path in &report.not_restored {
        text += &format!("  not given back: {path}, which the packed checkpoint does not hold\n");
    }
    text += &format!(
        "  {} bytes, {:.1} s, {:.2} GB/s\n",
        report.bytes, report.seconds, report.gigabytes_per_second
    );
    text
}
