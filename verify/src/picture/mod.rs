//! Pictures of bars and words that read in black and white: as SVG, or as PNG.

mod png;
mod svg;

pub use png::PngError;

/// What is drawn, in pixels from the upper left corner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    width: u32,
    height: u32,
    bars: Vec<Bar>,
    texts: Vec<Text>,
}

/// A rectangle with a black rim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bar {
    /// Its left side.
    pub x: u32,
    /// Its upper side.
    pub y: u32,
    /// From left to right.
    pub width: u32,
    /// From top to bottom.
    pub height: u32,
    /// Its inside.
    pub fill: Fill,
}

/// The inside of a bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Dark.
    Grey,
    /// The paper's.
    White,
}

impl Fill {
    /// From 0, black, to 255.
    fn shade(self) -> u8 {
        match self {
            Fill::Grey => 0x55,
            Fill::White => 0xff,
        }
    }
}

/// A line of text upon a base line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Text {
    x: u32,
    y: u32,
    anchor: Anchor,
    words: String,
}

/// Where `x` lies in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// At its beginning.
    Start,
    /// In its middle.
    Middle,
}

impl Picture {
    /// White paper.
    pub fn new(width: u32, height: u32) -> Picture {
        Picture { width, height, bars: Vec::new(), texts: Vec::new() }
    }

    /// Draws a bar.
    pub fn bar(&mut self, bar: Bar) {
        self.bars.push(bar);
    }

    /// Writes words upon the base line `y`.
    pub fn text(&mut self, x: u32, y: u32, anchor: Anchor, words: String) {
        self.texts.push(Text { x, y, anchor, words });
    }

    /// The picture as SVG.
    pub fn svg(&self) -> String {
        svg::write(self)
    }

    /// The picture as PNG. Letters beyond Latin-1 show as question marks.
    pub fn png(&self) -> Result<Vec<u8>, PngError> {
        png::write(self)
    }
}
