//! The plan as a person reads it.

use std::collections::BTreeMap;
use std::fmt;

use w4pack_format::names::{Role, TextTensor};

use super::{CompanionFate, Plan, Reason, Treatment};
use crate::GGUF_FILE;

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.shards.len();
        let tensors = self.tensors().count();
        writeln!(
            formatter,
            "{}: {tensors} tensors in {files} file{}, {:.1} MiB",
            self.source,
            if files == 1 { "" } else { "s" },
            mebibytes(self.source_bytes())
        )?;
        writeln!(formatter, "layout {}, {} scales", self.layout, self.scale_dtype)?;
        self.tensors_of(formatter, "linears", Role::Linear)?;
        self.tensors_of(formatter, "embed_tokens", Role::EmbedTokens)?;
        if self.layout.has_own_head() {
            writeln!(formatter, "pack  the same once more as lm_head")?;
        }
        self.tensors_of(formatter, "embed_tokens_per_layer", Role::EmbedTokensPerLayer)?;
        self.tensors_of(formatter, "routers", Role::Router)?;
        self.tensors_of(formatter, "norms and scalars", Role::Vector)?;
        if !self.towers.is_empty() {
            writeln!(formatter, "copy  vision and audio side: {} tensors", self.towers.len())?;
        }
        for (reason, (count, bytes)) in self.left_out() {
            let words = reason.words();
            let size = mebibytes(bytes);
            writeln!(formatter, "leave out  {words}: {count} tensors, {size:.1} MiB")?;
        }
        if self.relays() {
            let modules = self.relayed.iter().flatten().count();
            writeln!(formatter, "of these {modules} are packed already and go over as they are")?;
        }
        if self.gguf.is_some() {
            writeln!(formatter, "write  {GGUF_FILE}, vocabulary and chat template inside")?;
        }
        for companion in &self.companions {
            match companion.fate {
                CompanionFate::Copied => writeln!(formatter, "copy  {}", companion.path)?,
                CompanionFate::Rewritten => writeln!(formatter, "rewrite  {}", companion.path)?,
                CompanionFate::NotCopied(reason) => {
                    writeln!(formatter, "leave out  {}: {reason}", companion.path)?;
                }
            }
        }
        for warning in &self.warnings {
            writeln!(formatter, "warning: {warning}")?;
        }
        Ok(())
    }
}

impl Plan {
    fn tensors_of(
        &self,
        formatter: &mut fmt::Formatter<'_>,
        what: &str,
        role: Role,
    ) -> fmt::Result {
        let of_role: Vec<&TextTensor> =
            self.text.iter().filter(|tensor| tensor.role == role).collect();
        let elements: usize =
            of_role.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
        if of_role.is_empty() {
            return Ok(());
        }
        let verb = if self.layout.packs(role) { "pack" } else { "copy" };
        writeln!(formatter, "{verb}  {what}: {} tensors, {elements} elements", of_role.len())
    }

    fn left_out(&self) -> BTreeMap<Reason, (usize, u64)> {
        let mut sums = BTreeMap::new();
        for (_, tensor) in self.tensors() {
            if let Treatment::LeaveOut(reason) = tensor.treatment {
                let (count, bytes) = sums.entry(reason).or_insert((0, 0));
                *count += 1;
                *bytes += tensor.bytes;
            }
        }
        sums
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}
