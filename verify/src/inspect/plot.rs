//! Peak levels and steps as an SVG that reads in black and white.

use std::fmt::Write;

use super::survey::FIRST_EXPONENT;
use super::{Survey, XRay};

/// The picture: a row for bf16 values and one for packed codes, where there are any.
pub fn svg(xray: &XRay) -> String {
    let rows: Vec<(&str, &Survey)> = [("bf16 values", &xray.dense), ("packed codes", &xray.packed)]
        .into_iter()
        .filter(|(_, survey)| survey.with_step() > 0)
        .collect();
    let height = 60 + 240 * rows.len().max(1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"860\" height=\"{height}\" \
         viewBox=\"0 0 860 {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"860\" height=\"{height}\" fill=\"white\"/>\n"
    );
    text(&mut svg, 20, 24, "start", &escaped(&xray.label));
    if rows.is_empty() {
        text(&mut svg, 20, 60, "start", "no group lies on a 4-bit grid");
    }
    for (number, (name, survey)) in rows.into_iter().enumerate() {
        let top = 60 + 240 * number;
        let peaks: Vec<(String, u64)> = (0..9)
            .map(|peak| {
                (if peak == 0 { "zero".into() } else { peak.to_string() }, survey.peaks[peak])
            })
            .collect();
        bars(&mut svg, 20, top, 340, &format!("{name}: peak levels"), &peaks);
        let used = |count: &u64| *count > 0;
        let first = survey.step_exponents.iter().position(&used).unwrap_or(0);
        let last = survey.step_exponents.iter().rposition(used).unwrap_or(0);
        let steps: Vec<(String, u64)> = (first..=last)
            .map(|place| {
                let count = survey.step_exponents.get(place).copied().unwrap_or(0);
                ((place as i32 + FIRST_EXPONENT).to_string(), count)
            })
            .collect();
        bars(&mut svg, 440, top, 400, &format!("{name}: log2 of the step"), &steps);
    }
    svg.push_str("</svg>\n");
    svg
}

/// A bar chart with each bar's share written above it.
fn bars(
    svg: &mut String,
    left: usize,
    top: usize,
    width: usize,
    title: &str,
    bars: &[(String, u64)],
) {
    const HEIGHT: usize = 140;
    text(svg, left, top, "start", title);
    let (base, sum) = (top + 20 + HEIGHT, bars.iter().map(|bar| bar.1).sum::<u64>().max(1));
    let most = bars.iter().map(|bar| bar.1).max().unwrap_or(1).max(1);
    let pitch = width / bars.len().max(1);
    for (place, (label, count)) in bars.iter().enumerate() {
        let x = left + place * pitch;
        let height = (count * HEIGHT as u64 / most) as usize;
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{}\" width=\"{}\" height=\"{height}\" fill=\"#555\" stroke=\"black\"/>",
            base - height,
            pitch.saturating_sub(4).max(1)
        );
        let middle = x + pitch.saturating_sub(4) / 2;
        text(svg, middle, base + 16, "middle", label);
        if *count > 0 {
            let share = 100.0 * *count as f64 / sum as f64;
            text(svg, middle, base - height - 4, "middle", &format!("{share:.1}%"));
        }
    }
}

fn text(svg: &mut String, x: usize, y: usize, anchor: &str, words: &str) {
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{words}</text>");
}

/// A text that is no markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
