//! `w4pack verify`: is this packed checkpoint Google's?

use super::threads;
use crate::args::VerifyArguments;
use crate::message::Usage;
use crate::progress::Bytes;
use crate::{locate, output};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use w4pack_convert::{Options as ConvertOptions, Silent, convert};
use w4pack_fixtures::{FixtureOptions, Shape, SignedZeros, write};
use w4pack_format::source::{FolderSource, Source};
use w4pack_verify::self_test::self_test;
use w4pack_verify::{Options, Progress, verify};

/// A self-test holds both sides in memory.
const SELF_TEST_LIMIT: u64 = 1 << 30;

pub fn run(arguments: &VerifyArguments, quiet: bool) -> Result<ExitCode> {
    let options = Options {
        allow_step_rounding: arguments.allow_step_rounding,
        threads: threads(arguments.threads)?,
    };
    let locate =
        |what: &Option<String>| what.as_ref().map(|what| locate::source(what, None)).transpose();
    let (packed, source) = (locate(&arguments.packed)?, locate(&arguments.source)?);
    let bar = ProgressBar(Bytes::new("verifying", quiet));
    if let Some(trials) = arguments.self_test {
        return damage(packed, source, trials, arguments, &options, &bar);
    }
    let packed = packed.context("clap demands a checkpoint or --self-test")?;
    let report = verify(packed, source, &options, &bar);
    bar.0.finish();
    if arguments.json {
        output::json(&report)?;
    } else {
        output::line(&report.to_string())?;
    }
    Ok(ExitCode::from(report.exit_code()))
}

/// Tests the proof itself.
fn damage(
    packed: Option<Arc<dyn Source>>,
    source: Option<Arc<dyn Source>>,
    trials: u64,
    arguments: &VerifyArguments,
    options: &Options,
    bar: &ProgressBar,
) -> Result<ExitCode> {
    // Removed when it goes out of scope, whatever happens.
    let scratch;
    let (packed, source) = match (packed, source) {
        (Some(packed), Some(source)) => (packed, source),
        (None, _) => {
            scratch = tempfile::tempdir().context("could not make a temporary folder")?;
            synthetic_pair(scratch.path())?
        }
        (Some(packed), None) => {
            let message =
                format!("--self-test damages `{}`, which needs its --source", packed.label());
            return Err(Usage::new(message).into());
        }
    };
    for side in [&packed, &source] {
        let bytes: u64 = side.files().iter().map(|file| file.bytes).sum();
        if bytes > SELF_TEST_LIMIT {
            let message = format!(
                "--self-test holds both sides in memory; `{}` has {bytes} bytes, the limit is {SELF_TEST_LIMIT}",
                side.label()
            );
            let hint = "leave the checkpoint out to damage a small synthetic one";
            return Err(Usage::new(message).hint(hint).into());
        }
    }
    let found = self_test(&packed, &source, trials, arguments.seed, options, bar)?;
    bar.0.finish();
    if arguments.json {
        output::json(&found)?;
    } else {
        output::line(&found.to_string())?;
    }
    Ok(ExitCode::from(u8::from(!found.is_right())))
}

/// A source with groups of every difficult kind, and its conversion.
fn synthetic_pair(folder: &Path) -> Result<(Arc<dyn Source>, Arc<dyn Source>)> {
    let (source, packed) = (folder.join("source"), folder.join("packed"));
    let hard = FixtureOptions {
        hard: true,
        signed_zeros: SignedZeros::Random,
        ..FixtureOptions::default()
    };
    write(&Shape::tiny(), &source, &hard, &|_, _| ())?;
    let source: Arc<dyn Source> = Arc::new(FolderSource::open(&source)?);
    let options = ConvertOptions::default();
    convert(source.clone(), &packed, &options, &Silent)?;
    Ok((Arc::new(FolderSource::open(&packed)?), source))
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
