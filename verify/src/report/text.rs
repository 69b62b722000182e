//! The report in words.

use std::fmt;

use super::{Counts, Fault, Report, Verdict};

/// Faults that are spelled out on a terminal; JSON lists more.
const SHOWN: usize = 20;

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.whole.elements > 0 {
            counts(out, "linears", &self.linears)?;
            counts(out, "embed_tokens", &self.tables.embed_tokens)?;
            counts(out, "embed_tokens_per_layer", &self.tables.embed_tokens_per_layer)?;
            counts(out, "whole", &self.whole)?;
            let groups = &self.groups;
            writeln!(
                out,
                "groups: {} in all, {} steps canonical, {} give back all 32 values; \
                 codes unique only up to a common factor in {}",
                thousands(groups.all),
                thousands(groups.steps_canonical),
                thousands(groups.steps_inside),
                thousands(groups.many_peaks),
            )?;
        }
        if !self.copied.is_empty() || !self.left_out.is_empty() {
            let bytes =
                |items: &[super::Item]| thousands(items.iter().map(|item| item.bytes).sum());
            writeln!(
                out,
                "copied byte for byte: {} items, {} bytes; left out: {} items, {} bytes; unaccounted: {} bytes",
                self.copied.len(),
                bytes(&self.copied),
                self.left_out.len(),
                bytes(&self.left_out),
                thousands(self.unaccounted),
            )?;
        }
        match self.tied_copies_identical {
            Some(true) => writeln!(out, "the head is an identical copy of embed_tokens")?,
            Some(false) => writeln!(out, "the head is NOT a copy of embed_tokens")?,
            None => {}
        }
        for note in &self.notes {
            writeln!(out, "note: {}", plain(note))?;
        }
        for fault in self.faults.iter().take(SHOWN) {
            writeln!(out, "fault: {fault}")?;
        }
        if self.faults.len() > SHOWN {
            writeln!(out, "... and {} more faults (--json lists them)", self.faults.len() - SHOWN)?;
        }
        verdict(out, self)
    }
}

fn counts(out: &mut fmt::Formatter<'_>, what: &str, counts: &Counts) -> fmt::Result {
    if counts.elements == 0 {
        return writeln!(out, "{what}: not packed");
    }
    writeln!(
        out,
        "{what}: {} of {} codes disagree; {} values differ, by at most {:.4} steps",
        thousands(counts.int4_codes_disagreeing),
        thousands(counts.elements),
        thousands(counts.elements_differing),
        counts.worst_diff_in_units_of_group_step,
    )
}

fn verdict(out: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    match report.verdict {
        Verdict::Proved => write!(
            out,
            "PROVED: all {} codes and every step, copied byte and config key are the source's",
            thousands(report.whole.elements)
        ),
        Verdict::Disproved => write!(out, "DISPROVED: {} faults", report.faults.len()),
        Verdict::CodesProved => write!(
            out,
            "codes proved, steps: {}, {} values differ",
            report.step_rule,
            thousands(report.whole.elements_differing)
        ),
        Verdict::SelfConsistent if report.matches_statement => {
            write!(out, "matches the statement, not proved: no source was given")
        }
        Verdict::SelfConsistent => write!(out, "self-consistent, not proved: no source was given"),
        Verdict::Unreadable => write!(out, "unreadable: nothing was proved"),
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", plain(&self.file))?;
        if let Some(tensor) = &self.tensor {
            write!(out, ", {}", plain(tensor))?;
        }
        if let Some(row) = self.row {
            write!(out, ", row {row}")?;
        }
        if let Some(group) = self.group {
            write!(out, ", group {group}")?;
        }
        write!(out, ": {}", plain(&self.detail))
    }
}

/// A text that cannot steer a terminal or turn the direction of what follows: file and tensor names
/// are the maker's, and a report must not say what a name wants it to say.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}')
            || matches!(c, '\u{2066}'..='\u{2069}');
        let breaks = c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
        if turns || breaks {
            plain.extend(c.escape_default());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// 1234567 as "1,234,567".
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::report::{Fault, FaultClass, Report};

    #[test]
    fn names_cannot_steer_a_terminal() {
        let name = "a\u{1b}[2J\nfault: none\r\u{202e}b\u{2066}c\u{9b}\u{7f}";
        let fault = Fault::of_tensor(FaultClass::Header, name, name, name);
        let notes = vec![name.to_string()];
        let report = Report { faults: vec![fault], notes, ..Report::default() };
        let text = report.to_string();
        assert_eq!(text.lines().count(), 3, "{text}");
        let harmless = |c: char| c == '\n' || (c.is_ascii() && !c.is_control());
        assert!(text.chars().all(harmless), "{text}");
        assert!(
            text.contains(r"a\u{1b}[2J\nfault: none\r\u{202e}b\u{2066}c\u{9b}\u{7f}"),
            "{text}"
        );
    }

    #[test]
    fn thousands_are_separated() {
        let text = [0, 999, 1000, 4_628_283_392].map(super::thousands);
        assert_eq!(text, ["0", "999", "1,000", "4,628,283,392"]);
    }
}
