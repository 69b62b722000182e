//! The diagnosis as a person reads it.

use std::fmt;

use super::{Diagnosis, Effect};

impl fmt::Display for Effect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Effect::Refuses => "refuses",
            Effect::Uninitialised => "leaves uninitialised",
            Effect::Misreads => "misreads",
            Effect::Note => "note",
        })
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict =
            if self.loads { "loads it as it is meant" } else { "does not load it as it is meant" };
        writeln!(formatter, "{}: {} {verdict}", self.checkpoint, self.versions)?;
        for finding in &self.findings {
            let concerns = finding.concerns.join(", ");
            writeln!(formatter, "  {}  [{}] {concerns}", finding.effect, finding.rule)?;
            writeln!(formatter, "      {}", finding.detail)?;
        }
        if let Some(advice) = &self.advice {
            writeln!(formatter, "hint: {}", advice.text)?;
        }
        Ok(())
    }
}
