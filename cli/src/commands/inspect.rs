//! `w4pack inspect`: the X-ray of a checkpoint.

use super::verify::ProgressBar;
use crate::args::InspectArguments;
use crate::message::Usage;
use crate::progress::Bytes;
use crate::{locate, output};
use anyhow::Result;
use std::process::ExitCode;
use w4pack_verify::inspect::{inspect, plot};

pub fn run(arguments: &InspectArguments, quiet: bool) -> Result<ExitCode> {
    if let Some(path) = &arguments.plot
        && path.extension().is_none_or(|ending| ending != "svg")
    {
        let message = format!("--plot `{}`: the plot is an SVG, and is called so", path.display());
        return Err(Usage::new(message).into());
    }
    let source = locate::source(&arguments.what, None)?;
    let bar = ProgressBar(Bytes::new("inspecting", quiet));
    let xray = inspect(&source, &bar)?;
    bar.0.finish();
    if let Some(path) = &arguments.plot {
        output::file(path, plot::svg(&xray).as_bytes())?;
    }
    if arguments.json {
        output::json(&xray)?;
    } else {
        output::line(&xray.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
