//! Whether bytes are those that the Hub lists: by SHA-256 for large files, by Git's hash for small
//! ones.

use crate::{HubError, RemoteFile, Result};
use sha1::{Digest, Sha1};
use w4pack_format::digest::Hasher;

/// A file's hash on the way.
pub(crate) enum FileHash {
    Sha256(Hasher),
    Git(Sha1),
}

impl FileHash {
    /// For the kind of hash that is listed.
    pub fn of(file: &RemoteFile) -> FileHash {
        if file.sha256.is_some() {
            return FileHash::Sha256(Hasher::default());
        }
        let mut hasher = Sha1::new();
        hasher.update(format!("blob {}\0", file.bytes));
        FileHash::Git(hasher)
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            FileHash::Sha256(hasher) => hasher.update(bytes),
            FileHash::Git(hasher) => hasher.update(bytes),
        }
    }

    /// Errors: another hash than the listed one.
    pub fn check(self, name: &str, file: &RemoteFile) -> Result<()> {
        let (kind, found) = match self {
            FileHash::Sha256(hasher) => ("SHA-256", hasher.finish()),
            FileHash::Git(hasher) => {
                let digest = hasher.finalize();
                ("Git's hash", digest.iter().map(|byte| format!("{byte:02x}")).collect())
            }
        };
        let wanted = file.blob();
        if found == wanted {
            return Ok(());
        }
        let (name, file) = (name.to_string(), file.path.clone());
        Err(HubError::WrongHash { name, file, kind, found, wanted: wanted.into() })
    }
}
