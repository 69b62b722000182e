//! `w4pack verify`: is this packed checkpoint Google's?

use super::threads;
use crate::args::VerifyArguments;
use crate::locate::read_file;
use crate::message::{Usage, warn};
use crate::progress::Bytes;
use crate::{locate, output};
use anyhow::{Context, Result};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use w4pack_convert::{Options as ConvertOptions, Silent, convert};
use w4pack_fixtures::{FixtureOptions, Shape, SignedZeros, write};
use w4pack_format::gguf::view::model_file;
use w4pack_format::manifest::STATEMENT_FILE;
use w4pack_format::source::{FolderSource, Source};
use w4pack_verify::self_test::self_test;
use w4pack_verify::{Options, Progress, statement, verify, verify_gguf, verify_rebuilt};

/// A self-test holds both sides in memory.
const SELF_TEST_LIMIT: u64 = 1 << 30;

pub fn run(arguments: &VerifyArguments, quiet: bool) -> Result<ExitCode> {
    let options = Options {
        allow_step_rounding: arguments.allow_step_rounding,
        threads: threads(arguments.threads)?,
        hash_files: arguments.write_statement.is_some(),
    };
    if let Some((files, path)) = gguf(arguments)? {
        return against_gguf(&files, &path, arguments, &options, quiet);
    }
    let locate =
        |what: &Option<String>| what.as_ref().map(|what| locate::streamed(what, None)).transpose();
    let packed = arguments.packed.as_ref().map(|what| locate::source(what, None)).transpose()?;
    let source = locate(&arguments.source)?;
    let bar = ProgressBar(Bytes::new("verifying", quiet));
    if let Some(trials) = arguments.self_test {
        return damage(packed, source, trials, arguments, &options, &bar);
    }
    let packed = packed.context("clap demands a checkpoint or --self-test")?;
    if let Some(path) = &arguments.write_statement {
        let towers = locate(&arguments.towers_from)?;
        for checkpoint in [Some(&packed), source.as_ref(), towers.as_ref()].into_iter().flatten() {
            check_statement_place(path, &**checkpoint)?;
        }
    }
    let mut report = match &arguments.hashes {
        Some(what) => {
            let listing = locate::listing(what)?;
            let towers = locate(&arguments.towers_from)?;
            verify_rebuilt(packed.clone(), towers, &listing, &options, &bar)
        }
        None => verify(packed.clone(), source, &options, &bar),
    };
    if let Some(path) = &arguments.statement {
        let label = path.display().to_string();
        statement::check(&mut report, &packed, &label, &read_file(path)?)?;
    } else if packed.size(STATEMENT_FILE).is_some() {
        // A published checkpoint brings its own, which must be true.
        let content = packed.read_file(STATEMENT_FILE)?;
        statement::check(&mut report, &packed, STATEMENT_FILE, &content)?;
    }
    bar.0.finish();
    if arguments.json {
        output::json(&report)?;
    } else {
        output::line(&report.to_string())?;
    }
    if let Some(path) = &arguments.write_statement {
        match statement::write(&report) {
            Ok(statement) => output::file(path, format!("{statement:#}\n").as_bytes())?,
            Err(reason) => warn(&format!("`{}` was not written: {reason}", path.display())),
        }
    }
    Ok(ExitCode::from(report.exit_code()))
}

/// A GGUF file, or a folder with no weights but one.
fn gguf(arguments: &VerifyArguments) -> Result<Option<(Arc<dyn Source>, String)>> {
    let Some(packed) = &arguments.packed else { return Ok(None) };
    let path = Path::new(packed);
    if path.extension().is_some_and(|ending| ending == "gguf") && path.is_file() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Ok(Some((Arc::new(FolderSource::open(path)?), name)));
    }
    let files = locate::source(packed, None)?;
    let path = model_file(&*files)?.map(str::to_string);
    Ok(path.map(|path| (files, path)))
}

fn against_gguf(
    files: &Arc<dyn Source>,
    path: &str,
    arguments: &VerifyArguments,
    options: &Options,
    quiet: bool,
) -> Result<ExitCode> {
    let others = [
        ("--hashes", arguments.hashes.is_some()),
        ("--statement", arguments.statement.is_some()),
        ("--write-statement", arguments.write_statement.is_some()),
        ("--self-test", arguments.self_test.is_some()),
    ];
    if let Some((flag, _)) = others.into_iter().find(|(_, given)| *given) {
        let message = format!("{flag} does not go with a GGUF file (`{path}`)");
        return Err(Usage::new(message).into());
    }
    let Some(source) = &arguments.source else {
        let message =
            format!("`{path}` is a GGUF file, which only its --source can say anything about");
        return Err(Usage::new(message).into());
    };
    let source = locate::streamed(source, None)?;
    let bar = ProgressBar(Bytes::new("comparing", quiet));
    let report = verify_gguf(files, path, &source, options, &bar);
    bar.0.finish();
    if arguments.json {
        output::json(&report)?;
    } else {
        output::line(&report.to_string())?;
    }
    Ok(ExitCode::from(report.exit_code()))
}

/// A statement in a folder that it speaks of would be a file that it does not speak of; and it takes
/// the place of an older statement only.
fn check_statement_place(path: &Path, packed: &dyn Source) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new(".")).canonicalize();
    let packed = Path::new(packed.label()).canonicalize();
    let is_statement = |content: Vec<u8>| {
        serde_json::from_slice::<serde_json::Value>(&content)
            .is_ok_and(|value| value["_type"] == "https://in-toto.io/Statement/v1")
    };
    if fs::symlink_metadata(path).is_ok() && !fs::read(path).is_ok_and(is_statement) {
        let message = format!("`{}` is there and is no statement", path.display());
        return Err(Usage::new(message).hint("give another name with --write-statement").into());
    }
    if let (Ok(folder), Ok(packed)) = (folder, packed)
        && folder.starts_with(packed)
    {
        let message = format!(
            "the statement `{}` cannot lie in the checkpoint that it speaks of",
            path.display()
        );
        return Err(Usage::new(message).into());
    }
    Ok(())
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
    write(&Shape::tiny(), &source, &hard, &|_, _| ControlFlow::Continue(()))?;
    let source: Arc<dyn Source> = Arc::new(FolderSource::open(&source)?);
    convert(source.clone(), &packed, &ConvertOptions::default(), &Silent)?;
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
