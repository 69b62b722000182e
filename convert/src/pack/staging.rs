//! A folder that appears under its final name complete, or not at all.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use w4pack_format::manifest::{MANIFEST_FILE, Manifest};
use w4pack_format::source::{Source, W4PACK_FOLDER};

use crate::ConvertError;

/// The folder in the making, a sibling of the final one; removed when dropped.
pub(super) struct Staging {
    folder: PathBuf,
    out: PathBuf,
    in_place: bool,
}

/// Checks that a folder may be written: absent, empty, or an older output of w4pack with nothing
/// else in it; and neither inside the source nor around it. Returns its path without links.
///
/// Errors name the folder and what stands in the way.
pub fn check_output(source: &dyn Source, out: &Path) -> Result<PathBuf, ConvertError> {
    let refuse = |problem: String| ConvertError::Output { out: out.display().to_string(), problem };
    if out.file_name().is_none() {
        return Err(refuse("it has no name of its own".into()));
    }
    let full = resolved(out).map_err(ConvertError::io("resolve", out))?;
    // A source on the Hub has no folder; then there is nothing to overlap with.
    if let Ok(place) = Path::new(source.label()).canonicalize() {
        // A GGUF file is a source without the folder that it lies in.
        let is_gguf = place.extension().is_some_and(|extension| extension == "gguf");
        let alone = is_gguf && place.is_file();
        let folder = if place.is_dir() || alone { place } else { parent(&place).to_path_buf() };
        if full.starts_with(&folder) {
            return Err(refuse(format!("it lies in the source `{}`", source.label())));
        }
        if folder.starts_with(&full) {
            return Err(refuse(format!("it holds the source `{}`", source.label())));
        }
    }
    match fs::read_dir(&full) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(full),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(refuse("it is a file".into()));
        }
        Err(cause) => return Err(ConvertError::io("list", out)(cause)),
        Ok(mut entries) => {
            if entries.next().is_none() {
                return Ok(full);
            }
        }
    }
    match older_output(&full).map_err(ConvertError::io("list", out))? {
        Older::Ours => Ok(full),
        Older::WithoutManifest => Err(refuse(format!(
            "it is not empty and not an output of w4pack (no readable {MANIFEST_FILE})"
        ))),
        Older::WithStranger(path) => {
            let path = path.display();
            Err(refuse(format!(
                "it holds `{path}`, which no conversion wrote and which would be lost"
            )))
        }
    }
}

/// What a folder that is not empty turned out to be.
enum Older {
    Ours,
    WithoutManifest,
    WithStranger(PathBuf),
}

/// Only what an earlier conversion wrote may be replaced: the files of its manifest, and weight
/// files and indexes of still older runs.
fn older_output(folder: &Path) -> io::Result<Older> {
    let manifest = fs::read(folder.join(MANIFEST_FILE)).ok();
    let Some(manifest) = manifest.and_then(|bytes| Manifest::parse(&bytes).ok()) else {
        return Ok(Older::WithoutManifest);
    };
    let mut pending = vec![PathBuf::new()];
    while let Some(below) = pending.pop() {
        for entry in fs::read_dir(folder.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                pending.push(path);
                continue;
            }
            let name = path.to_string_lossy();
            let of_weights = name.starts_with("model")
                && (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"));
            let written = manifest.files.iter().any(|file| file.path == name);
            if !(written || of_weights || name == MANIFEST_FILE) {
                return Ok(Older::WithStranger(path));
            }
        }
    }
    Ok(Older::Ours)
}

/// The absolute path without links, of which the last parts need not exist yet.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(error)?;
            Ok(resolved(parent(path))?.join(name))
        }
        other => other,
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

impl Staging {
    /// Makes the folder `.NAME.partial-PID` beside `out`, with `w4pack/` in it.
    pub(super) fn create(out: &Path) -> Result<Self, ConvertError> {
        let folder = Self::sibling(out, "partial");
        fs::create_dir_all(parent(out)).map_err(ConvertError::io("create", parent(out)))?;
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(ConvertError::io("remove", &folder)(error));
            }
            _ => {}
        }
        let staging = Staging { folder, out: out.to_path_buf(), in_place: false };
        let inner = staging.path(W4PACK_FOLDER);
        fs::create_dir_all(&inner).map_err(ConvertError::io("create", &inner))?;
        Ok(staging)
    }

    fn sibling(out: &Path, kind: &str) -> PathBuf {
        let name = out.file_name().unwrap_or_default().to_string_lossy();
        parent(out).join(format!(".{name}.{kind}-{}", std::process::id()))
    }

    /// The path of a file below the folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes a small file whole.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ConvertError> {
        let path = self.path(name);
        let written = fs::write(&path, bytes).and_then(|()| File::open(&path)?.sync_all());
        written.map_err(ConvertError::io("write", &path))
    }

    /// Removes an empty folder.
    pub(super) fn remove_folder(&self, name: &str) -> Result<(), ConvertError> {
        let path = self.path(name);
        fs::remove_dir(&path).map_err(ConvertError::io("remove", &path))
    }

    /// Puts the folder in place of what stands under the final name.
    pub(super) fn commit(mut self) -> Result<(), ConvertError> {
        self.make_readable().map_err(ConvertError::io("finish", &self.folder))?;
        let old = Self::sibling(&self.out, "old");
        match fs::remove_dir(&self.out) {
            // An older output: it steps aside, and comes back if the new one cannot take its place.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                fs::rename(&self.out, &old).map_err(ConvertError::io("move", &self.out))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(ConvertError::io("replace", &self.out))?,
        }
        if let Err(cause) = fs::rename(&self.folder, &self.out) {
            if old.exists() {
                fs::rename(&old, &self.out).map_err(ConvertError::io("restore", &self.out))?;
            }
            return Err(ConvertError::io("move into place", &self.out)(cause));
        }
        self.in_place = true;
        let folder = parent(&self.out);
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(ConvertError::io("flush", folder))?;
        if old.exists() {
            fs::remove_dir_all(&old).map_err(ConvertError::io("remove", &old))?;
        }
        Ok(())
    }

    /// Files 0644, folders 0755, all flushed to the disk.
    fn make_readable(&self) -> io::Result<()> {
        let folders = [self.path(W4PACK_FOLDER), self.folder.clone()];
        for folder in folders.into_iter().filter(|folder| folder.exists()) {
            for entry in fs::read_dir(&folder)? {
                let path = entry?.path();
                let mode = if path.is_dir() { 0o755 } else { 0o644 };
                fs::set_permissions(&path, Permissions::from_mode(mode))?;
                File::open(&path)?.sync_all()?;
            }
            fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
            File::open(&folder)?.sync_all()?;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.in_place {
            // Nothing more can be done about a scratch folder that cannot be removed; the error
            // that led here is the one to report.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
