//! How a failure reads: what was tried, what was found, and the next step.

use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;
use w4pack_convert::ConvertError;
use w4pack_eval::EvalError;
use w4pack_fixtures::FixtureError;
use w4pack_format::FormatError;
#[cfg(feature = "hub")]
use w4pack_hub::HubError;
use w4pack_kernels::cuda::CudaError;
use w4pack_runtime::RuntimeError;
use w4pack_runtime::chat::ChatError;

/// Something the user can mend: wrong use or unreadable input. Exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Usage {
    message: String,
    hint: Option<String>,
}

impl Usage {
    pub fn new(message: impl Into<String>) -> Usage {
        Usage { message: message.into(), hint: None }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Usage {
        self.hint = Some(hint.into());
        self
    }
}

/// Says something on stderr, which no name in it can steer.
pub fn talk(text: &str) {
    eprint!("{}", visible(text));
}

/// A name that is to stand within a line, on which a line break in it would begin another one.
pub fn one_line(name: &str) -> String {
    visible(name).replace('\n', "\\u{a}")
}

/// Something that the user should know and that stops nothing.
pub fn warn(text: &str) {
    eprintln!("warning: {}", visible(text));
}

/// 2 for wrong use and unreadable input, 1 for a failure on the way.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    let is_input = |cause: &(dyn std::error::Error + 'static)| {
        let convert = |error: &ConvertError| {
            use ConvertError::*;
            !matches!(
                error,
                Group { .. }
                    | Io { .. }
                    | SourceChanged { .. }
                    | Threads { .. }
                    | NoSpace { .. }
                    | DiskFull { .. }
                    | Cancelled
                    | TensorDiffers(_)
                    | FileDiffers { .. }
            )
        };
        let runtime = |error: &RuntimeError| {
            use RuntimeError::*;
            !matches!(
                error,
                Memory { .. }
                    | Threads { .. }
                    | Write { .. }
                    | BrokenLogits { .. }
                    | Panic
                    | Rival { .. }
                    | Cuda(CudaError::Driver { .. } | CudaError::Memory { .. })
            )
        };
        let fixture = |error: &FixtureError| {
            use FixtureError::*;
            !matches!(error, NoRoom { .. } | Io { .. } | Threads { .. })
        };
        let eval = |error: &EvalError| {
            use EvalError::*;
            !matches!(error, Io { action: "write" | "lock", .. } | NoAnswer { .. } | Busy { .. })
        };
        #[cfg(feature = "hub")]
        if let Some(error) = hub_error(cause) {
            return error.is_input();
        }
        cause.is::<Usage>()
            || cause.is::<FormatError>()
            || cause.is::<ChatError>()
            || cause.downcast_ref().is_some_and(convert)
            || cause.downcast_ref().is_some_and(eval)
            || cause.downcast_ref().is_some_and(runtime)
            || cause.downcast_ref().is_some_and(fixture)
    };
    ExitCode::from(if error.chain().any(is_input) { 2 } else { 1 })
}

/// Whether stdout was closed by its reader.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(kind))
}

/// Text from files reaches terminals: control characters and those that turn the direction of
/// writing around are shown, not obeyed.
fn visible(text: &str) -> String {
    let steers = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .map(|c| if steers(c) { c.escape_unicode().to_string() } else { c.to_string() })
        .collect()
}

/// The object for stdout where a program reads: `{"error": …, "hint": …}`; the error with its causes,
/// the hint null where there is none.
pub fn object(error: &anyhow::Error) -> Value {
    json!({"error": with_causes(error), "hint": error.chain().find_map(hint_of)})
}

/// The lines for stderr: `error:`, its causes, `hint:`.
pub fn render(error: &anyhow::Error) -> String {
    let mut text = format!("error: {}", with_causes(error));
    if let Some(hint) = error.chain().find_map(hint_of) {
        write!(text, "\nhint: {hint}").expect("writing to a String cannot fail");
    }
    visible(&text)
}

/// An error and what caused it, each in a line.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    let mut last = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // A transparent wrapper says the same words again.
        if !last.contains(&cause) {
            write!(text, "\n  caused by: {cause}").expect("writing to a String cannot fail");
        }
        last = cause;
    }
    text
}

/// A fault of the Hub, by itself or where bytes of a checkpoint come from there.
#[cfg(feature = "hub")]
fn hub_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a HubError> {
    let within = |error: &'a FormatError| match error {
        FormatError::Io { cause, .. } => cause.get_ref()?.downcast_ref::<HubError>(),
        _ => None,
    };
    let format = || error.downcast_ref::<FormatError>().and_then(within);
    let convert = || match error.downcast_ref::<ConvertError>() {
        Some(ConvertError::Format(error)) => within(error),
        _ => None,
    };
    error.downcast_ref::<HubError>().or_else(format).or_else(convert)
}

fn hint_of(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<Usage>() {
        return error.hint.clone();
    }
    #[cfg(feature = "hub")]
    if let Some(error) = hub_error(error) {
        return error.hint();
    }
    let format = error.downcast_ref::<FormatError>().and_then(FormatError::hint);
    let convert = || error.downcast_ref::<ConvertError>().and_then(ConvertError::hint);
    let runtime = || error.downcast_ref::<RuntimeError>().and_then(RuntimeError::hint);
    let fixture = || error.downcast_ref::<FixtureError>().and_then(FixtureError::hint);
    let eval = || error.downcast_ref::<EvalError>().and_then(EvalError::hint);
    let chat = || error.downcast_ref::<ChatError>().and_then(ChatError::hint);
    format.or_else(chat).or_else(convert).or_else(eval).or_else(runtime).or_else(fixture)
}
