//! `w4pack convert`: Google's bf16 in, packed words out.

use super::threads;
use crate::args::{ConvertArguments, LayoutName, TowersName};
use crate::interrupt::Interrupt;
use crate::message::{Usage, one_line, talk, warn};
use crate::progress::Bytes;
use crate::{home, locate, output};
use anyhow::Result;
use std::process::ExitCode;
use std::sync::Arc;
use w4pack_convert::{
    ConvertError, Forecast, Layout, Options, Progress, Report, Stage, Towers, convert, forecast,
};
use w4pack_format::gguf::view;
use w4pack_format::source::Source;

pub fn run(arguments: &ConvertArguments, quiet: bool) -> Result<ExitCode> {
    let source = open(arguments)?;
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
    let out = match &arguments.out {
        Some(out) => out.clone(),
        None => default_folder(&*source, options.layout)?,
    };
    if arguments.plan {
        let (plan, forecast) = forecast(source, &out, &options)?;
        if arguments.json {
            output::json(&forecast)?;
        } else {
            output::print(&format!("{plan}{}", in_words(&forecast)))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let bar = ProgressBar::new("converting", quiet)?;
    let report = convert(source, &out, &options, &bar);
    let report = bar.end(report)?;
    for warning in &report.warnings {
        warn(warning);
    }
    if arguments.json {
        output::json(&report)?;
    } else if !quiet {
        talk(&summary(&report));
    }
    Ok(ExitCode::SUCCESS)
}

/// A plan needs headers only, and a stream stores nothing; otherwise a Hub name is downloaded.
fn open(arguments: &ConvertArguments) -> Result<Arc<dyn Source>> {
    let (what, revision) = (arguments.source.as_str(), arguments.revision.as_deref());
    if arguments.stream && locate::here(what, revision)?.is_some() {
        let message = format!("`{what}` is here already: --stream is for names on the Hub");
        return Err(Usage::new(message).hint("leave out --stream").into());
    }
    if arguments.stream || arguments.plan {
        return Ok(view::open(locate::streamed(what, revision)?)?);
    }
    locate::model(what, revision)
}

fn default_folder(source: &dyn Source, layout: Layout) -> Result<std::path::PathBuf> {
    if source.name().is_empty() {
        let message = format!("`{}` has no name to call the output after", source.label());
        return Err(Usage::new(message).hint("say where to write with --out").into());
    }
    home::conversion_folder(source.name(), layout.name())
}

/// What a plan says beside the fates of tensors and files.
fn in_words(forecast: &Forecast) -> String {
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    format!(
        "to {}: {:.1} MiB and what w4pack/ takes ({:.1} MiB are free there)\n\
         memory at most {:.0} MiB; about {:.0} s by a probe of {:.2} GB/s, writing not counted\n",
        forecast.destination,
        mebibytes(forecast.output_bytes),
        mebibytes(forecast.free_bytes),
        mebibytes(forecast.memory_bytes),
        forecast.seconds.max(1.0),
        forecast.probe.gigabytes_per_second,
    )
}

/// Draws progress, and stops the work when a signal asks for it.
pub struct ProgressBar {
    bar: Bytes,
    interrupt: Interrupt,
}

impl ProgressBar {
    pub fn new(verb: &'static str, quiet: bool) -> Result<ProgressBar> {
        Ok(ProgressBar { bar: Bytes::new(verb, quiet), interrupt: Interrupt::watch()? })
    }

    /// Takes the bar away. Work that a signal stopped has cleaned up by now, and the process ends.
    pub fn end<T>(self, result: Result<T, ConvertError>) -> Result<T> {
        self.bar.finish();
        if matches!(result, Err(ConvertError::Cancelled)) {
            self.interrupt.obey()?;
        }
        Ok(result?)
    }
}

impl Progress for ProgressBar {
    fn report(&self, stage: Stage, done: u64, total: u64) {
        self.bar.name(match stage {
            Stage::Convert => "converting",
            Stage::ConvertAgain => "again",
            Stage::Hash => "hashing",
            Stage::Restore => "restoring",
        });
        self.bar.set(done, total);
    }

    fn cancelled(&self) -> bool {
        self.interrupt.has_come()
    }
}

/// What a person wants to know of a conversion.
pub fn summary(report: &Report) -> String {
    let total = &report.total;
    let mut text = format!(
        "{} -> {}\n  {} tensors packed: {} groups, {} with a positive step, {} negative, {} zero\n",
        one_line(&report.source),
        one_line(&report.out),
        report.packed.len(),
        total.groups,
        total.positive,
        total.negative,
        total.zero,
    );
    let relayed = report.packed.iter().filter(|tensor| tensor.relayed).count();
    if relayed > 0 {
        text += &format!("  {relayed} of them were packed already and went over as they were\n");
    }
    if relayed < report.packed.len() {
        text += &differences(report);
    }
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

/// How many values the stored steps do not give back, here and in other readers.
fn differences(report: &Report) -> String {
    let total = &report.total;
    let compared = report.packed.iter().filter(|tensor| !tensor.relayed);
    let elements: usize = compared.map(|tensor| tensor.rows * tensor.columns).sum();
    let mut text = format!(
        "  {} of {elements} values, in {} groups, differ from the source with {} steps",
        total.values_differing, total.inexact_groups, report.scale_dtype
    );
    text += &match report.sidecar_bytes {
        0 => "\n".into(),
        bytes => format!("; `w4pack/exact.safetensors` ({bytes} bytes) gives them back\n"),
    };
    text += &format!(
        "  read otherwise: {} differ with transformers' dequantize, {} where scales are cast to bf16\n",
        total.by_other_readers.transformers_dequantize, total.by_other_readers.scales_in_bf16
    );
    text
}
