//! `w4pack doctor`: what would another loader make of this checkpoint?

use crate::args::{DoctorArguments, LoaderName};
use crate::message::Usage;
use crate::{locate, output};
use anyhow::Result;
use std::process::ExitCode;
use w4pack_verify::doctor::{Loader, diagnose};

pub fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let (Some(packed), Some(loader)) = (&arguments.packed, arguments.loader) else {
        let hint = "`w4pack doctor FOLDER --for vllm`";
        return Err(Usage::new("no checkpoint was given").hint(hint).into());
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
