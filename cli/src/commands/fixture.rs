//! `w4pack fixture`: synthetic checkpoints in Google's layout.

use super::threads;
use crate::args::{FixtureArguments, ShapeName, SignedZerosName};
use crate::interrupt::Interrupt;
use crate::message::{one_line, talk};
use crate::output;
use crate::progress::Bytes;
use anyhow::Result;
use std::ops::ControlFlow;
use std::process::ExitCode;
use w4pack_fixtures::{FixtureError, FixtureOptions, Shape, SignedZeros, write};

pub fn run(arguments: &FixtureArguments, quiet: bool) -> Result<ExitCode> {
    let shape = match arguments.shape {
        ShapeName::Tiny => Shape::tiny(),
        ShapeName::TinyE4b => Shape::tiny_e4b(),
        ShapeName::Tiny12b => Shape::tiny_12b(),
        ShapeName::Tiny31b => Shape::tiny_31b(),
        ShapeName::Tiny26bA4b => Shape::tiny_26b_a4b(),
        ShapeName::TinyGemma3 => Shape::tiny_gemma3(),
        ShapeName::E2b => Shape::e2b(),
    };
    let options = FixtureOptions {
        seed: arguments.seed,
        hard: arguments.hard,
        all_kv: arguments.all_kv,
        signed_zeros: match arguments.signed_zeros {
            SignedZerosName::None => SignedZeros::None,
            SignedZerosName::ByStep => SignedZeros::ByStep,
            SignedZerosName::Random => SignedZeros::Random,
        },
        threads: threads(arguments.threads)?,
        packed: arguments.packed,
        shards: arguments.shards,
    };
    let bar = Bytes::new("writing", quiet);
    let interrupt = Interrupt::watch()?;
    let report = write(&shape, &arguments.out, &options, &|done, total| {
        bar.set(done, total);
        if interrupt.has_come() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish();
    if matches!(report, Err(FixtureError::Cancelled)) {
        interrupt.obey()?;
    }
    let report = report?;
    if arguments.json {
        output::json(&report)?;
    } else if !quiet {
        talk(&format!(
            "{}: {} tensors ({} of the text model), {} bytes, {:.1} s, {:.2} GB/s on {} threads\n",
            one_line(&report.folder.display().to_string()),
            report.tensors,
            report.text_tensors,
            report.bytes,
            report.seconds,
            report.gigabytes_per_second(),
            report.threads,
        ));
    }
    Ok(ExitCode::SUCCESS)
}
