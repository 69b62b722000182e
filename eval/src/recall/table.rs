//! Accuracy by length and depth: a table for the terminal, and the same as a picture.

use crate::summary::{Group, Score, Summary};
use std::fmt::Write;

/// Lengths across, depths down.
pub struct Table {
    lengths: Vec<u64>,
    depths: Vec<u64>,
    groups: Vec<Group>,
}

impl Table {
    /// The table of a recall run. Groups without a length and a depth are not of one.
    pub fn new(summary: &Summary) -> Self {
        let values = |key: &str| {
            let mut values: Vec<u64> =
                summary.groups.iter().filter_map(|group| number(group, key)).collect();
            values.sort_unstable();
            values.dedup();
            values
        };
        let groups = summary.groups.clone();
        Self { lengths: values("length"), depths: values("depth"), groups }
    }

    fn score(&self, length: u64, depth: u64) -> Option<Score> {
        let here = |group: &&Group| {
            number(group, "length") == Some(length) && number(group, "depth") == Some(depth)
        };
        self.groups.iter().find(here).map(|group| group.score)
    }

    /// For the terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{:>8}", "depth");
        for length in &self.lengths {
            let _ = write!(text, "{length:>10}");
        }
        text.push_str("  tokens\n");
        for depth in &self.depths {
            let _ = write!(text, "{:>8}", format!("{depth} %"));
            for length in &self.lengths {
                let _ = write!(text, "{:>10}", cell(self.score(*length, *depth)));
            }
            text.push('\n');
        }
        text
    }

    /// A picture that reads without colour: every cell says its counts, and the darker it is the
    /// more answers are right.
    pub fn svg(&self, title: &str) -> String {
        let (left, top, width, height) = (90, 70, 90, 40);
        let across = left + width * self.lengths.len() + 20;
        let down = top + height * self.depths.len() + 50;
        let across = across.max(360);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {across} {down}\" \
             width=\"{across}\" height=\"{down}\" font-family=\"sans-serif\" font-size=\"14\">\n\
             <title>{title}</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"20\" y=\"28\" font-size=\"16\">{title}</text>\n",
            title = escaped(title)
        );
        let mut label = |x: usize, y: usize, anchor: &str, fill: &str, text: &str| {
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"{fill}\">{text}</text>"
            );
        };
        for (column, length) in self.lengths.iter().enumerate() {
            label(
                left + width * column + width / 2,
                top - 10,
                "middle",
                "#000",
                &length.to_string(),
            );
        }
        for (row, depth) in self.depths.iter().enumerate() {
            label(left - 10, top + height * row + 25, "end", "#000", &format!("{depth} %"));
        }
        label(
            20,
            down - 18,
            "start",
            "#000",
            "right of asked; across: tokens of the prompt, down: depth",
        );
        for (row, depth) in self.depths.iter().enumerate() {
            for (column, length) in self.lengths.iter().enumerate() {
                let score = self.score(*length, *depth);
                let right = score.and_then(|score| score.accuracy()).unwrap_or(0.0);
                // White for none, dark for all; the writing turns white where it gets dark.
                let grey = 255 - (200.0 * right) as u8;
                let ink = if grey < 140 { "#fff" } else { "#000" };
                let (x, y) = (left + width * column, top + height * row);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" \
                     fill=\"rgb({grey},{grey},{grey})\" stroke=\"#000\"/>\n\
                     <text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"{ink}\">{}</text>",
                    x + width / 2,
                    y + 25,
                    cell(score)
                );
            }
        }
        svg + "</svg>\n"
    }
}

fn number(group: &Group, key: &str) -> Option<u64> {
    group.group.get(key)?.as_u64()
}

fn cell(score: Option<Score>) -> String {
    score.map_or("-".into(), |score| format!("{}/{}", score.correct, score.questions))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
