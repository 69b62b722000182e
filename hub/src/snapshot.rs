//! A name resolved: one commit, and the files it has.

use crate::check::FileHash;
use crate::error::plain;
use crate::http::{Address, Call, escaped};
use crate::{Hub, HubError, RepositoryName, Result};
use serde_json::Value;
use std::path::Path;
use w4pack_format::source::check_relative_path;

/// More entries, and pages of them, than any checkpoint has: a listing that goes on is refused.
const MOST_ENTRIES: usize = 100_000;
const MOST_PAGES: usize = 1000;
/// More bytes than any file has; so many files of that size still have a sum in 64 bits.
const MOST_BYTES: u64 = 1 << 46;

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
        let Some(commit) = info["sha"].as_str().filter(|sha| is_hash(sha, 40)) else {
            return Err(self.answer(attempt, "it names no commit".into()));
        };
        if is_hash(revision, 40) && !revision.eq_ignore_ascii_case(commit) {
            return Err(self.answer(attempt, format!("it names another commit, {commit}")));
        }
        Ok(commit.to_ascii_lowercase())
    }

    /// The files of a commit.
    pub(crate) fn list(&self, name: &RepositoryName, commit: &str) -> Result<Vec<RemoteFile>> {
        let attempt = format!("read the file list of `{name}`");
        let first =
            format!("{}/api/models/{name}/tree/{commit}?recursive=true", self.settings.endpoint);
        let mut next = Some(first);
        let mut files: Vec<RemoteFile> = Vec::new();
        let (mut entries_seen, mut pages) = (0, 0);
        while let Some(url) = next {
            let (page, headers) = self.http.json(&Call::get(url.clone(), attempt.as_str()))?;
            let Some(entries) = page.as_array() else {
                return Err(self.answer(attempt, "it is no list".into()));
            };
            for entry in entries.iter().filter(|entry| entry["type"] != "directory") {
                let file = remote_file(entry).map_err(|problem| {
                    let line = plain(&entry.to_string());
                    self.answer(
                        attempt.clone(),
                        format!("it has the line {line}: {}", plain(&problem)),
                    )
                })?;
                files.push(file);
            }
            (entries_seen, pages) = (entries_seen + entries.len(), pages + 1);
            if entries_seen > MOST_ENTRIES {
                let problem = format!("it names more than {MOST_ENTRIES} files and folders");
                return Err(self.answer(attempt, problem));
            }
            let links = headers.get_all("link").iter().filter_map(|link| link.to_str().ok());
            next = match links.filter_map(next_page).next() {
                Some(link) => match Address::parse(&url).and_then(|here| here.join(link)) {
                    Some(address) => Some(address.as_str().to_string()),
                    None => {
                        let problem = "its next page is at an address that is none";
                        return Err(self.answer(attempt, problem.into()));
                    }
                },
                None => None,
            };
            if next.is_some() && (entries.is_empty() || pages == MOST_PAGES) {
                let problem = format!("it goes on after an empty page, or {MOST_PAGES} of them");
                return Err(self.answer(attempt, problem));
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

/// A line of the listing; else what is wrong with it.
fn remote_file(entry: &Value) -> std::result::Result<RemoteFile, String> {
    let hash = |value: &Value, digits: usize, what: &str| {
        let hash = value.as_str().filter(|hash| is_hash(hash, digits));
        hash.map(str::to_ascii_lowercase).ok_or_else(|| format!("{what} is no hash"))
    };
    let path = entry["path"].as_str().ok_or("`path` is no text")?;
    check_relative_path(path, "the list").map_err(|error| error.to_string())?;
    let bytes = entry["size"].as_u64().filter(|bytes| *bytes <= MOST_BYTES);
    let bytes = bytes.ok_or("`size` is no size")?;
    let lfs = &entry["lfs"];
    let sha256 = if lfs.is_null() { None } else { Some(hash(&lfs["oid"], 64, "`lfs.oid`")?) };
    if lfs["size"].as_u64().is_some_and(|large| large != bytes) {
        return Err("`size` and `lfs.size` differ".into());
    }
    Ok(RemoteFile { path: path.into(), bytes, sha256, git: hash(&entry["oid"], 40, "`oid`")? })
}

pub(crate) fn is_hash(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The address in `<https://…>; rel="next"`, one of several that commas part.
fn next_page(links: &str) -> Option<&str> {
    let (_, mut rest) = links.split_once('<')?;
    loop {
        let (address, parameters) = rest.split_once('>')?;
        // Commas may stand in addresses too: the next link begins where its `<` does.
        let end = parameters.find('<').unwrap_or(parameters.len());
        let mut parameters_here = parameters[..end].split([';', ',']).map(str::trim);
        if parameters_here.any(|parameter| matches!(parameter, "rel=\"next\"" | "rel=next")) {
            return Some(address);
        }
        rest = parameters.get(end + 1..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_among_links() {
        for (links, next) in [
            ("<https://h/a?c=1,2>; rel=\"next\"", Some("https://h/a?c=1,2")),
            ("<https://h/a>; rel=\"prev\", </b>; rel=next", Some("/b")),
            ("</b>; title=\"x\"; rel=\"next\", </c>; rel=\"last\"", Some("/b")),
            ("<https://h/a>; rel=\"last\"", None),
            ("<https://h/a", None),
            ("", None),
        ] {
            assert_eq!(next_page(links), next, "{links}");
        }
    }
}
