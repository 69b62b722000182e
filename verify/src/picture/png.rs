//! A picture as PNG, in shades of grey. Letters beyond Latin-1 show as question marks.

use std::convert::Infallible;

use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::iso_8859_1::FONT_6X12;
use embedded_graphics::pixelcolor::{Gray8, GrayColor};
use embedded_graphics::prelude::{
    DrawTarget, Drawable, OriginDimensions, Pixel, Point, Primitive, Size,
};
use embedded_graphics::primitives::{PrimitiveStyleBuilder, Rectangle};
use embedded_graphics::text::{Alignment, Text};

use super::{Anchor, Picture};

/// A picture could not be written as PNG.
pub type PngError = png::EncodingError;

pub(super) fn write(picture: &Picture) -> Result<Vec<u8>, PngError> {
    let mut canvas = Canvas::new(picture.width, picture.height);
    for bar in &picture.bars {
        let rim = PrimitiveStyleBuilder::new()
            .fill_color(Gray8::new(bar.fill.shade()))
            .stroke_color(Gray8::BLACK)
            .stroke_width(1)
            .build();
        let place = Point::new(bar.x as i32, bar.y as i32);
        let bar = Rectangle::new(place, Size::new(bar.width, bar.height)).into_styled(rim);
        let Ok(()) = bar.draw(&mut canvas);
    }
    let style = MonoTextStyle::new(&FONT_6X12, Gray8::BLACK);
    for text in &picture.texts {
        let place = Point::new(text.x as i32, text.y as i32);
        let alignment = match text.anchor {
            Anchor::Start => Alignment::Left,
            Anchor::Middle => Alignment::Center,
        };
        let Ok(_) = Text::with_alignment(&text.words, place, style, alignment).draw(&mut canvas);
    }
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, picture.width, picture.height);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&canvas.shades)?;
    writer.finish()?;
    Ok(file)
}

/// White paper, a byte a pixel.
struct Canvas {
    size: Size,
    shades: Vec<u8>,
}

impl Canvas {
    fn new(width: u32, height: u32) -> Canvas {
        Canvas { size: Size::new(width, height), shades: vec![0xFF; (width * height) as usize] }
    }
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        self.size
    }
}

impl DrawTarget for Canvas {
    type Color = Gray8;
    type Error = Infallible;

    /// What lies beyond the paper is not drawn.
    fn draw_iter<I: IntoIterator<Item = Pixel<Gray8>>>(
        &mut self,
        pixels: I,
    ) -> Result<(), Infallible> {
        let Size { width, height } = self.size;
        for Pixel(place, shade) in pixels {
            let (Ok(x), Ok(y)) = (u32::try_from(place.x), u32::try_from(place.y)) else { continue };
            if x < width && y < height {
                self.shades[(y * width + x) as usize] = shade.luma();
            }
        }
        Ok(())
    }
}
