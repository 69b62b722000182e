//! Where a checkpoint's bytes come from: named files, read by ranges.
//!
//! A folder here; `hub/` has another one, of byte ranges. Nobody above this line opens a path.

use crate::{FormatError, Result};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The subfolder that holds what w4pack adds. Other loaders read the top level only.
pub const W4PACK_FOLDER: &str = "w4pack";

/// Deeper folders than any checkpoint has are refused.
const DEPTH_LIMIT: usize = 8;

/// More than any file that is read whole: tokenizers have some 32 MiB, manifests a few.
pub const LARGEST_WHOLE: u64 = 512 << 20;

/// A file of a source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceFile {
    /// Path below the source, `/` between levels: `config.json`, `w4pack/manifest.json`.
    pub path: String,
    /// Size in bytes when the source was opened.
    pub bytes: u64,
}

/// Named files that can be read by ranges, from any thread.
pub trait Source: Send + Sync {
    /// For messages: the path or the Hub name as the user gave it.
    fn label(&self) -> &str;

    /// For records: `owner/name` on the Hub, the folder's own name on a disk.
    fn name(&self) -> &str;

    /// The commit that the name was resolved to, where there is one.
    fn revision(&self) -> Option<&str>;

    /// All files, those of subfolders too, sorted by path. Folders whose names begin with a dot are
    /// no part of a checkpoint (`.git`, a downloader's `.cache`).
    fn files(&self) -> &[SourceFile];

    /// Fills `buffer` from `offset` of a file of [`Source::files`].
    ///
    /// Errors: the file is not listed, its name leads outside, or it ends early.
    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// The size of a file, `None` if it is not there.
    fn size(&self, path: &str) -> Option<u64> {
        let files = self.files();
        let found = files.binary_search_by(|file| file.path.as_str().cmp(path)).ok()?;
        Some(files[found].bytes)
    }

    /// A whole file, of at most [`LARGEST_WHOLE`] bytes: memory is taken for what a listing says.
    fn read_file(&self, path: &str) -> Result<Vec<u8>> {
        let bytes = self.size(path).ok_or_else(|| not_listed(self.label(), path))?;
        if bytes > LARGEST_WHOLE {
            let cause = io::Error::other(format!(
                "it has {bytes} bytes; files of its kind have {LARGEST_WHOLE} at most"
            ));
            let path = format!("{}/{path}", self.label());
            return Err(FormatError::Io { attempt: "read the whole of", path, cause });
        }
        let mut content = vec![0; bytes as usize];
        self.read_at(path, 0, &mut content)?;
        Ok(content)
    }
}

fn not_listed(label: &str, path: &str) -> FormatError {
    let cause = io::Error::from(io::ErrorKind::NotFound);
    FormatError::Io { attempt: "read", path: format!("{label}/{path}"), cause }
}

/// A folder on a disk.
pub struct FolderSource {
    label: String,
    name: String,
    revision: Option<String>,
    root: PathBuf,
    files: Vec<SourceFile>,
    opened: Mutex<HashMap<String, Arc<File>>>,
}

impl FolderSource {
    /// Opens a folder, or the folder of a `model.safetensors` (or of its index). A GGUF file is
    /// opened without what lies beside it: each is a model of its own.
    ///
    /// Lists the files; opens none. A `snapshots/<commit>` folder of the Hub's cache gives its
    /// name and revision.
    pub fn open(path: &Path) -> Result<Self> {
        let failed =
            |attempt, cause| FormatError::Io { attempt, path: path.display().to_string(), cause };
        let metadata = std::fs::metadata(path).map_err(|cause| failed("open", cause))?;
        let folder = if metadata.is_dir() { path.to_path_buf() } else { folder_of_file(path)? };
        let root = folder.canonicalize().map_err(|cause| failed("resolve", cause))?;
        let is_alone = is_gguf(path) && !metadata.is_dir();
        // Messages put a file's name behind the label: it is the folder's where weights were named.
        let label = if is_alone { path } else { &folder }.display().to_string();
        let mut files = Vec::new();
        if is_alone {
            files.push(SourceFile { path: file_name(path), bytes: metadata.len() });
        } else {
            list(&root, "", &mut files)?;
        }
        files.sort();
        let (name, revision) = match hub_snapshot(&root) {
            Some((name, revision, _)) => (name, Some(revision)),
            None => (file_name(&root), None),
        };
        Ok(FolderSource { label, name, revision, root, files, opened: Mutex::default() })
    }

    /// The folder, all links resolved.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn file(&self, path: &str) -> Result<Arc<File>> {
        // A panic while the lock was held leaves a map of open files, which is still right.
        let mut opened = self.opened.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(file) = opened.get(path) {
            return Ok(file.clone());
        }
        if self.size(path).is_none() {
            return Err(not_listed(&self.label, path));
        }
        let full = self.root.join(path);
        self.check_inside(path, &full)?;
        let file = File::open(&full).map_err(|cause| FormatError::Io {
            attempt: "open",
            path: full.display().to_string(),
            cause,
        })?;
        let file = Arc::new(file);
        opened.insert(path.to_string(), file.clone());
        Ok(file)
    }

    /// A link may lead to a file below this folder, or to the blobs of the same Hub cache entry.
    fn check_inside(&self, path: &str, full: &Path) -> Result<()> {
        let resolved = full.canonicalize().map_err(|cause| FormatError::Io {
            attempt: "resolve",
            path: full.display().to_string(),
            cause,
        })?;
        let in_blobs = hub_snapshot(&self.root)
            .is_some_and(|(_, _, repository)| resolved.starts_with(repository.join("blobs")));
        if resolved.starts_with(&self.root) || in_blobs {
            return Ok(());
        }
        Err(FormatError::UnsafePath {
            path: path.into(),
            named_in: self.label.clone(),
            problem: format!("it links to `{}`, outside this folder", resolved.display()),
        })
    }
}

impl Source for FolderSource {
    fn label(&self) -> &str {
        &self.label
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }

    fn files(&self) -> &[SourceFile] {
        &self.files
    }

    fn read_at(&self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let file = self.file(path)?;
        file.read_exact_at(buffer, offset).map_err(|cause| {
            let file = format!("{}/{path}", self.label);
            if cause.kind() == io::ErrorKind::UnexpectedEof {
                FormatError::Shrunk { file, offset, wanted: buffer.len() as u64 }
            } else {
                FormatError::Io { attempt: "read", path: file, cause }
            }
        })
    }
}

/// Refuses file names that could leave the folder, as they come out of an index.
///
/// Errors: an absolute path, a `..`, a backslash, a path with more than one level.
pub fn check_file_name(name: &str, named_in: &str) -> Result<()> {
    if name.contains('/') && check_relative_path(name, named_in).is_ok() {
        return Err(unsafe_path(name, named_in, "it leads into a subfolder"));
    }
    check_relative_path(name, named_in)
}

/// Refuses paths that could leave the folder, as they come out of a manifest or a listing.
///
/// Errors: an absolute path, a `..`, a backslash, a control character (a line break in a name could
/// forge a line of a listing).
pub fn check_relative_path(name: &str, named_in: &str) -> Result<()> {
    let problem = if name.is_empty() {
        "it is empty"
    } else if name.starts_with('/') {
        "it is an absolute path"
    } else if name.contains('\\') {
        "it holds a backslash"
    } else if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        "it leads through `.`, `..` or nothing"
    } else if name.contains(char::is_control) {
        "it holds a control character"
    } else {
        return Ok(());
    };
    Err(unsafe_path(name, named_in, problem))
}

fn unsafe_path(name: &str, named_in: &str, problem: &str) -> FormatError {
    // A line break in it would begin another line of the message.
    let shown = |c: char| if c.is_control() { c.escape_unicode().to_string() } else { c.into() };
    FormatError::UnsafePath {
        path: name.chars().map(shown).collect(),
        named_in: named_in.into(),
        problem: problem.into(),
    }
}

/// Lists `folder`, whose path below the source is `prefix` (empty or ending in `/`).
fn list(folder: &Path, prefix: &str, files: &mut Vec<SourceFile>) -> Result<()> {
    if prefix.matches('/').count() > DEPTH_LIMIT {
        return Err(FormatError::UnsafePath {
            path: prefix.into(),
            named_in: folder.display().to_string(),
            problem: format!("it lies more than {DEPTH_LIMIT} folders deep"),
        });
    }
    let failed =
        |cause| FormatError::Io { attempt: "list", path: folder.display().to_string(), cause };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().into_string().map_err(|name| FormatError::UnsafePath {
            path: name.to_string_lossy().into_owned(),
            named_in: folder.display().to_string(),
            problem: "its name is not UTF-8".into(),
        })?;
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_symlink() && entry.path().is_dir() && !name.starts_with('.') {
            return Err(FormatError::UnsafePath {
                path: format!("{prefix}{name}"),
                named_in: folder.display().to_string(),
                problem: "it is a link to a folder, which can lead anywhere".into(),
            });
        }
        if kind.is_dir() {
            if !name.starts_with('.') {
                list(&entry.path(), &format!("{prefix}{name}/"), files)?;
            }
            continue;
        }
        // Follows links: a Hub cache holds nothing else. A dangling link is no file.
        let Ok(metadata) = std::fs::metadata(entry.path()) else { continue };
        if metadata.is_file() {
            files.push(SourceFile { path: format!("{prefix}{name}"), bytes: metadata.len() });
        }
    }
    Ok(())
}

fn folder_of_file(path: &Path) -> Result<PathBuf> {
    let known = ["model.safetensors", "model.safetensors.index.json"];
    if known.contains(&file_name(path).as_str()) || is_gguf(path) {
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        return Ok(folder.unwrap_or(Path::new(".")).to_path_buf());
    }
    Err(FormatError::NoCheckpoint {
        place: path.display().to_string(),
        problem: "it is a file, but neither `model.safetensors`, nor its index, nor a GGUF file"
            .into(),
    })
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// `…/models--owner--name/snapshots/<commit>` -> (`owner/name`, commit, `…/models--owner--name`).
fn hub_snapshot(root: &Path) -> Option<(String, String, PathBuf)> {
    let snapshots = root.parent()?;
    let repository = snapshots.parent()?;
    if file_name(snapshots) != "snapshots" {
        return None;
    }
    let name = file_name(repository).strip_prefix("models--")?.replacen("--", "/", 1);
    Some((name, file_name(root), repository.to_path_buf()))
}
