//! `w4pack inspect`: the X-ray of a checkpoint.

use super::picture::PictureFile;
use super::verify::ProgressBar;
use crate::args::InspectArguments;
use crate::progress::Bytes;
use crate::{locate, output};
use anyhow::Result;
use std::process::ExitCode;
use w4pack_verify::inspect::{inspect, plot};

pub fn run(arguments: &InspectArguments, quiet: bool) -> Result<ExitCode> {
    let file = arguments.plot.as_deref().map(PictureFile::new).transpose()?;
    let source = locate::source(&arguments.what, None)?;
    let bar = ProgressBar(Bytes::new("inspecting", quiet));
    let xray = inspect(&source, &bar)?;
    bar.0.finish();
    if let Some(file) = file {
        file.write(&plot(&xray))?;
    }
    if arguments.json {
        output::json(&xray)?;
    } else {
        output::line(&xray.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
