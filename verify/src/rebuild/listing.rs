//! A listing of the source's files: path, size and hash, as the Hub's tree listing gives them; out of a
//! file, or from whoever has asked the Hub.

use serde_json::Value;
use w4pack_format::digest::sha256;
use w4pack_format::source::check_relative_path;
use w4pack_format::{FormatError, Result, json};

/// What a listing says about the source.
#[derive(Debug, Clone)]
pub struct Listing {
    /// The files.
    pub files: Vec<ListedFile>,
    /// Whose they are, where the Hub itself said so.
    pub of: Option<ListedCommit>,
}

/// A commit of a repository on the Hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedCommit {
    /// `owner/name`.
    pub name: String,
    /// 40 hexadecimal digits.
    pub commit: String,
}

/// A file of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFile {
    /// Path in the repository.
    pub path: String,
    /// Size.
    pub bytes: u64,
    /// SHA-256; `None` where the Hub gives only Git's own hash of a small file.
    pub sha256: Option<String>,
    /// Git's hash of the file as a blob: SHA-1 of `blob SIZE\0` and the content.
    pub git: Option<String>,
}

impl ListedFile {
    /// Whether the content has the listed size and hash.
    pub fn fits(&self, content: &[u8]) -> bool {
        if content.len() as u64 != self.bytes {
            return false;
        }
        match (&self.sha256, &self.git) {
            (Some(hash), _) => sha256(content) == *hash,
            (None, Some(hash)) => git_blob(content) == *hash,
            (None, None) => false,
        }
    }
}

impl Listing {
    /// Reads the answer of `https://huggingface.co/api/models/OWNER/NAME/tree/REVISION?recursive=1`
    /// (a list of objects with `path`, `size`, `oid` and, for large files, `lfs.oid`), or lines of
    /// `SHA256 SIZE PATH`.
    ///
    /// Errors: neither of them; a weight file without SHA-256; a path twice.
    pub fn parse(label: &str, content: &[u8]) -> Result<Listing> {
        let first = content.iter().find(|byte| !byte.is_ascii_whitespace());
        let files =
            if first == Some(&b'[') { of_tree(label, content)? } else { of_lines(label, content)? };
        Listing::new(label, files, None)
    }

    /// Takes files that somebody has listed; `label` is what errors call the listing.
    ///
    /// Errors: no weight file, or one without SHA-256; a path that leads outside, or is there twice.
    pub fn new(label: &str, files: Vec<ListedFile>, of: Option<ListedCommit>) -> Result<Listing> {
        let fail = |problem: String| {
            Err(FormatError::Field { file: label.into(), field: "(listing)".into(), problem })
        };
        for (number, file) in files.iter().enumerate() {
            check_relative_path(&file.path, label)?;
            if files[..number].iter().any(|earlier| earlier.path == file.path) {
                return fail(format!("it names `{}` twice", file.path));
            }
            let is_weights = file.path.ends_with(".safetensors");
            if is_weights && file.sha256.is_none() {
                return fail(format!("it gives no SHA-256 of `{}`", file.path));
            }
        }
        if !files.iter().any(|file| file.path.ends_with(".safetensors")) {
            return fail("it names no weight file".into());
        }
        Ok(Listing { files, of })
    }
}

fn of_tree(label: &str, content: &[u8]) -> Result<Vec<ListedFile>> {
    let value = json::parse(label, content)?;
    let mut files = Vec::new();
    for (number, entry) in value.as_array().into_iter().flatten().enumerate() {
        let fail = |field: &str, problem: &str| FormatError::Field {
            file: label.into(),
            field: format!("[{number}].{field}"),
            problem: problem.into(),
        };
        if entry["type"] == "directory" {
            continue;
        }
        let path = entry["path"].as_str().ok_or_else(|| fail("path", "it is no text"))?;
        let bytes = entry["size"].as_u64().ok_or_else(|| fail("size", "it is no size"))?;
        let hash = |value: &Value, digits: usize| {
            let hash = value.as_str()?.strip_prefix("sha256:").or(value.as_str())?;
            is_hash(hash, digits).then(|| hash.to_ascii_lowercase())
        };
        let sha256 = hash(&entry["lfs"]["oid"], 64).or_else(|| hash(&entry["sha256"], 64));
        let git = hash(&entry["oid"], 40);
        if sha256.is_none() && git.is_none() {
            return Err(fail("oid", "it has neither a SHA-256 nor Git's hash"));
        }
        files.push(ListedFile { path: path.into(), bytes, sha256, git });
    }
    Ok(files)
}

fn of_lines(label: &str, content: &[u8]) -> Result<Vec<ListedFile>> {
    let text = String::from_utf8_lossy(content);
    let mut files = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let word = |text: &str| {
            let (word, rest) = text.trim_start().split_once(char::is_whitespace)?;
            Some((word.to_string(), rest.trim().to_string()))
        };
        let file = (|| {
            let (hash, rest) = word(line).filter(|(hash, _)| is_hash(hash, 64))?;
            let (size, path) = word(&rest)?;
            let (bytes, sha256) = (size.parse().ok()?, Some(hash.to_ascii_lowercase()));
            Some(ListedFile { path, bytes, sha256, git: None })
        })();
        files.push(file.ok_or_else(|| FormatError::Field {
            file: label.into(),
            field: format!("line {}", number + 1),
            problem: "it is not `SHA256 SIZE PATH`, and the file is no tree listing".into(),
        })?);
    }
    Ok(files)
}

fn is_hash(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Git's hash of a file.
fn git_blob(content: &[u8]) -> String {
    use sha1::{Digest, Sha1};
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {}\0", content.len()));
    hasher.update(content);
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_are_read() {
        let hash = "a".repeat(64);
        let tree = format!(
            r#"[{{"type":"directory","path":"x"}},
                {{"type":"file","path":"model.safetensors","size":7,"oid":"{}","lfs":{{"oid":"{hash}","size":7}}}},
                {{"type":"file","path":"hello","size":6,"oid":"ce013625030ba8dba906f756967f9e9ca394464a"}}]"#,
            "b".repeat(40)
        );
        let listing = Listing::parse("tree.json", tree.as_bytes()).unwrap();
        assert_eq!(listing.files.len(), 2);
        assert_eq!(listing.files[0].sha256.as_deref(), Some(&*hash));
        // `echo hello | git hash-object --stdin`.
        assert!(listing.files[1].fits(b"hello\n") && !listing.files[1].fits(b"hallo\n"));

        let lines = format!("{hash}  7  model.safetensors\n");
        let listing = Listing::parse("lines", lines.as_bytes()).unwrap();
        assert_eq!((listing.files[0].bytes, &*listing.files[0].path), (7, "model.safetensors"));
        for wrong in ["", "x y z", "[]", "[{}]"] {
            assert!(Listing::parse("wrong", wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
