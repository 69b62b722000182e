//! `w4pack fixture`: synthetic checkpoints in Google's layout.

use super::threads;
use crate::args::{FixtureArguments, ShapeName, SignedZerosName};
use crate::commands::convert::summary;
use crate::progress::Bytes;
use anyhow::Result;
use serde_json::json;
use std::process::ExitCode;
use std::sync::Arc;
use w4pack_convert::{Layout, Options, Silent, convert};
use w4pack_fixtures::{FixtureOptions, Shape, SignedZeros, SyntheticSource, write};
use w4pack_format::scale::ScaleDtype;

pub fn run(arguments: &FixtureArguments, quiet: bool) -> Result<ExitCode> {
    let shape = match arguments.shape {
        ShapeName::Tiny => Shape::tiny(),
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
        shards: arguments.shards,
    };
    if arguments.packed {
        return packed(arguments, &shape, &options, quiet);
    }
    let bar = Bytes::new("writing", quiet);
    let report = write(&shape, &arguments.out, &options, &|done, total| bar.set(done, total));
    bar.finish();
    let report = report?;
    if arguments.json {
        let object = json!({
            "folder": report.folder, "files": report.files, "tensors": report.tensors,
            "text_tensors": report.text_tensors, "bytes": report.bytes,
            "threads": report.threads, "seconds": report.seconds,
            "gigabytes_per_second": report.gigabytes_per_second(),
        });
        println!("{object:#}");
    } else if !quiet {
        eprintln!(
            "{}: {} tensors ({} of the text model), {} bytes, {:.1} s, {:.2} GB/s on {} threads",
            report.folder.display(),
            report.tensors,
            report.text_tensors,
            report.bytes,
            report.seconds,
            report.gigabytes_per_second(),
            report.threads,
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The packed result without its source on the disk: the source is made while it is read.
fn packed(
    arguments: &FixtureArguments,
    shape: &Shape,
    fixture: &FixtureOptions,
    quiet: bool,
) -> Result<ExitCode> {
    let source = Arc::new(SyntheticSource::new(shape, fixture)?);
    let options = Options {
        layout: Layout::Emb4,
        scale_dtype: ScaleDtype::F16,
        allow_off_grid: false,
        threads: fixture.threads,
    };
    let report = convert(source, &arguments.out, &options, &Silent)?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else if !quiet {
        eprint!("{}", summary(&report));
    }
    Ok(ExitCode::SUCCESS)
}
