//! `w4pack inspect`: the X-ray of a checkpoint.

use super::verify::ProgressBar;
use crate::args::InspectArguments;
use crate::message::Usage;
use crate::progress::Bytes;
use crate::{locate, output};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::ExitCode;
use w4pack_verify::inspect::{inspect, plot};

/// How a plot is written.
enum Picture {
    Svg,
    Png,
}

pub fn run(arguments: &InspectArguments, quiet: bool) -> Result<ExitCode> {
    let ending = |path: &PathBuf| path.extension().map(|ending| ending.to_ascii_lowercase());
    let plot = match &arguments.plot {
        None => None,
        Some(path) => match ending(path).as_ref().and_then(|ending| ending.to_str()) {
            Some("svg") => Some((path, Picture::Svg)),
            Some("png") => Some((path, Picture::Png)),
            _ => {
                let message = format!("--plot `{}` is neither .svg nor .png", path.display());
                return Err(Usage::new(message).into());
            }
        },
    };
    let source = locate::source(&arguments.what, None)?;
    let bar = ProgressBar(Bytes::new("inspecting", quiet));
    let xray = inspect(&source, &bar)?;
    bar.0.finish();
    match plot {
        None => {}
        Some((path, Picture::Svg)) => output::file(path, plot::svg(&xray).as_bytes())?,
        Some((path, Picture::Png)) => {
            let picture = plot::png(&xray);
            output::file(path, &picture.context("could not make a PNG of the plot")?)?;
        }
    }
    if arguments.json {
        output::json(&xray)?;
    } else {
        output::line(&xray.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
