//! A folder to publish, a Hub to publish it on, and somebody who listens.

#[path = "../../../testing/in_time.rs"]
mod in_time;
#[path = "../../../testing/nobody.rs"]
mod nobody;

pub use in_time::in_time;
pub use nobody::Nobody;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use w4pack_fake_hub::repository::Access;
use w4pack_fake_hub::{FakeHub, Logged, Port};
use w4pack_format::digest::sha256;
use w4pack_hub::publish::{Outgoing, Publication};
use w4pack_hub::{Hub, Progress, RepositoryName, Retry, Settings, Token};

pub const NAME: &str = "somebody/model";

/// A Hub with one repository, and a client with an empty cache.
pub struct Scene {
    pub fake: FakeHub,
    pub commit: String,
    pub folder: TempDir,
    pub cache: TempDir,
    pub heard: Arc<Heard>,
}

impl Scene {
    pub fn new() -> Scene {
        Scene::with(Access::Public)
    }

    pub fn with(access: Access) -> Scene {
        let fake = FakeHub::start();
        let folder = checkpoint();
        let commit = fake.publish(NAME, folder.path(), access);
        let cache = tempfile::tempdir().unwrap();
        Scene { fake, commit, folder, cache, heard: Arc::default() }
    }

    pub fn settings(&self) -> Settings {
        Settings {
            endpoint: self.fake.endpoint(),
            token: None,
            reads_without_token: false,
            cache: self.cache.path().into(),
            offline: false,
            retry: Retry {
                tries: 3,
                first_wait: Duration::from_millis(1),
                longest_wait: Duration::from_secs(2),
                // Longer than this machine stands still: one request more, and counts would be wrong.
                silence: Duration::from_secs(120),
            },
        }
    }

    /// Without a token.
    pub fn hub(&self) -> Arc<Hub> {
        self.hub_as(None)
    }

    pub fn hub_as(&self, token: Option<&str>) -> Arc<Hub> {
        let token = token.map(|token| Token::new(token, "a test").unwrap());
        Hub::new(Settings { token, ..self.settings() }, self.heard.clone()).unwrap()
    }

    /// Requests for files, by the bytes that they ask for.
    pub fn ranges(&self, port: Port, holds: &str) -> Vec<String> {
        let is_it = |logged: &&Logged| logged.request.path.contains(holds);
        let range = |logged: &Logged| logged.request.header("range").unwrap_or("all").to_string();
        self.fake.requests(port).iter().filter(is_it).map(range).collect()
    }

    pub fn blob(&self, file: &str) -> PathBuf {
        let content = std::fs::read(self.folder.path().join(file)).unwrap();
        self.cache.path().join("models--somebody--model/blobs").join(sha256(&content))
    }
}

pub fn name() -> RepositoryName {
    NAME.parse().unwrap()
}

/// A large file, a small one, and one in a folder.
pub fn checkpoint() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let put = |path: &str, content: Vec<u8>| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    };
    put("config.json", b"{\"model_type\": \"none\"}\n".to_vec());
    put("model.safetensors", noise(3 << 20));
    put("w4pack/manifest.json", b"{}\n".to_vec());
    put("empty.txt", Vec::new());
    folder
}

/// Bytes without a pattern.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

/// All files of a folder: path and content.
pub fn contents(folder: &Path, names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().map(|name| std::fs::read(folder.join(name)).unwrap()).collect()
}

/// A publication of a folder's files.
pub fn publication(folder: &Path, repository: &str) -> Publication {
    let paths = ["config.json", "model.safetensors", "w4pack/manifest.json", "empty.txt"];
    let outgoing = |path: &&str| {
        let file = folder.join(path);
        let content = std::fs::read(&file).unwrap();
        Outgoing {
            path: (*path).into(),
            bytes: content.len() as u64,
            sha256: sha256(&content),
            file,
        }
    };
    Publication {
        name: repository.parse().unwrap(),
        files: paths.iter().map(outgoing).collect(),
        title: "packed".into(),
        pull_request: false,
        private: false,
        without_chunk_store: false,
    }
}

/// Keeps what it is told.
#[derive(Default)]
pub struct Heard {
    pub notes: Mutex<Vec<String>>,
    pub stages: Mutex<Vec<(&'static str, u64)>>,
    pub bytes: std::sync::atomic::AtomicU64,
}

impl Heard {
    pub fn notes(&self) -> String {
        self.notes.lock().unwrap().join("\n")
    }
}

impl Progress for Heard {
    fn begin(&self, stage: &'static str, bytes: u64) {
        self.stages.lock().unwrap().push((stage, bytes));
    }

    fn advance(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
    }

    fn note(&self, text: &str) {
        self.notes.lock().unwrap().push(text.into());
    }
}
