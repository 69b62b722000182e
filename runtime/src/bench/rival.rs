//! llama.cpp's own benchmark, run beside ours.
//!
//! `llama-bench` is started once for each measurement, for one test of one repetition, and what it
//! prints is taken only if it is about that test. Its speed is without sampling, ours with the choice
//! of the likeliest token.

use super::RivalReport;
use crate::error::{Result, RuntimeError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use w4pack_format::FormatError;
use w4pack_format::config::TextConfig;
use w4pack_format::gguf::{Gguf, Value};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Task {
    /// Generating `steps` tokens behind `depth` others.
    Decode {
        /// Tokens in front.
        depth: usize,
        /// Tokens generated.
        steps: usize,
    },
    /// The same for several answers at once; speeds are those of all.
    Together {
        /// Answers.
        slots: usize,
        /// Tokens in front.
        depth: usize,
        /// Tokens generated of each.
        steps: usize,
    },
    /// Running tokens of one answer in one pass, and keeping none; the speed is that of an answer whose every
    /// guess is right.
    Tried {
        /// Tokens of a pass.
        tried: usize,
        /// Tokens in front.
        depth: usize,
        /// Passes.
        steps: usize,
    },
    /// Reading a prompt.
    Prefill {
        /// Its length.
        tokens: usize,
    },
}

impl Task {
    /// How many tokens share the bytes of [`super::Measured::bytes`].
    pub(super) fn tokens_of_bytes(self) -> usize {
        match self {
            Task::Decode { .. } => 1,
            Task::Together { slots, .. } => slots,
            Task::Tried { tried, .. } => tried,
            Task::Prefill { tokens } => tokens,
        }
    }

    /// llama-bench's prompt, generated tokens and depth; `None`: it has no such task.
    pub(super) fn arguments(self) -> Option<[usize; 3]> {
        match self {
            Task::Decode { depth, steps } => Some([0, steps, depth]),
            Task::Together { .. } | Task::Tried { .. } => None,
            Task::Prefill { tokens } => Some([tokens, 0, 0]),
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Task::Decode { depth, .. } => write!(formatter, "decode at {depth}"),
            Task::Together { slots, depth, .. } => write!(formatter, "{slots} slots at {depth}"),
            Task::Tried { tried, depth, .. } => write!(formatter, "{tried} tried at {depth}"),
            Task::Prefill { tokens } => write!(formatter, "prefill {tokens}"),
        }
    }
}

/// A llama-bench and the model that it is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rival {
    program: PathBuf,
    model: PathBuf,
    /// Threads on the CPU; `None`: everything on the GPU.
    threads: Option<usize>,
}

/// One measurement.
pub(super) struct Sample {
    pub tokens_per_second: f64,
    pub report: RivalReport,
}

/// What llama-bench prints of a test, as far as it is used.
#[derive(Deserialize)]
struct Line {
    build_commit: String,
    backends: String,
    model_type: String,
    n_threads: u64,
    n_gpu_layers: i64,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    samples_ts: Vec<f64>,
}

impl Rival {
    /// A rival that runs `model`, which must have the shape of `text`.
    ///
    /// Errors: a program that is not there; a file that is no GGUF file, or of another model.
    pub fn new(
        program: &Path,
        model: &Path,
        threads: Option<usize>,
        text: &TextConfig,
    ) -> Result<Rival> {
        let rival = Rival { program: program.to_owned(), model: model.to_owned(), threads };
        if !program.is_file() {
            return Err(rival.fault("there is no such file"));
        }
        rival.check_model(text)?;
        Ok(rival)
    }

    fn check_model(&self, text: &TextConfig) -> Result<()> {
        let name = self.model.display().to_string();
        let read = |cause| FormatError::Io { attempt: "read", path: name.clone(), cause };
        let file = File::open(&self.model).map_err(read)?;
        let bytes = file.metadata().map_err(read)?.len();
        let gguf = Gguf::parse(&name, bytes, &mut |offset, buffer: &mut [u8]| {
            file.read_exact_at(buffer, offset).map_err(read)
        })?;
        let architecture = gguf.value("general.architecture").and_then(Value::as_str);
        if architecture != Some("gemma4") {
            let found = architecture.unwrap_or("nothing");
            return Err(self.other_model(format!("its architecture is {found}, not gemma4")));
        }
        let rows = gguf.tensor("token_embd.weight").and_then(|table| table.shape.first());
        let number = |key: &str| gguf.value(key).and_then(Value::as_u64);
        let shape = [
            ("layers", number("gemma4.block_count"), text.layers.len()),
            ("numbers in a row of the stream", number("gemma4.embedding_length"), text.hidden_size),
            ("tokens in its vocabulary", rows.map(|&rows| rows as u64), text.vocab_size),
        ];
        for (what, found, own) in shape {
            if found != Some(own as u64) {
                let found = found.map_or("no".into(), |found| found.to_string());
                return Err(self.other_model(format!("it has {found} {what}, ours {own}")));
            }
        }
        Ok(())
    }

    /// Runs llama-bench for one task.
    ///
    /// Errors: it does not start, fails, or prints something else than one result of that task.
    pub(super) fn measure(&self, task: Task) -> Result<Sample> {
        let Some([prompt, generated, depth]) = task.arguments() else {
            return Err(self.fault(&format!("llama-bench has no task like {task}")));
        };
        let mut command = Command::new(&self.program);
        command.arg("-m").arg(&self.model);
        for (flag, value) in
            [("-p", prompt), ("-n", generated), ("-d", depth), ("-r", 1), ("-fa", 1)]
        {
            command.args([flag, &value.to_string()]);
        }
        command.args(["-o", "json"]);
        match self.threads {
            Some(threads) => {
                command.args(["-t", &threads.to_string(), "-ngl", "0", "-dev", "none"])
            }
            None => command.args(["-ngl", "99"]),
        };
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|cause| self.fault(&format!("it does not start: {cause}")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim_end().lines().last().unwrap_or("nothing").to_string();
            return Err(self.fault(&format!("it ended with {}; it said: {last}", output.status)));
        }
        let lines: Vec<Line> = serde_json::from_slice(&output.stdout).map_err(|error| {
            self.fault(&format!("what it prints is not llama-bench's JSON: {error}"))
        })?;
        let [line] = &lines[..] else {
            return Err(self.fault(&format!("it printed {} results for one test", lines.len())));
        };
        self.sample(task, line)
    }

    fn sample(&self, task: Task, line: &Line) -> Result<Sample> {
        let found = [line.n_prompt, line.n_gen, line.n_depth];
        if Some(found) != task.arguments() {
            let [prompt, generated, depth] = found;
            return Err(self.fault(&format!(
                "asked for {task}, it measured a prompt of {prompt} and {generated} tokens at depth {depth}"
            )));
        }
        if let Some(threads) = self.threads
            && (line.n_threads != threads as u64 || line.n_gpu_layers != 0)
        {
            return Err(self.fault(&format!(
                "asked for {threads} threads and no GPU, it took {} and {} layers there",
                line.n_threads, line.n_gpu_layers
            )));
        }
        let tokens_per_second = match line.samples_ts[..] {
            [speed] if speed.is_finite() && speed > 0.0 => speed,
            ref other => return Err(self.fault(&format!("its speeds are {other:?}"))),
        };
        let report = RivalReport {
            program: self.program.display().to_string(),
            model: self.model.display().to_string(),
            model_type: line.model_type.clone(),
            build: line.build_commit.clone(),
            backends: line.backends.clone(),
            threads: line.n_threads,
        };
        Ok(Sample { tokens_per_second, report })
    }

    fn fault(&self, problem: &str) -> RuntimeError {
        let program = self.program.display().to_string();
        RuntimeError::Rival { program, problem: problem.into() }
    }

    fn other_model(&self, problem: String) -> RuntimeError {
        RuntimeError::RivalModel { file: self.model.display().to_string(), problem }
    }
}
