//! Room on a disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::ConvertError;

/// Bytes that an ordinary user may still write to the disk of an existing folder.
pub(super) fn free(folder: &Path) -> Result<u64, ConvertError> {
    let disk = rustix::fs::statvfs(folder)
        .map_err(|error| ConvertError::io("ask for the free space of", folder)(error.into()))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Bytes free where a folder will stand whose parents need not exist yet.
pub(crate) fn free_space(folder: &Path) -> Result<u64, ConvertError> {
    let existing = folder.ancestors().find(|folder| folder.exists());
    free(existing.unwrap_or(Path::new(".")))
}

/// Bytes that the files of a folder and of its subfolders take up. What cannot be read counts
/// nothing: the number is for a message.
pub(super) fn occupied(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let of_entry = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => occupied(&entry.path()),
        Ok(metadata) => 512 * metadata.blocks(),
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(of_entry).sum()
}
