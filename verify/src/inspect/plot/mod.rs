//! Peak levels and steps as a picture that reads in black and white: as SVG, or as PNG.
//!
//! [`picture`](Picture) says what is drawn where; [`svg`] and [`png`] write it.

mod png;
mod svg;

use super::survey::FIRST_EXPONENT;
use super::{Survey, XRay};

pub use png::PngError;

/// The picture as SVG.
pub fn svg(xray: &XRay) -> String {
    svg::write(&Picture::of(xray))
}

/// The picture as PNG.
pub fn png(xray: &XRay) -> Result<Vec<u8>, PngError> {
    png::write(&Picture::of(xray))
}

/// What is drawn, in pixels from the upper left corner.
struct Picture {
    width: u32,
    height: u32,
    bars: Vec<Bar>,
    texts: Vec<Text>,
}

/// A grey rectangle with a black rim.
struct Bar {
    x: u32,
    y: u32,
    width: u32,
    height: u32,
}

/// A line of text upon a base line.
struct Text {
    x: u32,
    y: u32,
    anchor: Anchor,
    words: String,
}

/// Where `x` lies in a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Anchor {
    Start,
    Middle,
}

impl Picture {
    /// A row for bf16 values and one for packed codes, where there are any.
    fn of(xray: &XRay) -> Picture {
        let rows: Vec<(&str, &Survey)> =
            [("bf16 values", &xray.dense), ("packed codes", &xray.packed)]
                .into_iter()
                .filter(|(_, survey)| survey.with_step() > 0)
                .collect();
        let height = 60 + 240 * rows.len().max(1) as u32;
        let mut picture = Picture { width: 860, height, bars: Vec::new(), texts: Vec::new() };
        picture.text(20, 24, Anchor::Start, xray.label.clone());
        if rows.is_empty() {
            picture.text(20, 60, Anchor::Start, "no group lies on a 4-bit grid".into());
        }
        for (number, (name, survey)) in rows.into_iter().enumerate() {
            let top = 60 + 240 * number as u32;
            let peaks: Vec<(String, u64)> = (0..9)
                .map(|peak| {
                    let label = if peak == 0 { "zero".into() } else { peak.to_string() };
                    (label, survey.peaks[peak])
                })
                .collect();
            picture.chart(20, top, 340, format!("{name}: peak levels"), &peaks);
            let used = |count: &u64| *count > 0;
            let first = survey.step_exponents.iter().position(&used).unwrap_or(0);
            let last = survey.step_exponents.iter().rposition(used).unwrap_or(0);
            let steps: Vec<(String, u64)> = (first..=last)
                .map(|place| {
                    let count = survey.step_exponents.get(place).copied().unwrap_or(0);
                    ((place as i32 + FIRST_EXPONENT).to_string(), count)
                })
                .collect();
            picture.chart(440, top, 400, format!("{name}: log2 of the step"), &steps);
        }
        picture
    }

    /// A bar chart with each bar's share written above it.
    fn chart(&mut self, left: u32, top: u32, width: u32, title: String, bars: &[(String, u64)]) {
        const HEIGHT: u32 = 140;
        self.text(left, top, Anchor::Start, title);
        let base = top + 20 + HEIGHT;
        let sum = bars.iter().map(|bar| bar.1).sum::<u64>().max(1);
        let most = bars.iter().map(|bar| bar.1).max().unwrap_or(1).max(1);
        let pitch = width / bars.len().max(1) as u32;
        let thick = pitch.saturating_sub(4).max(1);
        for (place, (label, count)) in bars.iter().enumerate() {
            let x = left + place as u32 * pitch;
            let height = (count * u64::from(HEIGHT) / most) as u32;
            self.bars.push(Bar { x, y: base - height, width: thick, height });
            let middle = x + pitch.saturating_sub(4) / 2;
            self.text(middle, base + 16, Anchor::Middle, label.clone());
            if *count > 0 {
                let share = 100.0 * *count as f64 / sum as f64;
                self.text(middle, base - height - 4, Anchor::Middle, format!("{share:.1}%"));
            }
        }
    }

    fn text(&mut self, x: u32, y: u32, anchor: Anchor, words: String) {
        self.texts.push(Text { x, y, anchor, words });
    }
}
