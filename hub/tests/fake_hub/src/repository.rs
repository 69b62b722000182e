//! What the Hub keeps of a repository: commits, each with all its files.

use serde_json::{Value, json};
use sha1::Digest;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A file of a commit.
#[derive(Debug, Clone)]
pub struct Entry {
    /// All of it.
    pub content: Arc<Vec<u8>>,
    /// Whether Git has only a pointer to it.
    pub large: bool,
}

impl Entry {
    /// SHA-256 of the content.
    pub fn sha256(&self) -> String {
        hex(&sha2::Sha256::digest(&**self.content))
    }

    /// Git's hash of what Git has: the content, or the pointer.
    pub fn git(&self) -> String {
        let pointer = || {
            format!(
                "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n",
                self.sha256(),
                self.content.len()
            )
        };
        let bytes = if self.large { pointer().into_bytes() } else { self.content.to_vec() };
        let mut hasher = sha1::Sha1::new();
        hasher.update(format!("blob {}\0", bytes.len()));
        hasher.update(&bytes);
        hex(&hasher.finalize())
    }

    /// Its line of a tree listing.
    pub fn listed(&self, path: &str) -> Value {
        let size = self.content.len();
        let mut line = json!({"type": "file", "path": path, "size": size, "oid": self.git()});
        if self.large {
            line["lfs"] = json!({"oid": self.sha256(), "size": size, "pointerSize": 134});
        }
        line
    }
}

/// A commit.
#[derive(Debug, Clone)]
pub struct Commit {
    /// 40 hexadecimal digits.
    pub id: String,
    /// All files by path.
    pub files: BTreeMap<String, Entry>,
    /// The first line of its message.
    pub title: String,
}

/// Who may read a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everybody.
    Public,
    /// Its owner; others are not told that it exists.
    Private,
    /// Those who have accepted its terms, who are nobody here.
    Gated,
}

/// A repository.
#[derive(Debug, Clone)]
pub struct Repository {
    /// Who may read it.
    pub access: Access,
    /// All commits, the oldest first.
    pub commits: Vec<Commit>,
    /// Branches: name -> commit.
    pub branches: BTreeMap<String, String>,
}

impl Repository {
    /// With one commit that holds the file every new repository has.
    pub fn new(name: &str, access: Access) -> Repository {
        let mut repository = Repository { access, commits: Vec::new(), branches: BTreeMap::new() };
        let attributes = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n".to_vec();
        let entry = Entry { content: Arc::new(attributes), large: false };
        let files = BTreeMap::from([(".gitattributes".to_string(), entry)]);
        repository.commit("main", files, name);
        repository
    }

    /// Makes a commit of these files, and moves the branch.
    pub fn commit(&mut self, branch: &str, files: BTreeMap<String, Entry>, title: &str) -> String {
        let mut hasher = sha1::Sha1::new();
        hasher.update(format!("{branch} {title} {}", self.commits.len()));
        for (path, entry) in &files {
            hasher.update(format!("{path} {}", entry.git()));
        }
        let id = hex(&hasher.finalize());
        self.commits.push(Commit { id: id.clone(), files, title: title.into() });
        self.branches.insert(branch.into(), id.clone());
        id
    }

    /// The commit that a branch or an id names.
    pub fn find(&self, revision: &str) -> Option<&Commit> {
        let id = self.branches.get(revision).map_or(revision, String::as_str);
        self.commits.iter().find(|commit| commit.id == id)
    }
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
