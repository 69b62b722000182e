//! From a folder to a repository, in one commit.
//!
//! ```text
//! repository (made if it is not there) -> its head, and the files it has
//!   -> preupload: which files Git holds itself, which by a pointer
//!   -> the large ones: by the chunk store if the server offers it, else by the LFS protocol
//!   -> one commit that follows the head that was looked at, or none
//!   -> the commit read back: size and SHA-256 of every file
//! ```
//!
//! Every byte is hashed while it is sent, and must be the byte that was proved. A run that broke off
//! is taken up by running it again: large files that arrived are not sent a second time.

#[cfg(feature = "chunk-store")]
mod chunk_store;
mod commit;
mod large;
mod read_back;

use crate::http::Call;
use crate::{Hub, HubError, RemoteFile, RepositoryName, Result};
use large::Route;
use serde_json::json;
use std::io::Read;
use std::path::PathBuf;

/// Git itself holds no file larger than this, whatever a server says.
const INLINE_LIMIT: u64 = 5 << 20;
/// Files asked about at once.
const PREUPLOAD_FILES: usize = 256;
/// First bytes of a file by which the Hub sees whether it is text.
const SAMPLE: usize = 512;

/// A file to be published.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Path in the repository.
    pub path: String,
    /// The file on the disk.
    pub file: PathBuf,
    /// Size of what was proved.
    pub bytes: u64,
    /// SHA-256 of what was proved.
    pub sha256: String,
}

impl Outgoing {
    /// Whether it goes as a large file even if nobody is asked.
    pub fn is_surely_large(&self) -> bool {
        let is_weights = [".safetensors", ".gguf"].iter().any(|ending| self.path.ends_with(ending));
        self.bytes > 0 && (is_weights || self.bytes > INLINE_LIMIT)
    }

    /// All of a small file. Errors: it is not what was proved.
    fn content(&self) -> Result<Vec<u8>> {
        let content =
            std::fs::read(&self.file).map_err(crate::cache::failed("read", &self.file))?;
        self.check_hash(w4pack_format::digest::sha256(&content))?;
        Ok(content)
    }

    fn check_hash(&self, found: String) -> Result<()> {
        if found == self.sha256 {
            return Ok(());
        }
        Err(HubError::Changed {
            path: self.path.clone(),
            found: format!("SHA-256 {found}"),
            wanted: self.sha256.clone(),
        })
    }

    /// Reads the whole file once. Errors: it is not what was proved.
    #[cfg(feature = "chunk-store")]
    fn check(&self) -> Result<()> {
        let io = || crate::cache::failed("read", &self.file);
        let mut file = std::fs::File::open(&self.file).map_err(io())?;
        let mut hasher = w4pack_format::digest::Hasher::default();
        let mut block = vec![0; 1 << 20];
        loop {
            let length = file.read(&mut block).map_err(io())?;
            if length == 0 {
                return self.check_hash(hasher.finish());
            }
            hasher.update(&block[..length]);
        }
    }
}

/// What is to be published, and how.
#[derive(Debug, Clone)]
pub struct Publication {
    /// Where to.
    pub name: RepositoryName,
    /// All files; none twice.
    pub files: Vec<Outgoing>,
    /// The commit's first line.
    pub title: String,
    /// As a pull request.
    pub pull_request: bool,
    /// A repository that has to be made is private; one that is there must be.
    pub private: bool,
    /// Leave the chunk store alone even where it is offered.
    pub without_chunk_store: bool,
}

/// What was published.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Published {
    /// `owner/name`.
    pub name: String,
    /// The commit.
    pub commit: String,
    /// Its page, or the pull request's.
    pub url: String,
    /// Whether the repository was made for it.
    pub created: bool,
    /// Files that were sent.
    pub sent: Vec<String>,
    /// Files that the repository had already, byte for byte.
    pub unchanged: Vec<String>,
    /// Files of the repository that this commit leaves as they were.
    pub left: Vec<String>,
    /// How large files went: `chunk store`, `LFS`, or `none`.
    pub transfer: &'static str,
}

impl Hub {
    /// Publishes.
    ///
    /// Errors: no token; the Hub refuses; weights are there that the commit would leave beside its
    /// own; somebody else commits in the meantime; a file is not what was proved; what the Hub
    /// holds afterwards is not what was sent.
    pub fn publish(&self, publication: &Publication) -> Result<Published> {
        let name = &publication.name;
        if self.settings.offline {
            return Err(HubError::Offline { attempt: format!("publish `{name}`") });
        }
        if self.settings.token.is_none() {
            return Err(HubError::NoToken { name: name.to_string() });
        }
        let (head, created) = self.repository(publication)?;
        let there = self.list(name, &head)?;
        let left = left_behind(publication, &there)?;
        let is_there = |file: &&Outgoing| there.iter().any(|other| same(file, other));
        let (unchanged, new): (Vec<&Outgoing>, Vec<&Outgoing>) =
            publication.files.iter().partition(is_there);
        let paths = |files: &[&Outgoing]| files.iter().map(|file| file.path.clone()).collect();
        let mut published = Published {
            name: name.to_string(),
            url: format!("{}/{name}/commit/{head}", self.settings.endpoint),
            commit: head.clone(),
            created,
            sent: paths(&new),
            unchanged: paths(&unchanged),
            left,
            transfer: "none",
        };
        if !new.is_empty() {
            let (large, small) = self.sort(name, new)?;
            let route = self.route(publication, &large)?;
            published.transfer = route.name();
            let made = match route {
                #[cfg(feature = "chunk-store")]
                Route::ChunkStore => self.by_chunk_store(publication, &head, &large, &small)?,
                Route::Lfs(objects) => {
                    self.send_large(name, &large, objects)?;
                    self.commit(publication, &head, &large, &small)?
                }
                Route::Nothing => self.commit(publication, &head, &large, &small)?,
            };
            (published.commit, published.url) = (made.commit, made.url);
        }
        self.read_back(name, &published.commit, &publication.files)?;
        Ok(published)
    }

    /// The head of the repository, made if it is not there.
    fn repository(&self, publication: &Publication) -> Result<(String, bool)> {
        let name = &publication.name;
        let found = self.head(name, crate::name::MAIN);
        let created = match &found {
            Err(HubError::NotFound { .. }) => {
                self.create(publication)?;
                true
            }
            _ => false,
        };
        let head = if created { self.head(name, crate::name::MAIN)? } else { found? };
        if publication.private {
            let attempt = format!("look up `{name}`");
            let url = format!("{}/api/models/{name}", self.settings.endpoint);
            let (info, _) = self.http.json(&Call::get(url, attempt))?;
            if info["private"] != true {
                return Err(HubError::Forbidden {
                    attempt: format!("publish `{name}` with --private"),
                    message: "the repository is public".into(),
                });
            }
        }
        Ok((head, created))
    }

    fn create(&self, publication: &Publication) -> Result<()> {
        let (owner, short) = publication.name.halves();
        let mut body = json!({"type": "model", "name": short, "organization": owner});
        if publication.private {
            body["visibility"] = json!("private");
        }
        let url = format!("{}/api/repos/create", self.settings.endpoint);
        let body = body.to_string();
        let attempt = format!("make the repository `{}`", publication.name);
        match self.http.send(&Call::post(url, body.as_bytes(), attempt)) {
            // Another run made it a moment ago.
            Err(HubError::Status { status: 409, .. }) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Which files are large, by the Hub's own rules and by ours.
    fn sort<'a>(
        &self,
        name: &RepositoryName,
        files: Vec<&'a Outgoing>,
    ) -> Result<(Vec<&'a Outgoing>, Vec<&'a Outgoing>)> {
        use base64::Engine;
        let (mut large, mut small) = (Vec::new(), Vec::new());
        let attempt = format!("ask how `{name}` takes its files");
        for files in files.chunks(PREUPLOAD_FILES) {
            let mut asked = Vec::new();
            for file in files {
                let io = || crate::cache::failed("read", &file.file);
                let mut sample = Vec::new();
                let opened = std::fs::File::open(&file.file).map_err(io())?;
                opened.take(SAMPLE as u64).read_to_end(&mut sample).map_err(io())?;
                let sample = base64::engine::general_purpose::STANDARD.encode(&sample);
                asked.push(json!({"path": file.path, "size": file.bytes, "sample": sample}));
            }
            let url = format!(
                "{}/api/models/{name}/preupload/{}",
                self.settings.endpoint,
                crate::name::MAIN
            );
            let body = json!({"files": asked}).to_string();
            let (answer, _) =
                self.http.json(&Call::post(url, body.as_bytes(), attempt.as_str()))?;
            for file in files {
                let said = answer["files"].as_array().into_iter().flatten();
                let Some(said) = said.into_iter().find(|said| said["path"] == file.path) else {
                    return Err(
                        self.answer(attempt, format!("it does not speak of `{}`", file.path))
                    );
                };
                if said["shouldIgnore"] == true {
                    let problem = format!("the repository's .gitignore leaves out `{}`", file.path);
                    return Err(self.answer(attempt, problem));
                }
                let is_large = said["uploadMode"] == "lfs" && file.bytes > 0;
                if is_large || file.is_surely_large() {
                    large.push(*file)
                } else {
                    small.push(*file)
                }
            }
        }
        Ok((large, small))
    }
}

/// Whether the repository has a file already, byte for byte.
fn same(file: &Outgoing, there: &RemoteFile) -> bool {
    if file.path != there.path || file.bytes != there.bytes {
        return false;
    }
    match &there.sha256 {
        Some(sha256) => *sha256 == file.sha256,
        // A file that cannot be read, or is not the proved one, counts as new, and sending it says so.
        None => !file.is_surely_large() && file.content().is_ok_and(|c| there.is_content(&c)),
    }
}

/// Files of the repository that the commit does not touch. Errors: a loader would take one of them for
/// a part of what is published.
fn left_behind(publication: &Publication, there: &[RemoteFile]) -> Result<Vec<String>> {
    let stays = |file: &&RemoteFile| publication.files.iter().all(|ours| ours.path != file.path);
    let mut left = Vec::new();
    for file in there.iter().filter(stays) {
        let endings = [".safetensors", ".safetensors.index.json", ".gguf", ".bin"];
        let is_weights = endings.iter().any(|ending| file.path.ends_with(ending));
        if is_weights || file.path.starts_with("w4pack/") {
            let (name, file) = (publication.name.to_string(), file.path.clone());
            return Err(HubError::Leftover { name, file });
        }
        left.push(file.path.clone());
    }
    Ok(left)
}
