//! The X-ray in words.

use std::fmt;

use super::{Survey, XRay};

impl fmt::Display for XRay {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}: {} bytes", self.label, self.bytes)?;
        for kind in &self.kinds {
            let (tensors, bytes) = (kind.tensors, kind.bytes);
            writeln!(
                out,
                "  {:<26} {:<5} {tensors:>6} tensors {bytes:>14} bytes",
                kind.kind, kind.dtype
            )?;
        }
        survey(out, "bf16 matrices", &self.dense)?;
        survey(out, "packed matrices", &self.packed)?;
        if self.dense.examined > 0 {
            let grid = self.grid.as_deref().unwrap_or("none: the values lie on no 4-bit grid");
            writeln!(out, "grid of the bf16 values: {grid}")?;
        }
        if let Some(rule) = &self.packed_rule {
            writeln!(out, "packed by: {rule}")?;
        }
        let tie = self.tie_word_embeddings.map_or("unknown".into(), |tie| tie.to_string());
        let head = match self.head_is_table {
            None => "no head of its own",
            Some(true) => "the head is a copy of embed_tokens",
            Some(false) => "a head of its own",
        };
        write!(out, "tie_word_embeddings: {tie}; {head}")
    }
}

fn survey(out: &mut fmt::Formatter<'_>, what: &str, survey: &Survey) -> fmt::Result {
    if survey.examined == 0 {
        return Ok(());
    }
    writeln!(out, "{what}: {} of {} groups examined", survey.examined, survey.groups)?;
    for share in survey.on_grid.iter().filter(|share| share.tried > 0) {
        let percent = 100.0 * share.on_grid as f64 / share.tried as f64;
        writeln!(out, "  groups of {}: {percent:.2} % on a 4-bit grid", share.group_size)?;
    }
    let peaks: Vec<String> =
        survey.peaks.iter().enumerate().map(|(peak, count)| format!("{peak}: {count}")).collect();
    writeln!(out, "  peak levels {}", peaks.join(", "))?;
    if let (Some(least), Some(most)) = (survey.smallest_step, survey.largest_step) {
        let negative = survey.negative_steps;
        writeln!(out, "  steps {least:e} to {most:e}, {negative} negative")?;
    }
    let (zeros, negative) = (survey.zeros, survey.negative_zeros);
    let unusable = survey.unusable;
    writeln!(out, "  {zeros} zeros, {negative} of them -0.0; {unusable} infinite or no number")
}
