//! A picture as SVG.

use std::fmt::Write;

use super::{Anchor, Picture};

pub(super) fn write(picture: &Picture) -> String {
    let Picture { width, height, bars, texts } = picture;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    // Writing to a String cannot fail.
    for bar in bars {
        let _ = writeln!(
            svg,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#{shade:02x}{shade:02x}{shade:02x}\" \
             stroke=\"black\"/>",
            bar.x,
            bar.y,
            bar.width,
            bar.height,
            shade = bar.fill.shade()
        );
    }
    for text in texts {
        let anchor = if text.anchor == Anchor::Start { "start" } else { "middle" };
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            text.x,
            text.y,
            escaped(&text.words)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// A text that is no markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
