//! `w4pack doctor`: what would another loader make of this checkpoint? Without one: the GPUs.

use crate::args::{DoctorArguments, LoaderName};
use crate::{locate, output};
use anyhow::Result;
use std::process::ExitCode;
use w4pack_verify::doctor::{Loader, diagnose};

pub fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let (Some(packed), Some(loader)) = (&arguments.packed, arguments.loader) else {
        return super::cards::run(arguments);
    };
    let checkpoint = locate::source(packed, None)?;
    let loader = match loader {
        LoaderName::Transformers => Loader::Transformers,
        LoaderName::Vllm => Loader::Vllm,
        LoaderName::LlamaCpp => Loader::LlamaCpp,
    };
    let diagnosis = diagnose(checkpoint, loader)?;
    if arguments.json {
        output::json(&diagnosis)?;
    } else {
        output::print(&diagnosis.to_string())?;
    }
    Ok(ExitCode::from(diagnosis.exit_code()))
}
