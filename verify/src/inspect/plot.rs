//! Peak levels and steps as a picture.

use super::survey::FIRST_EXPONENT;
use super::{Survey, XRay};
use crate::picture::{Anchor, Bar, Fill, Picture};

/// A row for bf16 values and one for packed codes, where there are any.
pub fn plot(xray: &XRay) -> Picture {
    let rows: Vec<(&str, &Survey)> = [("bf16 values", &xray.dense), ("packed codes", &xray.packed)]
        .into_iter()
        .filter(|(_, survey)| survey.with_step() > 0)
        .collect();
    let height = 60 + 240 * rows.len().max(1) as u32;
    let mut picture = Picture::new(860, height);
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
        chart(&mut picture, 20, top, 340, format!("{name}: peak levels"), &peaks);
        let used = |count: &u64| *count > 0;
        let first = survey.step_exponents.iter().position(&used).unwrap_or(0);
        let last = survey.step_exponents.iter().rposition(used).unwrap_or(0);
        let steps: Vec<(String, u64)> = (first..=last)
            .map(|place| {
                let count = survey.step_exponents.get(place).copied().unwrap_or(0);
                ((place as i32 + FIRST_EXPONENT).to_string(), count)
            })
            .collect();
        chart(&mut picture, 440, top, 400, format!("{name}: log2 of the step"), &steps);
    }
    picture
}

/// A bar chart with each bar's share written above it.
fn chart(
    picture: &mut Picture,
    left: u32,
    top: u32,
    width: u32,
    title: String,
    bars: &[(String, u64)],
) {
    const HEIGHT: u32 = 140;
    picture.text(left, top, Anchor::Start, title);
    let base = top + 20 + HEIGHT;
    let sum = bars.iter().map(|bar| bar.1).sum::<u64>().max(1);
    let most = bars.iter().map(|bar| bar.1).max().unwrap_or(1).max(1);
    let pitch = width / bars.len().max(1) as u32;
    let thick = pitch.saturating_sub(4).max(1);
    for (place, (label, count)) in bars.iter().enumerate() {
        let x = left + place as u32 * pitch;
        let height = (count * u64::from(HEIGHT) / most) as u32;
        picture.bar(Bar { x, y: base - height, width: thick, height, fill: Fill::Grey });
        let middle = x + pitch.saturating_sub(4) / 2;
        picture.text(middle, base + 16, Anchor::Middle, label.clone());
        if *count > 0 {
            let share = 100.0 * *count as f64 / sum as f64;
            picture.text(middle, base - height - 4, Anchor::Middle, format!("{share:.1}%"));
        }
    }
}
