//! Where a `--plot` goes: SVG or PNG, as the file's ending says.

use crate::message::Usage;
use crate::output;
use anyhow::{Context, Result};
use std::path::Path;
use w4pack_verify::picture::Picture;

/// A file for a picture.
pub struct PictureFile<'a> {
    path: &'a Path,
    format: Format,
}

enum Format {
    Svg,
    Png,
}

impl<'a> PictureFile<'a> {
    /// Errors: an ending that is neither `.svg` nor `.png`.
    pub fn new(path: &'a Path) -> Result<Self> {
        let ending = path.extension().map(|ending| ending.to_ascii_lowercase());
        let format = match ending.as_ref().and_then(|ending| ending.to_str()) {
            Some("svg") => Format::Svg,
            Some("png") => Format::Png,
            _ => {
                let message = format!("--plot `{}` is neither .svg nor .png", path.display());
                return Err(Usage::new(message).into());
            }
        };
        Ok(Self { path, format })
    }

    pub fn write(&self, picture: &Picture) -> Result<()> {
        match self.format {
            Format::Svg => output::file(self.path, picture.svg().as_bytes()),
            Format::Png => {
                let file = picture.png().context("could not make a PNG of the plot")?;
                output::file(self.path, &file)
            }
        }
    }
}
