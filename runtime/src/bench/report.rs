//! What was measured, as a table and as JSON.

use super::Task;
use serde::{Serialize, Serializer};
use std::fmt;

/// All that a benchmark has measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The device, for people.
    pub device: String,
    /// Prompt tokens of a pass.
    pub chunk: usize,
    /// A plain read of the weights (on a card: of its memory), bytes a second.
    #[serde(rename = "read_bandwidth_bytes_per_second")]
    pub read_bandwidth: Spread,
    /// By depth.
    pub decode: Vec<Measured>,
    /// By depth and number of tokens.
    pub tried: Vec<Measured>,
    /// By number of answers.
    pub together: Vec<Measured>,
    /// By length.
    pub prefill: Vec<Measured>,
    /// Who was compared.
    pub rival: Option<RivalReport>,
}

/// One task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// What was done.
    #[serde(flatten)]
    pub task: Task,
    /// Read for a generated token, or for a whole prompt, if everything is read once.
    pub bytes: f64,
    /// Speed.
    pub tokens_per_second: Spread,
    /// Bytes read in that time.
    pub bytes_per_second: Spread,
    /// The same as a share of the read bandwidth measured in the same round.
    pub share_of_read_bandwidth: Spread,
    /// The rival's speed.
    pub rival_tokens_per_second: Option<Spread>,
    /// Our speed by the rival's in the same round.
    pub ratio: Option<Spread>,
}

/// The program compared, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RivalReport {
    /// The program's path.
    pub program: String,
    /// The model file's path.
    pub model: String,
    /// `gemma4 E2B Q4_0`.
    pub model_type: String,
    /// Its commit.
    pub build: String,
    /// What it computed on.
    pub backends: String,
    /// Its threads.
    pub threads: u64,
}

/// A quantity over the rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Spread {
    /// In the order of the rounds; at least one, but for the bandwidth of no round at all.
    samples: Vec<f64>,
}

impl Spread {
    pub(super) fn of(samples: Vec<f64>) -> Spread {
        Spread { samples }
    }

    /// The middle one, or the mean of the two in the middle.
    pub fn median(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            odd if odd % 2 == 1 => sorted[odd / 2],
            even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
        }
    }

    /// The smallest.
    pub fn lowest(&self) -> f64 {
        self.samples.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The largest.
    pub fn highest(&self) -> f64 {
        self.samples.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }
}

impl Serialize for Spread {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            median: f64,
            lowest: f64,
            highest: f64,
            samples: &'a [f64],
        }
        let (median, lowest, highest) = (self.median(), self.lowest(), self.highest());
        Fields { median, lowest, highest, samples: &self.samples }.serialize(serializer)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}", self.device)?;
        let Spread { samples } = &self.read_bandwidth;
        writeln!(
            formatter,
            "plain read: {:.1} GB/s ({:.1}-{:.1}, {} times)",
            self.read_bandwidth.median() / 1e9,
            self.read_bandwidth.lowest() / 1e9,
            self.read_bandwidth.highest() / 1e9,
            samples.len(),
        )?;
        if let Some(RivalReport { program, model, model_type, build, backends, threads }) =
            &self.rival
        {
            writeln!(
                formatter,
                "rival: {program}, build {build}, {backends}, {threads} threads; {model} ({model_type})"
            )?;
        }
        let has_rival = self.rival.is_some();
        let heads = ["tok/s", "range", "MiB read", "GB/s", "of read", "rival", "ratio"];
        let columns = if has_rival { heads.len() } else { heads.len() - 2 };
        write!(formatter, "\n{:<20}", "")?;
        for head in &heads[..columns] {
            write!(formatter, "{head:>15}")?;
        }
        let rows = [&self.decode, &self.tried, &self.together, &self.prefill];
        for measured in rows.into_iter().flatten() {
            let speed = &measured.tokens_per_second;
            let mut cells = vec![
                figures(speed.median()),
                format!("{}-{}", figures(speed.lowest()), figures(speed.highest())),
                format!("{:.1}", measured.bytes / f64::from(1 << 20)),
                format!("{:.1}", measured.bytes_per_second.median() / 1e9),
                format!("{:.1} %", 100.0 * measured.share_of_read_bandwidth.median()),
            ];
            if let (Some(rival), Some(ratio)) = (&measured.rival_tokens_per_second, &measured.ratio)
            {
                cells.push(figures(rival.median()));
                cells.push(format!("{:.2}", ratio.median()));
            }
            write!(formatter, "\n{:<20}", measured.task.to_string())?;
            for cell in cells {
                write!(formatter, "{cell:>15}")?;
            }
        }
        Ok(())
    }
}

/// A speed with some four figures.
fn figures(speed: f64) -> String {
    match speed {
        slow if slow < 100.0 => format!("{slow:.2}"),
        usual if usual < 10_000.0 => format!("{usual:.1}"),
        fast => format!("{fast:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_does_not_depend_on_order() {
        let median = |samples: &[f64]| Spread::of(samples.to_vec()).median();
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[5.0]), 5.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn columns_of_fast_prompts_stay_apart() {
        let figures = [9.876, 98.76, 987.6, 9_876.5, 98_765.4, 987_654.3].map(figures);
        assert_eq!(figures, ["9.88", "98.76", "987.6", "9876.5", "98765", "987654"]);
        assert!(figures.iter().all(|one| 2 * one.len() + 1 < 15));
    }
}
