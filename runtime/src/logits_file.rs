//! `--logits FILE`: the logits of a run as a safetensors file.

use crate::error::{Result, RuntimeError};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use w4pack_format::dtype::Dtype;
use w4pack_format::header::Header;

/// Writes `logits` (`[rows, vocabulary]`, row-major) as the tensor `logits`, f32.
///
/// The file appears under its name only when it is whole. Errors: the length is no whole number
/// of rows; the system refuses.
pub fn write_logits(path: &Path, logits: &[f32], vocabulary: usize) -> Result<()> {
    if vocabulary == 0 || !logits.len().is_multiple_of(vocabulary) {
        return Err(RuntimeError::Setting {
            name: "logits",
            value: format!("{} numbers", logits.len()),
            expected: format!("rows of {vocabulary}"),
        });
    }
    let shape = vec![logits.len() / vocabulary, vocabulary];
    let header = Header::lay_out(&[("logits".into(), Dtype::F32, shape)])?;
    let fail = |cause| RuntimeError::Write { path: path.display().to_string(), cause };

    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let written = write(partial, &header, logits).and_then(|()| std::fs::rename(partial, path));
    if written.is_err() {
        // The write's own error is the one to report.
        let _ = std::fs::remove_file(partial);
    }
    written.map_err(fail)
}

fn write(path: &Path, header: &Header, logits: &[f32]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&header.prefix())?;
    for logit in logits {
        file.write_all(&logit.to_le_bytes())?;
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}
