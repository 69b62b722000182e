//! A name resolved: one commit, and the files it has.

use crate::check::FileHash;
use crate::http::{Call, escaped};
use crate::{Hub, HubError, RepositoryName, Result};
use serde_json::Value;
use std::path::Path;
use w4pack_format::source::check_relative_path;

/// More files than any checkpoint has: a listing that goes on is refused.
const MOST_FILES: usize = 100_000;

/// A repository at one commit.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// `owner/name`.
    pub name: RepositoryName,
    /// 40 hexadecimal digits.
    pub commit: String,
    /// All files, sorted by path.
    pub files: Vec<RemoteFile>,
}

/// A file as the Hub lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Path in the repository.
    pub path: String,
    /// Size.
    pub bytes: u64,
    /// SHA-256, of files that Git has only a pointer to.
    pub sha256: Option<String>,
    /// Git's hash of what Git has.
    pub git: String,
}

impl RemoteFile {
    /// The hash by which the file is checked, and called in the cache.
    pub fn blob(&self) -> &str {
        self.sha256.as_deref().unwrap_or(&self.git)
    }

    /// Whether these are its bytes.
    pub(crate) fn is_content(&self, content: &[u8]) -> bool {
        let mut hash = FileHash::of(self);
        hash.update(content);
        hash.check("", self).is_ok()
    }

    /// Whether a folder has it, by its size.
    pub(crate) fn is_in(&self, folder: &Path) -> bool {
        std::fs::metadata(folder.join(&self.path)).is_ok_and(|found| found.len() == self.bytes)
    }
}

impl Hub {
    /// Asks once which commit a revision is, and which files it has.
    ///
    /// Errors: the Hub refuses or cannot be reached; a listing with paths that lead outside.
    pub fn resolve(&self, name: &RepositoryName, revision: &str) -> Result<Snapshot> {
        crate::name::check_revision(revision)?;
        let commit = self.head(name, revision)?;
        let files = self.list(name, &commit)?;
        Ok(Snapshot { name: name.clone(), commit, files })
    }

    /// The commit of a branch or tag.
    pub(crate) fn head(&self, name: &RepositoryName, revision: &str) -> Result<String> {
        let attempt = format!("look up `{name}` (revision {revision})");
        // A branch like refs/pr/1 is one level of the path.
        let encoded = escaped(revision).replace('/', "%2F");
        let url = format!("{}/api/models/{name}/revision/{encoded}", self.settings.endpoint);
        let (info, _) = self.http.json(&Call::get(url, attempt.as_str()))?;
        match info["sha"].as_str().filter(|sha| is_hash(sha, 40)) {
            Some(sha) => Ok(sha.to_ascii_lowercase()),
            None => Err(self.answer(attempt, "it names no commit".into())),
        }
    }

    /// The files of a commit.
    pub(crate) fn list(&self, name: &RepositoryName, commit: &str) -> Result<Vec<RemoteFile>> {
        let attempt = format!("read the file list of `{name}`");
        let first =
            format!("{}/api/models/{name}/tree/{commit}?recursive=true", self.settings.endpoint);
        let mut next = Some(first);
        let mut files: Vec<RemoteFile> = Vec::new();
        while let Some(url) = next {
            let (page, headers) = self.http.json(&Call::get(url, attempt.as_str()))?;
            let Some(entries) = page.as_array() else {
                return Err(self.answer(attempt, "it is no list".into()));
            };
            for entry in entries.iter().filter(|entry| entry["type"] != "directory") {
                let file = remote_file(entry).ok_or_else(|| {
                    self.answer(attempt.clone(), format!("it has the line {entry}"))
                })?;
                check_relative_path(&file.path, &format!("the file list of {name}"))
                    .map_err(|error| self.answer(attempt.clone(), error.to_string()))?;
                files.push(file);
            }
            if files.len() > MOST_FILES {
                return Err(self.answer(attempt, format!("it names more than {MOST_FILES} files")));
            }
            let link = headers.get("link").and_then(|value| value.to_str().ok());
            next = link.and_then(next_page).map(str::to_string);
            if entries.is_empty() && next.is_some() {
                return Err(self.answer(attempt, "it has an empty page before others".into()));
            }
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        if let Some(pair) = files.windows(2).find(|pair| pair[0].path == pair[1].path) {
            return Err(self.answer(attempt, format!("it names `{}` twice", pair[0].path)));
        }
        Ok(files)
    }

    /// The address of a file of a commit.
    pub(crate) fn file_url(&self, name: &RepositoryName, commit: &str, path: &str) -> String {
        format!("{}/{name}/resolve/{commit}/{}", self.settings.endpoint, escaped(path))
    }

    /// An answer that cannot be used.
    pub(crate) fn answer(&self, attempt: String, problem: String) -> HubError {
        HubError::Answer { attempt, host: self.settings.endpoint.clone(), problem }
    }
}

fn remote_file(entry: &Value) -> Option<RemoteFile> {
    let text = |value: &Value, digits| {
        value.as_str().filter(|hash| is_hash(hash, digits)).map(str::to_ascii_lowercase)
    };
    let sha256 = match &entry["lfs"] {
        Value::Null => None,
        lfs => Some(text(&lfs["oid"], 64)?),
    };
    Some(RemoteFile {
        path: entry["path"].as_str()?.into(),
        bytes: entry["size"].as_u64()?,
        sha256,
        git: text(&entry["oid"], 40)?,
    })
}

fn is_hash(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The address in `<https://…>; rel="next"`.
fn next_page(link: &str) -> Option<&str> {
    link.split(',').find_map(|link| {
        let (address, relation) = link.trim().strip_prefix('<')?.split_once('>')?;
        relation.contains("rel=\"next\"").then_some(address)
    })
}
