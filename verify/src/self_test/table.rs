//! What a self-test found, kind by kind.

use std::fmt;

use serde::Serialize;

use super::Outcome;
use super::damages::Damage;
use crate::report::Report;

/// The outcome of a self-test.
#[derive(Debug, Clone, Serialize)]
pub struct SelfTest {
    /// Damaged and undamaged checkpoints that were verified.
    pub trials: u64,
    /// What decided the places.
    pub seed: u64,
    /// How long it took.
    pub seconds: f64,
    /// Bytes of both sides.
    pub bytes: u64,
    /// One row a kind of damage; the last one counts undamaged checkpoints.
    pub rows: Vec<Row>,
    /// The report of the checkpoint as it is, when that is not proved: then nothing was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_proved: Option<Box<Report>>,
}

/// What came of one kind of damage.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was done.
    pub damage: String,
    /// The class of fault that must name it.
    pub class: String,
    /// How often.
    pub trials: u64,
    /// How often it was found, with class, file, tensor, row and group.
    pub right: u64,
    /// How often the verdict was as if nothing had happened.
    pub missed: u64,
    /// How often something else was found.
    pub elsewhere: u64,
    /// How often the checkpoint had no place for it.
    pub no_place: u64,
    /// The first trial that went wrong, and what the report said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub example: Option<(u64, String)>,
}

impl Row {
    pub(super) fn of(damage: Option<&Damage>) -> Row {
        let (damage, class) = match damage {
            Some(damage) => (damage.name.to_string(), damage.class.name()),
            None => ("none: the checkpoint as it is".into(), "proved".into()),
        };
        let (trials, right, missed, elsewhere, no_place) = (0, 0, 0, 0, 0);
        Row { damage, class, trials, right, missed, elsewhere, no_place, example: None }
    }

    pub(super) fn count(&mut self, outcome: Outcome, example: Option<(u64, String)>) {
        self.trials += 1;
        let counter = match outcome {
            Outcome::Right => &mut self.right,
            Outcome::Missed => &mut self.missed,
            Outcome::Elsewhere => &mut self.elsewhere,
            Outcome::NoPlace => &mut self.no_place,
        };
        *counter += 1;
        if let Some(example) = example {
            let earlier = self.example.as_ref().is_none_or(|(number, _)| example.0 < *number);
            if earlier {
                self.example = Some(example);
            }
        }
    }
}

impl SelfTest {
    pub(super) fn not_proved(report: Report) -> SelfTest {
        SelfTest {
            trials: 0,
            seed: 0,
            seconds: report.seconds,
            bytes: report.bytes,
            rows: Vec::new(),
            not_proved: Some(Box::new(report)),
        }
    }

    /// Whether all was found where it was, and nothing where nothing was.
    pub fn is_right(&self) -> bool {
        let all = |row: &Row| row.missed == 0 && row.elsewhere == 0 && row.no_place == 0;
        self.not_proved.is_none() && self.rows.iter().all(all)
    }
}

impl fmt::Display for SelfTest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(report) = &self.not_proved {
            return write!(out, "{report}\nnot proved as it is, so that no damage was tried");
        }
        writeln!(out, "| damage | class | trials | found in its place |")?;
        writeln!(out, "|---|---|---|---|")?;
        for row in &self.rows {
            writeln!(out, "| {} | {} | {} | {} |", row.damage, row.class, row.trials, row.right)?;
        }
        writeln!(out)?;
        for row in &self.rows {
            if row.no_place > 0 {
                writeln!(out, "no place for `{}` in {} trials", row.damage, row.no_place)?;
            }
            if let Some((number, words)) = &row.example {
                writeln!(out, "trial {number}, {}: {words}", row.damage)?;
            }
        }
        let sum = |count: fn(&Row) -> u64| self.rows.iter().map(count).sum::<u64>();
        write!(
            out,
            "{} checkpoints of {} bytes, {} kinds of damage, three disguises, seed {}: {} right, {} missed, \
             {} found elsewhere; {:.1} s",
            self.trials,
            self.bytes,
            self.rows.iter().filter(|row| row.class != "proved").count(),
            self.seed,
            sum(|row| row.right),
            sum(|row| row.missed),
            sum(|row| row.elsewhere),
            self.seconds,
        )
    }
}
