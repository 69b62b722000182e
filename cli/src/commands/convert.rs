//! `w4pack convert`: Google's bf16 in, packed words out.

use super::threads;
use crate::args::{ConvertArguments, LayoutName, TowersName};
use crate::message::{Usage, warn};
use crate::progress::Bytes;
use crate::{home, locate, output};
use anyhow::{Context, Result};
use std::process::ExitCode;
use w4pack_convert::{Layout, Options, Progress, Report, Stage, Towers, convert, plan};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::source::Source;

pub fn run(arguments: &ConvertArguments, quiet: bool) -> Result<ExitCode> {
    let source = locate::source(&arguments.source, arguments.revision.as_deref())?;
    let options = Options {
        layout: match arguments.layout {
            LayoutName::Emb4 => Layout::Emb4,
            LayoutName::Emb4Untied => Layout::Emb4Untied,
            LayoutName::Linear => Layout::Linear,
            LayoutName::LinearPle4 => Layout::LinearPle4,
            LayoutName::Gguf => Layout::Gguf,
        },
        towers: match arguments.towers {
            TowersName::Drop => Towers::Drop,
            TowersName::Keep => Towers::Keep,
        },
        scale_dtype: arguments.scale_dtype(),
        allow_off_grid: arguments.allow_off_grid,
        threads: threads(arguments.threads)?,
    };
    if arguments.plan {
        output::print(&plan(&Checkpoint::open(source)?, &options)?.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let out = match &arguments.out {
        Some(out) => out.clone(),
        None => default_folder(&*source, options.layout)?,
    };
    let bar = ProgressBar { bar: Bytes::new("converting", quiet) };
    let report = convert(source, &out, &options, &bar);
    bar.bar.finish();
    let report = report?;
    for warning in &report.warnings {
        warn(warning);
    }
    if arguments.json {
        output::json(&report)?;
    } else if !quiet {
        eprint!("{}", summary(&report));
    }
    Ok(ExitCode::SUCCESS)
}

fn default_folder(source: &dyn Source, layout: Layout) -> Result<std::path::PathBuf> {
    if source.name().is_empty() {
        let message = format!("`{}` has no name to call the output after", source.label());
        return Err(Usage::new(message).hint("say where to write with --out").into());
    }
    let folder = home::conversion_folder(source.name(), layout.name())?;
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("could not make the w4pack home `{}`", parent.display()))?;
    }
    Ok(folder)
}

struct ProgressBar {
    bar: Bytes,
}

impl Progress for ProgressBar {
    fn report(&self, stage: Stage, done: u64, total: u64) {
        self.bar.name(match stage {
            Stage::Convert => "converting",
            Stage::ConvertAgain => "again",
            Stage::Hash => "hashing",
        });
        self.bar.set(done, total);
    }
}

/// What a person wants to know of a conversion.
pub fn summary(report: &Report) -> String {
    let total = &report.total;
    let mut text = format!(
        "{} -> {}\n  {} tensors packed: {} groups, {} with a positive step, {} negative, {} zero\n",
        report.source,
        report.out,
        report.packed.len(),
        total.groups,
        total.positive,
        total.negative,
        total.zero,
    );
    let elements = total.groups * 32;
    text += &format!(
        "  {} of {elements} values, in {} groups, differ from the source with {} steps",
        total.values_differing, total.inexact_groups, report.scale_dtype
    );
    text += &match report.sidecar_bytes {
        0 => "\n".into(),
        bytes => format!("; `w4pack/exact.safetensors` ({bytes} bytes) gives them back\n"),
    };
    let in_f32: Vec<_> = report.packed.iter().filter(|tensor| tensor.fell_back.is_some()).collect();
    if let Some(first) = in_f32.first() {
        text += &format!(
            "  {} tensors have f32 steps, since {} cannot hold all of theirs (`{}` …)\n",
            in_f32.len(),
            report.scale_dtype,
            first.module
        );
    }
    for kept in &report.off_grid {
        text += &format!("  kept in bf16: `{}`, {}\n", kept.module, kept.misfit);
    }
    if !report.left_out.is_empty() {
        let bytes: u64 = report.left_out.iter().map(|tensor| tensor.bytes).sum();
        let count = report.left_out.len();
        text += &format!("  {count} tensors left out ({bytes} bytes), listed in --json\n");
    }
    for file in &report.not_copied {
        text += &format!("  not copied: {}: {}\n", file.path, file.reason);
    }
    text += &format!(
        "  {} bytes in, {} bytes out, {:.1} s, {:.2} GB/s\n",
        report.source_bytes, report.output_bytes, report.seconds, report.gigabytes_per_second
    );
    text
}
