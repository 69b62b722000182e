//! Speeds as bars: w4pack's are grey, the rival's white.

use w4pack_runtime::bench::{Measured, Report};
use w4pack_verify::picture::{Anchor, Bar, Fill, Picture};

/// The longest bar.
const HEIGHT: u32 = 160;
/// From one pair of bars to the next.
const PITCH: u32 = 110;
const THICK: u32 = 44;

/// A row each for decoding, for tokens tried, for answers together and for prompts, where they were measured.
pub fn plot(report: &Report, model: &str) -> Picture {
    let rows = [
        ("decode", &report.decode),
        ("tokens tried together, all right", &report.tried),
        ("answers together", &report.together),
        ("prefill", &report.prefill),
    ];
    let rows: Vec<(&str, &Vec<Measured>)> =
        rows.into_iter().filter(|(_, measured)| !measured.is_empty()).collect();
    let most = rows.iter().map(|(_, measured)| measured.len()).max().unwrap_or(0) as u32;
    let width = (40 + PITCH * most).max(640);
    let mut picture = Picture::new(width, 100 + 260 * rows.len() as u32);
    let bandwidth = report.read_bandwidth.median() / 1e9;
    picture.text(20, 24, Anchor::Start, model.to_string());
    picture.text(
        20,
        42,
        Anchor::Start,
        format!("{}; a plain read gives {bandwidth:.1} GB/s", report.device),
    );
    if let Some(rival) = &report.rival {
        let words = format!("grey: w4pack; white: llama.cpp {}, {}", rival.build, rival.model_type);
        picture.text(20, 60, Anchor::Start, words);
    }
    for (number, (name, measured)) in rows.into_iter().enumerate() {
        let top = 90 + 260 * number as u32;
        let title = format!("{name}, tokens a second (share of a plain read)");
        picture.text(20, top, Anchor::Start, title);
        chart(&mut picture, top, measured);
    }
    picture
}

/// A pair of bars for each task.
fn chart(picture: &mut Picture, top: u32, measured: &[Measured]) {
    let base = top + 36 + HEIGHT;
    let rival =
        |measured: &Measured| measured.rival_tokens_per_second.as_ref().map(|speed| speed.median());
    let speeds = measured.iter().flat_map(|measured| {
        [Some(measured.tokens_per_second.median()), rival(measured)].into_iter().flatten()
    });
    let most = speeds.fold(f64::MIN_POSITIVE, f64::max);
    for (place, measured) in measured.iter().enumerate() {
        let left = 20 + place as u32 * PITCH;
        let mut bar = |x: u32, speed: f64, fill: Fill, note: String| {
            let height = (speed / most * f64::from(HEIGHT)).round() as u32;
            picture.bar(Bar { x, y: base - height, width: THICK, height, fill });
            let middle = x + THICK / 2;
            picture.text(middle, base - height - 4, Anchor::Middle, format!("{speed:.1}"));
            picture.text(middle, base + 32, Anchor::Middle, note);
        };
        let share = 100.0 * measured.share_of_read_bandwidth.median();
        bar(left, measured.tokens_per_second.median(), Fill::Grey, format!("{share:.0}%"));
        if let (Some(speed), Some(ratio)) = (rival(measured), &measured.ratio) {
            bar(left + THICK + 2, speed, Fill::White, format!("x{:.2}", ratio.median()));
        }
        picture.text(left + THICK, base + 16, Anchor::Middle, measured.task.to_string());
    }
}
